"""Consecutive drains of one job, with a process killed in each; every version of the job has other state."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.processes.drains import HALVES, WINDOWS, by_hour, counted, drain, phase
from tests.processes.stage import Stage, stage
from tests.support.processes import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FED = 300
SETTINGS: dict[str, Any] = {"SLUICE_TRIGGER_SECONDS": "0.2"}

ROUNDS = [
    ("driver", "coordinator", "agent"),
    ("coordinator", "agent", "driver"),
    ("agent", "driver", "coordinator"),
]
"""Which process is killed in which phase: in these three drains, each process once in each phase."""

PHASES = ["STOPPING", "FLUSHING", "COMMITTING"]
ORDER = ["REQUESTED", "STOPPING", "FLUSHING", "COMMITTING", "DRAINED"]


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("crashes"), WINDOWS) as made:
        made.log.create("numbers", 2)
        made.start_coordinator()
        yield made


def crash(scene: Stage, agent: subprocess.Popen[bytes], victim: str) -> subprocess.Popen[bytes]:
    """kill -9 a process and start a new one. The guardian ends a driver whose agent is killed."""
    match victim:
        case "coordinator":
            assert scene.coordinator is not None
            scene.coordinator.kill()
            scene.coordinator.wait(WAIT_SECONDS)
            scene.start_coordinator()
            return agent
        case "driver":
            scene.driver_of(agent).kill()
        case _:
            agent.kill()
    agent.wait(WAIT_SECONDS)
    return scene.start_container(**SETTINGS)[1]


def reach(scene: Stage, uuid: str, wanted: str) -> str:
    """The phase of the drain, as soon as it is that one or a later one and not final; some phases last for a tenth of a second only."""
    end = time.monotonic() + 180
    while ORDER.index(found := phase(scene, uuid)) < ORDER.index(wanted):
        assert time.monotonic() < end, f"{found}, not {wanted}"
        time.sleep(0.002)
    return found


@pytest.mark.long  # as test_drain.py, and tests/histories for each step of a drain
@pytest.mark.parametrize("rounds", [2, 3])
def test_a_drain_is_completed_and_totals_are_exact_when_a_process_is_killed(scene: Stage, rounds: int) -> None:
    for number, victims in enumerate(ROUNDS[:rounds], 1):
        scene.job_file.write_text([WINDOWS, HALVES][number % 2])
        scene.deploy()
        _, agent = scene.start_container(**SETTINGS)
        scene.feed(FED)
        fed = number * FED
        wait_for("all of them in the middle", lambda fed=fed: sum(scene.log.latest("middle").values()) == fed)  # type: ignore[misc]
        uuid = drain(scene)
        for wanted, victim in zip(PHASES, victims, strict=True):
            found = reach(scene, uuid, wanted)
            print(f"{victim} killed in {found}, to be {wanted}")
            if found != "DRAINED":
                agent = crash(scene, agent, victim)
        wait_for("the drain", lambda uuid=uuid: phase(scene, uuid) in ("DRAINED", "FAILED"))  # type: ignore[misc]
        assert phase(scene, uuid) == "DRAINED"
        agent.wait(WAIT_SECONDS)
        assert counted(scene) == by_hour(fed)
