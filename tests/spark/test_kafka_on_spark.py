"""Kafka with real Spark: exact offsets, restarts, headers, keys, and separate histories, on a real broker."""

from __future__ import annotations

import errno
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from select import select
from threading import Event
from time import monotonic
from typing import Any
from uuid import uuid4

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from pyarrow import RecordBatch
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.engine import Bound, Writes
from containers.spark.flush import Flusher
from containers.spark.gate import pause
from containers.spark.query import start_query, stop_between_batches
from containers.spark.replay import Replay
from containers.spark.systems.kafka import KafkaTaskSystem
from containers.spark.systems.kafka_markers import BATCH_HEADER, MarkerMissing
from containers.spark.systems.kafka_transactions import RENEW_AFTER, KafkaClients, ProducerFenced
from containers.spark.systems.port import Grant
from containers.spark.systems.row_transfer import FEW_BYTES, FEW_ROWS, Resources, TransferFailed, collect_few, transfer
from containers.spark.task import StageTask
from containers.state.checkpoint import Checkpoints, planned_batches
from containers.state.offsets.offsetlog import positions_of
from examples.harness.topics import Topics, topic_partition_of
from sluice.clock import SystemClock
from sluice.core.errors import BadJobFile, LeaseLost, StreamConflict, StreamUnavailable
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, StreamId, TaskName
from sluice.job import Delivery, Input, Intermediate, Output
from sluice.streams.kafka import transactional_id
from sluice.streams.kafka_properties import KafkaProperties
from sluice.streams.log import Record, Writer
from tests.support.fakes import FakeClock

pytestmark = pytest.mark.spark

IN, MID, OUT = Input("in"), Intermediate("mid", 2), Output("out")
WRITER = Writer(Lineage("feeder"), "feeder", Generation(1))


@dataclass
class KafkaBench:
    """The topics of the streams "in" (2 partitions), "mid" (2) and "out" (1), under names of their own, and stages over them."""

    spark: SparkSession
    root: Path
    topics: Topics
    name: str = field(default_factory=lambda: uuid4().hex[:10])
    queries: list[StreamingQuery] = field(default_factory=list)
    max_rows: int = 1000

    def __post_init__(self) -> None:
        for stream, partitions in (("in", 2), ("mid", 2), ("out", 1)):
            self.topics.create(self.topic(stream), partitions)
        self.stores = Checkpoints(self.root / "state", "job")

    def topic(self, stream: str) -> str:
        return f"{self.name}.{stream}"

    def feed(self, values: Sequence[object], stream: str = "in", headers: dict[str, str] | None = None) -> None:
        records = [Record(json.dumps(value).encode(), partition=i % 2) for i, value in enumerate(values)]
        self.topics.append(self.topic(stream), records, writer=WRITER, batch=0, headers=headers, now_micros=1_772_366_400_000_000)

    def rows(self, stream: str) -> list[tuple[int, bytes | None, bytes, dict[str, str]]]:
        """Partition, key, value and headers of all records."""
        found = []
        for partition, end in self.topics.latest(self.topic(stream)).items():
            for rows in self.topics.read(self.topic(stream), partition, 0, end):
                found += [(partition, key, value or b"", dict(self.topics.headers("")[headers])) for _, _, key, value, headers in rows]
        return found

    def numbers(self, stream: str) -> list[int]:
        return sorted(int(value) for _, _, value, _ in self.rows(stream))

    def grant(self, reads: str, partitions: Sequence[int] = (0, 1), start: int = 0) -> Grant:
        starts = {Ssp("kafka", self.topic(reads), partition): start for partition in partitions}
        lineage = Lineage("6f0c9a52-3f5b-4e58-9c53-0d8e7a1f3b01")
        return Grant("job", TaskName("Partition 0"), StageName("stage"), Generation(1), lineage, RunId("origin"), starts)

    def task(self, grant: Grant) -> StageTask:
        streams = {name: Bound(StreamId("kafka", self.topic(name)), name == "mid", 2) for name in ("in", "mid", "out")}
        system = KafkaTaskSystem(self.spark, self.topics.bootstrap, KafkaProperties({}))
        return StageTask(self.spark, grant, streams, {"kafka": system}, {}, self.max_rows)

    def replay(self, grant: Grant, stage: Callable[[StageTask], DataStreamWriter]) -> Replay:
        directory = self.stores.prepare(grant.task, grant.stage, grant.lineage, None)
        reads = sorted({ssp.stream_id for ssp in grant.starts})
        name = f"{self.name}/opening"
        return Replay(self.spark, directory, name, grant.starts, reads, lambda opening: stage(self.task(replace(grant, opening=opening))))

    def run_until_read(self, grant: Grant, stage: Callable[[StageTask], DataStreamWriter]) -> StreamingQuery:
        """Start the stage, let it read everything, and stop it between batches."""
        directory = self.stores.prepare(grant.task, grant.stage, grant.lineage, None)
        writer = stage(self.task(grant))
        query = start_query(self.spark, writer, f"{self.name}/{len(self.queries)}", directory, timedelta(seconds=0.1))
        self.queries.append(query)
        query.processAllAvailable()
        assert stop_between_batches(self.spark, query, timedelta(seconds=60), Event())
        return query


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path, kafka_server: str) -> Iterator[KafkaBench]:
    topics = Topics(kafka_server)
    made = KafkaBench(spark, tmp_path, topics)
    yield made
    for query in made.queries:
        query.stop()
    topics.close()


def copy(task: StageTask) -> DataStreamWriter:
    return task.write(task.read(IN).selectExpr("cast(value as string) v"), OUT, value="v")


def route(task: StageTask) -> DataStreamWriter:
    rows = task.read(IN).selectExpr("cast(value as string) n").selectExpr("n", "cast(n as int) % 7 as k")
    return task.write(rows, MID, key="k", value="n")


def test_every_record_is_read_once_across_a_restart(bench: KafkaBench) -> None:
    bench.feed(range(500))
    bench.run_until_read(bench.grant("in"), copy)
    bench.feed(range(500, 900))
    bench.run_until_read(bench.grant("in"), copy)
    assert bench.numbers("out") == list(range(900))


def test_a_task_reads_its_own_partitions_from_their_starts(bench: KafkaBench) -> None:
    bench.feed(range(100))
    bench.run_until_read(bench.grant("in", partitions=[1], start=10), copy)
    assert bench.numbers("out") == list(range(21, 100, 2))


def test_new_partitions_of_a_topic_are_read_from_their_beginning(bench: KafkaBench) -> None:
    bench.feed(range(100))
    bench.run_until_read(bench.grant("in", partitions=[0]), copy)
    bench.run_until_read(bench.grant("in", partitions=[0, 1]), copy)
    assert bench.numbers("out") == list(range(100))


def test_a_new_partition_that_has_lost_its_first_records_is_read_from_its_start(bench: KafkaBench) -> None:
    bench.feed(range(100))
    bench.run_until_read(bench.grant("in", partitions=[0]), copy)
    bench.topics._run(bench.topics._system.trim(bench.topic("in"), {1: 10}))
    longer = bench.grant("in", partitions=[0, 1], start=10)
    with pytest.raises(StreamingQueryException, match=r"Added partition .*in-1 starts from 10 instead of 0"):
        bench.run_until_read(longer, copy)
    bench.queries[-1].stop()
    for _ in range(2):
        bench.replay(longer, copy).add_partitions(SystemClock().now())
    bench.run_until_read(longer, copy)
    assert bench.numbers("out") == sorted([*range(0, 100, 2), *range(21, 100, 2)])


def test_an_interrupted_batch_that_first_read_new_partitions_is_run_again(bench: KafkaBench) -> None:
    bench.feed(range(100))
    bench.run_until_read(bench.grant("in", partitions=[0]), copy)
    bench.topics._run(bench.topics._system.trim(bench.topic("in"), {1: 10}))
    longer = bench.grant("in", partitions=[0, 1], start=10)
    bench.replay(longer, copy).add_partitions(SystemClock().now())
    commits = bench.stores.directory(longer.task, longer.stage) / "commits"
    max(commits.glob("[0-9]*"), key=lambda file: int(file.name)).unlink()
    bench.replay(longer, copy).add_partitions(SystemClock().now())
    bench.run_until_read(longer, copy)
    assert bench.numbers("out") == sorted([*range(0, 100, 2), *range(21, 100, 2)])


def test_the_columns_are_the_same_in_every_system(bench: KafkaBench) -> None:
    rows = bench.task(bench.grant("in")).read(IN)
    assert rows.columns == ["key", "value", "stream", "partition", "offset", "timestamp", "headers"]
    assert dict(rows.dtypes)["headers"] == "array<struct<key:string,value:binary>>"
    assert rows.isStreaming


def test_records_with_the_same_key_are_in_the_partition_that_any_kafka_producer_chooses(bench: KafkaBench) -> None:
    bench.feed(range(70))
    bench.run_until_read(bench.grant("in"), route)
    rows = bench.rows("mid")
    assert len(rows) == 70
    for partition, key, value, headers in rows:
        assert key == str(int(value) % 7).encode()
        assert partition == topic_partition_of(key, 2)
        assert {name: value for name, value in headers.items() if name != BATCH_HEADER} == {"sluice-run": "origin"}


def test_records_of_other_runs_and_control_records_never_reach_user_code(bench: KafkaBench) -> None:
    bench.feed(range(10), "mid", {"sluice-run": "origin"})
    bench.feed(range(10, 20), "mid", {"sluice-run": "another"})
    bench.feed(range(20, 30), "mid", {"sluice-run": "origin", "sluice-control": "drain"})
    bench.feed(range(30, 40), "mid")

    def from_mid(task: StageTask) -> DataStreamWriter:
        return task.write(task.read(MID).selectExpr("cast(value as string) v"), OUT, value="v")

    bench.run_until_read(bench.grant("mid"), from_mid)
    assert bench.numbers("out") == list(range(10))


def test_progress_has_the_ends_of_the_input_at_each_batch_as_with_the_log(bench: KafkaBench) -> None:
    bench.max_rows = 100
    bench.feed(range(250))
    query = bench.run_until_read(bench.grant("in"), copy)
    topic = bench.topic("in")
    stream, ends = StreamId("kafka", topic), {Ssp("kafka", topic, partition): 125 for partition in (0, 1)}
    reported = [each.sources[0] for each in query.recentProgress if each.numInputRows]
    assert [positions_of([str(each.latestOffset)], [stream]) for each in reported] == [ends] * 3
    assert [sum(positions_of([str(each.endOffset)], [stream]).values()) for each in reported] == [100, 200, 250]


def test_deleted_records_fail_the_query_and_are_not_skipped(bench: KafkaBench) -> None:
    bench.feed(range(100))
    grant = bench.grant("in")
    bench.run_until_read(grant, copy)
    bench.feed(range(100, 200))
    bench.topics._run(bench.topics._system.trim(bench.topic("in"), {0: 80, 1: 80}))
    with pytest.raises(Exception, match=r"(?i)offset"):
        bench.run_until_read(replace(grant), copy)
    assert max(bench.numbers("out")) < 100


def test_an_error_of_spark_that_shows_the_plan_does_not_show_the_password(bench: KafkaBench) -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="sluice" password="open-sesame";'
    properties = KafkaProperties({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login})
    rows = KafkaTaskSystem(bench.spark, bench.topics.bootstrap, properties).read(bench.grant("in"), bench.topic("in"), {0: 0}, 10)
    with pytest.raises(Exception, match="lost_column") as failed:
        rows.selectExpr("lost_column")
    assert "kafka.bootstrap.servers" in str(failed.value), "the plan is shown"
    assert "open-sesame" not in str(failed.value)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_drain_reads_the_rest_up_to_its_end_and_flushes(bench: KafkaBench, in_place: bool) -> None:
    """In the paused query, and in the checkpoint of a stopped one."""

    def tens(task: StageTask) -> DataStreamWriter:
        at = F.timestamp_seconds(F.col("value").cast("string").cast("long")).alias("at")
        counts = task.read(IN).select(at).withWatermark("at", "10 seconds").groupBy(F.window("at", "10 seconds")).count()
        return task.write(counts, OUT, value=F.col("count").cast("string")).outputMode("append")

    grant = bench.grant("in")
    directory = bench.stores.prepare(grant.task, grant.stage, grant.lineage, None)
    bench.feed(range(1000, 1050))
    query = start_query(bench.spark, tens(bench.task(grant)), f"{bench.name}/tens", directory, timedelta(seconds=0.1))
    bench.queries.append(query)
    query.processAllAvailable()
    held = pause(bench.spark, query, timedelta(seconds=60), Event()) if in_place else None
    assert held is not None or stop_between_batches(bench.spark, query, timedelta(seconds=60), Event())
    bench.feed(range(1050, 1060))
    ends = {Ssp("kafka", bench.topic("in"), partition): end for partition, end in bench.topics.latest(bench.topic("in")).items()}
    bench.feed(range(1060, 1070))
    flusher = Flusher(bench.spark, directory, "drained", lambda: tens(bench.task(grant)), grant.starts, 1000, FakeClock(), paused=held)
    assert flusher.advance(ends) == 1
    assert flusher.flush().rows_left == 0
    assert held is None or held.end(timedelta(seconds=60), Event())
    assert bench.numbers("out") == [10] * 6


@pytest.mark.parametrize("delivery", list(Delivery))
def test_both_deliveries_place_keys_alike(bench: KafkaBench, delivery: Delivery) -> None:
    """The partition of each key is that of Java's producer, for ten thousand keys and odd ones."""
    keys = F.concat_ws("-", F.lit("key"), F.col("id"), F.expr("cast(id * 7919 as string)"))
    odd = bench.spark.createDataFrame([("",), ("Grüße, 東京",), ("\U0001f600",), (" ",)], "key string")
    rows = bench.spark.range(10_000).select(keys.alias("key")).unionAll(odd)
    records = rows.select(F.col("key").cast("binary").alias("key"), F.lit(b"1").alias("value"))
    system = KafkaTaskSystem(bench.spark, bench.topics.bootstrap, KafkaProperties({}))
    system.append(bench.grant("in"), records, 0, bench.topic("mid"), {}, delivery=delivery)
    system.close()
    found = bench.rows("mid")
    assert len(found) == 10_004
    assert [partition for partition, *_ in found] == [topic_partition_of(key or b"", 2) for _, key, *_ in found]


def test_records_without_a_key_are_spread_over_the_partitions(bench: KafkaBench) -> None:
    records = bench.spark.range(1000).select(F.lit(None).cast("binary").alias("key"), F.lit(b"1").alias("value"))
    system = KafkaTaskSystem(bench.spark, bench.topics.bootstrap, KafkaProperties({}))
    used, batches = set[int](), 0
    while used < {0, 1} and batches < 40:  # the producer changes the partition every 10 ms only, so a whole batch may be in one
        system.append(bench.grant("in"), records, batches, bench.topic("mid"), {})
        batches += 1
        used = {partition for partition, *_ in bench.rows("mid")}
    system.close()
    found = bench.rows("mid")
    assert (len(found), {key for _, key, *_ in found}, used) == (1000 * batches, {None}, {0, 1})


def test_a_batch_that_runs_again_is_not_sent_again_and_its_state_continues(bench: KafkaBench) -> None:
    """The commit log lacks the batch, as after a kill between the transaction and the commit log."""

    def counted(task: StageTask) -> DataStreamWriter:
        counts = task.read(IN).select((F.col("value").cast("string").cast("int") % 5).alias("k")).groupBy("k").count()
        return task.write(counts, OUT, value=F.col("count").cast("string")).outputMode("update")

    grant = bench.grant("in")
    bench.feed(range(50))
    bench.run_until_read(grant, counted)
    commits = bench.stores.directory(grant.task, grant.stage) / "commits"
    max(commits.glob("[0-9]*"), key=lambda file: int(file.name)).unlink()
    bench.run_until_read(grant, counted)
    assert bench.numbers("out") == [10] * 5
    bench.feed(range(50))
    bench.run_until_read(grant, counted)
    assert bench.numbers("out") == [10] * 5 + [20] * 5


def test_a_batch_whose_marker_was_deleted_is_found_in_the_topic_and_not_sent_again(bench: KafkaBench) -> None:
    """As after a kill between the transaction and the commit log, when the stage then did not run for `offsets.retention.minutes`."""
    grant = bench.grant("in")
    bench.feed(range(50))
    bench.run_until_read(grant, copy)
    directory = bench.stores.directory(grant.task, grant.stage)
    max((directory / "commits").glob("[0-9]*"), key=lambda file: int(file.name)).unlink()
    name = transactional_id(grant.job, grant.stage, bench.topic("out"), grant.task)
    admin = AdminClient({"bootstrap.servers": bench.topics.bootstrap})
    admin.delete_consumer_groups([name])[name].result(60)
    task = bench.task(grant)
    copy(task)  # declares the delivery
    assert task.fence(["out"], lambda: planned_batches(directory, grant.lineage, {}, None)) >= 0
    bench.run_until_read(grant, copy)
    assert bench.numbers("out") == list(range(50))


def test_the_record_with_the_batch_header_is_read_like_all_others(bench: KafkaBench) -> None:
    def from_mid(task: StageTask) -> DataStreamWriter:
        return task.write(task.read(MID).selectExpr("cast(value as string) v"), OUT, value="v")

    bench.feed(range(70))
    bench.run_until_read(bench.grant("in"), route)
    assert sum(BATCH_HEADER in headers for *_, headers in bench.rows("mid")) >= 1
    bench.run_until_read(replace(bench.grant("mid"), stage=StageName("next")), from_mid)
    assert bench.numbers("out") == list(range(70))


def test_an_action_that_fails_leaves_no_record_and_the_batch_can_be_written_again(bench: KafkaBench) -> None:
    system = KafkaTaskSystem(bench.spark, bench.topics.bootstrap, KafkaProperties({}))
    grant, numbers = bench.grant("in"), bench.spark.range(0, 30_000, 1, 3).select(F.lit(b"k").alias("key"), F.col("id"))
    broken = F.when(F.col("id") == 29_999, F.raise_error(F.lit("a broken row"))).otherwise(F.col("id").cast("string")).cast("binary")
    with pytest.raises(Exception, match="a broken row"):
        system.append(grant, numbers.select("key", broken.alias("value")), 0, bench.topic("out"), {})
    system.append(grant, numbers.select("key", F.col("id").cast("string").cast("binary").alias("value")), 0, bench.topic("out"), {})
    system.close()
    assert bench.numbers("out") == list(range(30_000))


def test_a_batch_of_a_fenced_generation_adds_nothing_and_loses_its_lease(bench: KafkaBench) -> None:
    lost: list[LeaseLost] = []

    def outdated() -> None:
        raise LeaseLost("generation 1 no longer owns it")

    rows = bench.spark.range(10).select(F.lit(b"k").alias("key"), F.col("id").cast("string").cast("binary").alias("value"))
    former = KafkaTaskSystem(bench.spark, bench.topics.bootstrap, KafkaProperties({}), lost.append)
    former.fence(bench.grant("in"), bench.topic("out"), Delivery.EXACTLY_ONCE)
    present = KafkaTaskSystem(bench.spark, bench.topics.bootstrap, KafkaProperties({}))
    present.append(replace(bench.grant("in"), generation=Generation(2)), rows, 0, bench.topic("out"), {})
    with pytest.raises((LeaseLost, ProducerFenced)):
        former.append(replace(bench.grant("in"), confirm_owner=outdated), rows, 0, bench.topic("out"), {})
    present.close()
    former.close()
    assert bench.numbers("out") == list(range(10))
    assert len(lost) == 1


def test_an_owner_that_a_former_one_has_fenced_confirms_its_generation_and_writes_the_batch_when_it_runs_again(bench: KafkaBench) -> None:
    """The former owner was suspended before it opened its producer."""
    confirmed = list[int]()
    grant = replace(bench.grant("in"), confirm_owner=lambda: confirmed.append(1))
    rows = bench.spark.range(10).select(F.lit(b"k").alias("key"), F.col("id").cast("string").cast("binary").alias("value"))
    system = KafkaTaskSystem(bench.spark, bench.topics.bootstrap, KafkaProperties({}))
    system.append(grant, rows, 0, bench.topic("out"), {})
    name = transactional_id(grant.job, grant.stage, bench.topic("out"), grant.task)
    Producer({"bootstrap.servers": bench.topics.bootstrap, "transactional.id": name}).init_transactions(60)
    assert len(confirmed) == 1
    with pytest.raises(ProducerFenced):
        system.append(grant, rows, 1, bench.topic("out"), {})
    assert len(confirmed) == 2
    for _ in range(2):
        system.append(grant, rows, 1, bench.topic("out"), {})
    system.close()
    assert bench.numbers("out") == sorted([*range(10), *range(10)])


class Unanswered:
    """A day after the writer was opened, the brokers do not answer the renewal of its marker, until `fail` is set."""

    def __init__(self) -> None:
        self.renewing, self.fail = Event(), Event()
        self.later = 0.0

    def clients(self) -> KafkaClients:
        scene = self

        class Unreachable(Producer):
            def send_offsets_to_transaction(self, *arguments: Any) -> None:
                if scene.later and not scene.fail.is_set():
                    scene.renewing.set()
                    scene.fail.wait(60)
                    raise KafkaException(KafkaError(KafkaError._APPLICATION))
                super().send_offsets_to_transaction(*arguments)

        return KafkaClients(producer=Unreachable, elapsed=lambda: monotonic() + self.later)


def test_a_batch_that_waits_for_a_renewal_which_fails_can_be_written_again(bench: KafkaBench) -> None:
    scene = Unanswered()
    system = KafkaTaskSystem(bench.spark, bench.topics.bootstrap, KafkaProperties({}), clients=scene.clients())
    rows = bench.spark.range(10).select(F.lit(b"k").alias("key"), F.col("id").cast("string").cast("binary").alias("value"))
    system.append(bench.grant("in"), rows, 0, bench.topic("out"), {})
    scene.later = RENEW_AFTER.total_seconds()
    system.renew()
    assert scene.renewing.wait(60)
    begun = Event()
    with ThreadPoolExecutor(1) as threads:
        batch = threads.submit(system.append, bench.grant("in"), rows, 1, bench.topic("out"), {}, begun.set)
        assert begun.wait(60)
        assert not batch.done()
        scene.fail.set()
        assert isinstance(batch.exception(60), StreamUnavailable)
    system.append(bench.grant("in"), rows, 1, bench.topic("out"), {})
    system.close()
    assert bench.numbers("out") == sorted([*range(10), *range(10)])


def test_a_stage_with_an_unknown_delivery_is_refused(bench: KafkaBench) -> None:
    task = bench.task(bench.grant("in"))
    with pytest.raises(BadJobFile, match=r"delivery='twice'.*exactly-once, at-least-once"):
        task.write(task.read(IN), OUT, value="value", delivery="twice")


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_task_reports_its_delivery(bench: KafkaBench, delivery: Delivery) -> None:
    task = bench.task(bench.grant("in"))
    task.write(task.read(IN), OUT, value="value", delivery=delivery)
    assert task.writes() == {"out": Writes(delivery)}


def run_as_a_container(bench: KafkaBench, grant: Grant, delivery: Delivery) -> None:
    """Fence former owners, start the stage, and stop it when it has read everything."""

    def copy_with(task: StageTask) -> DataStreamWriter:
        return task.write(task.read(IN).selectExpr("cast(value as string) v"), OUT, value="v", delivery=delivery)

    directory = bench.stores.prepare(grant.task, grant.stage, grant.lineage, None)
    task = bench.task(grant)
    copy_with(task)
    task.fence(["out"], lambda: planned_batches(directory, grant.lineage, {}, None))
    query = start_query(bench.spark, copy_with(task), f"{bench.name}/{len(bench.queries)}", directory, timedelta(seconds=0.1))
    bench.queries.append(query)
    query.processAllAvailable()
    assert stop_between_batches(bench.spark, query, timedelta(seconds=60), Event())


def forget_last_commit(bench: KafkaBench, grant: Grant) -> None:
    """As after a kill between the write of a batch and the commit log."""
    commits = bench.stores.directory(grant.task, grant.stage) / "commits"
    max(commits.glob("[0-9]*"), key=lambda file: int(file.name)).unlink()


def test_a_stage_whose_delivery_is_changed_and_changed_back_between_batches_writes_each_record_once(bench: KafkaBench) -> None:
    first = bench.grant("in")
    for generation, delivery in enumerate((Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE), 1):
        bench.feed(range(generation * 50 - 50, generation * 50))
        run_as_a_container(bench, replace(first, generation=Generation(generation)), delivery)
    assert bench.numbers("out") == list(range(150))


def test_a_batch_that_was_written_exactly_once_is_not_repeated_at_least_once(bench: KafkaBench) -> None:
    grant = bench.grant("in")
    bench.feed(range(50))
    run_as_a_container(bench, grant, Delivery.EXACTLY_ONCE)
    forget_last_commit(bench, grant)
    run_as_a_container(bench, replace(grant, generation=Generation(2)), Delivery.AT_LEAST_ONCE)
    bench.feed(range(50, 80))
    run_as_a_container(bench, replace(grant, generation=Generation(3)), Delivery.AT_LEAST_ONCE)
    assert bench.numbers("out") == list(range(80))


def test_a_stage_does_not_become_exactly_once_with_a_batch_that_may_have_been_written(bench: KafkaBench) -> None:
    """The first start after an upgrade from a release that wrote only with Spark's sink is refused in the same way."""
    grant = bench.grant("in")
    bench.feed(range(50))
    run_as_a_container(bench, grant, Delivery.AT_LEAST_ONCE)
    forget_last_commit(bench, grant)
    with pytest.raises(MarkerMissing, match=r"MISSING_MARKER=skip.*MISSING_MARKER=send"):
        run_as_a_container(bench, replace(grant, generation=Generation(2)), Delivery.EXACTLY_ONCE)
    assert bench.numbers("out") == list(range(50))


@pytest.mark.long  # as the third start of the test of changed deliveries
def test_a_stage_that_wrote_at_least_once_in_a_former_release_becomes_exactly_once_between_batches(bench: KafkaBench) -> None:
    grant = bench.grant("in")
    bench.feed(range(50))
    directory = bench.stores.prepare(grant.task, grant.stage, grant.lineage, None)
    rows = bench.task(grant).read(IN).selectExpr("cast(value as binary) value")
    options = {"kafka.bootstrap.servers": bench.topics.bootstrap, "topic": bench.topic("out")}
    former = rows.writeStream.foreachBatch(lambda batch, _: batch.write.format("kafka").options(**options).save())
    query = start_query(bench.spark, former, f"{bench.name}/former", directory, timedelta(seconds=0.1))
    bench.queries.append(query)
    query.processAllAvailable()
    assert stop_between_batches(bench.spark, query, timedelta(seconds=60), Event())
    bench.feed(range(50, 80))
    run_as_a_container(bench, replace(grant, generation=Generation(2)), Delivery.EXACTLY_ONCE)
    assert bench.numbers("out") == list(range(80))


@pytest.mark.long  # as test_log_on_spark.py and, for the writer, test_kafka_transactions.py
def test_an_intermediate_stream_that_has_grown_is_written_only_in_the_partitions_that_tasks_read(bench: KafkaBench) -> None:
    bench.topics.grow(bench.topic("mid"), 4)
    bench.feed(range(70))
    bench.run_until_read(bench.grant("in"), route)
    found = bench.rows("mid")
    assert len(found) == 70
    assert {partition for partition, *_ in found} == {0, 1}


def test_sparks_sink_does_not_write_an_intermediate_stream_that_has_grown(bench: KafkaBench) -> None:
    bench.topics.grow(bench.topic("mid"), 4)
    bench.feed(range(70))

    def route_with_spark(task: StageTask) -> DataStreamWriter:
        return task.write(task.read(IN), MID, key="key", value="value", delivery="at-least-once")

    with pytest.raises(StreamingQueryException, match="has grown to 4 partitions"):
        bench.run_until_read(bench.grant("in"), route_with_spark)
    assert bench.rows("mid") == []


def test_sparks_sink_does_not_write_an_intermediate_stream_that_grows_while_a_batch_waits_for_its_offset_log_entry(
    bench: KafkaBench,
) -> None:
    system = KafkaTaskSystem(bench.spark, bench.topics.bootstrap, KafkaProperties({}))
    rows = bench.spark.range(70).select(*(F.col("id").cast("string").cast("binary").alias(name) for name in ("key", "value")))

    def waits() -> None:
        bench.topics.grow(bench.topic("mid"), 4)

    with pytest.raises(StreamConflict, match="has grown to 4 partitions"):
        system.append(bench.grant("in"), rows, 0, bench.topic("mid"), {}, waits, Delivery.AT_LEAST_ONCE, partitions=2)
    assert bench.rows("mid") == []


def test_a_batch_reaches_the_driver_completely_in_pieces(bench: KafkaBench) -> None:
    rows = bench.spark.range(0, 100_000, 1, 4).select(F.col("id").cast("string").cast("binary").alias("value"))
    pieces: list[int] = []
    assert transfer(rows, lambda piece: pieces.append(piece.num_rows)) == 100_000
    assert (sum(pieces), max(pieces) <= 10_000) == (100_000, True)


@pytest.mark.long  # test_a_batch_reaches_the_driver_completely_in_pieces shows that no piece is large
def test_the_rows_of_a_large_batch_are_not_held_by_the_python_of_the_driver(spark: SparkSession) -> None:
    """200 MB of rows: the memory of this process grows by less than half of that. `make bench NAME=kafka-memory` measures ten million."""
    rows = spark.range(0, 2_000_000, 1, 2).select(
        F.lit(None).cast("binary").alias("key"), F.rpad(F.col("id").cast("string"), 100, "x").cast("binary").alias("value")
    )
    process, passed, held = psutil.Process(), list[int](), list[int]()

    def receive(piece: RecordBatch) -> None:
        passed.append(piece.nbytes)
        held.append(process.memory_info().rss)

    before = process.memory_info().rss
    assert transfer(rows, receive) == 2_000_000
    assert sum(passed) >= 200_000_000
    assert max(held) - before < 100_000_000


def test_an_error_of_the_driver_ends_the_action_and_is_raised(bench: KafkaBench) -> None:
    def refuse(piece: object) -> None:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        transfer(bench.spark.range(0, 100_000, 1, 4).select(F.col("id").cast("string").cast("binary").alias("value")), refuse)


class FullTable(socket.socket):
    """Listens on a port. When a task has connected, no descriptor is left."""

    def accept(self) -> tuple[socket.socket, Any]:
        assert select([self], [], [], 60)[0]
        raise OSError(errno.EMFILE, "Too many open files")


def full_table(address: str) -> socket.socket:
    listener = FullTable(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen()
    return listener


def test_tasks_that_the_driver_cannot_accept_fail_the_transfer_and_do_not_wait(bench: KafkaBench) -> None:
    rows = bench.spark.range(0, 100_000, 1, 4).select(F.col("id").cast("string").cast("binary").alias("value"))
    with pytest.raises(TransferFailed, match="Too many open files"):
        transfer(rows, lambda piece: None, Resources(listen=full_table))


def test_few_rows_reach_the_driver_without_python_workers(bench: KafkaBench) -> None:
    rows = bench.spark.range(0, 1_000, 1, 2).select(
        F.lit(None).cast("binary").alias("key"), F.col("id").cast("string").cast("binary").alias("v")
    )
    pieces = collect_few(rows)
    assert pieces is not None
    assert sorted(int(value) for piece in pieces for value in piece.column(1).to_pylist()) == list(range(1_000))
    assert {key for piece in pieces for key in piece.column(0).to_pylist()} == {None}


@pytest.mark.parametrize(
    ("rows", "bytes_each", "few"), [(FEW_ROWS, 4, True), (FEW_ROWS + 1, 4, False), (1, FEW_BYTES, True), (1, FEW_BYTES + 1, False)]
)
def test_many_rows_of_a_spark_task_and_large_values_are_not_few(bench: KafkaBench, rows: int, bytes_each: int, few: bool) -> None:
    value = F.lit("x" * bytes_each).cast("binary").alias("value")
    found = collect_few(bench.spark.range(0, rows, 1, 1).select(F.lit(b"k").alias("key"), value))
    assert (None if found is None else sum(piece.num_rows for piece in found)) == (rows if few else None)


def test_an_error_of_a_plan_with_few_rows_is_raised(bench: KafkaBench) -> None:
    rows = bench.spark.range(1).select(F.raise_error(F.lit("bad column")).cast("binary").alias("key"), F.lit(b"1").alias("value"))
    with pytest.raises(Exception, match="bad column"):
        collect_few(rows)


@pytest.mark.long
def test_a_large_batch_after_small_ones_is_written_once_and_its_state_continues(bench: KafkaBench) -> None:
    """Each record n makes the keys 1 to n. The count of a key is written whenever it changes."""

    def counted(task: StageTask) -> DataStreamWriter:
        keys = task.read(IN).select(F.explode(F.sequence(F.lit(1), F.col("value").cast("string").cast("int"))).alias("k"))
        return task.write(keys.groupBy("k").count(), OUT, key="k", value=F.col("count").cast("string")).outputMode("update")

    grant = bench.grant("in")
    many = FEW_ROWS * 3  # more than FEW_ROWS in each of the two partitions
    bench.feed([10])
    directory = bench.stores.prepare(grant.task, grant.stage, grant.lineage, None)
    query = start_query(bench.spark, counted(bench.task(grant)), f"{bench.name}/few", directory, timedelta(seconds=0.1))
    bench.queries.append(query)
    query.processAllAvailable()
    for n in (10, 10, many, 10):
        bench.feed([n])
        query.processAllAvailable()
    written = Counter((int(key or b""), int(value)) for _, key, value, _ in bench.rows("out"))
    assert written == Counter([(k, count) for k in range(1, 11) for count in range(1, 6)] + [(k, 1) for k in range(11, many + 1)])
