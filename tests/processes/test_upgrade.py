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


def upgrade(scene: Stage, name: str, text: str, *options: str) -> tuple[Path, subprocess.Popen[bytes]]:
    """The new version's file, and the command, which writes `name`.log."""
    file = scene.root / f"{name}.py"
    file.write_text(text)
    command = [sys.executable, "-m", "sluice", "upgrade", str(file), *options, "--coordinator", scene.url]
    return file, scene.launch(name, command, PYTHONUNBUFFERED="1")


def start(scene: Stage, file: Path, run_id: str, **settings: str) -> subprocess.Popen[bytes]:
    """The container of a run, as a deployment platform starts it."""
    scene.job_file, scene.run_id = file, run_id
    return scene.start_container(0, **settings).process


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
    scene.start_coordinator()
    former = start(scene, scene.job_file, scene.deploy())
    scene.feed(300)
    wait_for("all of them in the middle", lambda: sum(scene.log.latest("middle").values()) == 300, GENEROUS)
    wait_for("what a flush empties", lambda: can_be_emptied(scene), GENEROUS)

    second, upgrading = upgrade(scene, "second", ONCE)
    run_id = said(scene, "second", r"^run (toy-\S+)$")
    assert former.wait(GENEROUS) == 0
    assert hours(scene) == by_hour(300)
    former = start(scene, second, run_id)
    scene.feed(200)
    said(scene, "second", f"^(run {run_id} of the new version is healthy)$")
    assert upgrading.wait(GENEROUS) == 0
    wait_for("all of them written", lambda: numbers(scene) == list(range(300, 500)), GENEROUS)

    third, failing = upgrade(scene, "third", FAILING, "--keep-state")
    given_up = said(scene, "third", r"^run (toy-\S+)$")
    assert former.wait(GENEROUS) == 0
    start(scene, third, given_up, SLUICE_MAX_RESTARTS="0")
    scene.feed(100)
    back = said(scene, "third", r"the old version was deployed again as run (toy-\S+) at the drained offsets")
    assert failing.wait(GENEROUS) == 4
    assert (scene.detail().state, "a bad version" in scene.detail().reason) == ("FAILED", True)
    last = start(scene, second, back)
    scene.feed_again(300, 300 + RESENT)
    scene.feed(50)
    wait_for("the others written", lambda: len(numbers(scene)) >= 350, GENEROUS)
    drain(scene, "KEEP_STATE")
    assert last.wait(GENEROUS) == 0
    assert numbers(scene) == list(range(300, 650))
    assert hours(scene) == by_hour(300)
