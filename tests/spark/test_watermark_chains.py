"""Two capped stages in a chain, behind feeders with random delays: the same counts as of one batch query over all records."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.caps import CommittedBatch, StageCaps, natural_watermark
from containers.spark.flush import Flusher
from containers.spark.installation import GatedStarts
from containers.spark.listener import BatchDone, Listener
from containers.spark.operators import LogicalPlan
from containers.spark.query import start_query
from containers.spark.systems.port import Grant
from containers.spark.task import StageTask
from containers.spark.watermark import Capping, WatermarkGate
from containers.state.offsets.offsetlog import from_millis
from sluice.clock import SystemClock
from sluice.core.ids import Generation, Lineage, Ssp, StageName, TaskName
from sluice.core.watermarks import Feeder, FeederProgress, FeederState, ProgressSource, WatermarkStep, decide_step, with_step
from sluice.job import Intermediate
from sluice.streams.log import Record, Writer
from tests.spark.conftest import Bench
from tests.spark.drainworld import OUT, Stage, events

pytestmark = pytest.mark.spark

MID = Intermediate("mid", 2)
EVENTS = 150
ROUNDS = 6


def by_ten_seconds(task: StageTask) -> DataStreamWriter:
    counts = events(task).groupBy(F.window("t", "10 seconds"), "k").count()
    return task.write(counts.select("k", F.unix_millis(F.window_time("window")).alias("t"), "count"), MID, key="k").outputMode("append")


def by_minute(task: StageTask) -> DataStreamWriter:
    parsed = F.from_json(F.col("value").cast("string"), "k string, t long, count long").alias("r")
    rows = task.read(MID).select(parsed).select(F.timestamp_millis("r.t").alias("t"), "r.k", "r.count").withWatermark("t", "5 seconds")
    minutes = rows.groupBy(F.window("t", "1 minute"), "k").agg(F.sum("count").alias("count"))
    return task.write(minutes.select(F.unix_timestamp("window.start").alias("start"), "k", "count"), OUT).outputMode("append")


@dataclass
class Input:
    """One feeder, with its own delay: it passes its records on in the order of `times`."""

    feeder: Feeder
    times: Sequence[int]
    position: int = 0

    def passes_on(self, bench: Bench, count: int, batch: int) -> None:
        chosen = self.times[self.position : self.position + count]
        self.position += len(chosen)
        records = [Record(json.dumps({"t": at, "k": "abc"[at % 3]}).encode(), partition=at % 2) for at in chosen]
        writer = Writer(Lineage(str(self.feeder)), str(self.feeder), Generation(1))
        assert bench.log.append("in", records, writer=writer, batch=batch, now_micros=1)

    @property
    def state(self) -> FeederState:
        newest = max(self.times[: self.position], default=None)
        at = None if newest is None else from_millis(newest * 1000)
        progress = FeederProgress(at, timedelta(0), ProgressSource.COLUMN)
        return FeederState(reported=True, progress=progress, unread=self.position < len(self.times), started=newest is not None)


@dataclass
class Capped:
    """A stage that reads one stream, with the caps that the steps of the stream set."""

    bench: Bench
    starts: GatedStarts
    name: str
    reads: str
    stage: Stage
    steps: Sequence[WatermarkStep] = ()
    dropped: int = 0
    grant: Grant = field(init=False)
    directory: Path = field(init=False)
    caps: StageCaps = field(init=False)
    query: StreamingQuery = field(init=False)

    def __post_init__(self) -> None:
        self.grant = self.bench.grant(self.reads, stage=self.name, lineage=str(uuid4()))
        self.directory = self.bench.stores.prepare(self.grant.task, self.grant.stage, self.grant.lineage, None)

    @property
    def query_name(self) -> str:
        return f"{self.bench.root.name}/{self.name}"

    def start(self) -> None:
        stream, writer = self.bench.stream_id(self.reads), self.stage(self.bench.task(self.grant))
        self.caps = StageCaps(
            self.directory,
            LogicalPlan.of(writer).watermarks,
            [stream],
            [stream],
            self.grant.starts,
            [],
            lambda: {stream: self.steps},
            writes_event_time=False,
            clock=SystemClock(),
        )
        capping = Capping(self.caps.caps_at, natural_watermark(self.directory), self.caps.planned, self.caps.stateful)
        self.query = self.starts.start(
            self.query_name,
            lambda: start_query(self.bench.spark, writer, self.query_name, self.directory, timedelta(seconds=0.05)),
            last=[lambda execution: WatermarkGate(self.bench.spark, execution, capping)],
        )
        self.bench.queries.append(self.query)

    def committed(self, done: BatchDone) -> None:
        self.dropped += done.state.dropped_late if done.state is not None else 0
        self.caps.committed(CommittedBatch.of(done, [self.bench.stream_id(self.reads)]))

    def reads_everything(self) -> None:
        self.query.processAllAvailable()

    def stops(self) -> None:
        assert self.bench.stop(self.query)

    def flushes(self) -> None:
        self.stops()
        writer = lambda: self.stage(self.bench.task(self.grant))  # noqa: E731
        Flusher(self.bench.spark, self.directory, f"{self.name}, flushed", writer, self.grant.starts, 1000, SystemClock()).flush()

    def state(self, positions: Mapping[Ssp, int]) -> FeederState:
        """Its state as a feeder of the next stage, when it has read up to these positions."""
        passed = next((step for step in reversed(self.steps) if step.passed(positions)), None)
        unread = positions != self.bench.ends(self.reads)
        return FeederState(reported=True, progress=self.caps.progress, unread=unread, upstream=(passed,))


def some_inputs(chance: random.Random) -> list[Input]:
    """Two feeders whose records are out of order by less than the delay of the first stage. One spans half the time of the other."""
    found = []
    for number, span in enumerate((600, 300)):
        arrivals = sorted((at + chance.uniform(0, 9), at) for at in (1000 + chance.randrange(span) for _ in range(EVENTS)))
        found.append(Input(Feeder(TaskName(f"Partition {number}"), StageName("route")), [at for _, at in arrivals]))
    return found


def in_one_batch(bench: Bench, inputs: Sequence[Input]) -> list[tuple[int, str, int]]:
    """The counts of the two stages, by a batch query over all records."""
    rows = [(at, "abc"[at % 3]) for each in inputs for at in each.times]
    read = bench.spark.createDataFrame(rows, "t long, k string").select(F.timestamp_seconds("t").alias("t"), "k")
    counts = read.groupBy(F.window("t", "10 seconds"), "k").count().select(F.window_time("window").alias("t"), "k", "count")
    minutes = counts.groupBy(F.window("t", "1 minute"), "k").agg(F.sum("count").alias("count"))
    return sorted(
        (row["start"], row["k"], row["count"]) for row in minutes.selectExpr("unix_timestamp(window.start) start", "k", "count").collect()
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_chain_counts_the_same_as_one_batch_query_whatever_the_delays_of_its_feeders(bench: Bench, seed: int) -> None:
    chance, starts = random.Random(seed), GatedStarts(bench.spark)
    inputs = some_inputs(chance)
    first, second = Capped(bench, starts, "first", "in", by_ten_seconds), Capped(bench, starts, "second", "mid", by_minute)
    stages = {each.query_name: each for each in (first, second)}

    def on_batch(done: BatchDone) -> None:
        if done.query in stages:  # not that of a flush
            stages[done.query].committed(done)

    listener = Listener(on_batch, lambda ended: None, on_started=starts.on_started)
    bench.spark.streams.addListener(listener)
    bench.endings.callback(bench.spark.streams.removeListener, listener)
    first.start()
    second.start()

    def round_of_batches(counts: Sequence[int], batch: int, *, heard: bool = True) -> None:
        """The feeders pass on so many records. `heard`: both stages get the steps; else their caps stay where they were."""
        for each, count in zip(inputs, counts, strict=True):
            each.passes_on(bench, count, batch)
        first.reads_everything()
        positions = bench.ends("in")
        if heard:
            states = {each.feeder: each.state for each in inputs}
            first.steps = with_step(first.steps, decide_step(states), bench.ends("in"))
            behind = {Feeder(TaskName("Partition 0"), StageName("first")): first.state(positions)}
            second.steps = with_step(second.steps, decide_step(behind), bench.ends("mid"))
        second.reads_everything()

    for number in range(ROUNDS):
        late = chance.randrange(3)  # one of the two passes nothing on, or neither
        counts = [0 if late == place else chance.randrange(5, 60) for place in range(2)]
        round_of_batches(counts, number, heard=chance.random() < 0.7)
        if number == ROUNDS // 2:
            first.stops()
            first.start()
    round_of_batches([EVENTS, EVENTS], ROUNDS)
    first.flushes()
    second.reads_everything()
    second.flushes()
    output = [json.loads(value) for value in bench.values("out")]
    assert sorted((row["start"], row["k"], row["count"]) for row in output) == in_one_batch(bench, inputs)
    assert (first.dropped, second.dropped) == (0, 0)
