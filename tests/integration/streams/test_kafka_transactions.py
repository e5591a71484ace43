"""Batches as transactions on a real broker: who may write, what a repeated batch finds, and what other consumers see."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from containers.spark.systems.kafka_markers import BATCH_HEADER, Marker, MarkerMissing
from containers.spark.systems.kafka_transactions import (
    RENEW_AFTER,
    BadHeader,
    KafkaClients,
    MissingMarker,
    ProducerFenced,
    RecordTooLarge,
    TransactionalWriter,
    TransactionMeter,
    TransactionTimedOut,
)
from containers.state.checkpoint import PlannedBatches
from examples.harness.topics import Topics, topic_partition_of
from sluice.core.errors import BadSettings, CorruptData, LeaseLost, StreamUnavailable
from sluice.core.ids import Generation, Lineage
from sluice.job import Delivery
from sluice.streams.kafka import transactional_id
from tests.support.kafka_releases import chosen, needs_zookeeper

LINEAGE = Lineage("6f0c9a52-3f5b-4e58-9c53-0d8e7a1f3b01")
PLANNED = datetime.now(UTC)
Records = Sequence[tuple[bytes | None, bytes]]


def arrow(records: Records) -> pa.RecordBatch:
    keys, values = zip(*records, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], names=["key", "value"])


def numbered(numbers: Sequence[int]) -> Records:
    return [(str(number).encode(), str(number).encode()) for number in numbers]


def write(writer: TransactionalWriter, batch: int, records: Records) -> None:
    def produce(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        if records:
            send(arrow(records), [("sluice-run", b"origin")])
        return len(records)

    writer.write(batch, produce)


@dataclass
class Scene:
    """A topic of two partitions, and the writers of one stage of a task to it. `current`: the generation that the coordinator confirms."""

    topics: Topics
    topic: str = field(default_factory=lambda: uuid4().hex)
    current: int = 1
    before_confirming: Callable[[], None] = lambda: None
    after_confirming: Callable[[], None] = lambda: None
    writers: list[TransactionalWriter] = field(default_factory=list)

    @property
    def name(self) -> str:
        return transactional_id("job", "stage", self.topic, "Partition 0")

    def writer(
        self,
        generation: int = 1,
        lineage: Lineage = LINEAGE,
        properties: Mapping[str, str] | None = None,
        renew_after: timedelta = RENEW_AFTER,
        missing_marker: MissingMarker = MissingMarker.STOP,
        meter: TransactionMeter | None = None,
        made: KafkaClients | None = None,
    ) -> TransactionalWriter:
        def confirm() -> None:
            self.before_confirming()
            if self.current != generation:
                raise LeaseLost(f"generation {generation} does not hold it any more")
            self.after_confirming()

        clients = {"bootstrap.servers": self.topics.bootstrap, **(properties or {})}
        writer = TransactionalWriter(
            clients,
            self.name,
            self.topic,
            lineage,
            Generation(generation),
            confirm,
            renew_after,
            missing_marker,
            meter,
            made or KafkaClients(),
        )
        self.writers.append(writer)
        return writer

    def opened(self, generation: int = 1, lineage: Lineage = LINEAGE) -> TransactionalWriter:
        writer = self.writer(generation, lineage)
        writer.open()
        return writer

    def forget_marker(self) -> None:
        """As the brokers do after `offsets.retention.minutes`."""
        admin = AdminClient({"bootstrap.servers": self.topics.bootstrap})
        admin.delete_consumer_groups([self.name])[self.name].result(30)

    def numbers(self) -> list[int]:
        """What a consumer of aiokafka reads, and one of librdkafka reads too."""
        found = []
        for partition, end in self.topics.latest(self.topic).items():
            for rows in self.topics.read(self.topic, partition, 0, end):
                found += [int(row[3] or b"") for row in rows]
        assert sorted(found) == sorted(self._confluent())
        return sorted(found)

    def _confluent(self) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.topics.bootstrap, "group.id": uuid4().hex, "enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(self.topic, partition, 0) for partition in (0, 1)])
            found, ended = [], 0
            while ended < 2:
                message = consumer.poll(30)
                assert message is not None
                if message.error() is not None:
                    ended += 1
                else:
                    found.append(int(message.value() or b""))
            return found
        finally:
            consumer.close()


@pytest.fixture
def scene(kafka_server: str) -> Iterator[Scene]:
    topics = Topics(kafka_server)
    made = Scene(topics)
    topics.create(made.topic, 2)
    yield made
    for writer in made.writers:
        writer.close()
    topics.close()


def test_a_batch_and_the_marker_that_the_next_writer_reads_are_written_together(scene: Scene) -> None:
    writer = scene.writer()
    assert writer.open() == -1
    write(writer, 7, numbered(range(100)))
    assert scene.numbers() == list(range(100))
    again = scene.writer()
    assert again.open() == 7
    assert [again.has(batch) for batch in (6, 7, 8)] == [True, True, False]


def test_a_marker_is_renewed_before_the_brokers_delete_it(scene: Scene) -> None:
    writer = scene.writer(renew_after=timedelta(0))
    writer.open()
    write(writer, 7, numbered(range(10)))
    scene.forget_marker()
    writer.renew()
    assert scene.writer().open() == 7
    assert scene.numbers() == list(range(10))


def test_a_recent_marker_is_not_renewed(scene: Scene) -> None:
    writer = scene.opened()
    write(writer, 7, numbered(range(10)))
    scene.forget_marker()
    writer.renew()
    assert scene.writer().open() == -1


def test_a_writer_writes_a_marker_before_its_first_batch(scene: Scene) -> None:
    scene.opened()
    assert scene.writer().open(lambda: PlannedBatches(unfinished={0: PLANNED})) == -1, (
        "so batch 0 was not written, and nothing has to be looked for"
    )
    assert scene.numbers() == []


def test_a_batch_whose_marker_is_missing_is_found_in_the_topic(scene: Scene) -> None:
    writer = scene.opened()
    write(writer, 6, numbered(range(5)))
    write(writer, 7, numbered(range(5, 10)))
    scene.forget_marker()
    again = scene.writer()
    assert again.open(lambda: PlannedBatches(unfinished={7: PLANNED, 8: PLANNED})) == 7
    assert (again.has(7), again.has(8)) == (True, False)
    assert scene.writer().open() == 7, "and the marker is there again"
    assert scene.numbers() == list(range(10))


def test_a_disk_that_lacks_committed_batches_does_not_write_them_again_after_the_marker_was_missing(scene: Scene) -> None:
    """The container that committed them restarts on its own disk and finds no marker; then it loses this disk."""
    writer = scene.opened()
    write(writer, 6, numbered(range(5)))
    write(writer, 7, numbered(range(5, 10)))
    scene.forget_marker()
    assert scene.writer().open(lambda: PlannedBatches(committed=7)) == 7
    assert scene.writer().open(lambda: PlannedBatches(unfinished={6: PLANNED, 7: PLANNED})) == 7


def test_only_the_first_record_of_a_batch_has_a_header_that_names_it(scene: Scene) -> None:
    write(scene.opened(), 7, numbered(range(100)))
    named = []
    for partition, end in scene.topics.latest(scene.topic).items():
        for rows in scene.topics.read(scene.topic, partition, 0, end):
            named += [dict(scene.topics.headers("")[row[4]]).get(BATCH_HEADER) for row in rows]
    assert Counter(named) == {None: 99, f"{LINEAGE}/7": 1}


def test_a_stage_whose_marker_is_missing_stops_with_an_error_that_names_two_remedies(scene: Scene) -> None:
    """Its marker was deleted, or a release without markers wrote the batch."""
    with pytest.raises(MarkerMissing, match=r"batch 7 of .*MISSING_MARKER=skip.*MISSING_MARKER=send"):
        scene.writer().open(lambda: PlannedBatches(unfinished={7: PLANNED}))
    with pytest.raises(MarkerMissing):
        scene.writer().open(lambda: PlannedBatches(unfinished={7: PLANNED}))


@pytest.mark.parametrize(("chosen", "skipped"), [(MissingMarker.SEND, False), (MissingMarker.SKIP, True)])
def test_an_operator_chooses_whether_a_batch_without_a_marker_is_written(scene: Scene, chosen: MissingMarker, skipped: bool) -> None:
    writer = scene.writer(missing_marker=chosen)
    writer.open(lambda: PlannedBatches(unfinished={7: PLANNED}))
    assert writer.has(7) is skipped
    assert not writer.has(8)


def test_the_marker_of_a_stage_that_wrote_at_least_once_since_is_not_used(scene: Scene) -> None:
    write(scene.opened(), 7, numbered(range(10)))
    assert scene.writer().give_up() == 7
    assert scene.writer().give_up() == 7, "also after a restart"
    with pytest.raises(MarkerMissing, match="at-least-once"):
        scene.writer().open(lambda: PlannedBatches(unfinished={9: PLANNED}))
    assert scene.writer().open() == -1, "with no batch between plan and commit the change is exact"
    assert scene.writer().open(lambda: PlannedBatches(unfinished={10: PLANNED})) == -1
    assert scene.numbers() == list(range(10))


def test_a_stage_that_never_wrote_exactly_once_has_no_marker_to_give_up(scene: Scene) -> None:
    assert scene.writer().give_up() == -1
    with pytest.raises(MarkerMissing, match="is missing"):
        scene.writer().open(lambda: PlannedBatches(unfinished={0: PLANNED}))


def test_a_batch_of_another_lineage_is_not_taken_for_one_of_this_lineage(scene: Scene) -> None:
    write(scene.opened(), 7, numbered([1]))
    other = scene.writer(lineage=Lineage("00000000-0000-0000-0000-000000000000"))
    assert other.open() == -1
    assert not other.has(7)


def test_an_empty_batch_leaves_no_marker(scene: Scene) -> None:
    write(scene.opened(), 3, [])
    assert scene.writer().open() == -1


def test_nothing_is_left_of_a_batch_that_fails_in_the_middle_and_it_may_be_written_again(scene: Scene) -> None:
    writer = scene.opened()

    def failing(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        send(arrow(numbered(range(100))), [])
        raise RuntimeError("the plan failed")

    with pytest.raises(RuntimeError, match="the plan failed"):
        writer.write(0, failing)
    writer.close()
    again = scene.writer()
    assert again.open() == -1
    write(again, 0, numbered(range(50)))
    assert scene.numbers() == list(range(50))


def test_a_former_writer_is_fenced_and_adds_nothing(scene: Scene) -> None:
    former = scene.opened()
    scene.current = 2
    present = scene.opened(2)
    with pytest.raises(ProducerFenced):
        write(former, 0, numbered(range(10)))
    write(present, 0, numbered(range(20)))
    assert scene.numbers() == list(range(20))


def test_a_transaction_that_was_open_for_too_long_is_not_taken_for_another_producer(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    now, meter = 0.0, TransactionMeter()

    def produce_slowly(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        nonlocal now
        send(arrow(numbered(range(10))), [])
        now += 6
        return 10

    slow = scene.writer(properties={"transaction.timeout.ms": "10000"}, meter=meter, made=KafkaClients(elapsed=lambda: now))
    slow.open()
    slow.write(0, produce_slowly)
    assert "was open for 6 s; the brokers abort it after 10 s: write smaller batches, or raise transaction.timeout.ms" in caplog.text
    scene.opened()  # its open transaction is aborted, as the brokers do at the timeout
    now += 1
    with pytest.raises(ProducerFenced) as fenced:
        slow.write(1, produce_slowly)
    assert not isinstance(fenced.value, TransactionTimedOut)
    scene.opened()
    again = scene.writer(properties={"transaction.timeout.ms": "10000"}, meter=meter, made=KafkaClients(elapsed=lambda: now))
    again.open()

    def produce_for_too_long(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        nonlocal now
        send(arrow(numbered(range(10, 20))), [])
        scene.opened()
        now += 11
        return 10

    with pytest.raises(TransactionTimedOut, match="was open for 11 s; the brokers abort it after 10 s: write smaller batches"):
        again.write(1, produce_for_too_long)
    assert (meter.fenced, meter.aborted) == (1, 2)


@pytest.mark.parametrize("wrong", [{"key": None, "value": b"x"}, None])
def test_a_header_without_a_key_is_refused_and_nothing_is_written(scene: Scene, wrong: object) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = [pa.array([b"1"], pa.binary()), pa.array([b"1"], pa.binary()), pa.array([[{"key": "a", "value": b"b"}, wrong]], kind)]
    records = pa.RecordBatch.from_arrays(columns, names=["key", "value", "headers"])

    def produce(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        send(records, [])
        return 1

    writer = scene.opened()
    with pytest.raises(BadHeader, match="a header without a key in its column headers"):
        writer.write(0, produce)
    writer.close()
    assert scene.numbers() == []


def test_a_former_owner_that_begins_late_cannot_write_and_the_present_owner_continues(scene: Scene) -> None:
    """It was suspended between its acquire and its first request, and fences the present owner. Neither writes twice."""
    scene.current = 2
    present = scene.opened(2)
    write(present, 0, numbered(range(10)))
    late = scene.writer(1)
    with pytest.raises(LeaseLost):
        late.open()
    with pytest.raises(ProducerFenced):
        write(present, 1, numbered(range(10, 20)))
    again = scene.writer(2)
    assert again.open() == 0
    write(again, 1, numbered(range(10, 20)))
    assert scene.numbers() == list(range(20))


def test_an_owner_that_is_replaced_after_its_generation_was_confirmed_cannot_write(scene: Scene) -> None:
    """It is suspended between the coordinator's answer and its first batch."""
    frozen = scene.opened(1)
    scene.current = 2
    present = scene.opened(2)
    write(present, 0, numbered(range(10)))
    with pytest.raises(ProducerFenced):
        write(frozen, 0, numbered(range(10)))
    assert scene.numbers() == list(range(10))


def test_an_owner_that_is_replaced_during_its_request_to_the_coordinator_cannot_write(scene: Scene) -> None:
    """It is suspended between `init_transactions` and its request."""
    frozen = scene.writer(1)

    def replaced() -> None:
        scene.before_confirming = lambda: None
        scene.current = 2
        write(scene.opened(2), 0, numbered(range(10)))

    scene.before_confirming = replaced
    with pytest.raises(LeaseLost):
        frozen.open()
    assert scene.numbers() == list(range(10))


def test_an_owner_that_is_replaced_before_it_reads_its_marker_cannot_write(scene: Scene) -> None:
    """It is suspended between the coordinator's answer and its request for the marker."""
    frozen = scene.writer(1)

    def replaced() -> None:
        scene.after_confirming = lambda: None
        scene.current = 2
        write(scene.opened(2), 0, numbered(range(10)))

    scene.after_confirming = replaced
    with pytest.raises(LeaseLost, match="generation 2"):
        frozen.open()
    assert scene.numbers() == list(range(10))


def test_an_owner_that_is_replaced_in_its_transaction_adds_nothing(scene: Scene) -> None:
    """It is suspended between its last record and its commit. The next owner finds no marker of the batch, and writes the batch."""
    frozen = scene.opened(1)
    found: list[bool] = []

    def half(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        send(arrow(numbered(range(10))), [])
        scene.current = 2
        present = scene.opened(2)
        found.append(present.has(0))
        write(present, 0, numbered(range(10)))
        return 10

    with pytest.raises(ProducerFenced):
        frozen.write(0, half)
    assert found == [False]
    assert scene.numbers() == list(range(10))


def test_an_owner_that_is_replaced_after_its_commit_has_written_the_batch_once(scene: Scene) -> None:
    """It is suspended before it writes Spark's commit log, and continues with the next batch when it resumes."""
    frozen = scene.opened(1)
    write(frozen, 0, numbered(range(10)))
    scene.current = 2
    present = scene.opened(2)
    assert present.has(0)
    with pytest.raises(ProducerFenced):
        write(frozen, 1, numbered(range(10, 20)))
    write(present, 1, numbered(range(10, 20)))
    assert scene.numbers() == list(range(20))


def test_a_writer_that_finds_the_marker_of_a_higher_generation_ends(scene: Scene) -> None:
    scene.current = 5
    write(scene.opened(5), 0, numbered(range(3)))
    scene.current = 4
    with pytest.raises(LeaseLost, match="generation 5"):
        scene.writer(4).open()


def test_a_writer_that_is_killed_in_a_transaction_adds_nothing_and_blocks_no_reader_once_another_one_begins(scene: Scene) -> None:
    program = (
        "import sys; from confluent_kafka import Producer;"
        "p = Producer({'bootstrap.servers': sys.argv[1], 'transactional.id': sys.argv[2]});"
        "p.init_transactions(30); p.begin_transaction(); [p.produce(sys.argv[3], b'7', partition=0) for _ in range(10)];"
        "p.flush(30); print('written', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, scene.topics.bootstrap, scene.name, scene.topic]
    killed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"written\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert scene.topics._run(scene.topics._system.readable(scene.topic))[0] == 0, "an open transaction holds back the end that readers see"
    write(scene.opened(), 0, numbered(range(5)))
    assert scene.topics._run(scene.topics._system.settled_ends(scene.topic))[0] >= 11, "the aborted records take offsets"
    assert scene.numbers() == list(range(5))


@pytest.mark.skipif(needs_zookeeper(chosen()), reason="Kafka before 3.0 does not name the writers of open transactions")
def test_the_coordinator_aborts_the_open_transaction_of_a_killed_writer_which_could_not_continue_it(scene: Scene) -> None:
    system = scene.topics._system
    left = scene.opened()

    def half(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        send(arrow(numbered(range(100))), [])
        assert left._producer is not None
        left._producer.flush(30)
        at = scene.topics._run(system.readable(scene.topic))
        assert sum(at.values()) == 0
        assert scene.topics._run(system.open_transactions(scene.topic, at)) == {0: scene.name, 1: scene.name}
        scene.topics._run(system.abort(scene.topic, "job", "stage", "Partition 0"))
        assert sum(scene.topics._run(system.settled_ends(scene.topic)).values()) == 102, "and the end of a transaction in each partition"
        return 100

    with pytest.raises(ProducerFenced):
        left.write(0, half)
    write(scene.opened(), 0, numbered(range(5)))
    assert scene.numbers() == list(range(5))


def test_the_settled_ends_are_returned_when_the_open_transaction_has_ended(scene: Scene) -> None:
    open_one = Producer({"bootstrap.servers": scene.topics.bootstrap, "transactional.id": uuid4().hex})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(scene.topic, b"1", partition=0)
    open_one.flush(30)

    async def settled() -> int:
        waiting = asyncio.ensure_future(scene.topics._system.settled_ends(scene.topic))
        await asyncio.to_thread(open_one.commit_transaction, 30)
        return (await waiting)[0]

    assert scene.topics._run(settled()) == 2, "one record, and the end of the transaction"


def test_a_record_that_is_too_large_is_named_by_its_key(scene: Scene) -> None:
    writer = scene.opened()
    with pytest.raises(RecordTooLarge, match=r"with key b'whale'.*max.message.bytes"):
        write(writer, 0, [(b"minnow", b"x"), (b"whale", b"x" * 2_000_000)])


def test_a_transaction_timeout_that_the_brokers_refuse_is_named(scene: Scene) -> None:
    with pytest.raises(BadSettings, match=r"transaction\.max\.timeout\.ms"):
        scene.writer(properties={"transaction.timeout.ms": str(24 * 3600 * 1000)}).open()


def test_properties_that_librdkafka_refuses_are_named(scene: Scene) -> None:
    with pytest.raises(BadSettings, match="compression"):
        scene.writer(properties={"compression.type": "middle-out"}).open()


def test_a_group_that_another_program_uses_is_not_taken_for_a_marker(scene: Scene) -> None:
    consumer = Consumer({"bootstrap.servers": scene.topics.bootstrap, "group.id": scene.name})
    consumer.commit(offsets=[TopicPartition(scene.topic, 0, 5)], asynchronous=False)
    consumer.close()
    with pytest.raises(CorruptData, match="give it another name"):
        scene.writer().open()


def test_a_write_to_a_closed_writer_is_refused(scene: Scene) -> None:
    writer = scene.opened()
    writer.close()
    with pytest.raises(StreamUnavailable, match="starts again"):
        write(writer, 0, numbered([1]))


def test_commits_markers_and_failures_are_counted(scene: Scene) -> None:
    meter = TransactionMeter()
    writer = scene.writer(meter=meter)
    writer.open()
    write(writer, 0, numbered(range(10)))
    scene.current = 2
    scene.opened(2)
    with pytest.raises(ProducerFenced):
        write(writer, 1, numbered(range(10)))
    counted = meter.writes(Delivery.EXACTLY_ONCE)
    assert (counted.commits, counted.markers, counted.aborted, counted.fenced) == (2, 1, 1, 1)
    assert counted.commit_seconds > 0


def test_markers_survive_their_encoding() -> None:
    marker = Marker(LINEAGE, 12, Generation(3))
    assert Marker.decoded(marker.encoded(), "x") == marker


def test_keys_go_to_the_same_partitions_as_with_the_java_producer(scene: Scene) -> None:
    keys = [*(str(number).encode() for number in range(2000)), b"", "Grüße, 東京".encode(), b"\xff\x00"]
    write(scene.opened(), 0, [(key, b"1") for key in keys])
    for partition, end in scene.topics.latest(scene.topic).items():
        for rows in scene.topics.read(scene.topic, partition, 0, end):
            assert {topic_partition_of(row[2] or b"", 2) for row in rows} == {partition}


def partitions_of(scene: Scene) -> dict[int, set[int]]:
    """Number -> the partitions that have it."""
    found: dict[int, set[int]] = {}
    for partition, end in scene.topics.latest(scene.topic).items():
        for rows in scene.topics.read(scene.topic, partition, 0, end):
            for row in rows:
                found.setdefault(int(row[3] or b""), set()).add(partition)
    return found


def test_a_topic_that_grows_in_a_transaction_has_each_record_once(scene: Scene) -> None:
    writer = scene.opened()

    def growing(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        send(arrow(numbered(range(50))), [])
        scene.topics.grow(scene.topic, 4)
        assert writer._producer is not None
        writer._producer.list_topics(scene.topic, 30)
        send(arrow(numbered(range(50, 100))), [])
        return 100

    writer.write(0, growing)
    assert {number: len(partitions) for number, partitions in partitions_of(scene).items()} == dict.fromkeys(range(100), 1)


def test_records_of_a_topic_that_has_grown_stay_in_the_partitions_of_the_job_model(scene: Scene) -> None:
    scene.topics.grow(scene.topic, 4)
    scene.opened().write(0, lambda send: _sent(send, numbered(range(200))), partitions=2)
    expected = {number: {topic_partition_of(str(number).encode(), 2)} for number in range(200)}
    assert partitions_of(scene) == expected


def test_a_batch_during_which_its_topic_grows_is_written_again_to_the_partitions_of_the_job_model(scene: Scene) -> None:
    writer = scene.opened()

    def growing(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        scene.topics.grow(scene.topic, 4)
        return _sent(send, numbered(range(200)))

    with pytest.raises(StreamUnavailable, match="grown to 4 partitions"):
        writer.write(0, growing, partitions=2)
    writer.close()
    again = scene.opened()
    assert not again.has(0)
    again.write(0, lambda send: _sent(send, [*numbered(range(200)), (None, b"200")]), partitions=2)
    found = partitions_of(scene)
    assert found.keys() == set(range(201))
    assert {partition for partitions in found.values() for partition in partitions} == {0, 1}


def _sent(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None], records: Records) -> int:
    send(arrow(records), [])
    return len(records)
