"""The job on a real Kafka broker with authentication, which is down for a while."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from containers.local.kafka import Broker, Process
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for
from tests.support.servers import kafka_jars

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

AWAY_SECONDS = 60
PASSWORD = "open-sesame-4711"


@dataclass
class KafkaScene:
    """The toy job of `Stage` on topics of a broker with TLS and passwords."""

    stage: Stage
    broker: Broker
    process: Process
    properties: KafkaProperties
    fed: int = 0

    @property
    def secured(self) -> str:
        assert self.process.secured is not None
        return self.process.secured

    def create(self, topic: str, partitions: int) -> None:
        async def create() -> None:
            system = KafkaSystem(self.secured, self.properties)
            await system.create(topic, partitions)
            await system.close()

        asyncio.run(create())

    def feed(self, count: int) -> None:
        async def send() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.process.bootstrap) as producer:
                for n in range(self.fed, self.fed + count):
                    await producer.send("numbers", str(n).encode(), partition=n % 2)

        asyncio.run(send())
        self.fed += count

    def out(self) -> list[int]:
        """The contents of the topic `out`, ordered by number."""

        async def read() -> list[int]:
            async with AIOKafkaConsumer("out", bootstrap_servers=self.process.bootstrap, auto_offset_reset="earliest") as consumer:
                found: list[int] = []
                while some := await consumer.getmany(timeout_ms=1500):
                    found += [int(record.value) for records in some.values() for record in records]
                return sorted(found)

        return asyncio.run(read())

    def await_all(self) -> None:
        wait_for(f"{self.fed} numbers in the output", lambda: len(set(self.out())) >= self.fed, 180)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaScene]:
    kafka_jars()
    root = tmp_path_factory.mktemp("kafka")
    broker = Broker(root / "broker", sasl={"sluice": PASSWORD}, tls=True)
    process = asyncio.run(broker.up())
    try:
        with stage(root) as made:
            file = properties_file(root / "client.properties", broker, PASSWORD)
            made.system = "kafka"
            made.environment = {"SLUICE_KAFKA_BOOTSTRAP": str(process.secured), "SLUICE_KAFKA_PROPERTIES": str(file)}
            yield KafkaScene(made, broker, process, KafkaProperties.read(file))
    finally:
        os.kill(process.pid, signal.SIGCONT)
        asyncio.run(broker.down())


def properties_file(file: Path, broker: Broker, password: str) -> Path:
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="sluice" password="{password}";'
    file.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={broker.certificate}\n"
    )
    return file


class TestAJobOnKafka:
    """The steps share their processes, so they run in order."""

    container: tuple[str, subprocess.Popen[bytes]]

    def test_it_reads_and_writes_every_record_over_tls_with_a_password(self, scene: KafkaScene) -> None:
        scene.create("numbers", 2)
        scene.stage.start_coordinator()
        scene.stage.deploy(start="earliest")
        type(self).container = scene.stage.start_container()
        scene.feed(500)
        scene.await_all()
        assert scene.out() == list(range(500))

    def test_the_api_and_the_logs_show_no_password(self, scene: KafkaScene) -> None:
        http = scene.stage.http
        said = [
            http.get(path).text for path in (f"/runs/{scene.stage.run_id}", "/jobs", "/jobModel?job=toy", "/readyz?verbose", "/metrics")
        ]
        said += [file.read_text(errors="replace") for file in scene.stage.root.glob("*.log")]
        assert scene.secured in said[0]
        assert not [text for text in said if PASSWORD in text]

    def test_an_outage_of_the_broker_for_a_minute_ends_no_container_and_loses_no_record(self, scene: KafkaScene) -> None:
        os.kill(scene.process.pid, signal.SIGSTOP)
        try:
            time.sleep(AWAY_SECONDS)  # the outage itself
            assert scene.stage.http.get("/readyz", timeout=5).status_code == 503
        finally:
            os.kill(scene.process.pid, signal.SIGCONT)
        scene.feed(300)
        scene.await_all()
        execution_id, watchdog = self.container
        assert watchdog.poll() is None
        assert scene.stage.incarnation(execution_id).state == "LIVE"

    def test_it_stops_cleanly_and_the_next_run_continues_from_the_checkpoint(self, scene: KafkaScene) -> None:
        before = len(scene.out())
        scene.stage.http.post(f"/runs/{scene.stage.run_id}/stop")
        assert self.container[1].wait(90) == 0
        scene.feed(100)
        scene.stage.deploy()
        scene.stage.start_container()
        scene.await_all()
        assert len(scene.out()) == before + 100

    def test_the_error_for_a_wrong_password_names_kafka_and_does_not_show_the_password(self, scene: KafkaScene, tmp_path: Path) -> None:
        wrong = KafkaProperties.read(properties_file(tmp_path / "wrong.properties", scene.broker, "wrong-4712"))

        async def request() -> str:
            system = KafkaSystem(scene.secured, wrong)
            with pytest.raises(Exception, match="Kafka at") as failed:
                await system.partitions("numbers")
            await system.close()
            return str(failed.value)

        assert "4712" not in asyncio.run(request())
