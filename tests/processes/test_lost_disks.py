"""Containers are killed at any moment and their disks deleted: every output is on the log exactly once, and also in a user's own sink."""

from __future__ import annotations

import random
import sqlite3
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from containers.supervision.scratch import session_members
from tests.processes.stage import FIRST, Stage, stage
from tests.support.processes import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROUNDS = 2

COUNTS = (
    FIRST
    + """
import os
import sqlite3


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
)


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


def kill_and_wipe(scene: Stage, agent: subprocess.Popen[bytes], victim: str) -> None:
    driver = scene.driver_of(agent)
    (driver if victim == "driver" else agent).kill()
    agent.wait(WAIT_SECONDS)
    wait_for("the end of the driver", lambda: session_members(driver.pid) == [])
    scene.lose_disk()


def kept(scene: Stage) -> list[int]:
    with sqlite3.connect(scene.environment["SINK"]) as sink:
        return sorted(int(row[0]) for row in sink.execute("select v from rows"))


LONG = pytest.mark.long  # as test_kafka.py, and tests/spark/test_log_on_spark.py and test_sinks.py


@pytest.mark.parametrize(
    ("seed", "interval", "rounds", "victim"),
    [pytest.param(1, "1", ROUNDS, "driver", marks=LONG), pytest.param(2, "0", ROUNDS, "agent", marks=LONG), (4, "0", 1, "agent")],
)
def test_killed_containers_whose_disks_are_wiped_write_everything_exactly_once(
    scene: Stage, seed: int, interval: str, rounds: int, victim: str
) -> None:
    chance = random.Random(seed)
    settings: dict[str, Any] = {
        "SLUICE_COMMIT_INTERVAL_SECONDS": interval,
        "SLUICE_MAX_REPLAY": "4",
        "SLUICE_TRIGGER_SECONDS": "0.2",
        "SLUICE_MAX_ROWS": "40",
    }
    _, agent = scene.start_container(**settings)
    for _ in range(rounds):
        fed = scene.written()
        scene.feed(300)
        goal = fed + chance.randrange(20, 280)
        wait_for(f"{goal} records", lambda goal=goal: scene.written() >= goal)  # type: ignore[misc]
        kill_and_wipe(scene, agent, victim)
        _, agent = scene.start_container(**settings)
    scene.await_all_written()
    scene.feed_again(0, 200)  # a stage that had lost its state would write these again
    scene.feed(50)
    scene.await_all_written()
    numbers = list(range(rounds * 300 + 50))
    wanted = sorted([*numbers, *range(200)])
    wait_for("all of them in the user's own sink", lambda: len(kept(scene)) >= len(wanted))  # a stop starts no new batch
    assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
    assert agent.wait(WAIT_SECONDS) == 0
    assert scene.values() == numbers
    assert kept(scene) == wanted
