"""A query that reads several partitions of an input waits for the slowest of them; and the progress that queries report."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.caps import CommittedBatch, StageCaps, natural_watermark
from containers.spark.flush import Flusher
from containers.spark.installation import GatedStarts
from containers.spark.listener import BatchDone, Listener
from containers.spark.operators import LogicalPlan
from containers.spark.query import start_query
from containers.spark.task import StageTask, event_time_of
from containers.spark.watermark import Capping, WatermarkGate
from containers.state.offsets.offsetlog import from_millis
from sluice.clock import SystemClock
from sluice.core.ids import Ssp, StreamId
from sluice.core.watermarks import FeederProgress, ProgressSource
from sluice.job import Input
from sluice.streams.log import Record, Writer
from tests.spark.conftest import Bench
from tests.spark.drainworld import OUT, Stage

pytestmark = pytest.mark.spark

TIMED, UNTIMED = Input("in", event_time="t"), Input("in")
BY_EXPRESSION = Input("in", event_time="timestamp_seconds(cast(get_json_object(cast(value as string), '$.t') as long))")
TEN_SECONDS = timedelta(seconds=10)
READS = [StreamId("log", "in")]


def parsed(task: StageTask, stream: Input) -> DataFrame:
    event = F.from_json(F.col("value").cast("string"), "t long").alias("r")
    return task.read(stream).select(event).select(F.timestamp_seconds("r.t").alias("t"))


def windowed(stream: Input) -> Stage:
    def stage(task: StageTask) -> DataStreamWriter:
        counts = parsed(task, stream).withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds")).count()
        return task.write(counts.select(F.unix_timestamp("window.start").alias("start"), "count"), OUT).outputMode("append")

    return stage


@dataclass
class Running:
    """A stage that runs with its caps, as in the engine."""

    bench: Bench
    starts: GatedStarts
    stage: Stage
    progress: queue.Queue[FeederProgress] = field(default_factory=queue.Queue)
    observed: dict[Ssp, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.grant = self.bench.grant("in")
        self.directory = self.bench.stores.prepare(self.grant.task, self.grant.stage, self.grant.lineage, None)

    def run(self) -> Running:
        """Run the stage until everything is read."""
        task = self.bench.task(self.grant)
        writer = self.stage(task)
        caps = StageCaps(
            self.directory,
            LogicalPlan.of(writer).watermarks,
            READS,
            [],
            self.grant.starts,
            task.timed,
            lambda: {},
            task.writes_event_time,
            SystemClock(),
        )

        def committed(done: BatchDone) -> None:
            batch = CommittedBatch.of(done, READS)
            self.observed |= batch.partitions
            self.progress.put(caps.committed(batch))

        name = str(self.bench.root)
        listener = Listener(committed, lambda ended: None, on_started=self.starts.on_started)
        self.bench.spark.streams.addListener(listener)
        self.bench.endings.callback(self.bench.spark.streams.removeListener, listener)
        start: Callable[[], StreamingQuery] = lambda: start_query(self.bench.spark, writer, name, self.directory, timedelta(seconds=0.1))  # noqa: E731
        capping = Capping(caps.caps_at, natural_watermark(self.directory), caps.planned, caps.stateful)
        gates = [lambda execution: WatermarkGate(self.bench.spark, execution, capping)] if caps.limited else []
        query = self.starts.start(name, start, last=gates) if gates else start()
        self.bench.queries.append(query)
        query.processAllAvailable()
        assert self.bench.stop(query)
        return self

    def flush(self) -> Running:
        writer = lambda: self.stage(self.bench.task(self.grant))  # noqa: E731
        Flusher(self.bench.spark, self.directory, "flushed", writer, self.grant.starts, 1000, SystemClock()).flush()
        return self

    def counted(self) -> int:
        return sum(json.loads(value)["count"] for value in self.bench.values("out"))

    def last_progress(self) -> FeederProgress:
        found = self.progress.get(timeout=60)
        while not self.progress.empty():
            found = self.progress.get()
        return found


@pytest.fixture
def starts(bench: Bench) -> GatedStarts:
    return GatedStarts(bench.spark)


def feed(bench: Bench) -> None:
    """Partition 0 spans 5,000 s with 50 events, partition 1 with 250. A batch reads equal numbers of both."""
    bench.max_rows = 50
    times = [(1000 + 100 * n, 0) for n in range(50)] + [(1000 + 20 * n, 1) for n in range(250)]
    records = [Record(json.dumps({"t": at}).encode(), partition=partition) for at, partition in times]
    assert bench.log.append(
        "in", records, writer=Writer(bench.grant("in").lineage, "feeder", bench.grant("in").generation), batch=0, now_micros=1
    )


@pytest.mark.parametrize(
    "stream", [TIMED, UNTIMED, pytest.param(BY_EXPRESSION, marks=pytest.mark.long)], ids=["event_time", "no event_time", "an expression"]
)
def test_the_watermark_of_a_query_waits_for_the_slowest_of_its_partitions(bench: Bench, starts: GatedStarts, stream: Input) -> None:
    feed(bench)
    running = Running(bench, starts, windowed(stream)).run().flush()
    assert running.counted() == 300


def test_a_write_that_names_the_event_time_reports_the_newest_and_does_not_write_it(bench: Bench, starts: GatedStarts) -> None:
    feed(bench)
    running = Running(
        bench, starts, lambda task: task.write(parsed(task, TIMED).select("t", F.lit(1).alias("n")), OUT, value=F.lit("x"), event_time="t")
    ).run()
    assert running.last_progress() == FeederProgress(from_millis(5_980_000), timedelta(0), ProgressSource.COLUMN)
    assert set(bench.values("out")) == {"x"}


def test_a_stateless_query_with_a_watermark_reports_its_watermark_after_the_batch(bench: Bench, starts: GatedStarts) -> None:
    feed(bench)
    running = Running(bench, starts, lambda task: task.write(parsed(task, TIMED).withWatermark("t", "10 seconds"), OUT)).run()
    assert running.last_progress() == FeederProgress(from_millis(5_980_000), TEN_SECONDS, ProgressSource.WATERMARK)
    assert {ssp.partition: at for ssp, at in running.observed.items()} == {0: from_millis(5_900_000), 1: from_millis(5_980_000)}


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        ('{"t": 12}', 12_000_000),
        ('{"t": 12.5}', 12_500_000),
        ('{"t": "2026-11-23T08:00:00Z"}', 1_795_420_800_000_000),
        ('{"t": "soon"}', None),
        ("{}", None),
        ("no json", None),
    ],
)
def test_the_event_time_of_a_record_is_a_field_of_its_value(bench: Bench, value: str, micros: int | None) -> None:
    rows = bench.spark.createDataFrame([(value.encode(),)], "value binary")
    assert rows.select(event_time_of("t")).first() == (micros,)
