"""Containers of which all processes, or only the JVM, are suspended for a while."""

from __future__ import annotations

import time

import pytest

from containers.scratch import session_members
from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.gates import GATED, Gate, jvm_of, pause, resume
from tests.processes.stage import stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SPARK_TIMEOUT_SECONDS = 10
SUSPENDED_SECONDS = 12


def test_a_container_that_is_suspended_for_longer_than_its_lease_exits_with_code_3_and_writes_nothing_more(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage(tmp_path_factory.mktemp("slept"), GATED) as scene:
        scene.log.create("numbers", 1)
        scene.start_coordinator(lease_seconds=10, heartbeat_seconds=2, margin_seconds=2, grace_seconds=2)
        scene.deploy()
        scene.feed(100)
        sleeper, watchdog = scene.start_container()
        gate = Gate(scene, sleeper)
        gate.await_batch()
        driver = scene.driver_of(watchdog)
        pause(watchdog, driver)

        replacement, _ = scene.start_container()
        Gate(scene, replacement).open()
        scene.await_all_written()
        assert scene.holds_all(replacement)
        assert scene.incarnation(sleeper).exit_code is None

        gate.open()
        resume(watchdog, driver)
        assert watchdog.wait(180) == 3
        assert session_members(driver.pid) == []
        scene.feed(100)
        scene.await_all_written()
        assert scene.incarnation(sleeper).exit_code == 3
        (task,) = scene.detail().tasks
        assert (task.generation, task.holder) == (2, replacement)
        late = Writer(Lineage(task.stages[0].lineage), "gated/Partition 0", Generation(1))
        with pytest.raises(LeaseLost, match="generation 1 may not append"):
            scene.log.append("out", [Record(b"0")], writer=late, batch=10_000, now_micros=1)


def test_a_hanging_jvm_ends_its_container_but_a_long_batch_or_a_suspended_machine_does_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage(tmp_path_factory.mktemp("hangs"), GATED) as scene:
        scene.log.create("numbers", 1)
        scene.start_coordinator()
        scene.deploy()
        scene.feed(100)
        execution_id, watchdog = scene.start_container(SLUICE_SPARK_TIMEOUT_SECONDS=str(SPARK_TIMEOUT_SECONDS))
        gate = Gate(scene, execution_id)
        gate.await_batch()
        driver = scene.driver_of(watchdog)
        pause(watchdog, driver)
        time.sleep(SUSPENDED_SECONDS)  # the machine is suspended in the middle of a batch that is longer than the time-out
        resume(watchdog, driver)
        gate.open()
        scene.await_all_written()
        assert watchdog.poll() is None
        assert scene.incarnation(execution_id).state == "LIVE"

        jvm_of(driver).suspend()
        assert watchdog.wait(180) == 1
        assert session_members(driver.pid) == []
        gone = wait_for("word of its end", lambda: scene.incarnation(execution_id) if scene.incarnation(execution_id).reason else None, 30)
        assert (gone.state, gone.exit_code) == ("EXITED", 1)
        assert gone.reason.splitlines()[0] == f"Spark's JVM has not answered for {SPARK_TIMEOUT_SECONDS} s"
        assert [task.holder for task in scene.detail().tasks] == [None]
