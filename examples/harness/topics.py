"""Kafka topics with the methods of the embedded log that demos and their checks use, so that the same code serves both.

Kafka has no sets of headers as the log has: `headers` numbers the distinct sets that were read. A repeated batch is appended again, so a
replay that is restarted needs new topics.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import murmur2
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as TopicOffset

from sluice.core.ids import Lineage
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from sluice.streams.log import Headers, Record, Row, Writer
from sluice.streams.port import Offsets

T = TypeVar("T")


def topic_partition_of(key: bytes, partitions: int, _position: int = 0) -> int:
    """Kafka's default partitioner: murmur2 of the key without its sign, modulo the partition count."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


async def _await_known(producer: AIOKafkaProducer, stream: str, partition: int) -> None:
    """Wait until the producer has the partition in its metadata, which it refreshes every few minutes only. Raises asyncio.TimeoutError
    if the topic does not get such a partition within a minute.
    """
    async with asyncio.timeout(60):
        while partition not in await producer.partitions_for(stream):
            await producer.client.force_metadata_update()
            await asyncio.sleep(0.05)  # The broker that answers may not have the new partition in its own metadata yet.


class Topics:
    """The methods block and may be called from any thread. An event loop of its own does the work. `properties`: how it reads and
    manages topics; records are produced without them."""

    def __init__(self, bootstrap: str, properties: KafkaProperties | None = None) -> None:
        self.bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="topics", daemon=True)
        self._thread.start()
        self._system = KafkaSystem(bootstrap, properties or KafkaProperties({}))
        self._producer: AIOKafkaProducer | None = None
        self._headers: dict[tuple[tuple[str, str], ...], int] = {}

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        async def close() -> None:
            if self._producer is not None:
                await self._producer.stop()
            await self._system.close()

        self._run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def create(self, stream: str, partitions: int) -> None:
        self._run(self._system.create(stream, partitions))

    def grow(self, stream: str, partitions: int) -> None:
        self._run(self._system.grow(stream, partitions))

    def partitions(self, stream: str) -> int:
        return self._run(self._system.partitions(stream))

    def earliest(self, stream: str) -> Offsets:
        return self._run(self._system.earliest(stream))

    def latest(self, stream: str) -> Offsets:
        """After the transactions that are open now."""
        return self._run(self._system.settled_ends(stream))

    def last_batch(self, stream: str, lineage: Lineage) -> int | None:
        """None: Kafka does not store the batches of a producer."""
        return None

    def append(
        self, stream: str, records: Sequence[Record], *, writer: Writer, batch: int, headers: Headers | None = None, now_micros: int
    ) -> bool:
        """Send the records. All of them are in the topic when this returns."""
        self._run(self._send(stream, records, [(name, value.encode()) for name, value in (headers or {}).items()], now_micros // 1000))
        return True

    async def _send(self, stream: str, records: Sequence[Record], headers: list[tuple[str, bytes]], millis: int) -> None:
        if self._producer is None:
            self._producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True, linger_ms=5)
            await self._producer.start()
        await _await_known(self._producer, stream, max((record.partition or 0 for record in records), default=0))
        for record in records:
            await self._producer.send(stream, record.value, record.key, record.partition, millis, headers)
        await self._producer.flush()

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[Sequence[Row]]:
        """The records of [start, end), in order."""
        if start < end:
            yield self._run(self._fetch(TopicPartition(stream, partition), start, end))

    async def _fetch(self, where: TopicPartition, start: int, end: int) -> list[Row]:
        rows: list[Row] = []
        async with AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, isolation_level="read_committed"
        ) as consumer:
            consumer.assign([where])
            consumer.seek(where, start)
            while await consumer.position(where) < end:
                for found in (await consumer.getmany(where, timeout_ms=500)).get(where, []):
                    if found.offset < end:
                        entries = tuple((name, value.decode()) for name, value in found.headers)
                        number = self._headers.setdefault(entries, len(self._headers))
                        rows.append((found.offset, found.timestamp * 1000, found.key, found.value, number))
        return rows

    def confirmed(self, stream: str) -> int:
        """The number of committed records, counted by a consumer of another library (librdkafka)."""
        ends, found = self.latest(stream), 0
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "confirm", "enable.partition.eof": True})
        try:
            consumer.assign([TopicOffset(stream, partition, 0) for partition in ends])
            unread = len(ends)
            while unread:
                for message in consumer.consume(10_000, 0.5):
                    error = message.error()
                    if error is None:
                        found += 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unread -= 1
                    else:
                        raise KafkaException(error)
        finally:
            consumer.close()
        return found

    def headers(self, stream: str) -> Mapping[int, Headers]:
        """Every set of headers that was read so far, by number."""
        return {number: dict(entries) for entries, number in self._headers.items()}
