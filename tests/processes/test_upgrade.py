"""Upgrades with real processes and real Spark: to another pipeline with other state, and roll-backs from versions that fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.drains import ONCE, can_be_emptied, drain
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

HEAD = """
from sluice import Job
from pyspark.sql import functions as F

job = Job("toy")
numbers, out = job.input("numbers"), job.output("out")


def timed(rows):
    values = rows.selectExpr("cast(cast(value as string) as int) v")
    return values.selectExpr("v % 5 as k", "timestamp_seconds(v * 60) at").withWatermark("at", "100 days")


"""

BY_HOUR = (
    HEAD
    + """
middle = job.intermediate("middle", partitions=2)


@job.stage(reads=numbers, writes=middle)
def first(task):
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), middle, key="v", value="v")


@job.stage(reads=middle, writes=out)
def by_hour(task):
    hours = timed(task.read(middle)).groupBy(F.window("at", "1 hour"), "k").count()
    return task.write(hours.selectExpr("k", "count as n"), out, key="k")
"""
)
"""Number n is minute n; every window stays open until a drain."""

BY_SESSION = (
    HEAD
    + """
@job.stage(reads=numbers, writes=out)
def by_session(task):
    sessions = timed(task.read(numbers)).groupBy(F.session_window("at", "2 days"), "k").agg(F.count("*").alias("n"))
    return task.write(sessions.selectExpr("k", "n"), out, key="k")
"""
)

FAILING = BY_SESSION.replace("v % 5 as k", "v % 5 + int(raise_error('a bad version')) as k")
FAILING_ONCE = ONCE.replace('"cast(value as string) v", "time', '"concat(cast(value as string), raise_error(\'a bad version\')) v", "time')
"""Every batch with rows fails."""

RESENT = 29


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("upgrade"), BY_HOUR) as made:
        made.environment = {"SLUICE_TRIGGER_SECONDS": "0.2", "SLUICE_SPARK_MASTER": "local[1]"}
        made.log.create("numbers", 2)
        yield made


def run(scene: Stage) -> subprocess.Popen[bytes]:
    """`sluice run` of the old version, which writes `first.log`."""
    words = [str(scene.job_file), "--home", str(scene.root / "home"), "--port", str(scene.port)]
    started = scene.launch("first", [sys.executable, "-m", "sluice", "run", *words], PYTHONUNBUFFERED="1")
    scene.run_id = said(scene, "first", r"^run (toy-\S+)$")
    return started


def upgrade(scene: Stage, name: str, text: str, old: Path, *options: str, **environment: str) -> tuple[Path, subprocess.Popen[bytes]]:
    """The new version's file, and the command, which starts the containers and writes `name`.log."""
    file = scene.root / f"{name}.py"
    file.write_text(text)
    words = [str(file), "--local", "--old", str(old), "--home", str(scene.root / "home"), *options]
    command = [sys.executable, "-m", "sluice", "upgrade", *words, "--coordinator", f"http://127.0.0.1:{scene.port}"]
    return file, scene.launch(name, command, PYTHONUNBUFFERED="1", **environment)


def said(scene: Stage, name: str, pattern: str) -> str:
    """The first group of the pattern in the output of the command."""
    file = scene.root / f"{name}.log"
    return wait_for(f"{pattern} in {file.name}", lambda: re.search(pattern, file.read_text(), re.MULTILINE), 300)[1]


def read(scene: Stage) -> int:
    """How many numbers this run and the runs before it have read."""
    return sum(each.offset for task in scene.detail().tasks for stage in task.stages for each in stage.offsets)


def totals(scene: Stage) -> Counter[int]:
    found: Counter[int] = Counter()
    for rows in scene.log.read("out", 0, 0, 10**9):
        for row in rows:
            value = json.loads(row[3] or b"")
            found[value["k"]] += value["n"]
    return found


def by_key(count: int) -> Counter[int]:
    return Counter(number % 5 for number in range(count))


def test_totals_are_exact_after_an_upgrade_to_another_pipeline_and_a_roll_back_from_one_that_fails(scene: Stage) -> None:
    first = run(scene)
    scene.feed(300)
    wait_for("all of them in the middle", lambda: sum(scene.log.latest("middle").values()) == 300, 180)
    wait_for("what a flush empties", lambda: can_be_emptied(scene), 60)

    second, upgrading = upgrade(scene, "second", BY_SESSION, scene.job_file)
    scene.run_id = said(scene, "second", r"^run (toy-\S+)$")
    assert totals(scene) == by_key(300)
    said(scene, "first", f"^(the coordinator keeps running for run {scene.run_id})$")
    scene.feed(200)
    said(scene, "second", f"^(run {scene.run_id} of the new version is healthy)$")
    wait_for("what a flush empties", lambda: can_be_emptied(scene), 60)

    _, failing = upgrade(scene, "third", FAILING, second, SLUICE_MAX_RESTARTS="0")
    assert upgrading.wait(180) == 0
    assert totals(scene) == by_key(500)
    scene.feed(100)
    given_up = said(scene, "third", r"^run (toy-\S+)$")
    back = said(scene, "third", r"the old version was deployed again as run (toy-\S+) at the drained offsets")
    scene.run_id = given_up
    assert (scene.detail().state, "a bad version" in scene.detail().reason) == ("FAILED", True)
    scene.run_id = back
    scene.feed(50)
    wait_for("all of them read", lambda: read(scene) == 650, 180)
    drain(scene)
    assert failing.wait(180) == 4
    assert first.wait(60) == 0
    assert totals(scene) == by_key(650)


def test_an_upgrade_that_keeps_the_state_is_rolled_back_from_a_version_that_fails_to_the_state_of_the_drain(scene: Stage) -> None:
    scene.job_file.write_text(ONCE)
    first = run(scene)
    scene.feed(300)
    wait_for("all of them written", lambda: scene.written() == 300, 180)

    _, failing = upgrade(scene, "second", FAILING_ONCE, scene.job_file, "--keep-state", SLUICE_MAX_RESTARTS="0")
    given_up = said(scene, "second", r"^run (toy-\S+)$")
    scene.feed(100)
    back = said(scene, "second", r"the old version was deployed again as run (toy-\S+) at the drained offsets")
    scene.run_id = given_up
    assert (scene.detail().state, "a bad version" in scene.detail().reason) == ("FAILED", True)
    scene.run_id = back
    scene.feed_again(0, RESENT)
    scene.feed(50)
    wait_for("all of them read", lambda: read(scene) >= 2 * (450 + RESENT), 180)
    drain(scene, "KEEP_STATE")
    assert failing.wait(180) == 4
    assert first.wait(60) == 0
    assert scene.values() == list(range(450))
