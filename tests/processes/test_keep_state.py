"""Drains that keep the state, with real processes and real Spark: deduplication goes on over drains, a lost disk and a bad version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from tests.processes.drains import phase
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ONCE = """
from sluice import Job

job = Job("toy")
numbers = job.input("numbers")
middle = job.intermediate("middle", partitions=2)
out = job.output("out")


@job.stage(reads=numbers, writes=middle)
def first(task):
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), middle, key="v", value="v")


@job.stage(reads=middle, writes=out)
def once(task):
    rows = task.read(middle).selectExpr("cast(value as string) v", "timestamp_seconds(cast(cast(value as string) as int) * 60 + 60) at")
    return task.write(rows.withWatermark("at", "100 days").dropDuplicatesWithinWatermark(["v"]), out, value="v")
"""
"""Each number passes once, however often it is sent."""

MENDED = ONCE.replace('out, value="v")', 'out, key="v", value="v")')
"""Another version with the same operators."""

OTHER = ONCE.replace('dropDuplicatesWithinWatermark(["v"])', 'dropDuplicatesWithinWatermark(["v", "at"])')
"""A version whose operator has another key."""

SETTINGS = {"SLUICE_TRIGGER_SECONDS": "0.2", "SLUICE_SPARK_MASTER": "local[2]"}

RESENT = 29


@contextmanager
def load(scene: Stage) -> Iterator[None]:
    """Numbers that go on coming, 200 a second."""
    log, over = Log(scene.home / "log"), threading.Event()
    writer = Writer(Lineage("load"), "load", Generation(1))

    def feed() -> None:
        while not over.wait(0.05):
            values = [Record(str(n).encode(), partition=n % 2) for n in range(scene.fed, scene.fed + 10)]
            assert log.append("numbers", values, writer=writer, batch=scene.fed, now_micros=1)
            scene.fed += 10

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        yield
    finally:
        over.set()
        feeding.join()


def written(scene: Stage) -> int:
    return sum(Log(scene.home / "log").latest("out").values())


def drain_under_load(scene: Stage, mode: str) -> str:
    """Drain when much has passed and more comes; the drain's id."""
    before = written(scene)
    with load(scene):
        wait_for("its first output", lambda: written(scene) > before + 100, 180)
        answer = scene.http.post("/drain", json={"runId": scene.run_id, "drainMode": mode})
        assert answer.status_code == 202, answer.text
        uuid = str(answer.json()["uuid"])
        wait_for("the end of the drain", lambda: phase(scene, uuid) in ("DRAINED", "FAILED"), 180)
    assert phase(scene, uuid) == "DRAINED"
    return uuid


def drained(scene: Stage, uuid: str, stream: str) -> int:
    """How many records of the stream the drain has read, over all partitions."""
    return sum(each["offset"] for each in scene.http.get(f"/drain/{uuid}").json()["drained"] if each["stream"] == stream)


def test_what_is_sent_again_after_a_drain_that_keeps_the_state_passes_once_whatever_happens_between(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage(tmp_path_factory.mktemp("keep"), ONCE) as scene:
        scene.log.create("numbers", 2)
        scene.start_coordinator()
        scene.deploy()
        _, watchdog = scene.start_container(**SETTINGS)
        uuid = drain_under_load(scene, "KEEP_STATE")
        assert watchdog.wait(60) == 0
        assert drained(scene, uuid, "middle") == sum(scene.log.latest("middle").values())
        assert written(scene) == drained(scene, uuid, "numbers")

        scene.feed_again(0, RESENT)
        scene.lose_disk()
        scene.job_file.write_text(OTHER)
        scene.deploy()
        other, watchdog = scene.start_container(**SETTINGS)
        assert watchdog.wait(120) == 4
        reason = scene.incarnation(other).reason
        assert "the kept state is of dropDuplicatesWithinWatermark by v string" in reason
        assert "this version has dropDuplicatesWithinWatermark by v string, at timestamp" in reason

        scene.job_file.write_text(MENDED)
        scene.deploy()
        _, watchdog = scene.start_container(**SETTINGS)
        drain_under_load(scene, "KEEP_STATE")
        assert watchdog.wait(60) == 0

        scene.feed_again(RESENT, 2 * RESENT)
        scene.deploy()
        _, watchdog = scene.start_container(**SETTINGS)
        wait_for("all of them", lambda: written(scene) >= scene.fed, 180)
        uuid = drain_under_load(scene, "KEEP_STATE")
        assert watchdog.wait(60) == 0
        assert len(scene.values()) == len(set(scene.values())) == drained(scene, uuid, "numbers") - 2 * RESENT
