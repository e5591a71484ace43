"""Drains of one job, one after another, in each of which somebody is killed; every version of the job keeps other state."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.processes.stage import Stage, stage, wait_for
from tests.processes.test_drain import WINDOWS, by_hour, counted, drain, phase

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

HALVES = WINDOWS.replace('F.window("at", "1 hour")', 'F.window("at", "30 minutes")').replace(
    "unix_seconds(window.start) as hour", "unix_seconds(window.start) div 3600 * 3600 as hour"
)
"""The same sums from windows of another size, whose state the other version could not read."""

FED = 300
SETTINGS = {"SLUICE_TRIGGER_SECONDS": "0.2"}

CRASHES = [
    ("STOPPING", {"container"}),
    ("FLUSHING", {"coordinator"}),
    ("FLUSHING", {"watchdog"}),
    ("COMMITTING", {"container", "coordinator"}),
]
ORDER = ["REQUESTED", "STOPPING", "FLUSHING", "COMMITTING", "DRAINED"]


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("crashes"), WINDOWS) as made:
        made.log.create("numbers", 2)
        made.start_coordinator()
        yield made


def crash(scene: Stage, watchdog: subprocess.Popen[bytes], victims: set[str]) -> None:
    """kill -9, of all at once. A container whose watchdog is killed ends by itself: the pipe between them closes."""
    if "container" in victims:
        scene.driver_of(watchdog).kill()
    if "watchdog" in victims:
        watchdog.kill()
    if "coordinator" in victims:
        assert scene.coordinator is not None
        scene.coordinator.kill()
        scene.coordinator.wait(30)
        scene.start_coordinator()


def test_whoever_is_killed_in_a_drain_it_is_completed_and_the_totals_are_exact(scene: Stage) -> None:
    for round_number, (when, victims) in enumerate(CRASHES):
        scene.job_file.write_text([WINDOWS, HALVES][round_number % 2])
        scene.deploy()
        _, watchdog = scene.start_container(**SETTINGS)
        scene.feed(FED)
        fed = (round_number + 1) * FED
        wait_for("all of them in the middle", lambda fed=fed: sum(scene.log.latest("middle").values()) == fed, 180)  # type: ignore[misc]
        uuid = drain(scene)
        wait_for(when, lambda uuid=uuid, when=when: ORDER.index(phase(scene, uuid)) >= ORDER.index(when), 180)  # type: ignore[misc]
        print(f"{sorted(victims)} killed in {phase(scene, uuid)}")
        crash(scene, watchdog, victims)
        if victims != {"coordinator"}:
            watchdog.wait(60)
            if phase(scene, uuid) != "DRAINED":
                _, watchdog = scene.start_container(**SETTINGS)
        wait_for("the drain", lambda uuid=uuid: phase(scene, uuid) in ("DRAINED", "FAILED"), 240)  # type: ignore[misc]
        assert phase(scene, uuid) == "DRAINED"
        watchdog.wait(60)
        assert counted(scene) == by_hour(fed)
