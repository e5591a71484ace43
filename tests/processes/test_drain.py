"""A drain with real processes and real Spark: everything in flight comes out, and the next run goes on from exactly there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.processes.stage import Stage, stage, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

WINDOWS = """
from containers import Job
from pyspark.sql import functions as F

job = Job("toy")
numbers = job.input("numbers")
middle = job.intermediate("middle", partitions=2)
out = job.output("out")


@job.stage(reads=numbers, writes=middle)
def first(task):
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), middle, key="v", value="v")


@job.stage(reads=middle, writes=out)
def by_hour(task):
    rows = task.read(middle).selectExpr("timestamp_seconds(cast(cast(value as string) as int) * 60) at")
    hours = rows.withWatermark("at", "100 days").groupBy(F.window("at", "1 hour")).count()
    return task.write(hours.selectExpr("unix_seconds(window.start) as hour", "count as n"), out, key="hour")
"""
"""Number n is minute n; every window stays open until somebody drains."""


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("drain"), WINDOWS) as made:
        made.log.create("numbers", 2)
        made.start_coordinator()
        made.deploy()
        yield made


def counted(scene: Stage) -> Counter[int]:
    """Rows by hour over all that is in the output: a window that was drained in the middle comes twice, with parts of its count."""
    found: Counter[int] = Counter()
    for rows in scene.log.read("out", 0, 0, 10**9):
        for row in rows:
            value = json.loads(row[3] or b"")
            found[value["hour"]] += value["n"]
    return found


def by_hour(count: int) -> Counter[int]:
    return Counter(number // 60 * 3600 for number in range(count))


def drain(scene: Stage) -> str:
    answer = scene.http.post("/drain", json={"runId": scene.run_id, "drainMode": "DEFAULT"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["uuid"])


def phase(scene: Stage, uuid: str) -> str:
    return str(scene.http.get(f"/drain/{uuid}").json()["phase"])


def test_a_drained_job_has_written_every_window_and_the_next_run_counts_the_rest_and_nothing_twice(scene: Stage) -> None:
    settings = {"SLUICE_TRIGGER_SECONDS": "0.2"}
    _, watchdog = scene.start_container(**settings)
    scene.feed(500)
    wait_for("all of them in the middle", lambda: sum(scene.log.latest("middle").values()) == 500, 180)
    assert scene.written() == 0
    uuid = drain(scene)
    wait_for("the drain", lambda: phase(scene, uuid) in ("DRAINED", "FAILED"), 180)
    assert phase(scene, uuid) == "DRAINED"
    assert watchdog.wait(60) == 0
    assert counted(scene) == by_hour(500)
    scene.feed(300)
    scene.deploy()
    _, watchdog = scene.start_container(**settings)
    wait_for("the rest in the middle", lambda: sum(scene.log.latest("middle").values()) == 800, 180)
    uuid = drain(scene)
    assert watchdog.wait(180) == 0
    assert phase(scene, uuid) == "DRAINED"
    assert counted(scene) == by_hour(800)


def test_a_container_killed_in_the_middle_of_a_drain_comes_back_without_its_disk_and_completes_it(scene: Stage) -> None:
    settings = {"SLUICE_TRIGGER_SECONDS": "0.2"}
    _, watchdog = scene.start_container(**settings)
    scene.feed(500)
    wait_for("all of them in the middle", lambda: sum(scene.log.latest("middle").values()) == 500, 180)
    uuid = drain(scene)
    wait_for("the flush", lambda: phase(scene, uuid) != "STOPPING", 180)
    scene.driver_of(watchdog).kill()
    watchdog.wait(60)
    if phase(scene, uuid) != "DRAINED":
        scene.lose_disk()
        _, again = scene.start_container(**settings)
        assert again.wait(300) == 0
    assert phase(scene, uuid) == "DRAINED"
    assert counted(scene) == by_hour(500)
