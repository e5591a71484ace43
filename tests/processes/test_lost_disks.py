"""Containers killed at any moment, and their disks wiped: every output is on the log exactly once, and in a user's own sink too."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator

import pytest

from containers.processes import session_members
from tests.processes.stage import Stage, stage, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 4

COUNTS = """
import os
import sqlite3

from containers import Job

job = Job("toy")
numbers = job.input("numbers")
middle = job.intermediate("middle", partitions=2)
out = job.output("out")


@job.stage(reads=numbers, writes=middle)
def first(task):
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), middle, key="v", value="v")


@job.stage(reads=middle, writes=out)
def distinct(task):
    rows = task.read(middle).selectExpr("cast(value as string) v")
    return task.write(rows.dropDuplicates(["v"]), out, value="v")


@job.stage(reads=middle)
def kept(task):
    def keep(batch, batch_id):
        rows = [(row.v,) for row in batch.collect()]
        with sqlite3.connect(os.environ["SINK"], timeout=30) as sink:
            if sink.execute("insert or ignore into seen values (?)", (task.name + task.txn_id(batch_id),)).rowcount:
                sink.executemany("insert into rows values (?)", rows)

    rows = task.read(middle).selectExpr("cast(value as string) v")
    return task.foreach_batch(rows, keep)
"""


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("disks"), COUNTS) as made:
        made.environment["SINK"] = str(made.root / "sink.sqlite")
        with sqlite3.connect(made.environment["SINK"]) as sink:
            sink.executescript("create table seen (txn primary key); create table rows (v)")
        made.log.create("numbers", 2)
        made.start_coordinator()
        made.deploy()
        yield made


def kill_and_wipe(scene: Stage, watchdog: object) -> None:
    driver = scene.driver_of(watchdog)  # type: ignore[arg-type]
    driver.kill()
    watchdog.wait(60)  # type: ignore[attr-defined]
    assert session_members(driver.pid) == []
    shutil.rmtree(scene.root / "home" / "state")


def kept(scene: Stage) -> list[int]:
    with sqlite3.connect(scene.environment["SINK"]) as sink:
        return sorted(int(row[0]) for row in sink.execute("select v from rows"))


@pytest.mark.parametrize(("seed", "interval"), [(1, "1"), (2, "0")])
def test_killed_containers_whose_disks_are_wiped_write_everything_exactly_once(scene: Stage, seed: int, interval: str) -> None:
    chance = random.Random(seed)
    settings = {
        "SLUICE_COMMIT_INTERVAL_SECONDS": interval,
        "SLUICE_MAX_REPLAY": "4",
        "SLUICE_TRIGGER_SECONDS": "0.2",
        "SLUICE_MAX_ROWS": "40",
    }
    _, watchdog = scene.start_container(**settings)
    for _ in range(ROUNDS):
        fed = scene.written()
        scene.feed(300)
        goal = fed + chance.randrange(20, 280)
        wait_for(f"{goal} records", lambda goal=goal: scene.written() >= goal)  # type: ignore[misc]
        kill_and_wipe(scene, watchdog)
        _, watchdog = scene.start_container(**settings)
    scene.await_all_written()
    scene.feed_again(0, 400)  # a store that had lost its state would take these for new
    scene.feed(50)
    scene.await_all_written()
    assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
    assert watchdog.wait(120) == 0
    numbers = list(range(ROUNDS * 300 + 50))
    assert scene.values() == numbers
    assert kept(scene) == sorted([*numbers, *range(400)])
