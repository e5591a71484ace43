"""Running queries that are paused between two batches."""

from __future__ import annotations

from datetime import timedelta
from threading import Event, Timer

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupStateTimeout

from containers.engine import Emptied
from containers.spark.gate import pause
from containers.spark.task import StageTask
from containers.state.offsets.offsetlog import END_OF_TIME
from tests.spark.conftest import SOON, Bench
from tests.spark.drainworld import IN, Drained, windowed
from tests.spark.operators import BY_KEY, EVENTS, grouped, joined

pytestmark = pytest.mark.spark


def more_events(count: int, first: int) -> list[object]:
    return [{"t": first + second, "k": "ab"[second % 2]} for second in range(count)]


def test_a_held_query_reads_nothing_until_it_is_released(log_first: Bench) -> None:
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, windowed)
    held, (query,) = drained.pauses(), log_first.queries
    before = drained.committed
    log_first.feed(more_events(5, first=1025), batch=1)
    assert held.gate.reached.wait(SOON.total_seconds())
    assert drained.committed == before
    held.resume()
    query.processAllAvailable()
    assert drained.committed > before
    assert log_first.stop(query)
    drained.flusher().flush()
    assert drained.counted() == 30


def test_a_drain_runs_its_batches_in_the_held_query(log_first: Bench) -> None:
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, windowed, max_rows=10)
    held, (query,) = drained.pauses(), log_first.queries
    before = drained.committed
    log_first.feed([*more_events(10, first=9000), *more_events(10, first=1025)], batch=1)
    ends = drained.ends()
    log_first.feed(more_events(7, first=9000), batch=2)
    flusher = drained.flusher(paused=held)
    assert not flusher.finish_interrupted()
    assert flusher.advance(ends) == 2
    assert {drained.plan(batch).watermark for batch in range(before, before + 3)} == {drained.plan(before).watermark}
    assert flusher.flush() == Emptied(before + 3)
    assert held.end(SOON, Event())
    assert query.exception() is None
    assert drained.committed == before + 3
    assert drained.plan(before + 3).watermark == END_OF_TIME
    assert drained.plan(before + 3).positions([*{ssp.stream_id for ssp in ends}]) == ends
    assert drained.counted() == 45
    assert drained.writers == 0


def test_a_query_that_has_not_run_a_batch_since_its_start_is_flushed_in_place(log_first: Bench) -> None:
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, windowed).runs()
    held = drained.pauses()
    assert drained.flusher(paused=held).flush().rows_left == 0
    assert held.end(SOON, Event())
    assert drained.counted() == 25


def test_a_query_that_never_ran_a_batch_reads_the_rest_of_the_input_in_place(log_first: Bench) -> None:
    drained = Drained(log_first, windowed)
    held = drained.pauses()  # without input no batch is planned
    log_first.feed(EVENTS, batch=0)
    flusher = drained.flusher(paused=held)
    assert flusher.advance(drained.ends()) == 1
    assert flusher.flush().rows_left == 0
    assert held.end(SOON, Event())
    assert drained.counted() == 25


def test_a_query_can_continue_from_state_that_was_flushed_in_place(log_first: Bench) -> None:
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, windowed)
    held = drained.pauses()
    flushed = drained.flusher(paused=held).flush()
    assert held.end(SOON, Event())
    again = drained.flusher()
    assert not again.finish_interrupted()
    assert again.flush() == Emptied(flushed.batch + 1)
    assert drained.counted() == 25


@pytest.mark.long
def test_a_query_with_two_sources_is_held_at_both(log_first: Bench) -> None:
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, joined("left_outer"))
    held = drained.pauses()
    log_first.feed(more_events(4, first=1025), batch=1)
    flusher = drained.flusher(paused=held)
    flusher.advance(drained.ends())
    assert flusher.flush().rows_left == 0
    assert held.end(SOON, Event())
    assert len(drained.output()) == 15


@pytest.mark.long
def test_to_fire_timeouts_of_processing_time_a_flush_ends_the_held_query_and_starts_others(log_first: Bench) -> None:
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, grouped(GroupStateTimeout.ProcessingTimeTimeout)).runs_once()
    query = log_first.start(drained.grant, drained.stage)
    held = pause(log_first.spark, query, SOON, Event())
    assert held is not None
    log_first.endings.callback(held.end, SOON, Event())
    assert drained.flusher(paused=held).flush().rows_left == 0
    assert held.end(SOON, Event())
    assert {(row["k"], row["n"]) for row in drained.output()} == set(BY_KEY)


class Sink:
    def __init__(self) -> None:
        self.begun, self.go = Event(), Event()
        self.fails = False
        self.rows = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.begun.set()
        assert self.go.wait(60)
        if self.fails:
            raise ValueError("the sink is full")
        self.rows += batch.count()

    def stage(self, task: StageTask) -> DataStreamWriter:
        return task.read(IN).select(F.col("value")).writeStream.foreachBatch(self)


def test_a_query_is_held_after_its_running_batch(log_first: Bench) -> None:
    sink = Sink()
    drained = Drained(log_first, sink.stage)
    log_first.feed(EVENTS, batch=0)
    query = log_first.start(drained.grant, sink.stage)
    assert sink.begun.wait(60)
    Timer(0.5, sink.go.set).start()
    held = pause(log_first.spark, query, SOON, Event())
    assert held is not None
    assert drained.committed == 0
    assert sink.rows == 25
    assert held.end(SOON, Event())


@pytest.mark.parametrize("interrupt_batches", ["the deadline", "forced"])
def test_a_query_that_cannot_be_held_in_time_continues(log_first: Bench, interrupt_batches: str) -> None:
    sink, forced = Sink(), Event()
    drained = Drained(log_first, sink.stage)
    log_first.feed(EVENTS, batch=0)
    query = log_first.start(drained.grant, sink.stage)
    assert sink.begun.wait(60)
    if interrupt_batches == "forced":
        forced.set()
    assert pause(log_first.spark, query, SOON if interrupt_batches == "forced" else timedelta(), forced) is None
    sink.go.set()
    log_first.feed(more_events(5, first=2000), batch=1)
    query.processAllAvailable()
    assert sink.rows == 30
    assert log_first.stop(query)


def test_a_batch_that_fails_in_the_held_query_is_finished_as_an_interrupted_batch(log_first: Bench) -> None:
    sink = Sink()
    sink.go.set()
    drained = Drained(log_first, sink.stage)
    log_first.feed(EVENTS, batch=0)
    held = drained.pauses()
    log_first.feed(more_events(5, first=2000), batch=1)
    sink.fails = True
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        drained.flusher(paused=held).advance(drained.ends())
    held.end(SOON, Event())
    sink.fails = False
    again = drained.flusher()
    assert again.finish_interrupted()
    assert again.advance(drained.ends()) == 0
    assert sink.rows == 30
