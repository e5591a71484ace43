"""A model of Kafka: topics, transactions, consumer groups, and the clients with which `TransactionalWriter` writes.

As in Kafka, the last producer that begins with a transactional id fences the others. An open transaction holds back the readers of its
partitions. Its end takes an offset, and is answered before its records can be read. All brokers answer, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from aiokafka.partitioner import murmur2
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from containers.spark.systems.kafka_markers import BATCH_HEADER
from containers.spark.systems.kafka_transactions import TRANSACTION_TIMEOUT, KafkaClients
from sluice.core.errors import StreamConflict, StreamUnavailable, UnknownStream
from sluice.core.ids import Generation, Lineage
from sluice.streams.kafka import transactional_id
from sluice.streams.log import Headers, Log, Record, Row, Writer, partition_of
from sluice.streams.port import Offsets
from tests.simulation.loop import SimulatedLoop

READABLE_AFTER = 0.5
"""The longest time, in seconds, from the answer to a commit until its records can be read."""

REQUEST_SECONDS = 0.01
"""The longest duration of a request."""

LOOK_SECONDS = 0.5
"""How often a request is repeated while no broker answers."""

SETTLES_WITHIN = 120
"""How long the end of a stream is waited for, in seconds, as in `sluice.streams.kafka`."""


class _State(Enum):
    OPEN = "open"
    COMMITTING = "committing"
    """Answered, but not readable yet."""
    COMMITTED = "committed"
    ABORTED = "aborted"

    @property
    def over(self) -> bool:
        return self in (_State.COMMITTED, _State.ABORTED)


@dataclass(eq=False)
class Transaction:
    """`writes`: topic and partition -> the offset of its first record. `marker`: the offset and metadata that it commits to its group."""

    name: str
    state: _State = _State.OPEN
    writes: dict[tuple[str, int], int] = field(default_factory=dict)
    marker: tuple[int, str] | None = None
    batch: bytes = b""


@dataclass(slots=True)
class _Entry:
    """A record, or the end of a transaction, which has no value."""

    micros: int
    key: bytes | None
    value: bytes | None
    headers: int
    transaction: Transaction | None
    batch: bytes = b""


@dataclass
class _Partition:
    """`first`: the offset of the first entry."""

    first: int = 0
    entries: list[_Entry] = field(default_factory=list)
    open: list[Transaction] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.entries)


class Brokers:
    """`away`: no request is answered. `lose_commits`: so many of the next commits succeed, and are answered with an error that says nothing
    about them. `now_micros`: the brokers' clock."""

    def __init__(self, loop: SimulatedLoop, chance: Random, now_micros: Callable[[], int]) -> None:
        self.loop = loop
        self.chance = chance
        self.now_micros = now_micros
        self.away = False
        self.lose_commits = 0
        self.topics: dict[str, list[_Partition]] = {}
        self.epochs: Counter[str] = Counter()
        """The number of producers that have begun with each transactional id. Only the last one may write."""
        self.open: dict[str, Transaction] = {}
        """By transactional id, the transaction that has not ended."""
        self.groups: dict[str, tuple[int, str]] = {}
        """By group, the offset and metadata that it has committed."""
        self.happened: Counter[str] = Counter()
        """How often transactions were committed, aborted, fenced and so on."""
        self.written: set[bytes] = set()
        """The headers of all batches that were committed, also of those whose records were deleted since."""
        self.kill_a_writer = False
        """Whether the next process that has written in a transaction is killed."""
        self._headers: dict[tuple[tuple[str, str], ...], int] = {}
        self._context = copy_context()
        """That of the brokers, so that their timers do not end with the process of a client."""

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self.loop.call_later(seconds, act, context=self._context)

    def topic(self, stream: str) -> list[_Partition]:
        """Raises UnknownStream."""
        if stream not in self.topics:
            raise UnknownStream(f"there is no topic {stream}")
        return self.topics[stream]

    def headers_id(self, headers: Mapping[str, str]) -> int:
        return self._headers.setdefault(tuple(sorted(headers.items())), len(self._headers))

    def has(self, batch: bytes) -> bool:
        """Whether readers can find the batch with this header: it was committed, and its records were not deleted."""
        entries = (entry for topic in self.topics.values() for each in topic for entry in each.entries)
        return any(each.batch == batch and each.transaction is not None and each.transaction.state is _State.COMMITTED for each in entries)

    def all_headers(self) -> Mapping[int, Headers]:
        return {number: dict(entries) for entries, number in self._headers.items()}

    def append(self, stream: str, record: Record, position: int, headers: int, transaction: Transaction | None, batch: bytes = b"") -> None:
        partitions = self.topic(stream)
        number = record.partition
        if number is None:
            number = partition_of(record.key, len(partitions), position)
        partition = partitions[number]
        if transaction is not None and (stream, number) not in transaction.writes:
            transaction.writes[stream, number] = partition.end
            partition.open.append(transaction)
        partition.entries.append(_Entry(self.now_micros(), record.key, record.value, headers, transaction, batch))

    # --- transactions ----------------------------------------------------------------------------------------------

    def init(self, name: str) -> int:
        """Abort the transaction that the former producer has left open, and return the epoch of the new one."""
        former = self.open.get(name)
        if former is not None:
            self.happened["aborted by the next producer"] += former.state is _State.OPEN
            self.end(former, commit=former.state is _State.COMMITTING)
        self.epochs[name] += 1
        return self.epochs[name]

    def begin(self, name: str) -> Transaction:
        former = self.open.get(name)
        if former is not None:  # a client waits for the end of its former transaction
            self.end(former, commit=former.state is _State.COMMITTING)
        made = self.open[name] = Transaction(name)
        self._later(TRANSACTION_TIMEOUT.total_seconds(), lambda: self._time_out(made))
        return made

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.state is _State.OPEN:
            self.happened["timed out"] += 1
            self.epochs[transaction.name] += 1
            self.end(transaction, commit=False)

    def commit(self, transaction: Transaction) -> None:
        """Answer the commit. Records are readable a moment later."""
        if transaction.state is _State.OPEN:
            transaction.state = _State.COMMITTING
            self.happened["committed"] += 1
            self.written.add(transaction.batch)
            if transaction.marker is not None:
                self.groups[transaction.name] = transaction.marker
            self._later(self.chance.uniform(0, READABLE_AFTER), lambda: self.end(transaction, commit=True))

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        if transaction.state.over:
            return
        transaction.state = _State.COMMITTED if commit else _State.ABORTED
        if self.open.get(transaction.name) is transaction:
            del self.open[transaction.name]
        for stream, number in transaction.writes:
            partition = self.topics[stream][number]
            partition.open.remove(transaction)
            partition.entries.append(_Entry(self.now_micros(), None, None, -1, transaction))

    # --- reads -----------------------------------------------------------------------------------------------------

    def latest(self, stream: str) -> dict[int, int]:
        return {number: each.end for number, each in enumerate(self.topic(stream))}

    def readable(self, stream: str) -> dict[int, int]:
        return {
            number: min([each.end, *(transaction.writes[stream, number] for transaction in each.open)])
            for number, each in enumerate(self.topic(stream))
        }

    def earliest(self, stream: str) -> dict[int, int]:
        return {number: each.first for number, each in enumerate(self.topic(stream))}

    def rows(self, stream: str, number: int, start: int, end: int) -> Sequence[tuple[int, _Entry]]:
        """The committed records of [start, end), with their offsets."""
        partition = self.topic(stream)[number]
        low = max(start, partition.first)
        part = partition.entries[low - partition.first : max(0, end - partition.first)]
        return [
            (offset, entry)
            for offset, entry in enumerate(part, low)
            if entry.value is not None and (entry.transaction is None or entry.transaction.state is _State.COMMITTED)
        ]

    def trim(self, stream: str, before: Offsets) -> int:
        gone = 0
        for number, partition in enumerate(self.topic(stream)):
            count = min(before.get(number, 0), partition.end) - partition.first
            if count > 0:
                del partition.entries[:count]
                partition.first += count
                gone += count
        return gone


class KafkaLog(Log):
    """What the engine and the checks use of the embedded log, on Kafka: readers see what is committed."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(Path())
        self.brokers = brokers

    def create(self, stream: str, partitions: int) -> None:
        present = self.brokers.topics.setdefault(stream, [_Partition() for _ in range(partitions)])
        if len(present) != partitions:
            raise StreamConflict(f"{stream} exists with {len(present)} partitions")

    def grow(self, stream: str, partitions: int) -> None:
        present = self.brokers.topic(stream)
        present += [_Partition() for _ in range(len(present), partitions)]

    def partitions(self, stream: str) -> int:
        return len(self.brokers.topic(stream))

    def earliest(self, stream: str) -> Offsets:
        return self.brokers.earliest(stream)

    def latest(self, stream: str) -> Offsets:
        return self.brokers.readable(stream)

    def append(
        self,
        stream: str,
        records: Sequence[Record],
        *,
        writer: Writer,
        batch: int,
        headers: Headers | None = None,
        now_micros: int,
        partitions: int | None = None,
    ) -> bool:
        """Append without a transaction, as other programs do, which write to all partitions."""
        assert partitions is None
        for position, record in enumerate(records):
            self.brokers.append(stream, record, position, self.brokers.headers_id(headers or {}), None)
        return True

    def read(self, stream: str, partition: int, start: int, end: int, chunk: int = 10_000) -> Generator[Sequence[Row], None, None]:
        found = self.brokers.rows(stream, partition, start, end)
        yield [(offset, each.micros, each.key, each.value, each.headers) for offset, each in found]

    def headers(self, stream: str) -> Mapping[int, Headers]:
        return self.brokers.all_headers()

    def fence(self, stream: str, owner: str, generation: Generation) -> None:
        """Kafka fences by transactional id."""

    def last_batch(self, stream: str, lineage: Lineage) -> int | None:
        return None


class ModelledKafka:
    """The stream system of the coordinator."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._log = KafkaLog(brokers)

    def _ask(self) -> Brokers:
        if self._brokers.away:
            raise StreamUnavailable("no broker answers")
        return self._brokers

    async def partitions(self, stream: str) -> int:
        return len(self._ask().topic(stream))

    async def identity(self, stream: str) -> str | None:
        self._ask().topic(stream)
        return f"topic {stream}"

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None:
        self._ask()
        self._log.create(stream, partitions)

    async def earliest(self, stream: str) -> Offsets:
        return self._ask().earliest(stream)

    async def latest(self, stream: str) -> Offsets:
        return self._ask().latest(stream)

    async def readable(self, stream: str) -> Offsets:
        return self._ask().readable(stream)

    async def at_time(self, stream: str, when: datetime) -> Offsets:
        brokers, micros = self._ask(), when.timestamp() * 1e6
        readable = brokers.readable(stream)
        return {
            number: min((offset for offset, each in brokers.rows(stream, number, 0, end) if each.micros >= micros), default=end)
            for number, end in readable.items()
        }

    async def trim(self, stream: str, before: Offsets) -> int:
        return self._ask().trim(stream, before)

    @property
    def transactional(self) -> bool:
        return True

    async def abort(self, stream: str, job: str, stage: str, task: str) -> None:
        self._ask().happened["aborted by the coordinator"] += 1
        self._brokers.init(transactional_id(job, stage, stream, task))

    async def open_transactions(self, stream: str, offsets: Offsets) -> Mapping[int, str]:
        partitions = self._ask().topic(stream)
        return {
            number: each.name
            for number, offset in offsets.items()
            for each in partitions[number].open
            if each.writes[stream, number] == offset
        }

    def connection(self) -> Mapping[str, str]:
        return {"type": "kafka", "bootstrap": "kafka:9092"}

    async def close(self) -> None:
        """Nothing is open."""


# --- clients ---------------------------------------------------------------------------------------------------------


def _raised(code: int, text: str) -> KafkaException:
    return KafkaException(KafkaError(code, text))


class _Client:
    """`step` is called before each request, and may kill the process."""

    def __init__(self, brokers: Brokers, step: Callable[[], None], kill: Callable[[], None], name: str) -> None:
        self._brokers = brokers
        self._step = step
        self._kill = kill
        self._name = name

    def _ask(self, timeout: float = 30.0) -> Brokers:
        """The brokers, when they answer. Blocks. Raises KafkaException."""
        self._step()
        wait(self._brokers.loop, self._brokers.chance.uniform(0, REQUEST_SECONDS))
        began = self._brokers.loop.time()
        while self._brokers.away:
            if self._brokers.loop.time() - began > timeout:
                raise _raised(KafkaError._TIMED_OUT, "no broker answers")
            wait(self._brokers.loop, LOOK_SECONDS)
        self._step()
        return self._brokers

    def list_topics(self, topic: str, timeout: float = 30.0) -> Any:
        partitions = self._ask(timeout).topic(topic)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=dict.fromkeys(range(len(partitions))))})


class ModelledProducer(_Client):
    epoch = 0
    _open: Transaction | None = None
    _ended = False

    def init_transactions(self, timeout: float) -> None:
        self.epoch = self._ask(timeout).init(self._name)

    def _check(self) -> None:
        if self._brokers.epochs[self._name] != self.epoch:
            self._brokers.happened["fenced"] += 1
            raise _raised(KafkaError._FENCED, "fenced by another producer")

    def begin_transaction(self) -> None:
        self._open, self._ended = None, False

    def _transaction(self) -> Transaction:
        """Brokers begin a transaction with the first record or offset."""
        self._check()
        if self._open is None:
            self._open = self._brokers.begin(self._name)
        return self._open

    def produce(self, topic: str, value: bytes, key: bytes | None, partition: int, *, headers: Any, on_delivery: Any) -> None:
        """A client has a queue, whose records it sends in order; here they arrive at once."""
        transaction, brokers = self._transaction(), self._brokers
        if partition < 0:
            partition = int(murmur2(key) & 0x7FFFFFFF) % len(brokers.topic(topic))
        texts = {name: text.decode() for name, text in headers}
        batch = texts.pop(BATCH_HEADER, "").encode()
        transaction.batch = transaction.batch or batch
        brokers.append(topic, Record(value, key, partition), 0, brokers.headers_id(texts), transaction, batch)
        if brokers.kill_a_writer:
            brokers.kill_a_writer = False
            brokers.happened["killed with an open transaction"] += 1
            self._kill()

    def poll(self, timeout: float) -> int:
        self._step()
        return 0

    def flush(self, timeout: float) -> int:
        self._ask(timeout)
        return 0

    def send_offsets_to_transaction(self, positions: Sequence[Any], members: Any, timeout: float) -> None:
        self._ask(timeout)
        self._transaction().marker = (positions[0].offset, positions[0].metadata)

    def commit_transaction(self, timeout: float) -> None:
        brokers = self._ask(timeout)
        self._check()
        if self._open is not None:
            brokers.commit(self._open)
        if brokers.lose_commits:
            brokers.lose_commits -= 1
            brokers.happened["answer lost"] += 1
            raise _raised(KafkaError.UNKNOWN, "the answer to a commit is lost")
        self._step()
        self._open = None

    def abort_transaction(self, timeout: float) -> None:
        self._ask(timeout)
        self._check()
        if self._open is not None:
            self._brokers.end(self._open, commit=self._open.state is _State.COMMITTING)
            self._open = None


class ModelledConsumer(_Client):
    _left: list[TopicPartition] | None = None

    def committed(self, positions: Sequence[Any], timeout: float) -> Sequence[Any]:
        offset, metadata = self._ask(timeout).groups.get(self._name, (-1001, ""))
        return [TopicPartition(positions[0].topic, positions[0].partition, offset, metadata=metadata)]

    def poll(self, timeout: float) -> None:
        return None

    def consumer_group_metadata(self) -> str:
        return self._name

    def offsets_for_times(self, positions: Sequence[Any], timeout: float) -> Sequence[Any]:
        brokers = self._ask(timeout)
        found = []
        for each in positions:
            since, end = each.offset * 1000, brokers.readable(each.topic)[each.partition]
            rows = brokers.rows(each.topic, each.partition, 0, end)
            first = min((offset for offset, entry in rows if entry.micros >= since), default=OFFSET_END)
            found.append(TopicPartition(each.topic, each.partition, first))
        return found

    def assign(self, positions: Sequence[Any]) -> None:
        self._left = list(positions)

    def consume(self, number: int, timeout: float) -> Sequence[Any]:
        """All that the assigned partitions have, and their ends. A transaction that is being committed is waited for, as readers do."""
        brokers, found = self._ask(), []
        for each in list(self._left or ()):
            if brokers.latest(each.topic)[each.partition] != (end := brokers.readable(each.topic)[each.partition]):
                continue
            self._left.remove(each)  # type: ignore[union-attr]
            for _, entry in brokers.rows(each.topic, each.partition, each.offset, end):
                found.append(_Message(each.partition, [(BATCH_HEADER, entry.batch)] if entry.batch else [], None))
            found.append(_Message(each.partition, [], KafkaError(KafkaError._PARTITION_EOF)))
        if not found:
            wait(brokers.loop, timeout)
        return found

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class _Message:
    number: int
    entries: Sequence[tuple[str, bytes]]
    failed: KafkaError | None

    def headers(self) -> Sequence[tuple[str, bytes]]:
        return self.entries

    def error(self) -> KafkaError | None:
        return self.failed

    def partition(self) -> int:
        return self.number


def wait(loop: SimulatedLoop, seconds: float) -> None:
    """Called in a thread: the thread waits for this virtual time."""

    def until(wake: Callable[[], None]) -> None:
        loop.call_later(seconds, wake)

    loop.wait_in_thread(until)


def clients(brokers: Brokers, step: Callable[[], None], kill: Callable[[], None]) -> KafkaClients:
    """The clients of a process. `kill` ends it, and does not return."""
    loop = brokers.loop

    def producer(settings: Mapping[str, Any]) -> Any:
        return ModelledProducer(brokers, step, kill, settings["transactional.id"])

    def consumer(settings: Mapping[str, Any]) -> Any:
        return ModelledConsumer(brokers, step, kill, settings["group.id"])

    def pause(duration: timedelta) -> None:
        step()
        wait(loop, duration.total_seconds())

    return KafkaClients(producer, consumer, loop.time, pause)


def settled_ends(brokers: Brokers, stream: str, step: Callable[[], None]) -> Offsets:
    """As `KafkaSystem.settled_ends`. Blocks."""
    began = brokers.loop.time()
    while brokers.away or brokers.readable(stream) != brokers.latest(stream):
        if brokers.loop.time() - began > SETTLES_WITHIN:
            raise StreamUnavailable(f"{stream} has had an open transaction for {SETTLES_WITHIN} s")
        step()
        wait(brokers.loop, LOOK_SECONDS)
    return brokers.readable(stream)
