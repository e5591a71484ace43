"""`app.kafka_writer()`: the batches of a script's queries are in a Kafka topic once each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from containers.attached.app import App
from containers.attached.batch_context import running_batch
from containers.attached.kafka_columns import CannotWrite
from containers.attached.kafka_writer import KafkaWriters
from containers.attached.port import NotGranted
from containers.spark.systems.kafka_markers import BATCH_HEADER
from containers.spark.systems.kafka_transactions import KafkaClients
from containers.spark.systems.row_transfer import FEW_ROWS
from examples.harness.topics import Topics, topic_partition_of
from sluice.clock import SystemClock
from sluice.core.errors import LeaseLost
from sluice.core.ids import JobName
from tests.attached.test_active_queries import Script, script
from tests.attached.test_attached_app import ScriptAgent
from tests.support.processes import wait_for

pytestmark = pytest.mark.spark


class Granting(ScriptAgent):
    """An agent that asks the coordinator for the owner, as often as the script wants to know it."""

    def __init__(self, spark: SparkSession, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.generation = coordinator.generation = coordinator.generation + 1
        super().__init__(spark, confirm=self._confirm)
        self.grant(self.generation)

    def end(self) -> None:
        self.app.close()
        self.close()

    def _confirm(self) -> None:
        self._coordinator.confirmed.append(self.generation)
        if self._coordinator.generation != self.generation:
            raise LeaseLost("a later start owns it")


@dataclass
class Coordinator:
    """What the coordinator knows: the generation of the last start."""

    generation: int = 2
    confirmed: list[int] = field(default_factory=list)


@dataclass
class Orders:
    """A topic of three partitions, files of orders, and starts of the script that writes them."""

    spark: SparkSession
    topics: Topics
    script: Script
    topic: str = field(default_factory=lambda: uuid4().hex)
    coordinator: Coordinator = field(default_factory=Coordinator)
    agents: list[Granting] = field(default_factory=list)

    def attach(self) -> App:
        """The next start of the script."""
        self.agents.append(Granting(self.spark, self.coordinator))
        return self.agents[-1].app

    def rows(self) -> DataFrame:
        return self.script.spark.readStream.text(str(self.script.root / "in"))

    def write(self, app: App, rows: DataFrame, name: str = "orders", **options: str) -> StreamingQuery:
        kafka = {"kafka.bootstrap.servers": self.topics.bootstrap, **{each.replace("_", "."): options[each] for each in options}}
        writer = app.kafka_writer(rows, self.topic, kafka).option("checkpointLocation", str(self.script.checkpoints / name))
        self.script.started.append(writer.start())
        return self.script.started[-1]

    def run(self, app: App, rows: DataFrame, name: str = "orders") -> StreamingQuery:
        """Until everything is written."""
        query = self.write(app, rows, name)
        query.processAllAvailable()
        query.stop()
        return query

    def records(self) -> list[tuple[int, bytes | None, bytes | None, dict[str, str]]]:
        """Partition, key, value and headers of the committed records."""
        found = []
        for partition, end in self.topics.latest(self.topic).items():
            for rows in self.topics.read(self.topic, partition, 0, end):
                found += [(partition, row) for row in rows]
        headers = self.topics.headers("")
        return [(partition, key, value, dict(headers[given])) for partition, (_, _, key, value, given) in found]

    def values(self) -> list[str]:
        return sorted((value or b"").decode() for _, _, value, _ in self.records())

    def forget_commit(self, name: str = "orders") -> None:
        """As after a kill between the transaction and Spark's commit log."""
        commits = self.script.checkpoints / name / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda file: int(file.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path, kafka_server: str) -> Iterator[Orders]:
    topics = Topics(kafka_server)
    with script(spark, tmp_path) as made:
        scene = Orders(spark, topics, made)
        topics.create(scene.topic, 3)
        yield scene
    for each in scene.agents:
        each.end()
    topics.close()


def failure(query: StreamingQuery) -> str:
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(120)
    return str(query.exception())


def test_keys_headers_and_partitions_are_those_that_the_sink_of_spark_writes(orders: Orders) -> None:
    """A large batch first, then small ones, whose rows take another way to the driver."""
    header = F.array(F.struct(F.lit("from").alias("key"), F.col("value").cast("binary").alias("value")))
    headers = F.when(F.col("value") != "1", header).alias("headers")
    rows = orders.rows().select(F.concat(F.lit("Käufer "), "value").alias("key"), "value", headers)
    app = orders.attach()
    orders.script.feed("one", rows=FEW_ROWS + 1)
    query = orders.write(app, rows)
    query.processAllAvailable()
    for name in ("two", "three"):
        orders.script.feed(name, rows=2)
        query.processAllAvailable()
    query.stop()
    found = orders.records()
    assert sorted(int(value or b"") for _, _, value, _ in found) == sorted([*range(FEW_ROWS + 1), 0, 1, 0, 1])
    for partition, key, value, given in found:
        assert value is not None
        assert key == b"K\xc3\xa4ufer " + value
        assert partition == topic_partition_of(key, 3)
        assert {name: each for name, each in given.items() if name != BATCH_HEADER} == ({} if value == b"1" else {"from": value.decode()})
    assert {each[BATCH_HEADER] for *_, each in found if BATCH_HEADER in each} == {f"{query.id}/{batch}" for batch in range(3)}


def test_rows_can_name_their_partitions(orders: Orders) -> None:
    place = F.when(F.col("value") != "0", F.lit(2)).alias("partition")
    orders.script.feed("one", rows=4)
    orders.run(orders.attach(), orders.rows().select(F.lit("a key").alias("key"), "value", place))
    usual = topic_partition_of(b"a key", 3)
    assert sorted((int(value or b""), partition) for partition, _, value, _ in orders.records()) == [(0, usual), (1, 2), (2, 2), (3, 2)]


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_the_topic_does_not_have_fails_the_query(orders: Orders, partition: int) -> None:
    orders.script.feed("one")
    query = orders.write(orders.attach(), orders.rows().select("value", F.lit(partition).alias("partition")))
    assert "BadPartition" in failure(query)
    assert orders.values() == []


def test_a_batch_whose_script_died_before_the_commit_log_is_not_written_again_and_its_state_continues(orders: Orders) -> None:
    counts = orders.rows().groupBy("value").count().select(F.concat_ws(" ", "value", "count").alias("value"))

    def start() -> StreamingQuery:
        writer = orders.attach().kafka_writer(counts, orders.topic, {"kafka.bootstrap.servers": orders.topics.bootstrap})
        options = {"checkpointLocation": str(orders.script.checkpoints / "orders")}
        query = writer.outputMode("update").options(**options).start()
        query.processAllAvailable()
        query.stop()
        return query

    orders.script.feed("one", rows=2)
    start()
    orders.forget_commit()
    orders.script.feed("two", rows=3)
    start()
    assert orders.values() == ["0 1", "0 2", "1 1", "1 2", "2 1"]


def test_a_script_reports_how_its_queries_write_to_kafka_and_their_transactions(orders: Orders) -> None:
    app = orders.attach()
    query = orders.write(app, orders.rows())
    for round in (1, 2):
        orders.script.feed(str(round), rows=2)
        query.processAllAvailable()
        wait_for("its batch", lambda rows=2 * round: len(orders.values()) == rows, 60)  # type: ignore[misc]
    reports = iter(lambda: orders.agents[-1].next("queries"), None)
    found = next(each for queries in reports for each in queries if each["batchId"] == 1 and each["metrics"])
    (written,) = found["writes"]
    assert written["commits"] >= 2  # the first batch also writes its marker in a transaction of its own
    assert found["metrics"]["delivery"] == {orders.topic: "exactly-once"}
    assert (written["topic"], written["aborted"], written["fenced"]) == (orders.topic, 0, 0)
    assert written["commitSeconds"] > 0


def test_two_queries_that_write_to_one_topic_do_not_fence_one_another(orders: Orders) -> None:
    app = orders.attach()
    queries = {name: orders.write(app, orders.rows().select(F.concat(F.lit(name), "value").alias("value")), name) for name in ("a", "b")}
    for round in range(2):
        orders.script.feed(str(round), rows=2)
        for query in queries.values():
            query.processAllAvailable()
    assert orders.values() == sorted([f"{name}{n}" for name in "ab" for n in (0, 1)] * 2)
    assert orders.coordinator.confirmed == [3, 3]


def test_a_former_start_that_is_still_there_is_fenced_and_its_query_ends(orders: Orders) -> None:
    """Its next batch fails, although nothing has ended it: it is a copy of the checkpoint, as on another machine."""
    former = orders.attach()
    orders.script.feed("one", rows=2)
    old = orders.write(former, orders.rows())
    old.processAllAvailable()
    copied = orders.script.checkpoints / "copy"
    copied.mkdir()
    for file in (each for each in (orders.script.checkpoints / "orders").rglob("*") if each.is_file()):
        target = copied / file.relative_to(orders.script.checkpoints / "orders")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    old.stop()
    new = orders.write(orders.attach(), orders.rows(), "copy")
    orders.script.feed("two", rows=1)
    new.processAllAvailable()
    new.stop()
    late = orders.write(former, orders.rows())
    assert "lost the lease of orders" in failure(late)
    assert orders.values() == ["0", "0", "1"]


def test_a_start_that_was_fenced_by_a_former_one_opens_again_and_writes_on(orders: Orders) -> None:
    """The former start was suspended before it opened."""
    former = orders.attach()
    orders.script.feed("one", rows=2)
    query = orders.write(orders.attach(), orders.rows())
    query.processAllAvailable()
    name = f"sluice/orders/script/{orders.topic}/{query.id}"
    Producer({"bootstrap.servers": orders.topics.bootstrap, "transactional.id": name}).init_transactions(60)
    orders.script.feed("two", rows=1)
    query.processAllAvailable()
    assert orders.values() == ["0", "0", "1"]
    assert orders.coordinator.confirmed == [4] * 3
    former.close()


def test_a_query_without_a_checkpoint_location_ends_with_its_first_batch(orders: Orders) -> None:
    orders.script.feed("one")
    writer = orders.attach().kafka_writer(orders.rows(), orders.topic, {"kafka.bootstrap.servers": orders.topics.bootstrap})
    query = writer.start()
    assert "no checkpoint location" in failure(query)
    assert orders.values() == []


def test_a_batch_that_an_earlier_version_of_the_script_may_have_written_stops_the_query(orders: Orders) -> None:
    """It wrote with another sink, so that the topic has no marker."""
    orders.script.feed("one")
    earlier = orders.script.start("orders", lambda rows, batch: None)
    earlier.processAllAvailable()
    earlier.stop()
    orders.forget_commit()
    query = orders.write(orders.attach(), orders.rows())
    assert "SLUICE_KAFKA_MISSING_MARKER=skip" in failure(query)
    assert orders.values() == []


@pytest.mark.long  # as tests/spark/test_kafka_on_spark.py
def test_a_batch_whose_marker_kafka_has_deleted_is_found_in_the_topic(orders: Orders) -> None:
    orders.script.feed("one", rows=2)
    query = orders.run(orders.attach(), orders.rows())
    orders.forget_commit()
    name = f"sluice/orders/script/{orders.topic}/{query.id}"
    orders.agents[-1].app.close()
    admin = AdminClient({"bootstrap.servers": orders.topics.bootstrap})
    admin.delete_consumer_groups([name])[name].result(60)
    orders.run(orders.attach(), orders.rows())
    assert orders.values() == ["0", "1"]


def test_producers_of_queries_that_have_ended_are_closed(orders: Orders) -> None:
    app = orders.attach()
    orders.script.feed("one", rows=2)
    orders.run(app, orders.rows())
    kafka: Any = app._kafka
    (system,) = kafka._systems.values()
    wait_for("the producer to be closed", lambda: not system._writers)
    orders.script.feed("two", rows=1)
    orders.run(app, orders.rows())
    assert orders.values() == ["0", "0", "1"]


def test_the_producer_of_a_query_that_its_script_has_started_again_is_closed_after_it(orders: Orders) -> None:
    """The script keeps the writer."""
    app = orders.attach()
    kafka = {"kafka.bootstrap.servers": orders.topics.bootstrap}
    writer = app.kafka_writer(orders.rows(), orders.topic, kafka).option("checkpointLocation", str(orders.script.checkpoints / "orders"))
    writers: Any = app._kafka
    (system,) = writers._systems.values()
    for name in ("one", "two"):
        orders.script.feed(name, rows=2)
        query = writer.start()
        orders.script.started.append(query)
        query.processAllAvailable()
        assert system._writers
        query.stop()
        wait_for("the producer to be closed", lambda: not system._writers)
    assert orders.values() == ["0", "0", "1", "1"]


class Away(Producer):
    """A producer whose brokers are away."""

    asked = Event()

    def init_transactions(self, *arguments: Any) -> None:
        self.asked.set()
        raise KafkaException(KafkaError(KafkaError._APPLICATION))


@pytest.fixture
def retrying(orders: Orders) -> Iterator[tuple[KafkaWriters, StreamingQuery]]:
    """A query whose batch is tried again, because the brokers are away."""
    Away.asked.clear()
    spark, clients = orders.spark, KafkaClients(producer=Away)
    writers = KafkaWriters(spark, JobName("orders"), SystemClock(), lambda: running_batch(spark, 3), lambda: None, {}, Event(), clients)
    orders.script.feed("one")
    writer = writers.writer(orders.rows(), orders.topic, {"kafka.bootstrap.servers": orders.topics.bootstrap})
    query = writer.option("checkpointLocation", str(orders.script.checkpoints / "orders")).start()
    orders.script.started.append(query)
    assert Away.asked.wait(60)
    yield writers, query
    writers.close()


def test_a_batch_is_not_tried_again_when_its_query_has_been_stopped(retrying: tuple[KafkaWriters, StreamingQuery]) -> None:
    _, query = retrying
    stopping = Thread(target=query.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive()


def test_a_batch_is_not_tried_again_when_its_script_stops(retrying: tuple[KafkaWriters, StreamingQuery]) -> None:
    writers, query = retrying
    writers.stopping.set()
    with pytest.raises(StreamingQueryException, match="StreamUnavailable"):
        assert query.awaitTermination(30)


def test_a_script_that_is_stopped_does_not_try_batches_again_while_it_waits_for_them(orders: Orders) -> None:
    app = orders.attach()
    app.kafka_writer(orders.rows(), orders.topic, {"kafka.bootstrap.servers": orders.topics.bootstrap})
    writers: Any = app._kafka
    seen: list[bool] = []
    orders.script.feed("one")
    begun = Event()

    def wait(rows: DataFrame, batch: int) -> None:
        begun.set()
        seen.append(writers.stopping.wait(30))

    orders.script.start("counts", wait)
    assert begun.wait(60)
    assert app.stop(timedelta(seconds=60)) == []
    assert seen == [True]


def test_rows_that_are_no_stream_and_scripts_without_a_coordinator_are_refused(orders: Orders) -> None:
    options = {"kafka.bootstrap.servers": orders.topics.bootstrap}
    with pytest.raises(CannotWrite, match="writes streaming queries"):
        orders.attach().kafka_writer(orders.spark.range(3).selectExpr("cast(id as string) value"), orders.topic, options)
    unprotected = App(orders.spark, JobName("orders"), (), SystemClock(), timedelta(seconds=60))
    with pytest.raises(NotGranted, match="without a coordinator"):
        unprotected.kafka_writer(orders.rows(), orders.topic, options)


def test_a_query_whose_first_start_could_not_open_its_producer_writes_its_planned_batch_at_the_next_start(orders: Orders) -> None:
    """The topic did not exist. With missing ACLs, or a kill, it is the same: the batch is planned, and there is no marker."""
    orders.topic = uuid4().hex
    orders.script.feed("one", rows=2)
    for _ in range(2):
        failure(orders.write(orders.attach(), orders.rows()))
    orders.topics.create(orders.topic, 3)
    orders.run(orders.attach(), orders.rows())
    assert orders.script.batches("orders", "commits") == ["0"]
    assert orders.values() == ["0", "1"]
