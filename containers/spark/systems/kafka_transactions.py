"""Writes each batch of a stage in one Kafka transaction: the records, and a marker that identifies the batch.

**The marker** (`kafka_markers`) is an offset with lineage, batch and generation as its metadata. A consumer group of the writer commits it
inside the transaction. It exists if and only if the records do. A batch that runs again finds it, and does not send the records again.

**Who may write.** In Kafka the last producer that calls `init_transactions` with a `transactional.id` fences the others, whatever the
generations are: a former owner that was suspended before its call fences the present one. So `open` calls `init_transactions`, then
confirms the generation with the coordinator, and then reads the marker. If the generation is confirmed, every later owner acquires the task
and calls `init_transactions` after that, and from then on this producer cannot commit. An owner that was fenced by a former one opens
again.

The client is librdkafka (`confluent_kafka`), because a transaction needs one producer, and aiokafka's producer writes a tenth of the rows
per second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import chain, repeat
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, assert_never

from aiokafka.partitioner import murmur2
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from containers.engine import Writes
from containers.spark.systems.kafka_markers import Marker, batch_header, missing, search
from containers.state.checkpoint import PlannedBatches
from sluice.core.errors import BadSettings, ClientError, LeaseLost, StreamUnavailable, Unavailable
from sluice.core.ids import Generation, Lineage
from sluice.job import Delivery
from sluice.randomness import below
from sluice.streams.kafka_access import INSTEAD, OLDEST

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

PARTITION_UA = -1
"""librdkafka's number for a partition that its partitioner chooses."""

T = TypeVar("T")


def _sleep(duration: timedelta) -> None:
    sleep(duration.total_seconds())


Send: TypeAlias = "Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]"

REQUEST_TIMEOUT = timedelta(seconds=30)
"""The timeout of one request. Requests that may be repeated are repeated for COMMIT_TIMEOUT."""

FIRST_WAITS = [timedelta(seconds=2**power) for power in range(4)]
"""The timeouts of the first requests for a marker. They are short, because errors of authorization are seen only between two requests."""

COMMIT_TIMEOUT = timedelta(minutes=2)
"""How long brokers may be unreachable while a transaction is committed."""

ABORT_TIMEOUT = timedelta(seconds=5)

TRANSACTION_TIMEOUT = timedelta(minutes=5)
"""After this time brokers abort a transaction. It is open from a batch's first row to its commit."""

RENEW_AFTER = timedelta(days=1)
"""Brokers delete the offsets of a group without members after `offsets.retention.minutes`, seven days."""

PAUSE = timedelta(milliseconds=100)
"""The pause before a request is repeated."""

ROOM = timedelta(milliseconds=50)
"""How long to wait for room in the producer's queue."""

_DEFAULTS: Mapping[str, str | int | bool] = {
    "partitioner": "murmur2_random",  # as Java's producer, and so Spark's sink, places keys
    "enable.idempotence": True,
    "queue.buffering.max.kbytes": 16_384,
    "delivery.report.only.error": True,
    "transaction.timeout.ms": int(TRANSACTION_TIMEOUT.total_seconds() * 1000),
    "allow.auto.create.topics": False,
    # Otherwise librdkafka 2.16 closes its connections permanently after all brokers were unreachable, and `send_offsets_to_transaction` may
    # wait for one of them forever, whatever its timeout is.
    "metadata.recovery.strategy": "none",
}

_PASSING = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._WAIT_COORD,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
)
"""Errors of requests that may be repeated, although librdkafka does not mark them as retriable."""

_REFUSED = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the ACLs Write and Describe on the TransactionalId",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the ACL Read on the Group",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the ACLs Write, Read and Describe on the Topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the ACL IdempotentWrite on the Cluster",
}


_SHORTER = "the brokers abort it after {:g} s: write smaller batches, or raise transaction.timeout.ms"


class RecordTooLarge(Unavailable):
    """A record is larger than Kafka accepts."""


class BadPartition(ClientError):
    """A record has a partition that the topic does not have."""


class BadHeader(ClientError):
    """A record has a header that Kafka cannot store."""


class ProducerFenced(Unavailable):
    """Another producer with the same transactional id has started, or the producer has failed permanently."""


class TransactionTimedOut(ProducerFenced):
    """The brokers have aborted the transaction of a batch, because it was open for longer than `transaction.timeout.ms`."""


class MissingMarker(StrEnum):
    """What to do with a batch that was planned and not committed, if it is unknown whether the topic has it."""

    STOP = "stop"
    SEND = "send"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """How clients of Kafka are made, by their properties, and how time passes. `elapsed`: in seconds."""

    producer: Callable[[dict[str, object]], Producer] = Producer
    consumer: Callable[[dict[str, object]], Consumer] = Consumer
    elapsed: Callable[[], float] = monotonic
    pause: Callable[[timedelta], None] = _sleep


@dataclass(slots=True)
class TransactionMeter:
    """What the writers of one transactional id have done. See `Writes`."""

    commits: int = 0
    commit_seconds: float = 0.0
    aborted: int = 0
    fenced: int = 0
    markers: int = 0
    repeated: int = 0

    def writes(self, delivery: Delivery) -> Writes:
        return Writes(delivery, self.commits, self.commit_seconds, self.aborted, self.fenced, self.markers, self.repeated)


def _partition_of(key: bytes | None, partitions: int) -> int:
    """The partition that librdkafka's `murmur2_random` chooses in a topic with this number of partitions."""
    return below(partitions) if key is None else int(murmur2(key) & 0x7FFFFFFF) % partitions


def _optional(records: pa.RecordBatch, name: str) -> pa.Array | None:
    place = records.schema.get_field_index(name)
    return None if place < 0 else records.column(place)


def _checked_partition(partition: int, topic: str) -> int:
    """Raises BadPartition for numbers that have another meaning in librdkafka."""
    if partition < 0:
        raise BadPartition(f"a record has the partition {partition}, and {topic!r} has none of that number: partitions begin with 0")
    return partition


def _checked_headers(headers: Sequence[Mapping[str, Any] | None], topic: str) -> Iterator[tuple[str, bytes | None]]:
    """Raises BadHeader for a header without a key, which librdkafka would name "None"."""
    for each in headers:
        if each is None or each["key"] is None:
            raise BadHeader(f"a record for {topic!r} has a header without a key in its column headers: filter such headers out")
        yield each["key"], each["value"]


class TransactionalWriter:
    """Writes the batches of one stage of a task to one topic, under one generation. Methods block. `properties`: of librdkafka's clients.

    `confirm` confirms with the coordinator that the generation is current, and raises LeaseLost if it is not."""

    def __init__(
        self,
        properties: Mapping[str, str],
        name: str,
        topic: str,
        lineage: Lineage,
        generation: Generation,
        confirm: Callable[[], None],
        renew_after: timedelta = RENEW_AFTER,
        missing_marker: MissingMarker = MissingMarker.STOP,
        meter: TransactionMeter | None = None,
        clients: KafkaClients = KafkaClients(),
    ) -> None:
        self._meter = TransactionMeter() if meter is None else meter
        self._missing_marker = missing_marker
        self._made = clients
        self._properties = dict(properties)
        self._name = name
        self._topic = topic
        self._lineage = lineage
        self._generation = generation
        self._confirm = confirm
        self._producer: Producer | None = None
        self._group: Consumer | None = None
        self._marker: Marker | None = None
        self._failed: KafkaError | None = None
        self._renew_after = renew_after
        self._marked_at = -renew_after.total_seconds()
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._begun = False
        self._begun_at = 0.0
        self._timeout = TRANSACTION_TIMEOUT
        """After which the brokers abort a transaction."""
        self._header = batch_header(lineage, -1)
        self._counted = False
        self._first: int | None = None
        """The number of partitions to write to, from the first on, if the topic has more; None: all."""

    # --- before the first batch ------------------------------------------------------------------------------------

    def open(self, planned: Callable[[], PlannedBatches] = PlannedBatches) -> int:
        """Fence former producers off, which aborts their transactions. Returns the last batch of the lineage that the topic has, -1 for
        none. `planned` returns the batches of the checkpoint.

        From here on there is a marker: a batch never begins without one. So if one is missing, Kafka has deleted it, or the stage has not
        written with transactions before. Raises LeaseLost, BadSettings, StreamUnavailable, MarkerMissing."""
        clients = {**_DEFAULTS, **self._clients()}
        try:
            self._producer = self._made.producer({**clients, "transactional.id": self._name})
            self._timeout = timedelta(milliseconds=float(str(clients["transaction.timeout.ms"])))
            self._group = self._new_group()
        except KafkaException as error:
            raise BadSettings(f"the Kafka properties cannot be used for transactions: {error.args[0].str()}") from error
        try:
            self._until_done(lambda: self._transactions.init_transactions(REQUEST_TIMEOUT.total_seconds()))
            self._confirm()
            found = self._read_marker()
            if found is not None and found.generation > self._generation:
                raise LeaseLost(
                    f"{self._topic} was written under generation {found.generation}; generation {self._generation} may not write"
                )
            self._marker = found
            if found is None or found.lineage != self._lineage or found.delivery is not Delivery.EXACTLY_ONCE:
                self._write_marker(self._last_written(found, planned()))
        except BaseException:
            self.close()
            raise
        assert self._marker is not None
        return self._marker.batch

    def give_up(self) -> int:
        """Record in the marker, if there is one, that the stage writes at-least-once from now on, so that it does not count for later
        batches. Returns the last batch of the lineage that was written exactly once, -1 for none. Raises StreamUnavailable, LeaseLost,
        BadSettings."""
        self._group = self._new_group()
        try:
            found = self._read_marker()
        except BadSettings as denied:  # so this stage has no marker
            log.debug("%s", denied)
            return -1
        finally:
            self._group.close()
            self._group = None
        if found is None or found.lineage != self._lineage:
            return -1
        if found.delivery is Delivery.AT_LEAST_ONCE:
            return found.batch
        self.open()
        assert self._marker is not None
        try:
            self._write_marker(Marker(self._lineage, self._marker.batch, self._generation, Delivery.AT_LEAST_ONCE))
            return self._marker.batch
        finally:
            self.close()

    def _clients(self) -> dict[str, object]:
        return {**self._properties, "error_cb": self._on_error, "logger": log}

    def _new_group(self) -> Consumer:
        settings = {"group.id": self._name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        return self._made.consumer({**self._clients(), **settings})

    def _last_written(self, found: Marker | None, planned: PlannedBatches) -> Marker:
        """The marker to begin with, if there is none of this lineage and delivery. The topic has all committed batches, and another disk
        may have to run them again. Raises MarkerMissing."""
        committed, unfinished = Marker(self._lineage, planned.committed, self._generation), planned.unfinished
        if not unfinished or (found is not None and found.lineage != self._lineage):
            return committed  # the batches of a new lineage have not been written yet
        log.warning("looking in %s for batches %s of %s, because there is no marker", self._topic, sorted(unfinished), self._name)
        try:
            batch = search(self._clients(), self._topic, self._lineage, unfinished, self._made.consumer, self._made.elapsed)
        except KafkaException as error:
            raise self._translated(error.args[0]) from error
        if batch >= 0:
            return Marker(self._lineage, batch, self._generation)
        match self._missing_marker:
            case MissingMarker.SEND:
                return committed
            case MissingMarker.SKIP:
                return Marker(self._lineage, max(unfinished), self._generation)
            case MissingMarker.STOP:
                why = (
                    "the stage has written at-least-once meanwhile"
                    if found is not None
                    else "the marker that says what was written is missing"
                )
                raise missing(self._name, self._topic, unfinished, why)
            case _:
                assert_never(self._missing_marker)

    def _write_marker(self, marker: Marker) -> None:
        """Write the marker in a transaction of its own."""
        self._failed, self._begun = None, False
        self._begin()
        self._commit(marker)
        self._meter.markers += 1

    def has(self, batch: int) -> bool:
        """Whether the topic has the records of the batch, or of a later one of its lineage."""
        return self._marker is not None and self._marker.batch >= batch

    def _read_marker(self) -> Marker | None:
        """Raises StreamUnavailable, CorruptData."""
        group = self._group
        assert group is not None
        waits = chain(FIRST_WAITS, repeat(REQUEST_TIMEOUT))

        def committed() -> TopicPartition:
            try:
                return group.committed([TopicPartition(self._topic, 0)], next(waits).total_seconds())[0]
            except KafkaException:
                refused = group.poll(0)  # a request of a client that may not look for its group's coordinator is not answered
                if refused is not None and (error := refused.error()) is not None:
                    raise self._translated(error) from None
                raise

        found = self._until_done(committed)
        if found.error is not None:
            raise self._translated(found.error)
        if found.offset < 0:
            return None
        return Marker.decoded(found.metadata or "", f"the consumer group {self._name!r}")

    # --- a batch ---------------------------------------------------------------------------------------------------

    def write(self, batch: int, produce: Callable[[Send], int], partitions: int | None = None) -> None:
        """Write the batch. `produce` passes the records to the function that it gets, and returns their number. A batch without records
        leaves no marker, because it may run again. The transaction begins with the first record. `partitions`: the number of partitions to
        write to, from the first on, as if the topic had no more; None: all. After an error, the writer cannot be used any more. Raises what
        `send`, `_commit` and `produce` raise, and StreamUnavailable if the topic has grown during the batch."""
        with self._writing:
            self._failed, self._begun = None, False
            self._header = batch_header(self._lineage, batch)
            try:
                if partitions is not None and not self._counted:
                    self._choose_partitions(partitions)
                if produce(self._send):
                    if partitions is not None and self._first is None:
                        self._check_partitions(partitions)
                    self._commit(Marker(self._lineage, batch, self._generation))
                    return
            except BaseException as error:
                self._meter.aborted += self._begun
                self._meter.fenced += isinstance(error, ProducerFenced) and not isinstance(error, TransactionTimedOut)
                raise
        self.renew()

    @property
    def due(self) -> bool:
        """Whether the marker is at least as old as `renew_after`."""
        return self._marker is not None and self._made.elapsed() - self._marked_at >= self._renew_after.total_seconds()

    def renew(self) -> None:
        """Write the marker again if it is `due`, unless a batch is being written. Thread-safe. Raises what `_commit` raises; the writer
        cannot be used then, also not by a batch that waits meanwhile."""
        if self._marker is not None and self.due and self._writing.acquire(blocking=False):
            try:
                self._write_marker(self._marker)
            except BaseException:
                self.close()
                raise
            finally:
                self._writing.release()

    def _begin(self) -> bool:
        """Begin the transaction, unless it has begun. Returns whether this call began it."""
        with self._lock:
            if self._begun:
                return False
            self._calling(self._transactions.begin_transaction)
            self._begun, self._begun_at = True, self._made.elapsed()
            return True

    def _send(self, records: pa.RecordBatch, headers: list[tuple[str, bytes]]) -> None:
        """Send records: key and value, optionally `headers` and `partition`, as Spark's sink has them. Returns when they are in the
        producer's queue. Thread-safe. Raises RecordTooLarge, StreamUnavailable, ProducerFenced, BadPartition, BadHeader."""
        usual: list[tuple[str, str | bytes | None]] = [*headers]
        marking: list[tuple[str, str | bytes | None]] = [self._header] if self._begin() else []  # of the batch's first record
        producer, topic, first = self._transactions, self._topic, self._first
        produce, on_delivery = producer.produce, self._on_delivery
        columns = (records.column(0), records.column(1), _optional(records, "headers"), _optional(records, "partition"))
        for key, value, own, placed in zip(*(repeat(None) if each is None else each.to_pylist() for each in columns), strict=False):
            given = usual if own is None else [*usual, *_checked_headers(own, topic)]
            if marking:
                given, marking = [*given, *marking], []
            if placed is not None:
                partition = _checked_partition(placed, topic)
            else:
                partition = PARTITION_UA if first is None else _partition_of(key, first)
            while True:
                try:
                    produce(topic, value, key, partition, headers=given, on_delivery=on_delivery)
                    break
                except BufferError:
                    self._poll(ROOM)
                except KafkaException as error:
                    raise self._translated(error.args[0], key) from error
        self._poll(timedelta(0))

    def _commit(self, marker: Marker) -> None:
        """Commit the records together with the marker. Raises RecordTooLarge, StreamUnavailable, ProducerFenced. After an error it is
        unknown whether they are committed; `open` finds out."""
        assert self._group is not None
        position = marker.position(self._topic)
        members = self._group.consumer_group_metadata()
        producer, timeout = self._transactions, REQUEST_TIMEOUT.total_seconds()
        began = self._made.elapsed()
        self._until_done(lambda: producer.send_offsets_to_transaction([position], members, timeout))
        self._until_done(lambda: producer.commit_transaction(timeout))
        self._marker, self._marked_at = marker, self._made.elapsed()
        took, most = self._marked_at - self._begun_at, self._timeout.total_seconds()
        if took > most / 2:
            log.warning("the transaction of a batch for %s was open for %.0f s; %s", self._topic, took, _SHORTER.format(most))
        self._meter.commits += 1
        self._meter.commit_seconds += self._marked_at - began

    def _choose_partitions(self, partitions: int) -> None:
        """Decide, before the first batch, whether partitions are chosen in Python. This takes several times as long as in librdkafka, which
        always chooses among all partitions of the topic."""
        self._counted = True
        if self._partition_count() > partitions:
            log.warning("%s has more than the %d partitions that the job reads: writing to these only", self._topic, partitions)
            self._first = partitions

    def _check_partitions(self, partitions: int) -> None:
        """Check, before a commit, that the topic has not grown: librdkafka may have chosen a new partition. Raises StreamUnavailable."""
        if self._transactions.flush(COMMIT_TIMEOUT.total_seconds()):
            raise StreamUnavailable(f"Kafka does not accept the records of a batch for {self._topic}")
        if (present := self._partition_count()) > partitions:
            raise StreamUnavailable(f"{self._topic} has grown to {present} partitions: the batch is written again")

    def _partition_count(self) -> int:
        """Raises StreamUnavailable."""
        producer = self._transactions
        found = self._until_done(lambda: producer.list_topics(self._topic, REQUEST_TIMEOUT.total_seconds())).topics[self._topic]
        if found.error is not None:
            raise self._translated(found.error)
        return len(found.partitions)

    def close(self) -> None:
        """Abort an open transaction. If that fails, the next producer aborts it when it opens, or the brokers after TRANSACTION_TIMEOUT.
        May be repeated."""
        producer, self._producer = self._producer, None
        group, self._group = self._group, None
        if group is not None:
            group.close()
        if producer is not None:
            with suppress(KafkaException):  # the producer was fenced, or has committed
                producer.abort_transaction(ABORT_TIMEOUT.total_seconds())
            with suppress(KafkaException, SystemError):  # the binding raises SystemError for a fatal error that it has raised before
                producer.flush(ABORT_TIMEOUT.total_seconds())

    # --- requests --------------------------------------------------------------------------------------------------

    @property
    def _transactions(self) -> Producer:
        if self._producer is None:
            raise StreamUnavailable(f"the producer {self._name!r} was closed: the query starts again")
        return self._producer

    def _until_done(self, request: Callable[[], T]) -> T:
        """Repeat a request that Kafka allows to be repeated, for COMMIT_TIMEOUT."""
        give_up = self._made.elapsed() + COMMIT_TIMEOUT.total_seconds()
        while True:
            try:
                return request()
            except KafkaException as error:
                found = error.args[0]
                if not (found.retriable() or found.code() in _PASSING) or self._made.elapsed() > give_up:
                    raise self._translated(self._failed or found) from error
                self._made.pause(PAUSE)

    def _calling(self, request: Callable[[], object]) -> None:
        try:
            request()
        except KafkaException as error:
            raise self._translated(error.args[0]) from error

    def _on_error(self, error: KafkaError) -> None:
        """Log an error. Fatal errors are not passed here: the binding raises them from `poll` and `flush`."""
        log.debug("Kafka client %s: %s", self._name, error.str())

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Record that a record was not delivered."""
        if error is not None and self._failed is None and error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._failed = error
            log.error("Kafka producer %s: a record with key %r is not delivered: %s", self._name, (message.key() or b"")[:200], error.str())

    def _poll(self, wait: timedelta) -> None:
        """Serve the producer's callbacks. Raises the error of a failed record."""
        self._calling(lambda: self._transactions.poll(wait.total_seconds()))
        if self._failed is not None:
            raise self._translated(self._failed)

    def _translated(self, error: KafkaError, key: bytes | None = None) -> Exception:
        """Kafka's error as an error of Sluice."""
        if error.code() in (KafkaError._FENCED, KafkaError._FATAL, KafkaError.INVALID_PRODUCER_EPOCH):  # after _FENCED, calls say _FATAL
            took, most = self._made.elapsed() - self._begun_at, self._timeout.total_seconds()
            if self._begun and took >= most:
                return TransactionTimedOut(
                    f"the transaction of a batch for {self._topic!r} was open for {took:.0f} s; {_SHORTER.format(most)}: {error.str()}"
                )
            return ProducerFenced(f"another producer has started with the transactional id {self._name!r}: {error.str()}")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            named = f" with key {key[:200]!r}" if key is not None else ""
            return RecordTooLarge(
                f"a record{named} is larger than the topic {self._topic!r} or the producer accepts: raise max.message.bytes of the topic, "
                "and max.request.size in SLUICE_KAFKA_PROPERTIES"
            )
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            named = f" with key {key[:200]!r}" if key is not None else ""
            return BadPartition(f"a record{named} has a partition that {self._topic!r} does not have")
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return BadSettings(
                "the transaction timeout is longer than the brokers' transaction.max.timeout.ms: raise that, or lower "
                "transaction.timeout.ms in SLUICE_KAFKA_PROPERTIES"
            )
        if error.code() in (KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION):
            return BadSettings(f"exactly-once needs Kafka {OLDEST} or newer ({error.str()}): update the brokers, or {INSTEAD}")
        if error.code() in _REFUSED:
            return BadSettings(
                f"Kafka denies access: exactly-once needs {_REFUSED[error.code()]} (transactional id and group {self._name!r}, topic "
                f"{self._topic!r}); or {INSTEAD}"
            )
        return StreamUnavailable(f"Kafka, transaction {self._name!r}: {error.str()}")
