"""A script whose disk was lost runs batches again as they were planned. Meanwhile it is drained or stopped. The supervisor is this test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from containers.attached import messages
from containers.attached.app import App
from containers.spark.jvm import parse_version
from containers.spark.scripts.checkpoint import ScriptCheckpoint
from containers.spark.scripts.drain import OLDEST_SPARK
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.attached.test_attached_app import Supervisor
from tests.attached.test_script_drain import steps
from tests.support.processes import wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(parse_version(pyspark.__version__) < OLDEST_SPARK, reason="one batch is repeated before Spark 4.0"),
]

ROWS = 20


class Restoring(Supervisor):
    """A supervisor that has restored the checkpoint, and keeps the plans of later batches."""

    def __init__(self, spark: SparkSession, lineage: str, replay: Mapping[int, str]) -> None:
        super().__init__(spark)
        self.ours.settimeout(None)
        self._ready = {"lineage": lineage, "replay": {str(batch): text for batch, text in replay.items()}}
        self._received: dict[str, Queue[messages.Message]] = {kind: Queue() for kind in ("step", "drained", "stopped")}
        self.planned: list[int] = []
        self._thread = Thread(target=self._answer, daemon=True)
        self._thread.start()

    def next(self, kind: str) -> messages.Message:
        return self._received[kind].get(timeout=120)

    def close(self) -> None:
        self.app.drains.close()
        self.app.close()
        self.ours.close()

    def _answer(self) -> None:
        for line in self.lines:
            message = messages.decode(line)
            match message["kind"]:
                case "where":
                    self.say("begins", stage="counts", seq=0, suffix="", offsets={}, failed="")
                case "checkpoint":
                    self.say("ready", stage="counts", failed="", **self._ready)
                case "plan":
                    self.planned.append(message["batch"])
                    self.say("kept", number=message["number"], failed="")
                case kind if kind in self._received:
                    self._received[kind].put(message)


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
    supervisors: list[Restoring] = field(default_factory=list)

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

    def restart(self, committed: int, drain: Mapping[str, Any] | None = None) -> tuple[Restoring, StreamingQuery]:
        """The next start of the script. `committed`: the last batch of the checkpoint."""
        self.monkeypatch.setenv("SLUICE_STATE_DIR", str(self.root / "disk"))
        replay = {batch: text for batch, text in self.plans.items() if batch > committed + 1}
        supervisor = Restoring(self.spark, self.started[0].id, replay)
        self.supervisors.append(supervisor)
        supervisor.say("granted", job="orders", run="run-1", generation=4, drain=drain)
        supervisor.app.start(supervisor.theirs, ends_script=False)
        return supervisor, self.start(supervisor.app.checkpoint("counts"), supervisor.app)

    def written(self) -> int:
        return sum(sum(counts) for counts in self.sink.values())


@pytest.fixture
def counts(spark: SparkSession, kafka_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    topics = Topics(kafka_server)
    made = Counts(spark, topics, tmp_path, monkeypatch)
    made.lose_disk()
    yield made
    made.go_on.set()
    for each in made.supervisors:
        each.close()
    for query in made.started:
        query.stop()
    topics.close()


def drained(counts: Counts, supervisor: Restoring, query: StreamingQuery) -> None:
    """The drain ends after the last planned batch, and the windows that it closes are written."""
    stopped = steps(supervisor, "stopped", {"counts"})["counts"]
    assert counts.ran == sorted(counts.plans)
    assert (stopped["batch"], stopped["offsets"][0]["offset"]) == (max(counts.plans), ROWS)
    supervisor.say("drain", uuid="d-1", phase="FLUSHING", needed=["counts"])
    flushed = steps(supervisor, "flushed", {"counts"})["counts"]
    assert supervisor.next("drained")["uuid"] == "d-1"
    assert query.awaitTermination(60)
    assert (flushed["batch"] > max(counts.plans), flushed["offsets"][0]["offset"]) == (True, ROWS)
    assert min(supervisor.planned) == max(counts.plans) + 1
    assert counts.written() == ROWS


def test_a_drain_of_a_script_whose_disk_was_lost_repeats_the_planned_batches_first(counts: Counts) -> None:
    counts.feed(5)  # not read any more
    drain = {"uuid": "d-1", "phase": "STOPPING", "needed": ["counts"]}
    drained(counts, *counts.restart(min(counts.plans) - 1, drain))


# The test before and the one after it have a drain that begins earlier.
@pytest.mark.long
@pytest.mark.parametrize("last", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_drain_that_begins_while_planned_batches_are_repeated_waits_for_them(counts: Counts, last: bool) -> None:
    """`last`: it begins in the last one of them."""
    counts.hold = max(counts.plans) if last else min(counts.plans) + 1
    supervisor, query = counts.restart(min(counts.plans) - 1)
    assert counts.held.wait(60)
    supervisor.say("drain", uuid="d-1", phase="STOPPING", needed=["counts"])
    wait_for("the drain to hold the query", lambda: supervisor.app.drains._held)
    counts.go_on.set()
    drained(counts, supervisor, query)


# The first test has a drain at the start.
@pytest.mark.parametrize("at_start", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_query_repeats_the_planned_batches_and_continues_if_the_drain_is_cancelled(counts: Counts, at_start: bool) -> None:
    """`at_start`: the script starts under the drain. Otherwise the drain begins while batches are repeated."""
    drain = {"uuid": "d-1", "phase": "STOPPING", "needed": ["counts"]}
    counts.hold = min(counts.plans) + 1
    supervisor, query = counts.restart(min(counts.plans) - 1, drain if at_start else None)
    assert counts.held.wait(60)
    supervisor.say("drain", **drain)
    wait_for("the drain to hold the query", lambda: supervisor.app.drains._held)
    supervisor.say("drain", uuid="d-1", phase="CANCELLED", needed=[])
    Event().wait(1)
    counts.go_on.set()
    counts.feed(15)  # ends the window of the last rows
    wait_for("the windows of the planned batches", lambda: counts.written() >= ROWS, details=lambda: str(query.exception()))
    assert counts.ran[: len(counts.plans)] == sorted(counts.plans)


def test_a_stop_ends_a_query_between_two_repeated_batches_and_the_next_start_repeats_the_others(counts: Counts) -> None:
    counts.hold = min(counts.plans) + 1
    supervisor, query = counts.restart(min(counts.plans) - 1)
    assert counts.held.wait(60)
    supervisor.say("stop", seconds=60)
    Event().wait(1)
    counts.go_on.set()
    assert supervisor.next("stopped")["interrupted"] == []
    assert not query.isActive
    supervisor.close()
    checkpoint = ScriptCheckpoint(counts.spark, str(counts.root / "disk" / "orders" / "drain-0" / "counts"))
    assert (checkpoint.numbers("commits")[-1], checkpoint.numbers("offsets")[-1]) == (counts.hold, counts.hold)

    checkpoint.write_offset_log(counts.hold + 1, counts.plans[counts.hold + 1])
    _, query = counts.restart(counts.hold)
    counts.feed(15)
    wait_for("the windows of the planned batches", lambda: counts.written() >= ROWS, details=lambda: str(query.exception()))
    assert counts.ran[: len(counts.plans)] == sorted(counts.plans)


@pytest.mark.long
def test_a_drain_does_not_flush_a_query_that_lacks_planned_batches(counts: Counts, caplog: pytest.LogCaptureFixture) -> None:
    """It was started in another session, so that its start was not seen."""
    counts.session = counts.spark.newSession()
    counts.hold = min(counts.plans)
    supervisor, query = counts.restart(min(counts.plans) - 1)
    assert counts.held.wait(60)
    supervisor.say("drain", uuid="d-1", phase="STOPPING", needed=["counts"])
    Event().wait(1)
    counts.go_on.set()
    assert query.awaitTermination(60)
    wait_for("the message", lambda: "has not run the batches again that were planned after batch" in caplog.text)
    assert counts.ran == [counts.hold]
