"""The life of a job on Kafka, with its state in S3: an outage of the broker, whole containers that are suspended and killed at chosen
requests of their transactions, tasks that move, and growth. Each number is in the output once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from containers.local.kafka import Broker, Process
from examples.harness.topics import Topics, topic_partition_of
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.gates import pause, resume
from tests.processes.stage import Stage, stage
from tests.support.console_consumer import committed_values
from tests.support.coordinators import Container
from tests.support.kafkaproxy import KafkaProxy, Request, kafka_proxy
from tests.support.processes import WAIT_SECONDS, wait_for
from tests.support.s3servers import S3Server
from tests.support.servers import kafka_jars

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PASSWORD = "open-sesame-4711"

ONCE = """
from sluice import Job

job = Job("toy")
numbers = job.input("numbers")
out = job.output("out")


@job.stage(reads=numbers, writes=out)
def once(task):
    return task.write(task.read(numbers).selectExpr("cast(key as string) v").dropDuplicates(["v"]), out, value="v")
"""
"""Each number is written once, however often it is sent."""

TASK, OTHER = "Partition 0", "Partition 1"
SETTINGS: dict[str, Any] = {"SLUICE_TRIGGER_SECONDS": "0.2", "SLUICE_COMMIT_INTERVAL_SECONDS": "1"}

How = Literal["suspended", "killed"]
Step = tuple[Request, bool, How]

IN_CI: list[Step] = [(Request.END_TXN, False, "suspended"), (Request.END_TXN, True, "killed")]
"""In the commit, and between the transaction and Spark's commit log."""

ALL: list[Step] = [
    (request, executed, how)
    for request, executed in (
        (Request.ADD_PARTITIONS_TO_TXN, False),  # the former batch is in the commit log, and this one has no transaction
        (Request.PRODUCE, True),
        (Request.TXN_OFFSET_COMMIT, True),
        (Request.END_TXN, False),
        (Request.END_TXN, True),
    )
    for how in ("suspended", "killed")
]


@dataclass
class Scene:
    """A job of two tasks in two containers, each with a disk of its own. The first one reaches the broker through a proxy. The coordinator
    and the other one use TLS and a password."""

    stage: Stage
    broker: Process
    topics: Topics
    proxy: KafkaProxy
    secured: dict[str, str]
    fed: int = 0

    def start(self, slot: int) -> Container:
        system = self.secured if slot else {"SLUICE_KAFKA_BOOTSTRAP": self.proxy.bootstrap}
        return self.stage.start_container(slot, **SETTINGS, **system, SLUICE_STATE_DIR=str(self.stage.root / f"disk{slot}"))

    def send(self, first: int, end: int) -> None:
        partitions = self.topics.partitions("numbers")
        keys = [str(n).encode() for n in range(first, end)]
        records = [Record(b"", key=key, partition=topic_partition_of(key, partitions)) for key in keys]
        self.topics.append("numbers", records, writer=Writer(Lineage("feeder"), "feeder", Generation(1)), batch=first, now_micros=1)

    def feed(self, count: int = 20) -> None:
        self.send(self.fed, self.fed + count)
        self.fed += count

    def written(self) -> list[int]:
        end = sum(self.topics.latest("out").values())
        return sorted(int(row[3] or b"") for rows in self.topics.read("out", 0, 0, end) for row in rows)

    def check(self) -> None:
        wait_for(f"{self.fed} records in the output", lambda: len(self.written()) >= self.fed)
        assert self.written() == list(range(self.fed))

    def check_with_other_consumers(self) -> None:
        """librdkafka and Kafka's own console consumer read each record once, and then a last one."""
        self.topics.append(
            "out", [Record(b"-1", partition=0)], writer=Writer(Lineage("last"), "last", Generation(1)), batch=0, now_micros=1
        )
        assert self.topics.confirmed("out") == self.fed + 1
        values = committed_values(self.topics.bootstrap, "out", self.fed + 1)
        assert (sorted(map(int, values[:-1])), values[-1]) == (list(range(self.fed)), "-1")

    def await_owners(self, owners: dict[str, str]) -> None:
        """Task -> the execution id of its container."""
        wait_for(f"the owners {owners}", lambda: {task.task: task.holder for task in self.stage.detail().tasks} == owners)

    def check_passwords(self) -> None:
        """The API and the logs have none."""
        http = self.stage.http
        said = [http.get(path).text for path in (f"/runs/{self.stage.run_id}", "/jobs", "/jobModel?job=toy", "/readyz?verbose", "/metrics")]
        said += [file.read_text(errors="replace") for file in self.stage.root.glob("*.log")]
        assert str(self.broker.secured) in said[0]
        assert not [text for text in said if PASSWORD in text]

    def suspend_broker(self) -> None:
        """Until the coordinator has noticed it."""
        os.kill(self.broker.pid, signal.SIGSTOP)
        try:
            wait_for("the outage", lambda: self.stage.http.get("/readyz").status_code == 503)
        finally:
            os.kill(self.broker.pid, signal.SIGCONT)

    def grow(self, containers: int) -> None:
        """Wait until that many containers read the new partitions."""
        self.topics.grow("numbers", 4)
        answer = self.stage.http.patch(f"/runs/{self.stage.run_id}", json={"grow": True})
        assert answer.status_code == 200, answer.text
        version = answer.json()["version"]

        def everywhere() -> bool:
            run = self.stage.detail()
            live = [each for each in run.incarnations if each.state == "LIVE"]
            return run.adoption is not None and run.adoption.all_on == version and len(live) == containers

        wait_for(f"version {version} in the containers", everywhere)


def properties_file(file: Path, broker: Broker) -> Path:
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="sluice" password="{PASSWORD}";'
    file.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={broker.certificate}\n"
    )
    return file


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Scene]:
    kafka_jars()
    root = tmp_path_factory.mktemp("kafka")
    broker = Broker(root / "broker", sasl={"sluice": PASSWORD}, tls=True)
    process = asyncio.run(broker.up())
    try:
        secured = {
            "SLUICE_KAFKA_BOOTSTRAP": str(process.secured),
            "SLUICE_KAFKA_PROPERTIES": str(properties_file(root / "client.properties", broker)),
        }
        topics = Topics(process.bootstrap)
        with closing(topics), stage(root, ONCE) as made, kafka_proxy(process.bootstrap) as proxy:
            topics.create("numbers", 2)
            topics.create("out", 1)
            made.system = "kafka"
            common = {
                "SLUICE_FAILOVER_AFTER_SECONDS": "5",
                "SLUICE_BLOB_STORES": json.dumps({"s3": f"s3://{s3.new_bucket()}/state?endpoint={s3.endpoint}&region=us-east-1"}),
            }
            made.environment = {**common, **secured}
            made.start_coordinator(lease_seconds=20)
            made.environment = common
            made.deploy(2, start="earliest")
            yield Scene(made, process, topics, proxy, secured)
    finally:
        os.kill(process.pid, signal.SIGCONT)
        asyncio.run(broker.down())


@pytest.mark.parametrize("steps", [pytest.param(IN_CI, id="commit"), pytest.param(ALL, id="all", marks=pytest.mark.long)])
def test_each_number_is_written_once_through_an_outage_suspended_and_killed_containers_and_growth(
    scene: Scene, steps: Sequence[Step]
) -> None:
    made = scene.stage
    one = scene.start(1)
    for number, (request, executed, how) in enumerate(steps):
        zero = scene.start(0)
        scene.await_owners({TASK: zero.execution_id, OTHER: one.execution_id})
        scene.feed()
        scene.check()
        if number == 0:
            scene.check_passwords()
            scene.suspend_broker()
            scene.feed()
            scene.check()
        if number == 1:
            scene.grow(containers=2)
        hold = scene.proxy.hold(request, executed=executed, about=f"/{TASK}")
        scene.feed()
        hold.await_reached()
        driver = made.driver_of(zero.process)
        if how == "suspended":
            pause(zero.process)
        else:
            driver.kill()
            assert zero.process.wait(WAIT_SECONDS) != 0
            hold.drop()
        scene.await_owners(dict.fromkeys((TASK, OTHER), one.execution_id))
        scene.check()
        hold.release()  # the held request arrives now
        if how == "suspended":
            resume(zero.process)
            assert zero.process.wait(WAIT_SECONDS) == 3
        scene.send(0, scene.fed)  # a task without the state of these keys would write them again
        scene.feed()
        scene.check()
    scene.check_with_other_consumers()
    assert made.http.post(f"/runs/{made.run_id}/stop").status_code == 202
    assert one.process.wait(WAIT_SECONDS) == 0
