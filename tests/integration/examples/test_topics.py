"""`Topics` as the replay of a demo, its check and the tests use it, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer

WRITER = Writer(Lineage("w"), "w", Generation(1))


@pytest.fixture
def topics(kafka_server: str) -> Iterator[Topics]:
    made = Topics(kafka_server)
    yield made
    made.close()


def append(topics: Topics, stream: str, partition: int, value: bytes) -> None:
    topics.append(stream, [Record(value, partition=partition)], writer=WRITER, batch=0, now_micros=time.time_ns() // 1000)


def test_a_producer_sends_to_partitions_that_another_client_has_added_since_its_last_send(kafka_server: str, topics: Topics) -> None:
    stream = f"grows-{uuid4().hex[:8]}"
    topics.create(stream, 2)
    append(topics, stream, 1, b"before")
    other = Topics(kafka_server)
    other.grow(stream, 4)
    other.close()
    append(topics, stream, 3, b"after")
    assert topics.latest(stream) == {0: 0, 1: 1, 2: 0, 3: 1}
    assert [row[3] for rows in topics.read(stream, 3, 0, 1) for row in rows] == [b"after"]
