"""One slot through all kinds of events, with real processes and real Spark. The steps share their processes, so they run in order.

A container that is killed is in test_watched_job.py, and one that is stopped in a batch that does not end in test_misbehaving_code.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from containers.state.checkpoint import Checkpoints, inspect
from containers.supervision.scratch import session_members
from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.gates import GATED, Gate, pause, resume
from tests.processes.stage import Stage, stage
from tests.support.coordinators import Container
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GENEROUS = 600.0
LONG_LEASE, SHORT_LEASE = ({"lease_seconds": lease, "heartbeat_seconds": 2, "margin_seconds": 4, "grace_seconds": 2} for lease in (300, 20))
"""No lease ends before the outage is over, also on a busy machine; other steps wait for the end of one. A coordinator waits for the longest
lease that a former one has granted before it gives a task away, so no step after the outage waits for that."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("slot"), GATED) as made:
        made.log.create("numbers", 1)
        made.start_coordinator(**SHORT_LEASE)
        made.deploy()
        yield made


def started(scene: Stage, *, gate_open: bool) -> tuple[Container, Gate]:
    container = scene.start_container()
    gate = Gate(scene, container.execution_id)
    if gate_open:
        gate.open()
    return container, gate


def has_logged(scene: Stage, container: Container, what: str) -> bool:
    return what in scene.container_log(container).read_text(errors="replace")


def down(scene: Stage) -> None:
    assert scene.coordinator is not None
    scene.coordinator.kill()
    scene.coordinator.wait()


def await_heartbeat(scene: Stage) -> None:
    """Of the coordinator that runs now."""
    wait_for("a heartbeat", lambda: 'answer="alive"} 0.0' not in scene.http.get("/metrics").text, GENEROUS)


class TestLifeOfASlot:
    first: Container
    second: Container
    gate: Gate

    def test_a_container_acquires_its_tasks_and_runs_them(self, scene: Stage) -> None:
        scene.feed(100)
        type(self).first, type(self).gate = started(scene, gate_open=True)
        scene.await_all_written(GENEROUS)
        assert scene.holds_all(self.first.execution_id)

    def test_a_container_that_is_suspended_until_another_one_has_its_tasks_exits_with_code_3_and_writes_nothing_more(
        self, scene: Stage
    ) -> None:
        self.gate.close()
        scene.feed(100)
        self.gate.await_batch()
        driver = scene.driver_of(self.first.process)
        pause(self.first.process)
        type(self).second, _ = started(scene, gate_open=True)
        scene.await_all_written(GENEROUS)
        assert scene.holds_all(self.second.execution_id)
        assert scene.incarnation(self.first.execution_id).exit_code is None

        self.gate.open()
        resume(self.first.process)
        assert self.first.process.wait(GENEROUS) == 3
        assert session_members(driver.pid) == []
        assert scene.incarnation(self.first.execution_id).exit_code == 3
        (task,) = scene.detail().tasks
        assert (task.generation, task.holder) == (2, self.second.execution_id)
        late = Writer(Lineage(task.stages[0].lineage), "gated/Partition 0", Generation(1))
        with pytest.raises(LeaseLost, match="generation 1 may not append"):
            scene.log.append("out", [Record(b"0")], writer=late, batch=10_000, now_micros=1)

    def test_a_stop_lets_the_batch_finish_and_commit_and_frees_the_tasks(self, scene: Stage) -> None:
        gate = Gate(scene, self.second.execution_id)
        gate.close()
        scene.feed(100)
        gate.await_batch()
        driver = scene.driver_of(self.second.process)
        self.second.process.send_signal(signal.SIGTERM)
        wait_for("the stop to begin", lambda: has_logged(scene, self.second, "exiting: stop requested"), GENEROUS)
        assert scene.written() == scene.fed - 100
        gate.open()
        assert self.second.process.wait(GENEROUS) == 0
        assert scene.values() == list(range(scene.fed))
        store = inspect(Checkpoints(scene.home / "state", "gated").directory("Partition 0", "only"))
        assert store is not None
        assert store.planned == store.committed
        assert [task.holder for task in scene.detail().tasks] == [None]
        assert session_members(driver.pid) == []
        assert list((scene.home / "spark").iterdir()) == []

    def test_a_container_that_comes_after_the_end_of_its_run_exits_0(self, scene: Stage) -> None:
        assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
        assert scene.detail().state == "STOPPED"
        assert scene.start_container().process.wait(GENEROUS) == 0

    def test_the_next_run_continues_from_the_checkpoint(self, scene: Stage) -> None:
        scene.deploy()
        scene.feed(100)
        type(self).first, _ = started(scene, gate_open=True)
        scene.await_all_written(GENEROUS)

    def test_no_container_ends_while_the_coordinator_is_down(self, scene: Stage) -> None:
        down(scene)
        scene.start_coordinator(**LONG_LEASE)
        await_heartbeat(scene)
        down(scene)
        scene.feed(100)
        scene.await_all_written(GENEROUS)
        wait_for("a heartbeat without an answer", lambda: has_logged(scene, self.first, "of the lease left"), GENEROUS)
        scene.start_coordinator(**SHORT_LEASE)
        await_heartbeat(scene)
        assert self.first.process.poll() is None
        assert scene.incarnation(self.first.execution_id).state == "LIVE"

    def test_when_only_python_is_paused_the_agent_ends_the_driver_at_the_end_of_the_lease(self, scene: Stage) -> None:
        driver = scene.driver_of(self.first.process)
        driver.suspend()
        assert self.first.process.wait(GENEROUS) == 3
        assert session_members(driver.pid) == []
        assert scene.incarnation(self.first.execution_id).exit_code == 3
