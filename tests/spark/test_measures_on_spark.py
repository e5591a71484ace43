"""What Spark reports about batches, as far as the metrics of containers depend on it."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.listener import BatchDone, Listener
from containers.spark.task import StageTask
from containers.state.offsets.offsetlog import positions_of
from sluice.core.ids import Ssp, StreamId
from sluice.job import Input, Output
from tests.spark.conftest import Bench

pytestmark = pytest.mark.spark

IN, OUT = Input("in"), Output("out")
READS = [StreamId("log", "in")]
BASE = datetime(2013, 1, 1, tzinfo=UTC)


class RecordingListener:
    def __init__(self) -> None:
        self.batches: queue.Queue[BatchDone] = queue.Queue()
        self.idle: queue.Queue[str] = queue.Queue()
        self.listener = Listener(self.batches.put, lambda ended: None, self.idle.put)

    def batch(self) -> BatchDone:
        return self.batches.get(timeout=60)


@pytest.fixture
def listener(bench: Bench) -> Iterator[RecordingListener]:
    made = RecordingListener()
    bench.spark.streams.addListener(made.listener)
    yield made
    bench.spark.streams.removeListener(made.listener)


def copy(task: StageTask) -> DataStreamWriter:
    return task.write(task.read(IN).selectExpr("cast(value as string) v"), OUT, value="v")


def counted(task: StageTask) -> DataStreamWriter:
    """Windows of a minute over numbers that are seconds after BASE."""
    at = (F.col("value").cast("string").cast("bigint") + int(BASE.timestamp())).cast("timestamp").alias("at")
    rows = task.read(IN).select(at).withWatermark("at", "10 seconds")
    return task.write(rows.groupBy(F.window("at", "1 minute")).count(), OUT)


def test_a_batch_reports_the_ends_of_its_input(bench: Bench, listener: RecordingListener) -> None:
    bench.max_rows = 100
    bench.feed(range(250), batch=0)
    bench.run_until_read(bench.grant("in"), copy)
    batches = [listener.batch() for _ in range(3)]
    assert [each.rows for each in batches] == [100, 100, 50]
    ends = {Ssp("log", "in", 0): 125, Ssp("log", "in", 1): 125}
    assert [positions_of(each.latest, READS) for each in batches] == [ends] * 3
    assert [sum(positions_of(each.positions, READS).values()) for each in batches] == [100, 200, 250]


def test_the_durations_of_the_parts_of_a_batch_are_within_its_duration(bench: Bench, listener: RecordingListener) -> None:
    bench.feed(range(10), batch=0)
    bench.run_until_read(bench.grant("in"), copy)
    done = listener.batch()
    assert {"addBatch", "queryPlanning", "walCommit", "latestOffset", "commitOffsets"} <= done.parts_ms.keys()
    assert sum(done.parts_ms.values()) <= done.duration_ms + len(done.parts_ms)  # each is rounded


def test_a_stage_without_state_or_watermark_reports_none(bench: Bench, listener: RecordingListener) -> None:
    bench.feed(range(10), batch=0)
    bench.run_until_read(bench.grant("in"), copy)
    done = listener.batch()
    assert (done.state, done.watermark, done.event_time_max) == (None, None, None)


def test_a_stage_with_state_reports_its_size_and_its_watermark(bench: Bench, listener: RecordingListener) -> None:
    grant = bench.grant("in")
    bench.feed([0, 30, 70], batch=0)
    bench.run_until_read(grant, counted)
    first = listener.batch()
    assert first.state is not None
    assert (first.state.rows, first.state.dropped_late) == (2, 0)
    assert first.state.memory_bytes > 0
    assert (first.watermark, first.event_time_max) == (None, BASE.replace(minute=1, second=10))
    after = listener.batch()
    assert after.rows == 0, "Spark runs a batch without rows to move the watermark on"
    assert after.watermark == BASE.replace(minute=1)
    assert after.state is not None
    assert after.state.rows == 1, "the window of the first minute is closed"


def test_late_rows_are_counted(bench: Bench, listener: RecordingListener) -> None:
    grant = bench.grant("in")
    bench.feed([0, 300], batch=0)
    bench.run_until_read(grant, counted)
    bench.feed([5], batch=1)
    bench.run_until_read(grant, counted)
    seen = [listener.batch(), listener.batch(), listener.batch()]
    assert [each.state.dropped_late for each in seen if each.state] == [0, 0, 1]


def test_a_query_that_finds_nothing_to_read_reports_that_it_is_idle(bench: Bench, listener: RecordingListener) -> None:
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    bench.spark.conf.set(interval, "100ms")
    try:
        query = bench.start(bench.grant("in"), copy)
        assert listener.batch().rows == 0, "the first batch of a query is run in any case"
        assert listener.idle.get(timeout=60) == str(query.runId)
        bench.feed(range(10), batch=0)
        assert listener.batch().rows == 10
        while listener.idle.get(timeout=60) != str(query.runId):
            pass
    finally:
        bench.spark.conf.unset(interval)
