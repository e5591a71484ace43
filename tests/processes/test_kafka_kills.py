"""Whole containers are suspended and killed at chosen requests of their Kafka transactions, and their tasks move: each record is in the
output once.

Two steps run by default. SLUICE_TEST_KAFKA_STEPS=all runs each step of a batch in both ways, which takes about ten minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.gates import pause, resume
from tests.processes.kafkastage import stage_on_kafka
from tests.processes.stage import Stage
from tests.support.console_consumer import committed_values
from tests.support.coordinators import Container
from tests.support.kafkaproxy import KafkaProxy, Request, kafka_proxy
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

COPY = """
from sluice import Job

job = Job("toy")
numbers = job.input("numbers")
out = job.output("out")


@job.stage(reads=numbers, writes=out)
def copy(task):
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), out, value="v")
"""

TASK = "Partition 0"
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
    """A job of two tasks in two containers, each with a disk of its own, which reach the broker through a proxy."""

    stage: Stage
    topics: Topics
    proxy: KafkaProxy
    fed: int = 0

    def start(self, slot: int) -> Container:
        through = {"SLUICE_KAFKA_BOOTSTRAP": self.proxy.bootstrap, "SLUICE_STATE_DIR": str(self.stage.root / f"disk{slot}")}
        return self.stage.start_container(slot, **SETTINGS, **through)

    def feed(self, count: int = 20) -> None:
        records = [Record(str(n).encode(), partition=n % 2) for n in range(self.fed, self.fed + count)]
        writer = Writer(Lineage("feeder"), "feeder", Generation(1))
        self.topics.append("numbers", records, writer=writer, batch=self.fed, now_micros=1)
        self.fed += count

    def written(self) -> list[int]:
        end = sum(self.topics.latest("out").values())
        return sorted(int(row[3] or b"") for rows in self.topics.read("out", 0, 0, end) for row in rows)

    def check(self) -> None:
        wait_for(f"{self.fed} records in the output", lambda: len(self.written()) >= self.fed, 240)
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
        wait_for(f"the owners {owners}", lambda: {task.task: task.holder for task in self.stage.detail().tasks} == owners, 300)


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with stage_on_kafka(tmp_path_factory.mktemp("kafka-kills"), COPY) as (made, topics), kafka_proxy(topics.bootstrap) as proxy:
        made.environment["SLUICE_FAILOVER_AFTER_SECONDS"] = "5"
        made.start_coordinator(lease_seconds=20)
        made.deploy(2, start="earliest")
        yield Scene(made, topics, proxy)


def test_containers_that_are_suspended_or_killed_in_a_batch_add_nothing_when_their_tasks_have_moved(scene: Scene) -> None:
    made = scene.stage
    zero, one = scene.start(0), scene.start(1)
    for request, executed, how in ALL if os.environ.get("SLUICE_TEST_KAFKA_STEPS") == "all" else IN_CI:
        scene.await_owners({TASK: zero.execution_id, "Partition 1": one.execution_id})
        scene.feed()
        scene.check()
        hold = scene.proxy.hold(request, executed=executed, about=f"/{TASK}")
        scene.feed()
        hold.await_reached(240)
        driver = made.driver_of(zero.process)
        if how == "suspended":
            pause(zero.process, driver)
        else:
            driver.kill()
            assert zero.process.wait(60) != 0
            hold.drop()
        scene.await_owners(dict.fromkeys((TASK, "Partition 1"), one.execution_id))
        scene.check()
        hold.release()  # the held request arrives now
        if how == "suspended":
            resume(zero.process, driver)
            assert zero.process.wait(120) == 3
        scene.feed()
        scene.check()
        zero = scene.start(0)
    scene.await_owners({TASK: zero.execution_id, "Partition 1": one.execution_id})
    scene.feed()
    scene.check()
    scene.check_with_other_consumers()
    assert made.http.post(f"/runs/{made.run_id}/stop").status_code == 202
    assert (zero.process.wait(120), one.process.wait(120)) == (0, 0)
