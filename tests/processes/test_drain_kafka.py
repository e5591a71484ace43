"""A job on Kafka that is drained while thousands of records per second arrive, and continues as a job with other state."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from sluice.streams.port import Offsets
from tests.processes.drains import HALVES, WINDOWS, can_be_emptied, drain, phase
from tests.processes.feeding import beside
from tests.processes.kafkastage import stage_on_kafka
from tests.processes.stage import Stage
from tests.support.processes import SLUICE, WAIT_SECONDS, await_line, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PER_SECOND, PAUSE = 2000, 0.05
HOURS = 50
SETTINGS: dict[str, Any] = {"SLUICE_TRIGGER_SECONDS": "0.2"}


@dataclass
class Producer:
    """Sends numbers in a thread of its own until it is stopped; `sent` counts them by hour."""

    bootstrap: str
    sent: Counter[int] = field(default_factory=Counter)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        topics = Topics(self.bootstrap)
        try:
            number = 0
            while not self._over.wait(PAUSE):
                chunk = range(number, number + int(PER_SECOND * PAUSE))
                records = [Record(str(n % (HOURS * 60)).encode(), key=str(n).encode()) for n in chunk]
                topics.append("numbers", records, writer=Writer(Lineage("p"), "p", Generation(1)), batch=number, now_micros=1)
                self.sent.update(n % (HOURS * 60) // 60 * 3600 for n in chunk)
                number = chunk.stop
        finally:
            topics.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        with beside(self.run, self._over):
            yield


@dataclass
class KafkaScene:
    stage: Stage
    topics: Topics

    def counted(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for partition, end in self.topics.latest("out").items():
            for rows in self.topics.read("out", partition, 0, end):
                for row in rows:
                    value = json.loads(row[3] or b"")
                    found[value["hour"]] += value["n"]
        return found

    def await_drained(self, uuid: str) -> Offsets:
        """The end of the drain, and the start offsets of the next run."""
        wait_for("the drain", lambda: phase(self.stage, uuid) in ("DRAINED", "FAILED"))
        detail = self.stage.http.get(f"/drain/{uuid}").json()
        assert detail["phase"] == "DRAINED", detail
        return {each["partition"]: each["offset"] for each in detail["drained"] if each["stream"] == "numbers"}


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaScene]:
    with stage_on_kafka(tmp_path_factory.mktemp("drain-kafka"), WINDOWS) as (made, topics):
        yield KafkaScene(made, topics)


AT_LEAST_ONCE = HALVES.replace('value="v")', 'value="v", delivery="at-least-once")').replace(
    'key="hour")', 'key="hour", delivery="at-least-once")'
)


@pytest.mark.long  # as test_upgrade.py, and tests/spark/test_kafka_on_spark.py for the delivery
def test_under_load_upgrades_that_change_the_delivery_count_each_record_once(scene: KafkaScene) -> None:
    """The job is exactly-once at first, at-least-once after a drain, and exactly-once again after an upgrade."""
    made = scene.stage
    made.start_coordinator()
    made.deploy(start="earliest")
    _, agent = made.start_container(**SETTINGS)
    producer = Producer(scene.topics.bootstrap)
    with producer.running():
        wait_for("records between the stages", lambda: sum(scene.topics.latest("middle").values()) > PER_SECOND)
        drained = scene.await_drained(drain(made))
        assert agent.wait(WAIT_SECONDS) == 0
        at_the_end = sum(drained.values())
        assert sum(scene.counted().values()) == at_the_end
        time.sleep(1)  # of further input
        assert sum(scene.topics.latest("numbers").values()) > at_the_end
        made.job_file.write_text(AT_LEAST_ONCE)
        grow(scene)
        made.deploy()
        _, agent = made.start_container(**SETTINGS)
        wait_for("the next version's", lambda: sum(scene.topics.latest("middle").values()) > at_the_end + PER_SECOND)
        wait_for("what a flush empties", lambda: can_be_emptied(made))
        assert deliveries(made) == {"at-least-once"}
        agent = upgrade(scene, WINDOWS, agent)
        assert deliveries(made) == {"exactly-once"}
    fed = sum(producer.sent.values())
    wait_for("all of them in the middle", lambda: sum(scene.topics.latest("middle").values()) >= fed)
    scene.await_drained(drain(made))
    assert agent.wait(WAIT_SECONDS) == 0
    assert scene.counted() == producer.sent


def deliveries(made: Stage) -> set[str]:
    """How the stages of the run write, as they have reported it."""
    found = [stage.metrics.delivery for task in made.detail().tasks for stage in task.stages if stage.metrics is not None]
    return {delivery for each in found for delivery in each.values()}


def upgrade(scene: KafkaScene, text: str, agent: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """`sluice upgrade` to the version with that text, while the producer sends. Returns the process of the new version's container."""
    made = scene.stage
    made.job_file.write_text(text)
    command = [*SLUICE, "upgrade", str(made.job_file), "--coordinator", made.url, "--no-rollback"]
    upgrading = made.launch("upgrade", command, PYTHONUNBUFFERED="1")
    made.run_id = await_line(upgrading, made.log_file("upgrade"), r"is deployed as run (toy-\S+);")
    assert agent.wait(WAIT_SECONDS) == 0
    _, agent = made.start_container(**SETTINGS)
    assert upgrading.wait(WAIT_SECONDS) == 0
    return agent


def grow(scene: KafkaScene) -> None:
    """Between the drain and the next run, the input grows by two partitions, which are read from their beginning."""
    scene.topics.grow("numbers", 4)
