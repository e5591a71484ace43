"""Brokers that are killed while a batch is written: its records are in the topic once, and the marker says whether they are there."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from containers.local.kafka import Broker
from containers.spark.systems.kafka_transactions import TransactionalWriter
from examples.harness.topics import Topics
from sluice.core.errors import Unavailable
from sluice.streams.kafka import transactional_id
from tests.support.kafka_writer import new_writer, write_numbers, writer_process
from tests.support.kafkaproxy import Request, kafka_proxy
from tests.support.processes import free_port, wait_for
from tests.support.servers import kafka_jars, second_broker

FIRST, SECOND = range(10), range(10, 20)


@dataclass
class Cluster:
    """A broker that can be killed, with the topics of transactions and groups. Node 2, which is killed first, leads the transactions."""

    broker: Broker
    admin: AdminClient
    topics: Topics
    current: Path
    writers: list[TransactionalWriter] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return self.topics.bootstrap

    def restart(self) -> None:
        """Kill the broker, and start it again at the same address."""
        process = self.broker.running()
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # it was waited for already
            os.waitpid(process.pid, 0)  # until its last thread has ended, and its port is free
        asyncio.run(self.broker.up())

    def new_topic(self) -> str:
        topic = uuid4().hex
        self.create(topic, [[1], [1]])
        return topic

    def create(self, topic: str, replicas: list[list[int]], **config: str) -> None:
        made = NewTopic(
            topic, len(replicas), replica_assignment=replicas, config={name.replace("_", "."): text for name, text in config.items()}
        )
        self.admin.create_topics([made])[topic].result(60)
        wait_for("its leaders", lambda: self.leaders(topic) == [each[0] for each in replicas])

    def leaders(self, topic: str) -> list[int]:
        found = self.admin.list_topics(topic, timeout=30).topics[topic].partitions
        return [found[number].leader for number in sorted(found)]

    def writer(self, topic: str, bootstrap: str = "") -> TransactionalWriter:
        self.writers.append(new_writer(bootstrap or self.bootstrap, self.name(topic), topic, 1, self.current))
        return self.writers[-1]

    def write_as_a_query(self, writer: TransactionalWriter, topic: str, sent: Callable[[], None] = lambda: None) -> None:
        """Write the first batch. After an error a query starts again, with a new writer."""
        try:
            write_numbers(writer, 0, FIRST, sent)
        except Unavailable as error:
            print(f"the first attempt: {error}")
            again = self.writer(topic)
            again.open()
            if not again.has(0):
                write_numbers(again, 0, FIRST)

    def name(self, topic: str) -> str:
        return transactional_id("job", "stage", topic, "Partition 0")

    def numbers(self, topic: str) -> list[int]:
        ends = self.topics.latest(topic)
        rows = [row for partition, end in ends.items() for part in self.topics.read(topic, partition, 0, end) for row in part]
        return sorted(int(row[3] or b"") for row in rows)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kafka_jars()
    root = tmp_path_factory.mktemp("outages")
    broker, current = Broker(root / "broker", port=free_port()), root / "generation"
    current.write_text("1")
    process = asyncio.run(broker.up())
    try:
        with closing(Topics(process.bootstrap)) as topics:
            yield Cluster(broker, AdminClient({"bootstrap.servers": process.bootstrap}), topics, current)
    finally:
        asyncio.run(broker.down())


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    while running.writers:
        running.writers.pop().close()


class TestBrokersThatAreKilled:
    """The tests share their brokers, so they run in order."""

    def test_the_transaction_coordinator_is_killed_in_a_transaction_and_another_broker_continues(self, cluster: Cluster) -> None:
        with second_broker(cluster.broker.directory) as kill_second:
            cluster.create("__transaction_state", [[2, 1]], cleanup_policy="compact", min_insync_replicas="1")
            cluster.create("__consumer_offsets", [[1]], cleanup_policy="compact")
            topic = cluster.new_topic()
            writer = cluster.writer(topic)
            assert writer.open() == -1
            write_numbers(writer, 0, FIRST, kill_second)
            assert cluster.leaders("__transaction_state") == [1]
            write_numbers(writer, 1, SECOND)
            assert cluster.writer(topic).open() == 1
            assert cluster.numbers(topic) == [*FIRST, *SECOND]

    def test_a_broker_is_killed_in_a_transaction_and_the_batch_is_written_once(self, cluster: Cluster) -> None:
        topic = cluster.new_topic()
        writer = cluster.writer(topic)
        writer.open()
        cluster.write_as_a_query(writer, topic, cluster.restart)
        assert cluster.numbers(topic) == [*FIRST]

    def test_a_broker_is_killed_in_a_commit_and_its_answer_is_lost_and_the_batch_is_written_once(self, cluster: Cluster) -> None:
        topic = cluster.new_topic()
        with kafka_proxy(cluster.bootstrap) as proxy, ThreadPoolExecutor(1) as pool:
            writer = cluster.writer(topic, proxy.bootstrap)
            writer.open()
            hold = proxy.hold(Request.END_TXN, executed=True)
            writing = pool.submit(cluster.write_as_a_query, writer, topic)
            try:
                hold.await_reached()
                cluster.restart()
            finally:
                hold.drop()
            writing.result()
        assert cluster.numbers(topic) == [*FIRST]

    # test_kafka_steps.py has a writer that is killed before its commit.
    @pytest.mark.parametrize("executed", [pytest.param(False, marks=pytest.mark.long), True])
    def test_a_broker_and_the_writer_are_killed_in_a_commit_and_the_marker_shows_its_outcome(
        self, cluster: Cluster, executed: bool
    ) -> None:
        topic = cluster.new_topic()
        with kafka_proxy(cluster.bootstrap) as proxy, writer_process(proxy.bootstrap) as process:
            process.tell("open", name=cluster.name(topic), topic=topic, generation=1, current=str(cluster.current))
            assert process.answer() == {"done": -1}
            hold = proxy.hold(Request.END_TXN, executed=executed)
            process.tell("write", batch=0, first=FIRST.start, end=FIRST.stop)
            hold.await_reached()
            process.kill()
            cluster.restart()
            hold.drop()
        writer = cluster.writer(topic)
        assert writer.open() == (0 if executed else -1)
        if not writer.has(0):
            write_numbers(writer, 0, FIRST)
        assert cluster.numbers(topic) == [*FIRST]
