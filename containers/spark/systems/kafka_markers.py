"""The marker, which records the last batch of a stage in a topic, and the search for a batch in the topic itself if the marker is missing.

A marker is a committed offset, with metadata, of a consumer group that only the writer uses. Kafka deletes it after a while. The first
record of each batch has the header BATCH_HEADER, so the batches in the topic can also be found there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import cast

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluice.core.errors import CorruptData, StreamUnavailable
from sluice.core.ids import Generation, Lineage
from sluice.job import Delivery

log = logging.getLogger(__name__)

BATCH_HEADER = "sluice-batch"
"""Header of the first record of a batch: lineage and number, with a slash between them. A transaction is in the topic as a whole or not at
all, so one record is enough. Readers compare the headers of the other records as a whole, which is faster than a function call for each of
them."""

CLOCKS_DIFFER = timedelta(minutes=10)
"""The maximum difference of the clocks of a container and of the brokers. The search begins this long before the batch was planned."""

NO_ANSWER = timedelta(minutes=2)
"""How long a search waits for the brokers."""

_AT_ONCE = 10_000


class MarkerMissing(CorruptData):
    """It is unknown whether a batch is in the topic."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The last batch that a stage of a task has written to a topic, -1 for none. `delivery`: how the stage has written since then. With
    AT_LEAST_ONCE later batches may be in the topic."""

    lineage: Lineage
    batch: int
    generation: Generation
    delivery: Delivery = Delivery.EXACTLY_ONCE

    def encoded(self) -> str:
        return json.dumps({
            "lineage": self.lineage, "batch": self.batch, "generation": self.generation, "delivery": self.delivery.value
        })  # fmt: skip

    @staticmethod
    def decoded(metadata: str, where: str) -> Marker:
        """Raises CorruptData."""
        try:
            found = json.loads(metadata)
            return Marker(
                Lineage(found["lineage"]),
                int(found["batch"]),
                Generation(int(found["generation"])),
                Delivery(found.get("delivery", Delivery.EXACTLY_ONCE)),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CorruptData(f"{where} has an offset that Sluice has not written ({metadata[:100]!r}): give it another name") from error

    def position(self, topic: str) -> TopicPartition:
        """The offset to commit. Its number has no meaning, and cannot be negative."""
        return TopicPartition(topic, 0, max(0, self.batch), metadata=self.encoded())


def batch_header(lineage: Lineage, batch: int) -> tuple[str, bytes]:
    return (BATCH_HEADER, f"{lineage}/{batch}".encode())


def search(
    clients: Mapping[str, object],
    topic: str,
    lineage: Lineage,
    batches: Mapping[int, datetime],
    new_consumer: Callable[[dict[str, object]], Consumer] = Consumer,
    elapsed: Callable[[], float] = monotonic,
) -> int:
    """The last of these batches (number -> when it was planned) that the topic has, -1 for none. Reads the committed records from
    CLOCKS_DIFFER before the first of them was planned. Blocks. Raises StreamUnavailable, KafkaException.

    -1 does not prove that the topic does not have them: its retention or compaction may have deleted records, and the batch may have been
    written with another delivery."""
    wanted = {batch_header(lineage, batch)[1]: batch for batch in batches}
    since = min(batches.values()) - CLOCKS_DIFFER
    consumer = new_consumer({
        **clients, "group.id": "sluice/search", "enable.auto.commit": False, "isolation.level": "read_committed",
        "enable.partition.eof": True,
    })  # fmt: skip
    try:
        timeout = NO_ANSWER.total_seconds()
        partitions = list(consumer.list_topics(topic, timeout).topics[topic].partitions)
        millis = int(since.timestamp() * 1000)
        starts = consumer.offsets_for_times([TopicPartition(topic, partition, millis) for partition in partitions], timeout)
        left = {each.partition for each in starts if each.offset != OFFSET_END}
        consumer.assign([each for each in starts if each.partition in left])
        found, heard = -1, elapsed()
        while left:
            for message in consumer.consume(_AT_ONCE, 1.0):
                heard = elapsed()
                found = max(found, _batch_of(message, wanted))
                error = message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    left.discard(message.partition())
            if elapsed() - heard > timeout:
                raise StreamUnavailable(f"Kafka does not answer the search for batches in {topic}")
        return found
    finally:
        consumer.close()


def _batch_of(message: Message, wanted: Mapping[bytes, int]) -> int:
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])  # the stubs have what a producer accepts
    return max((wanted.get(value or b"", -1) for name, value in headers if name == BATCH_HEADER), default=-1)


def missing(name: str, topic: str, batches: Collection[int], why: str) -> MarkerMissing:
    """The error for batches of which it is unknown whether the topic has them."""
    numbers = ", ".join(map(str, sorted(batches)))
    return MarkerMissing(
        f"batch {numbers} of {name!r} was planned and not committed, and {why}: look whether {topic!r} has its records. If it has, start "
        "with SLUICE_KAFKA_MISSING_MARKER=skip, and they are not sent again; if not, with SLUICE_KAFKA_MISSING_MARKER=send"
    )
