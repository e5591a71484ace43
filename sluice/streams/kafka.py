"""Kafka as a stream system: each topic is a stream.

Requests are built with aiokafka's protocol classes and sent through its client. aiokafka's own `describe_topics` and consumers request
metadata in a way that makes a broker with `auto.create.topics.enable` (Kafka's default) create the requested topic.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition, errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import ApiVersionRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from sluice.core.errors import BadSettings, ClientError, StreamConflict, StreamUnavailable, UnknownStream
from sluice.core.ids import checked_stream
from sluice.streams.kafka_access import INSTEAD, OLDEST, denied, unsupported
from sluice.streams.kafka_producers import DescribeProducers, ListTransactions
from sluice.streams.kafka_properties import KafkaProperties
from sluice.streams.kafka_refusals import refusal
from sluice.streams.kafka_topicids import NO_ID, TopicIdRequest
from sluice.streams.port import KeyValue, Offsets, StreamRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _LATEST = -2, -1
_UNCOMMITTED, _COMMITTED = 0, 1
"""Isolation levels of Kafka's protocol."""

_NO_RECORD = -1
"""Kafka's answer for a time after the last record."""

_KEPT = {"retention.ms": "-1", "cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
"""The configuration of a topic that the coordinator trims. The brokers set the timestamps, because a container's clock may be wrong:
trimming would stop at a record with a timestamp of next year."""

_SETTLES_WITHIN = timedelta(minutes=2)
_APPEARS_WITHIN = timedelta(seconds=20)
_POLL = timedelta(milliseconds=50)
_REFUSAL_WITHIN = timedelta(seconds=3)
"""How long a failed request may take longer to find out why no broker can be used."""

_NOT_AUTHORIZED = (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError)
_STALE = (errors.NotLeaderForPartitionError, errors.LeaderNotAvailableError, errors.UnknownTopicOrPartitionError)


def transactional_id(job: str, stage: str, topic: str, task: str) -> str:
    """The transactional id of the producer with which a stage of a task writes to a topic. A consumer group of the same name has the
    producer's marker. Of the four names, only that of a task may contain a slash."""
    return f"sluice/{job}/{stage}/{topic}/{task}"


@dataclass(frozen=True, slots=True)
class _Topic:
    """`leaders`: partition -> node of its leader, -1 while there is none."""

    leaders: Mapping[int, int]


class KafkaSystem:
    """A Kafka cluster. Connects at the first request, and again after an error. `bootstrap`: "host:port,host:port"."""

    def __init__(
        self, bootstrap: str, properties: KafkaProperties, *, replication: int = -1, timeout: timedelta = timedelta(seconds=10)
    ) -> None:
        self._bootstrap = bootstrap
        self._properties = properties
        self._replication = replication
        self._timeout = timeout
        self._client: AIOKafkaClient | None = None
        self._connecting = asyncio.Lock()
        self._leaders: dict[str, Mapping[int, int]] = {}
        """Of the topics of `readable_ends`, as of their last metadata."""

    # --- the port --------------------------------------------------------------------------------------------------

    async def partitions(self, stream: str) -> int:
        async with self._cluster(stream) as client:
            return len((await self._topic(client, stream)).leaders)

    async def identity(self, stream: str) -> str | None:
        """The topic's id; None if the brokers do not have topic ids (before Kafka 2.8)."""
        async with self._cluster(stream) as client:
            try:
                reply = await self._send(client, TopicIdRequest(stream))
            except (NotImplementedError, errors.IncompatibleBrokerVersion):
                await self._topic(client, stream)
                return None
            for each in reply.to_object()["topics"]:
                _raise(each["error_code"])
                return None if each["topic_id"] == NO_ID else str(each["topic_id"])
            raise errors.UnknownTopicOrPartitionError

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None:
        checked_stream(stream)
        if partitions < 1:
            raise StreamConflict(f"a stream needs at least one partition, not {partitions}")
        configuration = [*_KEPT.items()] if kept else []
        async with self._cluster(stream) as client:
            topic: Any = (stream, partitions, self._replication, [], configuration)
            reply = await self._send(client, CreateTopicsRequest([topic], self._timeout_ms, False))
            with suppress(errors.TopicAlreadyExistsError):
                for _, code, *rest in reply.topic_errors:
                    _raise(code, rest[0] if rest else "")
            present = len((await self._appeared(client, stream)).leaders)
        if present != partitions:
            raise StreamConflict(f"the topic {stream!r} exists with {present} partitions, not {partitions}")

    async def earliest(self, stream: str) -> Offsets:
        async with self._cluster(stream) as client:
            return await self._offsets(client, stream, _EARLIEST)

    async def latest(self, stream: str) -> Offsets:
        async with self._cluster(stream) as client:
            return await self._offsets(client, stream, _LATEST)

    async def readable(self, stream: str) -> Offsets:
        """Kafka's last stable offsets."""
        async with self._cluster(stream) as client:
            return await self._offsets(client, stream, _LATEST, _COMMITTED)

    async def readable_ends(self, partitions: Mapping[str, Collection[int]]) -> Mapping[str, Offsets]:
        """Like `readable`, for these partitions of several topics, and to be called often: one request to each broker, and metadata only
        after an error and for new partitions."""
        async with self._cluster() as client:
            try:
                return await self._readable_ends(client, partitions)
            except BaseException:
                self._leaders.clear()
                raise

    async def settled_ends(self, stream: str) -> Offsets:
        """Wait until all transactions on the stream have ended, and return the ends. Records behind an open transaction cannot be read,
        even those of other writers. Raises StreamUnavailable if a transaction stays open."""
        late, committed = -1, dict[int, int]()
        try:
            async with asyncio.timeout(_SETTLES_WITHIN.total_seconds()):
                while True:
                    async with self._cluster(stream) as client:
                        written = await self._offsets(client, stream, _LATEST)
                        committed = await self._offsets(client, stream, _LATEST, _COMMITTED)
                    late = next((p for p, end in written.items() if committed.get(p, 0) < end), -1)
                    if late < 0:
                        return committed
                    await asyncio.sleep(_POLL.total_seconds())
        except TimeoutError:
            if late < 0:
                raise StreamUnavailable(f"Kafka at {self._bootstrap} does not report the end of {stream}") from None
            raise StreamUnavailable(
                f"partition {late} of {stream} has had an open transaction at offset {committed.get(late, 0)} for {_SETTLES_WITHIN}: "
                "end it with kafka-transactions.sh"
            ) from None

    async def at_time(self, stream: str, when: datetime) -> Offsets:
        millis = max(0, -((_EPOCH - when) // timedelta(milliseconds=1)))  # rounded up: at or after
        async with self._cluster(stream) as client:
            latest = await self._offsets(client, stream, _LATEST, _COMMITTED)
            found = await self._offsets(client, stream, millis, _COMMITTED)
        return {p: latest[p] if found.get(p, _NO_RECORD) == _NO_RECORD else found[p] for p in latest}

    async def trim(self, stream: str, before: Offsets) -> int:
        async with self._cluster(stream) as client:
            topic = await self._topic(client, stream)
            earliest, latest = await self._offsets(client, stream, _EARLIEST), await self._offsets(client, stream, _LATEST)
            by_leader: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
            for partition, offset in before.items():
                if partition in latest and earliest[partition] < (end := min(offset, latest[partition])):
                    by_leader[topic.leaders[partition]].append((partition, end))
            gone = 0
            for leader, records in by_leader.items():
                reply = await client.send(leader, DeleteRecordsRequest([(stream, records)], self._timeout_ms))
                for partition, low, code, *_ in (each for topic_reply in reply.topics for each in topic_reply[1]):
                    _raise(code)
                    gone += max(0, low - earliest[partition])
            return gone

    @property
    def transactional(self) -> bool:
        return True

    async def abort(self, stream: str, job: str, stage: str, task: str) -> None:
        """Start a producer with the writer's transactional id, and stop it. The brokers then abort the former producer's transaction."""
        name = transactional_id(job, stage, stream, task)
        with self._translated_errors(stream):
            async with asyncio.timeout(self._timeout.total_seconds()):
                async with AIOKafkaProducer(**self._client_arguments(), transactional_id=name):
                    pass

    async def open_transactions(self, stream: str, offsets: Offsets) -> Mapping[int, str]:
        async with self._cluster(stream) as client:
            leaders = (await self._topic(client, stream)).leaders
            producers: dict[int, int] = {}
            names: dict[int, str] = {}
            try:
                for leader in {leaders[partition] for partition in offsets if partition in leaders}:
                    led = [partition for partition in offsets if leaders.get(partition) == leader]
                    reply = (await client.send(leader, DescribeProducers(stream, led))).to_object()
                    for partition in (each for topic in reply["topics"] for each in topic["partitions"]):
                        _raise(partition["error_code"])
                        number = partition["partition"]
                        for producer in partition["producers"]:
                            if producer["first_offset"] == offsets[number]:
                                producers[number] = producer["producer_id"]
                for node in [each.nodeId for each in client.cluster.brokers()] if producers else []:
                    answer = (await client.send(node, ListTransactions(sorted(set(producers.values()))))).to_object()
                    _raise(answer["error_code"])
                    names |= {each["producer_id"]: each["transactional_id"] for each in answer["transactions"]}
                return {partition: names[producer] for partition, producer in producers.items() if producer in names}
            except (NotImplementedError, errors.IncompatibleBrokerVersion):
                return {}  # Kafka before 3.0

    async def check_transactions(self, stream: str) -> None:
        """Whether this client can write transactions to the topic. Raises BadSettings, which names what is missing; UnknownStream,
        StreamUnavailable."""
        async with self._cluster(stream) as client:
            missing = unsupported((await self._send(client, ApiVersionRequest())).api_versions)
            if missing:
                raise BadSettings(
                    f"exactly-once needs Kafka {OLDEST} or newer: the brokers at {self._bootstrap} do not support {', '.join(missing)}; "
                    f"update them, or {INSTEAD}"
                )
            try:
                reply = await self._send(client, TopicIdRequest(stream, operations=True))
            except (NotImplementedError, errors.IncompatibleBrokerVersion):
                return  # Kafka before 2.8; the first batch shows what is denied
            for each in reply.to_object()["topics"]:
                if each["error_code"] == errors.TopicAuthorizationFailedError.errno:
                    refused: Sequence[str] = ["Describe"]
                else:
                    _raise(each["error_code"])
                    refused = denied(each["authorized_operations"])
                if refused:
                    raise BadSettings(
                        f"Kafka denies access: exactly-once needs the ACL{'s' if len(refused) > 1 else ''} {' and '.join(refused)} on the "
                        f"topic {stream!r}; or {INSTEAD}"
                    )

    def connection(self) -> Mapping[str, str]:
        return {"type": "kafka", "bootstrap.servers": self._bootstrap}

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # --- the operator's port ---------------------------------------------------------------------------------------

    async def streams(self) -> Sequence[str]:
        """Topics whose name begins with an underscore are Kafka's own."""
        async with self._cluster() as client:
            metadata = await client.fetch_all_metadata()
            return sorted(topic for topic in metadata.topics() if not topic.startswith("_"))

    async def grow(self, stream: str, partitions: int) -> None:
        async with self._cluster(stream) as client:
            present = len((await self._topic(client, stream)).leaders)
            if partitions < present:
                raise StreamConflict(f"the topic {stream!r} has {present} partitions and cannot shrink to {partitions}")
            if partitions > present:
                reply = await self._send(client, CreatePartitionsRequest([(stream, (partitions, None))], self._timeout_ms, False))
                for _, code, message, *_ in reply.topic_errors:
                    _raise(code, message)
                await self._appeared(client, stream, partitions)

    async def append(self, stream: str, batches: AsyncIterable[Sequence[KeyValue]]) -> int:
        await self.partitions(stream)  # raises UnknownStream; the producer's own request for metadata might create the topic
        count = 0
        with self._translated_errors(stream):
            async with AIOKafkaProducer(**self._client_arguments(), enable_idempotence=True) as producer:
                async for batch in batches:
                    sent = [await producer.send(stream, value, key) for key, value in batch]
                    await asyncio.gather(*sent)
                    count += len(batch)
        return count

    async def records(self, stream: str, starts: Offsets) -> AsyncGenerator[StreamRecord, None]:
        """The end of a transaction takes an offset without a record, so there may be no record at the last offset below the end."""
        ends = await self.readable(stream)
        wanted = {partition: start for partition, start in starts.items() if start < ends[partition]}
        if not wanted:
            return  # a consumer that is closed as soon as it is opened raises CancelledError (aiokafka 0.14)
        with self._translated_errors(stream):
            async with AIOKafkaConsumer(**self._client_arguments(), enable_auto_commit=False, isolation_level="read_committed") as consumer:
                for partition, start in wanted.items():
                    where = TopicPartition(stream, partition)
                    consumer.assign([where])
                    consumer.seek(where, start)
                    while await consumer.position(where) < ends[partition]:
                        for record in (await consumer.getmany(where, timeout_ms=500)).get(where, []):
                            if record.offset < ends[partition]:
                                yield _record(record)

    # --- requests --------------------------------------------------------------------------------------------------

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout.total_seconds() * 1000)

    def _client_arguments(self) -> dict[str, Any]:
        return {"bootstrap_servers": self._bootstrap, **self._properties.client_arguments()}

    @asynccontextmanager
    async def _cluster(self, stream: str = "") -> AsyncIterator[AIOKafkaClient]:
        """A connected client. After a temporary error, the next call connects again."""
        if stream:
            checked_stream(stream)
        try:
            with self._translated_errors(stream):
                async with asyncio.timeout((self._timeout + _APPEARS_WITHIN).total_seconds()):
                    yield await self._connected()
        except StreamUnavailable as error:
            if not isinstance(error.__cause__, _NOT_AUTHORIZED):
                await self._forget()
            raise

    @contextmanager
    def _translated_errors(self, stream: str) -> Iterator[None]:
        """Translate Kafka's errors into the errors of the port."""
        try:
            yield
        except errors.UnknownTopicOrPartitionError as error:
            raise UnknownStream(
                f"Kafka at {self._bootstrap} has no topic {stream!r}: create it first, for example with "
                f"`sluice streams create {stream} --partitions N --system kafka`"
            ) from error
        except (errors.InvalidTopicError, errors.InvalidPartitionsError, errors.InvalidReplicationFactorError) as error:
            raise ClientError(f"Kafka rejects the topic {stream!r}: {error}") from error
        except errors.PolicyViolationError as error:
            raise ClientError(f"Kafka's policy rejects the topic {stream!r}: {error}") from error
        except _NOT_AUTHORIZED as error:
            raise StreamUnavailable(f"Kafka at {self._bootstrap} denies access to the topic {stream!r}") from error
        except (errors.KafkaError, OSError, TimeoutError) as error:
            raise StreamUnavailable(f"Kafka at {self._bootstrap}: {error or type(error).__name__}") from error

    async def _connected(self) -> AIOKafkaClient:
        async with self._connecting:
            if self._client is None:
                client = AIOKafkaClient(
                    client_id="sluice-coordinator",
                    request_timeout_ms=self._timeout_ms,
                    **self._client_arguments(),
                )
                try:
                    await client.bootstrap()
                except errors.KafkaConnectionError as error:
                    await client.close()
                    why = await refusal(self._client_arguments(), min(self._timeout, _REFUSAL_WITHIN))
                    raise ConnectionError(why or str(error)) from error
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def _forget(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(errors.KafkaError, OSError, TimeoutError):
                await client.close()

    async def _send(self, client: AIOKafkaClient, request: Any) -> Any:
        node = client.get_random_node()
        if node is None:
            raise errors.NodeNotReadyError("the cluster has no nodes")
        return await client.send(node, request)

    async def _topic(self, client: AIOKafkaClient, stream: str) -> _Topic:
        """The current metadata of the topic."""
        metadata = await self._send(client, MetadataRequest([stream], allow_auto_topic_creation=False))
        client.cluster.update_metadata(metadata)  # the client learns the addresses of the leaders
        for each in metadata.to_object()["topics"]:
            if each["topic"] == stream:
                _raise(each["error_code"])
                return _Topic({p["partition"]: p["leader"] for p in each["partitions"]})
        raise errors.UnknownTopicOrPartitionError

    async def _appeared(self, client: AIOKafkaClient, stream: str, partitions: int = 1) -> _Topic:
        """Wait until every partition of a new or grown topic has a leader that serves it. Metadata lists the topic a moment earlier."""
        while True:
            with suppress(*_STALE):
                topic = await self._topic(client, stream)
                if len(topic.leaders) >= partitions and min(topic.leaders.values()) >= 0:
                    await self._offsets(client, stream, _LATEST)
                    return topic
            await asyncio.sleep(_POLL.total_seconds())

    async def _offsets(self, client: AIOKafkaClient, stream: str, when: int, isolation: int = _UNCOMMITTED) -> dict[int, int]:
        """Per partition the offset for a time in ms since 1970, or for _EARLIEST or _LATEST: that of the next record, or with
        _COMMITTED the last stable offset, below which all transactions have ended."""
        topic = await self._topic(client, stream)
        by_leader: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for partition, leader in topic.leaders.items():
            if leader < 0:
                raise errors.LeaderNotAvailableError(f"partition {partition} of {stream} has no leader")
            by_leader[leader].append((partition, when))
        found: dict[int, int] = {}
        for leader, wanted in by_leader.items():
            reply = await client.send(leader, OffsetRequest(-1, isolation, [(stream, wanted)]))
            for _, partitions in reply.topics:
                for partition, code, _, offset, *_ in partitions:
                    _raise(code)
                    found[partition] = offset
        return dict(sorted(found.items()))

    async def _readable_ends(self, client: AIOKafkaClient, partitions: Mapping[str, Collection[int]]) -> Mapping[str, Offsets]:
        by_leader: defaultdict[int, list[tuple[str, list[tuple[int, int]]]]] = defaultdict(list)
        for stream, wanted in partitions.items():
            if not self._leaders.get(stream, {}).keys() >= set(wanted):
                self._leaders[stream] = (await self._topic(client, stream)).leaders
            led: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
            for partition in wanted:
                led[self._leaders[stream].get(partition, -1)].append((partition, _LATEST))
            for leader, each in led.items():
                by_leader[leader].append((stream, each))
        if -1 in by_leader:
            raise errors.LeaderNotAvailableError(f"a partition of {by_leader[-1][0][0]} has no leader")
        found: dict[str, dict[int, int]] = {stream: {} for stream in partitions}
        for leader, asked in by_leader.items():
            reply = await client.send(leader, OffsetRequest(-1, _COMMITTED, asked))
            for stream, answers in reply.topics:
                for partition, code, _, offset, *_ in answers:
                    _raise(code)
                    found[stream][partition] = offset
        return found


def _raise(code: int, message: str | None = "") -> None:
    """Raise the error for a code of Kafka's protocol; none for 0."""
    kind = errors.for_code(code)
    if kind is not errors.NoError:
        raise kind(message) if message else kind()


def _record(record: ConsumerRecord[bytes, bytes]) -> StreamRecord:
    headers = {name: None if value is None else value.decode(errors="backslashreplace") for name, value in record.headers}
    when = _EPOCH + timedelta(milliseconds=record.timestamp)
    return StreamRecord(record.partition, record.offset, when, record.key, record.value, headers)
