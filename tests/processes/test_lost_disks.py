"""Containers are killed at any moment and their disks deleted: every output is on the log exactly once, and also in a user's own sink."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from containers.scratch import session_members
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.kafkastage import stage_on_kafka
from tests.processes.stage import FIRST, Stage, stage
from tests.support.processes import wait_for
from tests.support.s3servers import S3_CREDENTIALS, versitygw

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]

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


def kill_and_wipe(scene: Stage, watchdog: object) -> None:
    driver = scene.driver_of(watchdog)  # type: ignore[arg-type]
    driver.kill()
    watchdog.wait(60)  # type: ignore[attr-defined]
    assert session_members(driver.pid) == []
    scene.lose_disk()


def kept(scene: Stage) -> list[int]:
    with sqlite3.connect(scene.environment["SINK"]) as sink:
        return sorted(int(row[0]) for row in sink.execute("select v from rows"))


@pytest.mark.long  # the next test has real topics and S3
@pytest.mark.parametrize(("seed", "interval"), [(1, "1"), (2, "0")])
def test_killed_containers_whose_disks_are_wiped_write_everything_exactly_once(scene: Stage, seed: int, interval: str) -> None:
    chance = random.Random(seed)
    settings: dict[str, Any] = {
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
        wait_for(f"{goal} records", lambda goal=goal: scene.written() >= goal, 300)  # type: ignore[misc]
        kill_and_wipe(scene, watchdog)
        _, watchdog = scene.start_container(**settings)
    scene.await_all_written()
    scene.feed_again(0, 200)  # a stage that had lost its state would write these again
    scene.feed(50)
    scene.await_all_written()
    numbers = list(range(ROUNDS * 300 + 50))
    wanted = sorted([*numbers, *range(200)])
    wait_for("all of them in the user's own sink", lambda: len(kept(scene)) >= len(wanted))  # a stop starts no new batch
    assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
    assert watchdog.wait(120) == 0
    assert scene.values() == numbers
    assert kept(scene) == wanted


# --- Kafka and S3 ----------------------------------------------------------------------------------------------------

KAFKA_ROUNDS, MAX_REPLAY, MAX_ROWS = 1, 3, 50


@pytest.fixture
def on_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, Topics]]:
    root = tmp_path_factory.mktemp("kafka-disks")
    (root / "s3").mkdir()
    with versitygw(root / "s3") as s3, stage_on_kafka(root) as (made, topics):
        bucket = s3.new_bucket()
        made.environment |= {
            **S3_CREDENTIALS,
            "SLUICE_BLOB_STORES": json.dumps({"s3": f"s3://{bucket}/state?endpoint={s3.endpoint}&region=us-east-1"}),
        }
        yield made, topics


def test_on_kafka_and_s3_nothing_is_lost_or_repeated(on_kafka: tuple[Stage, Topics]) -> None:
    """The batches after the last snapshot run again, and find their markers in the topics."""
    scene, topics = on_kafka
    scene.start_coordinator()
    scene.deploy(start="earliest")
    settings: dict[str, Any] = {
        "SLUICE_COMMIT_INTERVAL_SECONDS": "1",
        "SLUICE_MAX_REPLAY": str(MAX_REPLAY),
        "SLUICE_MAX_ROWS": str(MAX_ROWS),
        "SLUICE_TRIGGER_SECONDS": "0.2",
    }
    _, watchdog = scene.start_container(**settings)
    fed = 0
    for _ in range(KAFKA_ROUNDS):
        feed_topic(topics, fed, 300)
        fed += 300
        wait_for("half of them in the output", lambda fed=fed: len(set(numbers_in(topics))) >= fed - 150, 300)  # type: ignore[misc]
        kill_and_wipe(scene, watchdog)
        _, watchdog = scene.start_container(**settings)
    wait_for("all of them in the output", lambda: len(set(numbers_in(topics))) >= fed, 300)
    assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
    assert watchdog.wait(120) == 0
    found = numbers_in(topics)
    assert sorted(found) == list(range(fed))


def feed_topic(topics: Topics, first: int, count: int) -> None:
    records = [Record(str(n).encode(), partition=n % 2) for n in range(first, first + count)]
    topics.append("numbers", records, writer=Writer(Lineage("feeder"), "feeder", Generation(1)), batch=first, now_micros=1)


def numbers_in(topics: Topics) -> list[int]:
    return [int(row[3] or b"") for rows in topics.read("out", 0, 0, sum(topics.latest("out").values())) for row in rows]
