"""A process is killed or suspended at each request of a batch, on a real broker: each record is in the topic once, whatever arrives late.

The requests are those of a transaction, in their order. A process that is suspended at one of them resumes when its task has moved to
another owner, and what it has sent meanwhile arrives after everything that the other owner has written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from containers.spark.systems.kafka_transactions import ProducerFenced, TransactionalWriter
from examples.harness.topics import Topics
from sluice.streams.kafka import transactional_id
from tests.support.kafka_writer import FENCED, WriterProcess, new_writer, write_numbers, writer_process
from tests.support.kafkaproxy import Hold, KafkaProxy, Request, kafka_proxy
from tests.support.processes import wait_for

FIRST, SECOND = range(10), range(10, 20)

TO_BEGIN = [
    pytest.param(Request.INIT_PRODUCER_ID, False, id="before-init"),
    pytest.param(Request.INIT_PRODUCER_ID, True, id="between-init-and-confirm"),
    pytest.param(Request.OFFSET_FETCH, False, id="between-confirm-and-marker"),
    pytest.param(Request.OFFSET_FETCH, True, id="between-marker-and-write"),
]
"""The steps before the first batch, and whether the broker executes the request before the process stops."""

TO_WRITE = [
    pytest.param(Request.ADD_PARTITIONS_TO_TXN, False, id="before-the-transaction"),
    pytest.param(Request.ADD_PARTITIONS_TO_TXN, True, id="in-the-transaction-before-its-records"),
    pytest.param(Request.PRODUCE, False, id="records-on-their-way"),
    pytest.param(Request.PRODUCE, True, id="records-written"),
    pytest.param(Request.ADD_OFFSETS_TO_TXN, False, id="before-the-marker"),
    pytest.param(Request.TXN_OFFSET_COMMIT, False, id="marker-on-its-way"),
    pytest.param(Request.TXN_OFFSET_COMMIT, True, id="marker-written"),
    pytest.param(Request.END_TXN, False, id="commit-on-its-way"),
    pytest.param(Request.END_TXN, True, id="after-the-transaction"),
]


@dataclass
class Scene:
    """A topic of two partitions, a process that writes it under generation 1, and the file with the current generation."""

    topics: Topics
    process: WriterProcess
    proxy: KafkaProxy
    current: Path
    topic: str = field(default_factory=lambda: uuid4().hex)
    writers: list[TransactionalWriter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics.create(self.topic, 2)
        self.current.write_text("1")

    @property
    def name(self) -> str:
        return transactional_id("job", "stage", self.topic, "Partition 0")

    def tell_to_open(self) -> None:
        self.process.tell("open", name=self.name, topic=self.topic, generation=1, current=str(self.current))

    def opened(self) -> None:
        self.tell_to_open()
        assert self.process.answer() == {"done": -1}

    def tell_to_write(self, batch: int, numbers: range) -> None:
        self.process.tell("write", batch=batch, first=numbers.start, end=numbers.stop)

    def successor(self) -> TransactionalWriter:
        """The next owner of the task, which reaches the broker directly."""
        self.current.write_text("2")
        writer = new_writer(self.topics.bootstrap, self.name, self.topic, 2, self.current)
        self.writers.append(writer)
        writer.open()
        return writer

    def write_unless_there(self, writer: TransactionalWriter, batch: int, numbers: range) -> None:
        if not writer.has(batch):
            write_numbers(writer, batch, numbers)

    def write_on(self, writer: TransactionalWriter) -> None:
        """The next batch of the successor, which begins again if the former owner has fenced it."""
        try:
            write_numbers(writer, 1, SECOND)
        except ProducerFenced:
            again = self.successor()
            assert (again.has(0), again.has(1)) == (True, False)
            write_numbers(again, 1, SECOND)

    def numbers(self) -> list[int]:
        ends = self.topics.latest(self.topic)
        rows = [row for partition, end in ends.items() for part in self.topics.read(self.topic, partition, 0, end) for row in part]
        return sorted(int(row[3] or b"") for row in rows)


@pytest.fixture(scope="module")
def topics(kafka_server: str) -> Iterator[Topics]:
    made = Topics(kafka_server)
    yield made
    made.close()


@pytest.fixture(scope="module")
def proxy(kafka_server: str) -> Iterator[KafkaProxy]:
    with kafka_proxy(kafka_server) as made:
        yield made


@pytest.fixture(scope="module")
def shared(proxy: KafkaProxy) -> Iterator[WriterProcess]:
    """A process for all tests that suspend it."""
    with writer_process(proxy.bootstrap) as made:
        yield made


@pytest.fixture
def suspended(topics: Topics, shared: WriterProcess, proxy: KafkaProxy, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(topics, shared, proxy, tmp_path / "generation")
    yield made
    for writer in made.writers:
        writer.close()


@pytest.fixture
def killed(topics: Topics, proxy: KafkaProxy, tmp_path: Path) -> Iterator[Scene]:
    with writer_process(proxy.bootstrap) as process:
        made = Scene(topics, process, proxy, tmp_path / "generation")
        yield made
    for writer in made.writers:
        writer.close()


def stop_at(scene: Scene, hold: Hold) -> None:
    hold.await_reached()
    scene.process.suspend()


def resume(scene: Scene, hold: Hold) -> None:
    hold.release()
    scene.process.resume()


@pytest.mark.parametrize(("request_", "executed"), TO_BEGIN)
def test_a_process_that_is_suspended_before_its_first_batch_until_its_task_has_moved_adds_nothing(
    suspended: Scene, request_: Request, executed: bool
) -> None:
    scene, hold = suspended, suspended.proxy.hold(request_, executed=executed)
    scene.tell_to_open()
    stop_at(scene, hold)
    present = scene.successor()
    write_numbers(present, 0, FIRST)
    resume(scene, hold)
    assert scene.process.answer()["failed"] in FENCED
    scene.write_on(present)
    assert scene.numbers() == [*FIRST, *SECOND]


@pytest.mark.parametrize(("request_", "executed"), TO_WRITE)
def test_a_process_that_is_suspended_in_a_batch_until_its_task_has_moved_adds_nothing(
    suspended: Scene, request_: Request, executed: bool
) -> None:
    scene = suspended
    scene.opened()
    hold = scene.proxy.hold(request_, executed=executed)
    scene.tell_to_write(0, FIRST)
    stop_at(scene, hold)
    present = scene.successor()
    committed = (request_, executed) == (Request.END_TXN, True)
    assert present.has(0) is committed
    scene.write_unless_there(present, 0, FIRST)
    resume(scene, hold)
    answer = scene.process.answer()
    assert answer == {"done": None} if committed else answer["failed"] in FENCED
    scene.tell_to_write(1, SECOND)
    assert "failed" in scene.process.answer(), "nor does it write its next batch"
    scene.write_on(present)
    assert scene.numbers() == [*FIRST, *SECOND]


@pytest.mark.parametrize(("request_", "executed"), TO_BEGIN)
def test_a_process_that_is_killed_before_its_first_batch_leaves_a_topic_that_the_next_one_can_write(
    killed: Scene, request_: Request, executed: bool
) -> None:
    scene, hold = killed, killed.proxy.hold(request_, executed=executed)
    scene.tell_to_open()
    hold.await_reached()
    scene.process.kill()
    hold.drop()
    present = scene.successor()
    write_numbers(present, 0, FIRST)
    assert scene.numbers() == [*FIRST]


@pytest.mark.parametrize(("request_", "executed"), TO_WRITE)
def test_a_batch_in_which_a_process_is_killed_is_written_once(killed: Scene, request_: Request, executed: bool) -> None:
    scene = killed
    scene.opened()
    hold = scene.proxy.hold(request_, executed=executed)
    scene.tell_to_write(0, FIRST)
    hold.await_reached()
    scene.process.kill()
    hold.drop()
    present = scene.successor()
    assert present.has(0) is ((request_, executed) == (Request.END_TXN, True))
    scene.write_unless_there(present, 0, FIRST)
    assert scene.numbers() == [*FIRST]


def test_a_commit_that_arrives_after_its_process_was_killed_takes_effect(killed: Scene) -> None:
    scene = killed
    scene.opened()
    hold = scene.proxy.hold(Request.END_TXN)
    scene.tell_to_write(0, FIRST)
    hold.await_reached()
    scene.process.kill()
    system = scene.topics._system
    assert sum(scene.topics._run(system.readable(scene.topic)).values()) == 0
    hold.release()
    wait_for("the records", lambda: sum(scene.topics._run(system.readable(scene.topic)).values()) > len(FIRST))
    assert scene.successor().has(0)
    assert scene.numbers() == [*FIRST]
