"""The batches of a drain on real Spark: the interrupted one, the rest of the input, and the flush."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.engine import Emptied
from containers.spark.task import StageTask
from containers.state.checkpoint import write_offset_log
from containers.state.offsets.offsetlog import END_OF_TIME
from tests.spark.conftest import Bench
from tests.spark.drainworld import OUT, Drained, events, windowed

pytestmark = pytest.mark.spark


def some_events(count: int, first: int = 1000) -> list[object]:
    return [{"t": first + second, "k": "ab"[second % 2]} for second in range(count)]


def test_a_flush_closes_every_window_and_reads_nothing(log_first: Bench) -> None:
    log_first.feed(some_events(25), batch=0)
    drained = Drained(log_first, windowed).runs()
    before = drained.committed
    assert drained.counted() == 10
    log_first.feed(some_events(5, first=5000), batch=1)
    assert drained.flusher().flush() == Emptied(before + 1)
    assert drained.counted() == 25
    assert drained.plan(before + 1).watermark == END_OF_TIME
    assert drained.plan(before + 1).sources == drained.plan(before).sources


def test_a_flush_may_be_run_again(log_first: Bench) -> None:
    log_first.feed(some_events(25), batch=0)
    drained = Drained(log_first, windowed).runs()
    drained.flusher().flush()
    assert drained.flusher().flush().rows_left == 0
    assert drained.counted() == 25


def test_a_flush_that_was_planned_and_not_run_is_finished_as_an_interrupted_batch(log_first: Bench) -> None:
    log_first.feed(some_events(25), batch=0)
    drained = Drained(log_first, windowed).runs()
    batch = drained.committed
    write_offset_log(drained.directory, batch + 1, drained.plan(batch).at(END_OF_TIME, END_OF_TIME).text)
    flusher = drained.flusher()
    assert flusher.finish_interrupted()
    assert not flusher.finish_interrupted()
    assert drained.committed == batch + 1
    assert drained.counted() == 25
    assert drained.writers == 1


def test_the_rest_of_the_input_is_read_in_bounded_batches_with_the_watermark_of_the_last_batch(log_first: Bench) -> None:
    log_first.feed(some_events(4), batch=0)
    drained = Drained(log_first, windowed, max_rows=10).runs()
    before = drained.committed
    ahead, behind = some_events(20, first=9000), some_events(20, first=1004)
    log_first.feed([*ahead, *behind], batch=1)
    ends = drained.ends()
    log_first.feed(some_events(7, first=1004), batch=2)
    flusher = drained.flusher()
    assert flusher.advance(ends) == 4
    plans = [drained.plan(batch) for batch in range(before, before + 5)]
    assert {plan.watermark for plan in plans} == {plans[0].watermark}
    assert plans[-1].positions([*{ssp.stream_id for ssp in ends}]) == ends
    assert flusher.advance(ends) == 0
    flusher.flush()
    assert drained.counted() == 44


def test_a_stage_that_never_ran_a_batch_reads_the_rest_of_the_input_too(log_first: Bench) -> None:
    drained = Drained(log_first, windowed)
    log_first.stores.prepare(drained.grant.task, drained.grant.stage, drained.grant.lineage, None)
    log_first.feed(some_events(25), batch=0)
    flusher = drained.flusher()
    assert not flusher.finish_interrupted()
    assert flusher.flush() == Emptied(-1)
    assert flusher.advance(drained.ends()) == 1
    assert flusher.flush().rows_left == 0
    assert drained.counted() == 25


def test_a_stage_without_state_has_nothing_to_flush(log_first: Bench) -> None:
    def stateless(task: StageTask) -> DataStreamWriter:
        return task.write(events(task, watermark=None), OUT)

    log_first.feed(some_events(3), batch=0)
    drained = Drained(log_first, stateless).runs()
    before = drained.committed
    assert drained.flusher().flush() == Emptied(before)
    assert drained.committed == before


def test_the_planned_first_batch_equals_the_one_that_spark_writes(log_first: Bench, tmp_path: Path) -> None:
    log_first.feed(some_events(4), batch=0)
    by_spark = Drained(log_first, windowed).runs()
    by_us = Drained(Bench(log_first.spark, tmp_path / "other", log_first.topics), windowed)
    by_us.bench.stores.prepare(by_us.grant.task, by_us.grant.stage, by_us.grant.lineage, None)
    by_us.bench.feed(some_events(4), batch=0)
    by_us.flusher().advance(by_us.ends())
    assert sources(by_us) == sources(by_spark)
    assert by_us.plan(0).metadata["conf"] == by_spark.plan(0).metadata["conf"]


def sources(drained: Drained) -> list[object]:
    """The sources in the plan of the first batch, with the job's names of streams. They are parsed, because Spark's whitespace differs."""
    return [json.loads(source.replace(drained.bench.prefix, "")) for source in drained.plan(0).sources]
