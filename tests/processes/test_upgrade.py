"""Upgrades with real processes and real Spark: to another pipeline, and to a version that fails, which is rolled back to the kept state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.drains import ONCE, WINDOWS, by_hour, can_be_emptied, drain
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GENEROUS = 600.0

FAILING = ONCE.replace('"cast(value as string) v", "time', '"concat(cast(value as string), raise_error(\'a bad version\')) v", "time')
"""Every batch of the second stage fails."""

RESENT = 29


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("upgrade"), WINDOWS) as made:
        made.environment = {"SLUICE_TRIGGER_SECONDS": "0.5", "SLUICE_SPARK_MASTER": "local[1]"}
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
    return wait_for(f"{pattern} in {file.name}", lambda: re.search(pattern, file.read_text(), re.MULTILINE), GENEROUS)[1]


def rows(scene: Stage) -> list[Any]:
    return [json.loads(row[3] or b"") for found in scene.log.read("out", 0, 0, 10**9) for row in found]


def hours(scene: Stage) -> Counter[int]:
    """What the first version has written: how many numbers each hour has."""
    found: Counter[int] = Counter()
    for each in rows(scene):
        if isinstance(each, dict):
            found[each["hour"]] += each["n"]
    return found


def numbers(scene: Stage) -> list[int]:
    """What the second version has written, sorted."""
    return sorted(each for each in rows(scene) if isinstance(each, int))


def test_each_record_counts_once_after_an_upgrade_to_another_pipeline_and_a_roll_back_from_one_that_fails_to_the_kept_state(
    scene: Stage,
) -> None:
    first = run(scene)
    scene.feed(300)
    wait_for("all of them in the middle", lambda: sum(scene.log.latest("middle").values()) == 300, GENEROUS)
    wait_for("what a flush empties", lambda: can_be_emptied(scene), GENEROUS)

    second, upgrading = upgrade(scene, "second", ONCE, scene.job_file)
    scene.run_id = said(scene, "second", r"^run (toy-\S+)$")
    assert hours(scene) == by_hour(300)
    said(scene, "first", f"^(the coordinator keeps running for run {scene.run_id})$")
    scene.feed(200)
    said(scene, "second", f"^(run {scene.run_id} of the new version is healthy)$")
    wait_for("all of them written", lambda: numbers(scene) == list(range(300, 500)), GENEROUS)

    _, failing = upgrade(scene, "third", FAILING, second, "--keep-state", SLUICE_MAX_RESTARTS="0")
    given_up = said(scene, "third", r"^run (toy-\S+)$")
    assert upgrading.wait(GENEROUS) == 0
    scene.feed(100)
    back = said(scene, "third", r"the old version was deployed again as run (toy-\S+) at the drained offsets")
    scene.run_id = given_up
    assert (scene.detail().state, "a bad version" in scene.detail().reason) == ("FAILED", True)
    scene.run_id = back
    scene.feed_again(300, 300 + RESENT)
    scene.feed(50)
    wait_for("the others written", lambda: len(numbers(scene)) >= 350, GENEROUS)
    drain(scene, "KEEP_STATE")
    assert failing.wait(GENEROUS) == 4
    assert first.wait(GENEROUS) == 0
    assert numbers(scene) == list(range(300, 650))
    assert hours(scene) == by_hour(300)
