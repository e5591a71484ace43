"""A script whose disk was lost runs batches again as they were planned. Meanwhile it is drained or stopped. The agent is this test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from containers.attached.app import App
from containers.attached.port import DrainInterrupted, Made
from containers.rpc.codec import OtherProcessFailed
from containers.spark.scripts.checkpoint import ScriptCheckpoint
from containers.spark.scripts.drain import OLDEST_SPARK
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage, StageName
from sluice.installed_spark import release_of
from sluice.streams.log import Record, Writer
from tests.attached.test_attached_app import ScriptAgent
from tests.support.processes import wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(release_of(pyspark.__version__) < OLDEST_SPARK, reason="one batch is repeated before Spark 4.0"),
]

ROWS, COUNTS = 20, StageName("counts")


class Restoring(ScriptAgent):
    """An agent that has restored the checkpoint, and keeps the plans of later batches."""

    def __init__(self, spark: SparkSession, lineage: str, replay: Mapping[int, str]) -> None:
        self.planned: list[int] = []
        super().__init__(spark, prepare=lambda wanted: Made(Lineage(lineage), replay=replay), keep_plan=self._keep)

    def pausing(self, uuid: str) -> Future[Any]:
        """Begin a drain. Returns when it holds the query."""
        self.drain(uuid)
        found = self.connection.request("pause_queries", uuid, [COUNTS])
        wait_for("the drain to hold the query", lambda: self.app.drains._drain is not None and self.app.drains._drain.held)
        return found

    def _keep(self, stage: str, batch: int) -> str:
        self.planned.append(batch)
        return ""

    def close(self) -> None:
        self.app.drains.close()
        self.app.close()
        super().close()


@dataclass
class Counts:
    """A query that counts orders by ten seconds, in batches of five. Its sink skips batches that it has."""

    spark: SparkSession
    topics: Topics
    root: Path
    monkeypatch: pytest.MonkeyPatch
    session: SparkSession | None = None
    """In which the query is started, if it is not that of the script."""
    topic: str = field(default_factory=lambda: uuid4().hex)
    fed: int = 0
    sink: dict[int, list[int]] = field(default_factory=dict)
    last: int = -1
    plans: dict[int, str] = field(default_factory=dict)
    """Of the batches after the snapshot."""
    ran: list[int] = field(default_factory=list)
    hold: int = -1
    """The batch that waits for `go_on`."""
    held: Event = field(default_factory=Event)
    go_on: Event = field(default_factory=Event)
    started: list[StreamingQuery] = field(default_factory=list)
    agents: list[Restoring] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics.create(self.topic, 1)

    def feed(self, rows: int) -> None:
        records = [Record(str(n).encode(), partition=0) for n in range(self.fed, self.fed + rows)]
        self.topics.append(self.topic, records, writer=Writer(Lineage("test"), "test", Generation(1)), batch=self.fed, now_micros=0)
        self.fed += rows

    def start(self, location: str, app: App | None = None) -> StreamingQuery:
        def write(rows: DataFrame, batch: int) -> None:
            if app is not None:
                app.batch_context()
            found = [row["count"] for row in rows.collect()]
            self.ran.append(batch)
            if batch > self.last:
                self.sink[batch], self.last = found, batch
            if batch == self.hold:
                self.held.set()
                self.go_on.wait(120)

        reader = (self.session or self.spark).readStream.format("kafka").option("kafka.bootstrap.servers", self.topics.bootstrap)
        reader = reader.option("subscribe", self.topic).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 5)
        at = F.col("value").cast("string").cast("long").cast("timestamp").alias("at")
        counts = reader.load().select(at).withWatermark("at", "5 seconds").groupBy(F.window("at", "10 seconds")).count()
        self.started.append(counts.writeStream.foreachBatch(write).option("checkpointLocation", location).start())
        return self.started[-1]

    def lose_disk(self) -> None:
        """Write four batches, of which the first one is in a snapshot, and restore that on another disk."""
        first, snapshot, restored = self.root / "first", self.root / "snapshot", self.root / "disk" / "orders" / "drain-0" / "counts"
        query = self.start(str(first))
        self.feed(5)
        query.processAllAvailable()
        shutil.copytree(first, snapshot)
        self.feed(ROWS - 5)
        query.processAllAvailable()
        query.stop()
        files = ScriptCheckpoint(self.spark, str(first))
        later = [batch for batch in files.numbers("offsets") if not (snapshot / f"offsets/{batch}").exists()]
        self.plans = {batch: files.read_offset_log(batch) for batch in later}
        shutil.copytree(snapshot, restored)
        batch = min(self.plans)
        ScriptCheckpoint(self.spark, str(restored)).write_offset_log(batch, self.plans[batch])
        self.ran.clear()

    def restart(self, committed: int, *, draining: bool = False) -> tuple[Restoring, StreamingQuery]:
        """The next start of the script. `committed`: the last batch of the checkpoint."""
        self.monkeypatch.setenv("SLUICE_STATE_DIR", str(self.root / "disk"))
        replay = {batch: text for batch, text in self.plans.items() if batch > committed + 1}
        agent = Restoring(self.spark, self.started[0].id, replay)
        self.agents.append(agent)
        if draining:
            agent.drain("d-1")
        agent.grant(4)
        return agent, self.start(agent.app.checkpoint("counts"), agent.app)

    def written(self) -> int:
        return sum(sum(counts) for counts in self.sink.values())


@pytest.fixture
def counts(spark: SparkSession, kafka_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    topics = Topics(kafka_server)
    made = Counts(spark, topics, tmp_path, monkeypatch)
    made.lose_disk()
    yield made
    made.go_on.set()
    for each in made.agents:
        each.close()
    for query in made.started:
        query.stop()
    topics.close()


def drained(counts: Counts, agent: Restoring, query: StreamingQuery) -> None:
    """The drain ends after the last planned batch, and the windows that it closes are written."""
    stopped = agent.pause("d-1", "counts")[COUNTS]
    assert counts.ran == sorted(counts.plans)
    assert (stopped.batch, [*stopped.offsets.values()]) == (max(counts.plans), [ROWS])
    flushed = agent.flush("d-1", "counts").position
    agent.leave("d-1", end=True)
    assert query.awaitTermination(60)
    assert flushed.batch is not None
    assert (flushed.batch > max(counts.plans), [*flushed.offsets.values()]) == (True, [ROWS])
    assert min(agent.planned) == max(counts.plans) + 1
    assert counts.written() == ROWS


def test_a_drain_of_a_script_whose_disk_was_lost_repeats_the_planned_batches_first(counts: Counts) -> None:
    counts.feed(5)  # not read any more
    drained(counts, *counts.restart(min(counts.plans) - 1, draining=True))


# The test before and the one after it have a drain that begins earlier.
@pytest.mark.long
@pytest.mark.parametrize("last", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_drain_that_begins_while_planned_batches_are_repeated_waits_for_them(counts: Counts, last: bool) -> None:
    """`last`: it begins in the last one of them."""
    counts.hold = max(counts.plans) if last else min(counts.plans) + 1
    agent, query = counts.restart(min(counts.plans) - 1)
    assert counts.held.wait(60)
    pausing = agent.pausing("d-1")
    counts.go_on.set()
    pausing.result()
    drained(counts, agent, query)


# The first test has a drain at the start.
@pytest.mark.parametrize("at_start", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_query_repeats_the_planned_batches_and_continues_if_the_drain_is_cancelled(counts: Counts, at_start: bool) -> None:
    """`at_start`: the script starts under the drain. Otherwise the drain begins while batches are repeated."""
    counts.hold = min(counts.plans) + 1
    agent, query = counts.restart(min(counts.plans) - 1, draining=at_start)
    assert counts.held.wait(60)
    pausing = agent.pausing("d-1")
    agent.leave("d-1", end=False)
    with pytest.raises(DrainInterrupted):
        pausing.result()
    Event().wait(1)
    counts.go_on.set()
    counts.feed(15)  # ends the window of the last rows
    wait_for("the windows of the planned batches", lambda: counts.written() >= ROWS, details=lambda: str(query.exception()))
    assert counts.ran[: len(counts.plans)] == sorted(counts.plans)


def test_a_stop_ends_a_query_between_two_repeated_batches_and_the_next_start_repeats_the_others(counts: Counts) -> None:
    counts.hold = min(counts.plans) + 1
    agent, query = counts.restart(min(counts.plans) - 1)
    assert counts.held.wait(60)
    agent.stop()
    Event().wait(1)
    counts.go_on.set()
    assert agent.next("stopped") == ()
    assert not query.isActive
    agent.close()
    checkpoint = ScriptCheckpoint(counts.spark, str(counts.root / "disk" / "orders" / "drain-0" / "counts"))
    assert (checkpoint.numbers("commits")[-1], checkpoint.numbers("offsets")[-1]) == (counts.hold, counts.hold)

    checkpoint.write_offset_log(counts.hold + 1, counts.plans[counts.hold + 1])
    _, query = counts.restart(counts.hold)
    counts.feed(15)
    wait_for("the windows of the planned batches", lambda: counts.written() >= ROWS, details=lambda: str(query.exception()))
    assert counts.ran[: len(counts.plans)] == sorted(counts.plans)


@pytest.mark.long
def test_a_drain_does_not_flush_a_query_that_lacks_planned_batches(counts: Counts) -> None:
    """It was started in another session, so that its start was not seen."""
    counts.session = counts.spark.newSession()
    counts.hold = min(counts.plans)
    agent, query = counts.restart(min(counts.plans) - 1)
    assert counts.held.wait(60)
    agent.drain("d-1")
    pausing = agent.connection.request("pause_queries", "d-1", [COUNTS])
    Event().wait(1)
    counts.go_on.set()
    with pytest.raises(OtherProcessFailed, match="has not run the batches again that were planned after batch"):
        pausing.result()
    agent.leave("d-1", end=True)
    assert query.awaitTermination(60)
    assert counts.ran == [counts.hold]
