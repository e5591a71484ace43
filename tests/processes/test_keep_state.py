"""Drains that keep the state, on Kafka, with real processes: deduplication continues over a drain, a lost disk and a faulty version."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.drains import ONCE, drain, phase
from tests.processes.feeding import beside
from tests.processes.kafkastage import stage_on_kafka
from tests.processes.stage import Stage
from tests.support.processes import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MENDED = ONCE.replace('out, value="v")', 'out, key="v", value="v")')
"""Another version with the same operators."""

OTHER = ONCE.replace('dropDuplicatesWithinWatermark(["v"])', 'dropDuplicatesWithinWatermark(["v", "at"])')
"""A version whose operator has another key."""

SETTINGS: dict[str, Any] = {"SLUICE_TRIGGER_SECONDS": "0.2", "SLUICE_SPARK_MASTER": "local[2]"}

RESENT = 29


class Numbers:
    """Produces 200 numbers per second."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.fed = 0

    def send(self, first: int, end: int) -> None:
        values = [Record(str(n).encode(), partition=n % 2) for n in range(first, end)]
        self._topics.append("numbers", values, writer=Writer(Lineage("load"), "load", Generation(1)), batch=first, now_micros=1)

    @contextmanager
    def coming(self) -> Iterator[None]:
        over = threading.Event()

        def feed() -> None:
            while not over.wait(0.05):
                self.send(self.fed, self.fed + 10)
                self.fed += 10

        with beside(feed, over):
            yield


def written(topics: Topics) -> int:
    """The end of the output, which also counts the markers of transactions; `Topics.confirmed` counts records."""
    return sum(topics.latest("out").values())


def drain_under_load(scene: Stage, topics: Topics, numbers: Numbers) -> Counter[str]:
    """Drain under load. Returns how many records of each stream the drain has read."""
    before = written(topics)
    with numbers.coming():
        wait_for("its first output", lambda: written(topics) > before + 100)
        uuid = drain(scene, "KEEP_STATE")
        wait_for("the end of the drain", lambda: phase(scene, uuid) in ("DRAINED", "FAILED"))
    assert phase(scene, uuid) == "DRAINED"
    found: Counter[str] = Counter()
    for each in scene.http.get(f"/drain/{uuid}").json()["drained"]:
        found[each["stream"]] += each["offset"]
    return found


@pytest.mark.long  # as test_upgrade.py, and tests/spark/test_log_on_spark.py for the records
def test_records_that_are_sent_again_after_drains_that_keep_the_state_are_written_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage_on_kafka(tmp_path_factory.mktemp("keep"), ONCE) as (scene, topics):
        numbers = Numbers(topics)
        scene.start_coordinator()
        scene.deploy(start="earliest")
        _, agent = scene.start_container(**SETTINGS)
        drained = drain_under_load(scene, topics, numbers)
        assert agent.wait(WAIT_SECONDS) == 0
        assert drained["middle"] == sum(topics.latest("middle").values())
        assert topics.confirmed("out") == drained["numbers"]

        numbers.send(0, RESENT)
        scene.lose_disk()
        scene.job_file.write_text(OTHER)
        scene.deploy()
        other, agent = scene.start_container(**SETTINGS)
        assert agent.wait(WAIT_SECONDS) == 4
        reason = scene.incarnation(other).reason
        assert "the kept state belongs to dropDuplicatesWithinWatermark by v string" in reason
        assert "this version has dropDuplicatesWithinWatermark by v string, at timestamp" in reason

        scene.job_file.write_text(MENDED)
        scene.deploy()
        _, agent = scene.start_container(**SETTINGS)
        drained = drain_under_load(scene, topics, numbers)
        assert agent.wait(WAIT_SECONDS) == 0
        values = [row[3] for rows in topics.read("out", 0, 0, written(topics)) for row in rows]
        assert len(values) == len(set(values)) == drained["numbers"] - RESENT
