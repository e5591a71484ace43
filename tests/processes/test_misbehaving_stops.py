"""SIGTERM in the middle of a batch. The tests share a job and its log, so they run in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from containers.scratch import session_members
from containers.state.checkpoint import CheckpointInfo, Checkpoints, inspect
from tests.processes.gates import GATED, Gate
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("stops"), GATED) as made:
        made.log.create("numbers", 1)
        made.start_coordinator()
        made.deploy()
        yield made


def store(scene: Stage) -> CheckpointInfo:
    found = inspect(Checkpoints(scene.root / "home" / "state", "gated").directory("Partition 0", "only"))
    assert found is not None
    return found


def has_logged(scene: Stage, execution_id: str, what: str) -> bool:
    return what in (scene.root / f"container-0-{execution_id}.log").read_text(errors="replace")


def test_a_second_stop_interrupts_the_batch(scene: Stage) -> None:
    scene.feed(100)
    execution_id, watchdog = scene.start_container()
    Gate(scene, execution_id).await_batch()
    driver = scene.driver_of(watchdog)
    watchdog.send_signal(signal.SIGTERM)
    wait_for("the stop to begin", lambda: has_logged(scene, execution_id, "exiting: stop requested"))
    watchdog.send_signal(signal.SIGTERM)
    assert watchdog.wait(180) == 0
    assert session_members(driver.pid) == []
    assert (store(scene).planned, store(scene).committed) == (0, -1)
    assert scene.written() == 0
    assert [task.holder for task in scene.detail().tasks] == [None]


def test_the_next_container_runs_the_batch_again_and_a_first_stop_lets_it_finish_and_commit(scene: Stage) -> None:
    scene.feed(50)
    execution_id, watchdog = scene.start_container()
    gate = Gate(scene, execution_id)
    gate.await_batch()
    watchdog.send_signal(signal.SIGTERM)
    wait_for("the stop to begin", lambda: has_logged(scene, execution_id, "exiting: stop requested"))
    assert scene.written() == 0
    gate.open()
    assert watchdog.wait(180) == 0
    assert store(scene).planned == store(scene).committed
    assert scene.values() == list(range(100))
    assert [task.holder for task in scene.detail().tasks] == [None]
