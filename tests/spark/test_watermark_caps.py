"""The watermark of a query never exceeds its cap: records of a slower feeder are not late."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.caps import natural_watermark
from containers.spark.flush import Flusher
from containers.spark.gate import PausedQuery, pause
from containers.spark.installation import GatedStarts
from containers.spark.listener import Listener
from containers.spark.query import start_query
from containers.spark.task import StageTask
from containers.spark.watermark import Capping, WatermarkGate
from containers.state.checkpoint import inspect, read_offset_log
from containers.state.offsets.offsetlog import from_millis, millis, parse
from sluice.clock import SystemClock
from sluice.core.ids import Lineage
from sluice.core.watermarks import Cap, NoCap
from sluice.job import Intermediate
from tests.spark.conftest import SOON, Bench
from tests.spark.drainworld import OUT, Stage, events, windowed
from tests.spark.operators import Counting, joined, transformed

pytestmark = pytest.mark.spark

MID = Intermediate("mid", 2)
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"

FAST = [{"t": 1000 + second, "k": "ab"[second % 2]} for second in range(190)]
SLOW = [{"t": 1000 + second, "k": "ab"[second % 2]} for second in range(50)]
"""The records of the slower feeder when the faster one is 140 s ahead."""


@pytest.fixture(scope="module")
def starts(spark: SparkSession) -> Iterator[GatedStarts]:
    gated = GatedStarts(spark)
    listener = Listener(lambda done: None, lambda ended: None, on_started=gated.on_started)
    spark.streams.addListener(listener)
    yield gated
    spark.streams.removeListener(listener)


@dataclass
class Reader:
    """A stage whose query is capped; `cap` may be changed while it runs."""

    bench: Bench
    starts: GatedStarts
    stage: Stage
    cap: Cap = NoCap.HOLD
    other_cap: Cap = NoCap.FREE
    """That of a second input."""
    batches: int = 0
    query: StreamingQuery | None = field(default=None)

    def __post_init__(self) -> None:
        self.grant = self.bench.grant("in")
        self.directory: Path = self.bench.stores.prepare(self.grant.task, self.grant.stage, self.grant.lineage, None)

    def feed(self, values: list[dict[str, object]]) -> Reader:
        self.bench.feed(values, batch=self.batches)
        self.batches += 1
        return self

    def start(self) -> Reader:
        capping = Capping(lambda latest: [self.cap, self.other_cap], natural_watermark(self.directory), lambda: self.watermark)
        name = f"{self.bench.root.name}/{len(self.bench.queries)}"
        writer = self.stage(self.bench.task(self.grant))
        self.query = self.starts.start(
            name,
            lambda: start_query(self.bench.spark, writer, name, self.directory, timedelta(seconds=0.1)),
            last=[lambda execution: WatermarkGate(self.bench.spark, execution, capping)],
        )
        self.bench.queries.append(self.query)
        return self

    def reads(self) -> Reader:
        assert self.query is not None
        self.query.processAllAvailable()
        return self

    def stop(self) -> Reader:
        assert self.query is not None
        assert self.bench.stop(self.query)
        return self

    def pause(self) -> PausedQuery:
        assert self.query is not None
        paused = pause(self.bench.spark, self.query, SOON, Event())
        assert paused is not None
        self.bench.endings.callback(paused.end, SOON, Event())
        return paused

    def flusher(self, paused: PausedQuery | None = None) -> Flusher:
        name = f"{self.bench.root.name}/flush"
        return Flusher(
            self.bench.spark,
            self.directory,
            name,
            lambda: self.stage(self.bench.task(self.grant)),
            self.grant.starts,
            1000,
            SystemClock(),
            paused=paused,
        )

    def flush(self) -> Reader:
        self.flusher().flush()
        return self

    def await_watermark(self, wanted: int) -> Reader:
        """Wait until a batch with that watermark is committed."""
        end = monotonic() + 30
        while self.watermark != wanted * 1000 or (found := inspect(self.directory)) is None or found.committed < found.planned:
            assert self.query is not None
            assert self.query.isActive, self.query.exception()
            assert monotonic() < end, f"the watermark is {self.watermark}"
            sleep(0.02)
        return self

    @property
    def planned(self) -> int:
        found = inspect(self.directory)
        return -1 if found is None else found.planned

    @property
    def watermark(self) -> int:
        planned = self.planned
        return 0 if planned < 0 else millis(parse(read_offset_log(self.directory, planned), "it").watermark)

    def output(self) -> list[Any]:
        return [json.loads(value) for value in self.bench.values("out")]

    def counted(self) -> int:
        return sum(int(row["count"]) for row in self.output())


def at(seconds: int) -> Cap:
    """The cap at which the watermark reaches this time. It stays below its cap, because Spark drops rows that are as old as it."""
    return from_millis(seconds * 1000 + 1)


def below(seconds: int) -> Cap:
    return from_millis(seconds * 1000)


@pytest.mark.parametrize(("cap", "counted"), [(at(1000), 240), (NoCap.FREE, 190)])
def test_with_a_cap_the_records_of_a_slower_feeder_are_kept(bench: Bench, starts: GatedStarts, cap: Cap, counted: int) -> None:
    reader = Reader(bench, starts, windowed, cap).feed(FAST).start().reads().feed(SLOW).reads().stop().flush()
    assert reader.counted() == counted


def test_a_rising_cap_closes_windows_without_new_rows(bench: Bench, starts: GatedStarts) -> None:
    reader = Reader(bench, starts, windowed, at(1000)).feed(FAST).start().reads()
    for cap in (1050, 1055, 1061):
        reader.cap = at(cap)
        reader.await_watermark(cap)
    reader.cap = NoCap.FREE
    reader.await_watermark(1179).stop()
    assert reader.counted() == 170


@pytest.mark.long
def test_a_cap_never_lowers_the_watermark_below_that_of_the_last_batch(bench: Bench, starts: GatedStarts) -> None:
    reader = Reader(bench, starts, windowed, at(1100)).feed(FAST).start().reads().await_watermark(1100)
    reader.cap = at(1000)
    reader.feed([{"t": 1150, "k": "a"}]).reads().await_watermark(1100).stop()
    reader.start().feed([{"t": 1150, "k": "a"}]).reads().await_watermark(1100).stop().flush()
    assert reader.counted() == 192


def test_the_cap_also_holds_for_the_first_batch_after_a_start(bench: Bench, starts: GatedStarts) -> None:
    reader = Reader(bench, starts, windowed, at(1000)).feed(FAST).start().reads().stop()
    assert natural_watermark(reader.directory) == 1_179_000
    reader.feed(SLOW).start().reads().stop().flush()
    assert reader.counted() == 240


@pytest.mark.long
def test_after_a_restart_a_rising_cap_closes_windows_without_new_rows(bench: Bench, starts: GatedStarts) -> None:
    reader = Reader(bench, starts, windowed, at(1000)).feed(FAST).start().reads().stop()
    reader.feed(SLOW[:10]).start().reads().stop()
    assert natural_watermark(reader.directory) == 1_179_000, "the restart and the older rows have not lowered it"
    reader.cap = NoCap.FREE
    reader.start().await_watermark(1179).stop()
    assert reader.counted() == 180


@pytest.mark.long
def test_a_batch_that_was_planned_before_a_kill_keeps_its_watermark(bench: Bench, starts: GatedStarts) -> None:
    reader = Reader(bench, starts, windowed, at(1000)).feed(FAST).start().reads().await_watermark(1000).stop()
    last = reader.planned
    for name in (str(last), f".{last}.crc"):
        (reader.directory / "commits" / name).unlink(missing_ok=True)
    reader.cap = at(1050)
    reader.start().await_watermark(1050)
    assert parse(read_offset_log(reader.directory, last), "it").watermark == from_millis(1_000_000)
    reader.cap = NoCap.FREE
    reader.await_watermark(1179).stop()
    assert reader.counted() == 170


def test_after_a_restore_of_an_older_snapshot_no_record_of_a_slower_feeder_is_dropped(bench: Bench, starts: GatedStarts) -> None:
    """The reader gets its cap back after it has read the records of the feeders again. Windows that were closed before are written
    twice, with the same counts."""
    reader = Reader(bench, starts, windowed, at(1000)).feed(FAST).start().reads().await_watermark(1000).stop()
    snapshot = bench.root / "snapshot"
    shutil.copytree(reader.directory, snapshot)
    reader.cap = at(1049)
    reader.feed(SLOW).start().reads().await_watermark(1049).stop()
    before = {(row["start"], row["k"]): row["count"] for row in reader.output()}
    assert before, "windows were closed after the snapshot"

    lineage = Lineage("0d5c53d1-95c1-4d53-a4ab-8c4c2a8a9e02")
    shutil.rmtree(reader.directory)
    shutil.copytree(snapshot, reader.directory)
    (reader.directory / "metadata").write_text(json.dumps({"id": lineage}))
    reader.grant = replace(reader.grant, lineage=lineage)
    reader.cap = NoCap.HOLD
    reader.start().reads().await_watermark(1000)
    reader.cap = at(1049)
    reader.await_watermark(1049).stop().flush()
    rows = [((row["start"], row["k"]), row["count"]) for row in reader.output()]
    after = dict(rows)
    assert sum(after.values()) == 240
    assert sorted(rows) == sorted([*after.items(), *before.items()])


def test_a_drain_flushes_a_capped_query_in_place(bench: Bench, starts: GatedStarts) -> None:
    reader = Reader(bench, starts, windowed, at(1000)).feed(FAST).start().reads()
    paused = reader.pause()
    reader.feed(SLOW)
    paused.resume()
    reader.reads()
    paused = reader.pause()
    reader.feed([{"t": 1005, "k": "a"}])
    flusher = reader.flusher(paused)
    assert flusher.advance(bench.ends("in")) == 1
    flusher.flush()
    assert paused.end(SOON, Event())
    assert reader.counted() == 241


def chained(task: StageTask) -> DataStreamWriter:
    """The number of events per minute, from the number per 10 seconds."""
    counts = events(task).groupBy(F.window("t", "10 seconds"), "k").count()
    minutes = counts.groupBy(F.window(F.window_time("window"), "1 minute")).agg(F.sum("count").alias("count"))
    return task.write(minutes.select(F.unix_timestamp("window.start").alias("start"), "count"), OUT).outputMode("append")


def deduplicated(task: StageTask) -> DataStreamWriter:
    return task.write(events(task).dropDuplicatesWithinWatermark(["t", "k"]), OUT)


def beside_another_source(task: StageTask) -> DataStreamWriter:
    """Windows over events, and over a source of the user's own that has no event times."""
    own = task.spark.readStream.format("rate").option("rowsPerSecond", "5").load()
    both = events(task, watermark=None).union(own.selectExpr("cast(null as timestamp) t", "'own' k")).withWatermark("t", "10 seconds")
    counts = both.groupBy(F.window("t", "10 seconds"), "k").count()
    return task.write(counts.select(F.unix_timestamp("window.start").alias("start"), "k", "count"), OUT).outputMode("append")


def over_two_inputs(task: StageTask) -> DataStreamWriter:
    """Windows over two inputs, each with a watermark of its own."""
    parsed = F.from_json(F.col("value").cast("string"), "t long, k string").alias("r")
    second = task.read(MID).select(parsed).select(F.timestamp_seconds("r.t").alias("t"), "r.k").withWatermark("t", "30 seconds")
    counts = events(task).union(second).groupBy(F.window("t", "10 seconds"), "k").count()
    return task.write(counts.select(F.unix_timestamp("window.start").alias("start"), "k", "count"), OUT).outputMode("append")


@pytest.mark.parametrize(("policy", "highest"), [("min", 1089), pytest.param("max", 1179, marks=pytest.mark.long)])
def test_two_inputs_with_unequal_watermarks_wait_for_the_slower_feeder_of_either(
    bench: Bench, starts: GatedStarts, policy: str, highest: int
) -> None:
    """`highest`: the watermark without caps. That of the first input is 1179, and that of the second 1089."""
    bench.spark.conf.set(POLICY, policy)
    bench.endings.callback(bench.spark.conf.unset, POLICY)
    reader = Reader(bench, starts, over_two_inputs, below(1150))
    reader.grant = replace(reader.grant, starts={**bench.grant("in").starts, **bench.grant("mid").starts})
    second = FAST[:120]

    def feed_second(values: list[dict[str, object]], batch: int) -> None:
        bench.feed(values, batch, "mid", {"sluice-run": "origin"})

    feed_second(second, 0)
    reader.other_cap = at(1000)
    reader.feed(FAST).start().reads().await_watermark(1000)
    feed_second(SLOW[:25], 1)
    reader.reads().await_watermark(1000).stop().start()
    reader.other_cap = at(1025)
    reader.reads().await_watermark(1025)
    feed_second(SLOW[25:], 2)
    reader.feed(FAST[150:]).reads().await_watermark(1025)
    reader.other_cap, reader.cap = NoCap.FREE, at(1080)
    reader.await_watermark(1080)
    reader.cap = NoCap.FREE
    reader.await_watermark(highest).stop().flush()
    assert reader.counted() == len(FAST) + len(second) + len(SLOW) + len(FAST[150:])


def rows(reader: Reader) -> int:
    return len(reader.output())


# The gate caps the watermark of a query, whatever its operators are: the others show the same.
@pytest.mark.parametrize(
    ("stage", "policy", "slow_keys", "of", "expected"),
    [
        pytest.param(chained, "min", "ab", Reader.counted, 240, marks=pytest.mark.long),
        pytest.param(joined("inner"), "min", "ab", rows, 20, marks=pytest.mark.long),
        (joined("left_outer"), "max", "ab", rows, 130),
        pytest.param(deduplicated, "min", "cd", rows, 240, marks=pytest.mark.long),
        pytest.param(beside_another_source, "max", "ab", Reader.counted, 240, marks=pytest.mark.long),
        pytest.param(
            transformed(Counting(every=3600), "EventTime"),
            "min",
            "ab",
            lambda reader: sum(row["n"] for row in reader.output()),
            240,
            marks=pytest.mark.long,
        ),
    ],
    ids=["chained aggregations", "inner join", "outer join", "dropDuplicatesWithinWatermark", "own source", "transformWithState"],
)
def test_no_operator_drops_records_of_a_slower_feeder(
    bench: Bench, starts: GatedStarts, stage: Stage, policy: str, slow_keys: str, of: Callable[[Reader], int], expected: int
) -> None:
    bench.spark.conf.set(POLICY, policy)
    bench.endings.callback(bench.spark.conf.unset, POLICY)
    slow = [{"t": row["t"], "k": slow_keys[place % 2]} for place, row in enumerate(SLOW)]
    reader = Reader(bench, starts, stage, below(1000)).feed(FAST).start().reads()
    reader.feed(slow[:25]).reads()
    reader.cap = below(1025)
    reader.feed(slow[25:]).reads()
    if stage is deduplicated:
        reader.feed(slow[40:]).reads()
    reader.stop().flush()
    assert of(reader) == expected
