"""`sluice run` with a spare container, real processes and real Spark. That the killed container becomes a spare is in
tests/unit/cli/test_local_processes.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.harness.launch import SluiceRun, sluice_run
from tests.processes.stage import Stage, child_of
from tests.support.processes import tail, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GENEROUS = 600.0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Stage]:
    """Its coordinator and containers are those of `sluice run`."""
    made = Stage(tmp_path)
    made.log.create("numbers", 2)
    yield made
    made.close()


def log_of(run: SluiceRun, run_id: str, name: str) -> str:
    return (run.log_file.parent / "logs" / run_id / f"{name}.log").read_text()


def waits(run: SluiceRun, run_id: str, name: str) -> bool:
    return "waiting for a slot" in log_of(run, run_id, name)


def parts_of_start(run: SluiceRun, run_id: str, name: str) -> list[str]:
    """The parts of the container's start that it has logged, in order."""
    line = wait_for("the line about the start", lambda: re.search("first batch .* process: (.*)\n", log_of(run, run_id, name)), GENEROUS)
    return [part.split()[0] for part in line[1].split(", ")]


@pytest.mark.long
def test_a_spare_takes_the_slot_of_a_killed_container(scene: Stage) -> None:
    with sluice_run(scene.job_file, scene.home, containers=1, port=scene.port, config=["standby.warm=1"]) as run:
        try:
            _, scene.run_id = run.where(GENEROUS)
            scene.feed(100)
            scene.await_all_written(GENEROUS)
            first = next(each for each in scene.detail().incarnations if each.ended_at is None)
            parts = parts_of_start(run, scene.run_id, "container-0")
            assert parts == ["process", "coordinator", "jvm", "session", "connectors", "restore", "query", "batch"]
            wait_for("a spare with Spark", lambda: waits(run, scene.run_id, "spare-0"), GENEROUS)
            agent = wait_for("the container", lambda: run.container(0), GENEROUS)
            wait_for("its driver", lambda: child_of(agent.pid, "containers.driver")).kill()
            scene.feed(100)
            scene.await_all_written(GENEROUS)
            [second] = [each for each in scene.detail().incarnations if each.ended_at is None]
            assert "spare-0" in second.execution_container_id
            assert (second.processor_id, second.epoch) == ("0", first.epoch + 1)
            assert scene.holds_all(second.execution_container_id)
            assert parts_of_start(run, scene.run_id, "spare-0")[4:8] == ["connectors", "warm-up", "slot", "restore"]
        except BaseException:
            print(tail(run.log_file))
            raise
