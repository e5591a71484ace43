"""A job on Kafka that is drained while thousands of records per second arrive, and continues as a job with other state."""

from __future__ import annotations

import json
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
from tests.processes.drains import HALVES, WINDOWS, drain, phase
from tests.processes.feeding import beside
from tests.processes.kafkastage import stage_on_kafka
from tests.processes.stage import Stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

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
        wait_for("the drain", lambda: phase(self.stage, uuid) in ("DRAINED", "FAILED"), 240)
        detail = self.stage.http.get(f"/drain/{uuid}").json()
        assert detail["phase"] == "DRAINED", detail
        return {each["partition"]: each["offset"] for each in detail["drained"] if each["stream"] == "numbers"}


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaScene]:
    with stage_on_kafka(tmp_path_factory.mktemp("drain-kafka"), WINDOWS) as (made, topics):
        yield KafkaScene(made, topics)


def test_under_load_nothing_is_read_after_the_stop_and_everything_by_the_next_version(scene: KafkaScene) -> None:
    made = scene.stage
    made.start_coordinator()
    made.deploy(start="earliest")
    _, watchdog = made.start_container(**SETTINGS)
    producer = Producer(scene.topics.bootstrap)
    with producer.running():
        wait_for("records between the stages", lambda: sum(scene.topics.latest("middle").values()) > PER_SECOND, 180)
        drained = scene.await_drained(drain(made))
        assert watchdog.wait(60) == 0
        at_the_end = sum(drained.values())
        assert sum(scene.counted().values()) == at_the_end
        time.sleep(1)  # of further input
        assert sum(scene.topics.latest("numbers").values()) > at_the_end
        made.job_file.write_text(HALVES)
        grow(scene)
        made.deploy()
        _, watchdog = made.start_container(**SETTINGS)
        wait_for("the next version's", lambda: sum(scene.topics.latest("middle").values()) > at_the_end + PER_SECOND, 180)
    fed = sum(producer.sent.values())
    wait_for("all of them in the middle", lambda: sum(scene.topics.latest("middle").values()) >= fed, 240)
    scene.await_drained(drain(made))
    assert watchdog.wait(60) == 0
    assert scene.counted() == producer.sent


def grow(scene: KafkaScene) -> None:
    """Between drain and next run the input gets two more partitions, which are read from their beginning."""
    scene.topics.grow("numbers", 4)
