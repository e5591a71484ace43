"""Containers that start at an unusual time, in the wrong place, or on a disk that cannot be written."""

from __future__ import annotations

import pytest

from tests.processes.stage import Stage, stage
from tests.support.disks import small_disk
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SMALL_DISK_BYTES = 1 << 20

SLOW_START = 300
"""Seconds in which a container starts Spark, also on a busy machine."""

JOB = """
from sluice import Job

job = Job("plain")
numbers = job.input("numbers")
out = job.output("out")


@job.stage(reads=numbers, writes=out)
def only(task):
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), out, value="v")
"""


def log_of(scene: Stage, execution_id: str) -> str:
    (file,) = scene.root.glob(f"container-*-{execution_id}.log")
    return file.read_text(errors="replace")


@pytest.mark.long  # as test_weather.py, in which a container starts late
def test_a_container_that_starts_before_the_coordinator_and_one_that_starts_much_later_share_the_tasks(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage(tmp_path_factory.mktemp("early"), JOB) as scene:
        scene.log.create("numbers", 2)
        coordinator = scene.start_coordinator()
        scene.deploy(containers=2)
        coordinator.kill()
        coordinator.wait()
        early, _ = scene.start_container(0)
        wait_for("a container that waits", lambda: "waiting for the coordinator" in log_of(scene, early))
        scene.start_coordinator()
        scene.feed(100)
        wait_for("what the early one can do alone", lambda: scene.written() == 50, 180)
        late, _ = scene.start_container(1)
        scene.await_all_written()
        assert {task.holder for task in scene.detail().tasks} == {early, late}


def test_a_container_with_a_wrong_slot_run_directory_or_spark_ends_at_once_with_the_reason(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage(tmp_path_factory.mktemp("wrong"), JOB) as scene:
        scene.log.create("numbers", 2)
        scene.start_coordinator()
        run_id = scene.deploy()
        no_slot, first = scene.start_container(7)
        scene.run_id = "plain-20200101T000000-abcdef"
        no_run, second = scene.start_container()
        scene.run_id = run_id
        in_the_way = scene.root / "a-file"
        in_the_way.touch()
        no_disk, third = scene.start_container(SLUICE_STATE_DIR=str(in_the_way))

        jars = scene.root / "spark-4.1" / "jars"
        jars.mkdir(parents=True)
        (jars / "spark-core_2.13-4.1.4.jar").touch()
        old_spark, fourth = scene.start_container(SPARK_HOME=str(jars.parent))

        assert [each.wait(180) for each in (first, second, third, fourth)] == [1, 1, 1, 4]
        assert f"run {run_id} has no processor '7': it has 0 to 0" in log_of(scene, no_slot)
        assert "there is no run 'plain-20200101T000000-abcdef'" in log_of(scene, no_run)
        gone = scene.incarnation(no_disk)
        assert gone.reason.startswith(f"A directory of this machine cannot be written. {in_the_way}: File exists: ")
        refused = scene.incarnation(old_spark)
        assert refused.reason.startswith("Jobs do not run on this version of Spark. this is Spark 4.1.4, and jobs need Spark 4.2 to 4.3: ")
        assert all(task.holder is None for task in scene.detail().tasks)


@pytest.mark.long  # as test_full_disk.py
def test_a_container_waits_while_its_disk_is_full_at_its_start_or_later_and_continues_when_there_is_room(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("full")
    with small_disk(root / "disk", SMALL_DISK_BYTES) as disk, stage(root, JOB) as scene:
        scene.log.create("numbers", 1)
        scene.start_coordinator()
        scene.deploy()
        state = str(disk.root / "state")
        first, watchdog = scene.start_container(SLUICE_STATE_DIR=state, SLUICE_MAX_RESTARTS="1", SLUICE_RESTART_DELAY_SECONDS="0.1")
        scene.feed(100)
        scene.await_all_written(SLOW_START)
        disk.fill()
        scene.feed(100)
        wait_for("the first one waits", lambda: "waiting for room on a disk" in log_of(scene, first), SLOW_START)
        watchdog.terminate()
        assert watchdog.wait(SLOW_START) == 0

        again, _ = scene.start_container(SLUICE_STATE_DIR=state)
        wait_for("the second one waits", lambda: "waiting for room on a disk" in log_of(scene, again), SLOW_START)
        disk.make_room()
        scene.await_all_written(SLOW_START)
