"""Kafka as a stream system, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from sluice.core.errors import StreamConflict, StreamUnavailable, UnknownStream
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from sluice.streams.port import Offsets
from tests.contracts.streams import Append, Delete, Grow, StreamSystemContract
from tests.support.processes import free_port

SOON = timedelta(seconds=20)


class Prefixed:
    """The system with a prefix before every name that is short enough, so that each test has its own names."""

    def __init__(self, system: KafkaSystem) -> None:
        self.system = system
        self.prefix = f"{uuid4().hex[:8]}"

    def named(self, stream: str) -> str:
        """Names that are refused, and names at the maximum length, are not changed."""
        return f"{self.prefix}{stream}" if 0 < len(stream) < 200 and stream[0].isalnum() else stream

    async def partitions(self, stream: str) -> int:
        return await self.system.partitions(self.named(stream))

    async def identity(self, stream: str) -> str | None:
        return await self.system.identity(self.named(stream))

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None:
        await self.system.create(self.named(stream), partitions, kept=kept)

    async def earliest(self, stream: str) -> Offsets:
        return await self.system.earliest(self.named(stream))

    async def latest(self, stream: str) -> Offsets:
        return await self.system.latest(self.named(stream))

    @property
    def transactional(self) -> bool:
        return self.system.transactional

    async def abort(self, stream: str, job: str, stage: str, task: str) -> None:
        await self.system.abort(self.named(stream), job, stage, task)

    async def open_transactions(self, stream: str, offsets: Offsets) -> Mapping[int, str]:
        return await self.system.open_transactions(self.named(stream), offsets)

    async def readable(self, stream: str) -> Offsets:
        return await self.system.readable(self.named(stream))

    async def at_time(self, stream: str, when: datetime) -> Offsets:
        return await self.system.at_time(self.named(stream), when)

    async def trim(self, stream: str, before: Offsets) -> int:
        return await self.system.trim(self.named(stream), before)

    def connection(self) -> dict[str, str]:
        return dict(self.system.connection())

    async def close(self) -> None:
        await self.system.close()


class TestKafkaSystem(StreamSystemContract):
    @pytest.fixture
    async def system(self, kafka_server: str) -> AsyncIterator[Prefixed]:
        system = Prefixed(KafkaSystem(kafka_server, KafkaProperties({}), timeout=SOON))
        yield system
        await system.close()

    @pytest.fixture
    async def append(self, system: Prefixed, kafka_server: str) -> AsyncIterator[Append]:
        async with AIOKafkaProducer(bootstrap_servers=kafka_server) as producer:

            async def append(stream: str, partition: int, records: int, when: datetime) -> None:
                for _ in range(records):
                    millis = int(when.timestamp() * 1000)
                    await producer.send_and_wait(system.named(stream), b"x", partition=partition, timestamp_ms=millis)

            yield append

    @pytest.fixture
    def grow(self, system: Prefixed) -> Grow:
        async def grow(stream: str, partitions: int) -> None:
            await system.system.grow(system.named(stream), partitions)

        return grow

    @pytest.fixture
    async def delete(self, system: Prefixed, kafka_server: str) -> AsyncIterator[Delete]:
        """Wait until the topic is gone: the broker answers before the deletion has reached all parts of the cluster."""
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_server)
        await admin.start()

        async def delete(stream: str) -> None:
            await admin.delete_topics([system.named(stream)])
            async with asyncio.timeout(SOON.total_seconds()):
                with suppress(UnknownStream):
                    while True:
                        await system.partitions(stream)

        yield delete
        await admin.close()


@pytest.fixture
async def kafka(kafka_server: str) -> AsyncIterator[KafkaSystem]:
    system = KafkaSystem(kafka_server, KafkaProperties({}), timeout=SOON)
    yield system
    await system.close()


async def test_a_request_about_a_missing_topic_does_not_create_it(kafka: KafkaSystem) -> None:
    name = f"asked-{uuid4().hex}"
    for _ in range(3):
        with pytest.raises(UnknownStream):
            await kafka.partitions(name)
        with pytest.raises(UnknownStream):
            await kafka.latest(name)


async def test_the_broker_never_deletes_records_of_a_kept_topic(kafka: KafkaSystem, kafka_server: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    name = f"kept-{uuid4().hex}"
    await kafka.create(name, 1, kept=True)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_server)
    await admin.start()
    try:
        (reply,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        settings = {each[0]: each[1] for _, _, _, _, entries in reply.resources for each in entries}
    finally:
        await admin.close()
    assert settings["retention.ms"] == "-1"
    assert settings["cleanup.policy"] == "delete"


async def test_a_topic_can_be_described_as_soon_as_it_is_created(kafka: KafkaSystem) -> None:
    for _ in range(20):
        name = f"new-{uuid4().hex}"
        await kafka.create(name, 8)
        assert await kafka.latest(name) == dict.fromkeys(range(8), 0)


async def test_a_topic_grows_and_does_not_shrink(kafka: KafkaSystem) -> None:
    name = f"growing-{uuid4().hex}"
    await kafka.create(name, 2)
    await kafka.grow(name, 4)
    await kafka.grow(name, 4)
    assert await kafka.partitions(name) == 4
    with pytest.raises(StreamConflict):
        await kafka.grow(name, 3)
    assert await kafka.latest(name) == {0: 0, 1: 0, 2: 0, 3: 0}


async def test_the_readable_ends_of_topics_are_before_open_transactions_and_follow_growth(kafka: KafkaSystem, kafka_server: str) -> None:
    first, second = (f"ends-{uuid4().hex}" for _ in range(2))
    for name in (first, second):
        await kafka.create(name, 2)
    assert await kafka.readable_ends({first: [0], second: [0, 1]}) == {first: {0: 0}, second: {0: 0, 1: 0}}
    async with AIOKafkaProducer(bootstrap_servers=kafka_server, transactional_id=first) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(first, b"x", partition=0)
        assert await kafka.readable_ends({first: [0]}) == {first: {0: 0}}
        await producer.commit_transaction()
    async with asyncio.timeout(SOON.total_seconds()):
        while True:
            if await kafka.readable_ends({first: [0]}) == {first: {0: 2}}:  # the record and the marker of the transaction
                break
    await kafka.grow(first, 3)
    async with asyncio.timeout(SOON.total_seconds()):
        while True:
            with suppress(StreamUnavailable):  # a new partition has no leader for a moment
                if await kafka.readable_ends({first: [0, 2]}) == {first: {0: 2, 2: 0}}:
                    break


async def test_the_readable_ends_of_a_missing_topic_are_unknown(kafka: KafkaSystem) -> None:
    with pytest.raises(UnknownStream):
        await kafka.readable_ends({f"asked-{uuid4().hex}": [0]})


async def test_a_system_without_a_broker_is_unavailable_and_the_error_has_the_address() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    system = KafkaSystem(nowhere, KafkaProperties({}), timeout=timedelta(seconds=2))
    for _ in range(2):
        with pytest.raises(StreamUnavailable, match=nowhere):
            await system.partitions("flights")
    await system.close()


async def test_a_system_that_lost_its_connection_connects_again(kafka: KafkaSystem) -> None:
    name = f"again-{uuid4().hex}"
    await kafka.create(name, 1)
    await kafka.close()
    assert await kafka.partitions(name) == 1


def test_the_error_about_a_missing_properties_file_names_it(tmp_path: Path) -> None:
    from sluice.core.errors import BadSettings

    with pytest.raises(BadSettings, match=r"client\.properties"):
        KafkaProperties.read(tmp_path / "client.properties")
