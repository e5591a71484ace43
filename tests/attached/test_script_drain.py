"""Drains of a script whose queries read and write Kafka. The agent is this test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyspark
import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from containers.attached.app import App
from containers.attached.checkpoints.adoption import adopt_checkpoint
from containers.spark.scripts.active_queries import NAMED_SOURCES, OFFSET_LOG_VERSION, ActiveQueries
from containers.spark.scripts.checkpoint import LOCK_AFTER, ScriptCheckpoint, url_of
from containers.spark.scripts.drain import OLDEST_SPARK, undrainable
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage, StageName
from sluice.installed_spark import release_of
from sluice.streams.log import Record, Writer
from tests.attached.test_attached_app import ScriptAgent
from tests.support.processes import wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(release_of(pyspark.__version__) < OLDEST_SPARK, reason="a running query cannot be flushed before Spark 4.0"),
]

SOON = timedelta(seconds=60)


@dataclass
class Chain:
    """Two queries: one counts orders by ten seconds, and one sums those counts up by a minute."""

    spark: SparkSession
    topics: Topics
    root: Path
    isolation: str = "read_uncommitted"
    prefix: str = field(default_factory=lambda: f"{uuid4().hex[:10]}.")
    started: list[StreamingQuery] = field(default_factory=list)
    fed: int = 0

    def __post_init__(self) -> None:
        for name, partitions in (("orders", 2), ("tens", 1), ("minutes", 1)):
            self.topics.create(self.topic(name), partitions)

    def topic(self, name: str) -> str:
        return self.prefix + name

    def feed(self, seconds: range) -> None:
        at = [f"2024-01-01T00:{second // 60:02d}:{second % 60:02d}" for second in seconds]
        records = [Record(json.dumps({"at": moment}).encode(), partition=n % 2) for n, moment in enumerate(at)]
        self.topics.append(
            self.topic("orders"), records, writer=Writer(Lineage("test"), "test", Generation(1)), batch=self.fed, now_micros=0
        )
        self.fed += 1

    def read(self, name: str, schema: str) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.topics.bootstrap)
        reader = reader.option("kafka.isolation.level", self.isolation)
        rows = reader.option("subscribe", self.topic(name)).option("startingOffsets", "earliest").load()
        return rows.select(F.from_json(F.col("value").cast("string"), schema).alias("v")).select("v.*").withWatermark("at", "5 seconds")

    def write(self, rows: DataFrame, topic: str, checkpoint: str, **trigger: Any) -> StreamingQuery:
        values = rows.select(F.to_json(F.struct("*")).alias("value"))
        writer = values.writeStream.format("kafka").option("kafka.bootstrap.servers", self.topics.bootstrap)
        writer = writer.option("topic", self.topic(topic)).option("checkpointLocation", checkpoint)
        self.started.append((writer.trigger(**trigger) if trigger else writer).start())
        return self.started[-1]

    def counts(self) -> DataFrame:
        counts = self.read("orders", "at timestamp").groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("orders"))
        return counts.select(F.col("window.start").alias("at"), "orders")

    def tens(self, checkpoint: str = "tens") -> StreamingQuery:
        return self.write(self.counts(), "tens", str(self.root / checkpoint))

    def tens_once(self, app: App) -> StreamingQuery:
        """As `tens`, with `app.kafka_writer`."""
        values = self.counts().select(F.to_json(F.struct("*")).alias("value"))
        writer = app.kafka_writer(values, self.topic("tens"), {"kafka.bootstrap.servers": self.topics.bootstrap})
        self.started.append(writer.option("checkpointLocation", str(self.root / "tens")).start())
        return self.started[-1]

    def minutes(self, checkpoint: str = "minutes") -> StreamingQuery:
        sums = self.read("tens", "at timestamp, orders long").groupBy(F.window("at", "1 minute")).agg(F.sum("orders").alias("orders"))
        return self.write(sums.select(F.col("window.start").alias("at"), "orders"), "minutes", str(self.root / checkpoint))

    def output(self, name: str) -> list[int]:
        stream = self.topic(name)
        found = [
            row
            for partition, end in self.topics.latest(stream).items()
            for rows in self.topics.read(stream, partition, 0, end)
            for row in rows
        ]
        return sorted(json.loads(value or b"")["orders"] for _, _, _, value, _ in found)


@pytest.fixture
def chain(spark: SparkSession, kafka_server: str, tmp_path: Path) -> Iterator[Chain]:
    topics = Topics(kafka_server)
    made = Chain(spark, topics, tmp_path)
    yield made
    for query in made.started:
        query.stop()
    topics.close()


@pytest.fixture
def agent(spark: SparkSession) -> Iterator[ScriptAgent]:
    made = ScriptAgent(spark)
    yield made
    made.app.drains.close()
    made.app.close()
    made.close()


@pytest.fixture
def next_start(spark: SparkSession) -> Iterator[Callable[[], ScriptAgent]]:
    """The agent of the next start of the script."""
    made: list[ScriptAgent] = []

    def end(each: ScriptAgent) -> None:
        each.app.drains.close()
        each.app.close()
        each.close()

    def start() -> ScriptAgent:
        for former in made[-1:]:
            end(former)
        made.append(ScriptAgent(spark))
        return made[-1]

    yield start
    end(made[-1])


def test_a_drain_closes_the_windows_of_each_query_after_those_that_write_its_input(agent: ScriptAgent, chain: Chain) -> None:
    agent.grant()
    chain.feed(range(25))
    tens, minutes = chain.tens(), chain.minutes()
    tens.processAllAvailable()
    assert chain.output("minutes") == []
    stopped = agent.pause("d-1", "tens", "minutes")
    assert sum(stopped[StageName("tens")].offsets.values()) == 25
    chain.feed(range(25, 30))  # not read any more
    assert agent.connection.call("feeders") == {"tens": (), "minutes": ("tens",)}
    flushed = {"tens": agent.flush("d-1", "tens"), "minutes": agent.flush("d-1", "minutes", "tens")}
    agent.leave("d-1", end=True)
    assert tens.awaitTermination(60)
    assert minutes.awaitTermination(60)
    assert (chain.output("tens"), chain.output("minutes")) == ([5, 10, 10], [25])
    assert [each.rows_left for each in flushed.values()] == [0, 0]
    assert flushed["tens"].position.offsets == stopped[StageName("tens")].offsets

    again = chain.tens()
    with pytest.raises(StreamingQueryException, match="drain d-1 has written out its state"):
        again.awaitTermination()


def test_a_query_reads_what_its_feeder_has_flushed_behind_a_transaction_of_another_program(agent: ScriptAgent, chain: Chain) -> None:
    """The query reads only committed records. The transaction is aborted while the drain waits for it."""
    chain.isolation = "read_committed"
    agent.grant()
    chain.feed(range(25))
    tens, minutes = chain.tens(), chain.minutes()
    tens.processAllAvailable()
    minutes.processAllAvailable()
    settings: dict[str, Any] = {"bootstrap.servers": chain.topics.bootstrap, "transactional.id": chain.topic("another")}
    other = Producer(settings)
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(chain.topic("tens"), b'{"at": "2024-01-01T00:00:00", "orders": 1000}')
    other.flush(30)
    agent.pause("d-1", "tens", "minutes")
    agent.flush("d-1", "tens")
    flushing = agent.connection.request("flush", "d-1", StageName("minutes"), [StageName("tens")])
    with pytest.raises(TimeoutError):
        flushing.result(3)
    other.abort_transaction(30)
    flushing.result()
    agent.leave("d-1", end=True)
    assert minutes.awaitTermination(60)
    assert (chain.output("tens"), chain.output("minutes")) == ([5, 10, 10], [25])


# test_an_interrupted_flush_continues_when_the_script_starts_again has another start in the drain.
@pytest.mark.long
@pytest.mark.parametrize("continued", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_query_reads_what_its_feeder_flushes_with_a_kafka_writer_that_has_written_nothing_since_the_start(
    next_start: Callable[[], ScriptAgent], chain: Chain, continued: bool
) -> None:
    """The feeder has windows in its checkpoint, and there is no new input. `continued`: the script was killed in the drain."""
    chain.isolation = "read_committed"
    first = next_start()
    first.grant()
    chain.feed(range(25))
    for query in (chain.tens_once(first.app), chain.minutes()):
        query.processAllAvailable()
        query.stop()
    assert (chain.output("tens"), chain.output("minutes")) == ([10], [])

    second = next_start()
    if continued:
        second.drain("d-1", flushing=True)
    second.grant(4)
    tens, minutes = chain.tens_once(second.app), chain.minutes()
    second.pause("d-1", "tens", "minutes")
    second.flush("d-1", "tens")
    second.flush("d-1", "minutes", "tens")
    second.leave("d-1", end=True)
    assert tens.awaitTermination(60)
    assert minutes.awaitTermination(60)
    assert (chain.output("tens"), chain.output("minutes")) == ([5, 10, 10], [25])


def test_a_checkpoint_begins_where_the_drain_has_ended_whatever_the_starting_offsets_are(agent: ScriptAgent, chain: Chain) -> None:
    agent.grant()
    chain.feed(range(20))
    begins = {chain.topic("orders"): {"0": 10, "1": 10}}
    ScriptCheckpoint(chain.spark, str(chain.root / "next")).begin_at(begins)
    foreign = chain.spark.newSession()
    elsewhere = Chain(foreign, chain.topics, chain.root).tens("next")
    with pytest.raises(StreamingQueryException, match="begin at the offsets of a drain"):
        elsewhere.awaitTermination()

    agent.app.drains.listen()
    chain.feed(range(20, 26))
    query = chain.tens("next")
    query.processAllAvailable()
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 6
    assert json.loads(query._jsq.recentProgress()[0].json())["sources"][0]["endOffset"] == {chain.topic("orders"): {"0": 13, "1": 13}}


def test_sources_of_one_topic_end_at_the_same_offset_and_a_source_of_two_topics_reads_what_its_feeder_has_flushed(
    agent: ScriptAgent, chain: Chain
) -> None:
    """The second query reads the counts and the orders with one source, and the orders with another one, which is slower."""
    agent.grant()
    chain.feed(range(600))
    tens = chain.tens()
    tens.processAllAvailable()

    def source(*topics: str, **options: str) -> DataFrame:
        reader = chain.spark.readStream.format("kafka").option("kafka.bootstrap.servers", chain.topics.bootstrap).options(**options)
        names = ",".join(map(chain.topic, topics))
        return reader.option("subscribe", names).option("startingOffsets", "earliest").load().select("topic", "timestamp", "value")

    rows = source("tens", "orders").union(source("orders", maxOffsetsPerTrigger="2"))
    found: list[str] = []
    writer = rows.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 hour"), "topic").count().writeStream
    writer = writer.outputMode("update").foreachBatch(lambda counts, batch: found.extend(f"{row.topic}" for row in counts.collect()))
    both = writer.option("checkpointLocation", str(chain.root / "both")).trigger(processingTime="1 second").start()
    chain.started.append(both)
    wait_for("a batch of both sources", lambda: both.lastProgress is not None)

    stopped = agent.pause("d-1", "tens", "both")[StageName("both")]
    agent.flush("d-1", "tens")
    flushed = agent.flush("d-1", "both", "tens").position
    agent.leave("d-1", end=True)
    assert both.awaitTermination(60)
    assert sum(offset for ssp, offset in stopped.offsets.items() if ssp.stream == chain.topic("orders")) < 600
    ends = {ssp.stream: 0 for ssp in flushed.offsets}
    for ssp, offset in flushed.offsets.items():
        ends[ssp.stream] += offset
    assert ends == {chain.topic("orders"): 600, chain.topic("tens"): chain.topics.latest(chain.topic("tens"))[0]}
    entries = ScriptCheckpoint(chain.spark, str(chain.root / "both"))
    *_, last = (number for number in entries.numbers("offsets") if number < LOCK_AFTER)
    first, second = (json.loads(line) for line in entries.read_offset_log(last).splitlines()[2:])
    assert first[chain.topic("orders")] == second[chain.topic("orders")]


def test_a_query_begins_at_drained_offsets_in_a_directory_with_special_characters_under_the_name_of_its_source(
    agent: ScriptAgent, chain: Chain
) -> None:
    """A source has a name since Spark 4.2."""
    agent.grant()
    chain.feed(range(20))
    chain.root = chain.root / "my state" / "día=1+2@50%41#?"
    directory = chain.root / "next"
    checkpoint = ScriptCheckpoint(chain.spark, url_of(directory))
    checkpoint.begin_at({chain.topic("orders"): {"0": 10, "1": 10}})
    assert (directory / "metadata").is_file()
    agent.app.drains.listen()
    chain.feed(range(20, 26))
    spark = chain.spark
    named = release_of(pyspark.__version__) >= NAMED_SOURCES
    options = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true", OFFSET_LOG_VERSION: "2"} if named else {}
    for option, value in options.items():
        spark.conf.set(option, value)
    try:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", chain.topics.bootstrap)
        reader = reader.option("subscribe", chain.topic("orders")).option("startingOffsets", "earliest")
        rows = (reader.name("src") if named else reader).load().select("value")
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", chain.topics.bootstrap)
        query = writer.option("topic", chain.topic("minutes")).option("checkpointLocation", url_of(directory)).start()
    finally:
        for option in options:
            spark.conf.unset(option)
    chain.started.append(query)
    query.processAllAvailable()
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 6
    assert list(directory.glob("commits/0"))
    assert [each.name for each in chain.root.parent.parent.iterdir() if "my" in each.name] == ["my state"]

    copy = chain.root / "copy"
    adopt_checkpoint(spark, str(directory), copy)
    assert list(copy.glob("commits/0"))


def test_a_cancelled_drain_lets_the_queries_continue(agent: ScriptAgent, chain: Chain) -> None:
    agent.grant()
    chain.feed(range(12))
    tens = chain.tens()
    tens.processAllAvailable()
    agent.pause("d-1", "tens")
    late = chain.minutes()  # starts during the drain, and waits
    agent.leave("d-1", end=False)
    chain.feed(range(100, 112))
    tens.processAllAvailable()
    late.processAllAvailable()
    assert (tens.isActive, late.isActive) == (True, True)
    assert chain.output("tens") == [2, 10]


def test_an_interrupted_flush_continues_when_the_script_starts_again(agent: ScriptAgent, chain: Chain, spark: SparkSession) -> None:
    agent.grant()
    chain.feed(range(12))
    tens = chain.tens()
    tens.processAllAvailable()
    batch = agent.pause("d-1", "tens")[StageName("tens")].batch
    assert batch is not None
    # The driver ends after it has locked the checkpoint and planned the flush.
    checkpoint = ScriptCheckpoint(spark, str(chain.root / "tens"))
    checkpoint.mark_emptied("d-1", batch)
    entry = checkpoint.read_offset_log(batch).replace('"batchWatermarkMs":', '"batchWatermarkMs":221845392000000,"was":')
    checkpoint.write_offset_log(batch + 1, entry)
    agent.stop()
    agent.next("stopped")
    agent.app.drains.close()
    agent.app.close()
    assert chain.output("tens") == []

    second = ScriptAgent(spark)
    second.drain("d-1", flushing=True)
    second.grant(4)
    chain.feed(range(12, 20))
    again = chain.tens()
    second.pause("d-1", "tens")
    flushed = second.flush("d-1", "tens").position
    second.leave("d-1", end=True)
    assert again.awaitTermination(60)
    assert chain.output("tens") == [2, 10]
    assert sum(flushed.offsets.values()) == 12
    assert checkpoint.numbers("offsets")[-1] >= LOCK_AFTER
    second.app.drains.close()
    second.app.close()
    second.close()


def test_what_cannot_be_drained_is_named(chain: Chain, spark: SparkSession) -> None:
    chain.feed(range(3))
    counts = chain.read("orders", "at timestamp").groupBy(F.window("at", "10 seconds")).count()
    rates = (
        spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds").groupBy(F.window("timestamp", "1 second")).count()
    )
    started = {
        "temporary": counts.writeStream.format("memory").queryName(f"t{uuid4().hex}").start(),
        "rates": rates.writeStream.format("memory")
        .queryName(f"t{uuid4().hex}")
        .option("checkpointLocation", str(chain.root / "r"))
        .start(),
        "rows": spark.readStream.format("rate").load().writeStream.format("noop").start(),
        "rows of app.checkpoint": spark.readStream.format("rate")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(chain.root / "drain-0" / "rows"))
        .start(),
        "files of app.checkpoint": chain.read("orders", "at timestamp")
        .writeStream.format("parquet")
        .option("path", str(chain.root / "files"))
        .option("checkpointLocation", str(chain.root / "drain-0" / "files"))
        .start(),
        "tens": chain.tens(),
    }
    chain.started.extend(started.values())
    started["files of app.checkpoint"].processAllAvailable()  # an interrupted write would log long traces of the JVM
    found = {each.run_id: undrainable(spark, each) for each in ActiveQueries(spark).find()}
    assert {name: list(found[str(query.runId)]) for name, query in started.items()} == {
        "temporary": ["it has state and no checkpointLocation, so it could not continue where the drain ends"],
        "rates": ["it reads rate, and only Kafka's offsets can be set for its next checkpoint"],
        "rows": [],
        "rows of app.checkpoint": ["it reads rate, and only Kafka's offsets can be set for its next checkpoint"],
        "files of app.checkpoint": [
            "Spark's file sink skips batches whose numbers it has, and the next checkpoint begins at batch 0: use `sluice stop`, which "
            "keeps the checkpoint, or write the files with foreachBatch"
        ],
        "tens": [],
    }
    assert wait_for(
        "the plan", lambda: next(each for each in ActiveQueries(spark).find() if each.query.id == started["tens"].id).writes()
    ) == [chain.topic("tens")]
