"""Stages of a job over the log or Kafka, in the Spark session of `tests.conftest`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.engine import Bound
from containers.spark.query import start_query, stop_between_batches
from containers.spark.systems.kafka import KafkaTaskSystem
from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import Grant, TaskSystem
from containers.spark.task import StageTask
from containers.state.checkpoint import Checkpoints
from examples.harness.topics import Topics
from sluice.clock import SystemClock
from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, StreamId, TaskName
from sluice.streams.kafka_properties import KafkaProperties
from sluice.streams.log import Log, Record, Writer

SOON = timedelta(seconds=60)


@dataclass
class Bench:
    """A log with the streams "in" (2 partitions), "mid" (2) and "out" (1), or topics with names of its own, and stages over them under
    any grant.
    """

    spark: SparkSession
    root: Path
    topics: Topics | None = None
    lost: list[LeaseLost] = field(default_factory=list)
    queries: list[StreamingQuery] = field(default_factory=list)
    max_rows: int = 1000
    endings: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.log = Log(self.root / "log")
        self.streams: Log | Topics = self.topics or self.log
        self.prefix = f"{uuid4().hex[:10]}." if self.topics else ""
        for name, partitions in (("in", 2), ("mid", 2), ("out", 1)):
            self.streams.create(self.prefix + name, partitions)
        self.stores = Checkpoints(self.root / "state", "job")

    def feed(self, values: Sequence[object], batch: int, stream: str = "in", headers: dict[str, str] | None = None) -> None:
        records = [Record(json.dumps(value).encode(), partition=i % 2) for i, value in enumerate(values)]
        writer = Writer(Lineage(f"feeder of {stream}"), "feeder", Generation(1))
        assert self.streams.append(
            self.prefix + stream, records, writer=writer, batch=batch, headers=headers, now_micros=1_772_366_400_000_000
        )

    def stream_id(self, stream: str) -> StreamId:
        return StreamId("kafka" if self.topics else "log", self.prefix + stream)

    def ends(self, stream: str) -> dict[Ssp, int]:
        found = self.stream_id(stream)
        return {Ssp(found.system, found.stream, partition): end for partition, end in self.streams.latest(found.stream).items()}

    def values(self, stream: str) -> list[str]:
        found = []
        for ssp, end in self.ends(stream).items():
            for rows in self.streams.read(ssp.stream, ssp.partition, 0, end):
                found += [value.decode() for _, _, _, value, _ in rows if value is not None]
        return found

    def grant(self, reads: str, stage: str = "stage", lineage: str = "6f0c9a52-3f5b-4e58-9c53-0d8e7a1f3b01", generation: int = 1) -> Grant:
        starts = dict.fromkeys(self.ends(reads), 0)
        return Grant("job", TaskName("Partition 0"), StageName(stage), Generation(generation), Lineage(lineage), RunId("origin"), starts)

    def systems(self) -> dict[str, TaskSystem]:
        systems: dict[str, TaskSystem] = {"log": LogTaskSystem(self.spark, self.log.directory, SystemClock(), self.lost.append)}
        if self.topics is not None:
            systems["kafka"] = KafkaTaskSystem(self.spark, self.topics.bootstrap, KafkaProperties({}))
        return systems

    def task(self, grant: Grant) -> StageTask:
        streams = {name: Bound(self.stream_id(name), name == "mid", 2) for name in ("in", "mid", "out")}
        return StageTask(self.spark, grant, streams, self.systems(), {}, self.max_rows)

    def start(self, grant: Grant, stage: Callable[[StageTask], DataStreamWriter], trigger: float = 0.1) -> StreamingQuery:
        directory = self.stores.prepare(grant.task, grant.stage, grant.lineage, None)
        writer = stage(self.task(grant))
        name = f"{self.root.name}/{grant.stage}/{len(self.queries)}"
        self.queries.append(start_query(self.spark, writer, name, directory, timedelta(seconds=trigger)))
        return self.queries[-1]

    def stop(self, query: StreamingQuery, forced: Event | None = None) -> bool:
        return stop_between_batches(self.spark, query, SOON, forced or Event())

    def batches(self, grant: Grant) -> tuple[list[int], list[int]]:
        """The planned and the committed batches in a stage's checkpoint."""
        directory = self.stores.directory(grant.task, grant.stage)
        return tuple(sorted(int(e.name) for e in (directory / kind).iterdir() if e.name.isdigit()) for kind in ("offsets", "commits"))  # type: ignore[return-value]

    def run_until_read(self, grant: Grant, stage: Callable[[StageTask], DataStreamWriter]) -> None:
        """Start the stage, let it read everything, and stop it between batches."""
        query = self.start(grant, stage)
        query.processAllAvailable()
        assert self.stop(query)


@contextmanager
def benched(made: Bench) -> Iterator[Bench]:
    yield made
    made.endings.close()
    for query in made.queries:
        query.stop()


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    with benched(Bench(spark, tmp_path)) as made:
        yield made


@pytest.fixture(params=["log", "kafka"])
def either(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    """Runs a test on each system."""
    with on_system(request, spark, tmp_path) as made:
        yield made


@pytest.fixture(params=["log", pytest.param("kafka", marks=pytest.mark.long)])
def log_first(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    """Runs a test on the log, and with `make test-long` on Kafka. Both of a drain's ways on Kafka are in test_kafka_on_spark.py."""
    with on_system(request, spark, tmp_path) as made:
        yield made


@contextmanager
def on_system(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        topics = None
        if request.param == "kafka":
            topics = Topics(request.getfixturevalue("kafka_server"))
            stack.callback(topics.close)
        yield stack.enter_context(benched(Bench(spark, tmp_path, topics)))
