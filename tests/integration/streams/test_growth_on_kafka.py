"""Topics that grow, or are deleted and created again, while a job reads them: a coordinator on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from sluice.core.errors import UnknownStream
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from tests.support.api import Caller, Json, calling, check_partitions, partitions_of, run_body, versioning, watched
from tests.support.fakes import FakeClock
from tests.support.processes import free_port

SOON = timedelta(seconds=20)


@pytest.fixture
async def kafka(kafka_server: str) -> AsyncIterator[KafkaSystem]:
    system = KafkaSystem(kafka_server, KafkaProperties({}), timeout=SOON)
    yield system
    await system.close()


@pytest.fixture
async def caller(home: Path, clock: FakeClock, kafka_server: str) -> AsyncIterator[Caller]:
    async with calling(home, clock, kafka_bootstrap=kafka_server) as made:
        yield made


@pytest.fixture
def topic() -> str:
    """With dots, as topic names may have."""
    return f"ads.clicks.{uuid4().hex[:8]}"


def body(topic: str) -> Json:
    return run_body(inputs=[{"name": "flights", "system": "kafka", "stream": topic}])


async def test_a_job_grows_with_its_topic(caller: Caller, kafka: KafkaSystem, topic: str) -> None:
    await kafka.create(topic, 2)
    run_id = (await caller.deploy(body(topic)))["runId"]
    for count in (4, 8):
        await kafka.grow(topic, count)
        assert (await check_partitions(caller))["grown"] == 1
    assert await partitions_of(caller) == {"Partition 0": [0, 2, 4, 6], "Partition 1": [1, 3, 5, 7]}
    run = await caller.run(run_id)
    assert (run["jobModelVersion"], watched(run)["known"]) == (3, 8)
    await kafka.grow(topic, 9)
    await check_partitions(caller)
    assert watched(await caller.run(run_id))["verdict"] == "REFUSED"


async def test_a_topic_that_was_deleted_and_created_again_is_noticed_by_its_id(
    caller: Caller, kafka: KafkaSystem, kafka_server: str, topic: str
) -> None:
    await kafka.create(topic, 2)
    run_id = (await caller.deploy(body(topic)))["runId"]
    assert (await caller.run(run_id))["streams"][0]["identity"] == await kafka.identity(topic)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_server)
    await admin.start()
    await admin.delete_topics([topic])
    async with asyncio.timeout(SOON.total_seconds()):
        with suppress(UnknownStream):
            while True:  # the broker answers before the deletion has reached all parts of the cluster
                await kafka.partitions(topic)
    await admin.close()
    await check_partitions(caller)
    assert watched(await caller.run(run_id))["verdict"] == "UNKNOWN"
    await kafka.create(topic, 4)
    await check_partitions(caller)
    run = await caller.run(run_id)
    assert (watched(run)["verdict"], watched(run)["seen"], run["jobModelVersion"]) == ("REFUSED", 4, 1)
    assert "was deleted and created again" in watched(run)["reason"]


async def test_while_kafka_cannot_be_reached_other_streams_grow(caller: Caller, kafka: KafkaSystem, topic: str) -> None:
    await kafka.create(topic, 2)
    caller.log.create("flights", 2)
    both = [{"name": "clicks", "system": "kafka", "stream": topic}, {"name": "flights", "system": "log"}]
    stages = [{"name": "hourly", "reads": ["flights"]}, {"name": "count", "reads": ["clicks"]}]
    run_id = (await caller.deploy(run_body(inputs=both, outputs=[], stages=stages)))["runId"]
    away = KafkaSystem(f"127.0.0.1:{free_port()}", KafkaProperties({}), timeout=timedelta(seconds=1))
    versioning(caller).watch.systems["kafka"] = away  # type: ignore[index]
    caller.log.grow("flights", 4)
    assert (await check_partitions(caller))["grown"] == 1
    run = await caller.run(run_id)
    assert (watched(run, "clicks")["verdict"], watched(run, "clicks")["seen"]) == ("UNKNOWN", None)
    assert "Kafka at 127.0.0.1" in watched(run, "clicks")["reason"]
    await away.close()
