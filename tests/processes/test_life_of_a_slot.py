"""One slot through all kinds of events, with real processes and real Spark. The steps share their processes, so they run in order."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from containers.scratch import session_members
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OUTAGE_SECONDS = 20


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("slot")) as made:
        made.log.create("numbers", 2)
        made.start_coordinator()
        made.deploy()
        yield made


class TestLifeOfASlot:
    """The outage of the coordinator is shorter than the default lease."""

    first: tuple[str, subprocess.Popen[bytes]]
    second: tuple[str, subprocess.Popen[bytes]]
    third: tuple[str, subprocess.Popen[bytes]]

    def test_a_container_acquires_its_tasks_and_runs_them(self, scene: Stage) -> None:
        type(self).first = scene.start_container()
        scene.feed(500)
        scene.await_all_written()
        assert scene.holds_all(self.first[0])

    def test_no_container_ends_while_the_coordinator_is_down_for_twenty_seconds(self, scene: Stage) -> None:
        assert scene.coordinator is not None
        scene.coordinator.kill()
        scene.coordinator.wait()
        scene.feed(100)
        time.sleep(OUTAGE_SECONDS)  # the outage itself
        scene.start_coordinator()
        scene.await_all_written()
        assert self.first[1].poll() is None
        wait_for("a heartbeat after the outage", lambda: 'answer="alive"} 0.0' not in scene.http.get("/metrics").text, 30)
        assert scene.incarnation(self.first[0]).state == "LIVE"

    def test_a_second_incarnation_ends_the_first_with_exit_code_3_within_its_lease(self, scene: Stage) -> None:
        type(self).second = scene.start_container()
        wait_for("the second registration", lambda: len(scene.detail().incarnations) == 2, 60)
        assert self.first[1].wait(30) == 3
        scene.feed(300)
        scene.await_all_written()
        assert scene.holds_all(self.second[0])
        assert {task.generation for task in scene.detail().tasks} == {2}

    def test_sigterm_stops_it_between_batches_with_exit_code_0_and_frees_its_tasks(self, scene: Stage) -> None:
        driver = scene.driver_of(self.second[1])
        self.second[1].send_signal(signal.SIGTERM)
        assert self.second[1].wait(60) == 0
        assert [task.holder for task in scene.detail().tasks] == [None, None]
        assert session_members(driver.pid) == []
        assert list((scene.root / "home" / "spark").iterdir()) == []

    def test_a_restart_on_the_same_disk_continues(self, scene: Stage) -> None:
        scene.feed(200)
        type(self).third = scene.start_container()
        scene.await_all_written()
        assert {task.generation for task in scene.detail().tasks} == {3}

    def test_after_kill_9_the_watchdog_frees_the_tasks_at_once(self, scene: Stage) -> None:
        driver = scene.driver_of(self.third[1])
        driver.kill()
        assert self.third[1].wait(30) == 1
        assert session_members(driver.pid) == []
        gone = scene.incarnation(self.third[0])
        assert (gone.state, gone.exit_code) == ("EXITED", 1)
        assert "SIGKILL" in gone.reason
        assert [task.holder for task in scene.detail().tasks] == [None, None]

    def test_a_stopped_run_ends_and_a_container_that_comes_late_exits_0(self, scene: Stage) -> None:
        assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
        assert scene.detail().state == "STOPPED"
        _, late = scene.start_container()
        assert late.wait(60) == 0

    def test_the_next_run_continues_from_the_checkpoint(self, scene: Stage) -> None:
        scene.deploy()
        scene.feed(100)
        scene.start_container()
        scene.await_all_written()


def test_when_only_python_is_paused_the_watchdog_kills_the_session_at_the_end_of_the_lease(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage(tmp_path_factory.mktemp("paused")) as scene:
        scene.log.create("numbers", 2)
        scene.start_coordinator(lease_seconds=8, heartbeat_seconds=2, margin_seconds=2, grace_seconds=2)
        scene.deploy()
        execution_id, watchdog = scene.start_container()
        scene.feed(100)
        scene.await_all_written()
        driver = scene.driver_of(watchdog)
        driver.suspend()
        assert watchdog.wait(30) == 3
        assert session_members(driver.pid) == []
        assert scene.incarnation(execution_id).exit_code == 3


def test_a_query_that_fails_every_time_ends_its_container_with_the_reason_in_the_api(tmp_path_factory: pytest.TempPathFactory) -> None:
    job = """
from sluice import Job

job = Job("failing")
numbers = job.input("numbers")

def refuse(batch, batch_id):
    raise ValueError("no batch pleases me")

@job.stage(reads=numbers)
def never(task):
    return task.read(numbers).writeStream.foreachBatch(refuse)
"""
    with stage(tmp_path_factory.mktemp("failing"), job) as scene:
        scene.log.create("numbers", 2)
        scene.start_coordinator()
        scene.deploy()
        scene.feed(10)
        execution_id, watchdog = scene.start_container(SLUICE_MAX_RESTARTS="1", SLUICE_RESTART_DELAY_SECONDS="0.1")
        assert watchdog.wait(120) == 4
        assert "no batch pleases me" in scene.incarnation(execution_id).reason
