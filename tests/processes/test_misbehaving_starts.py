"""Containers that start in the wrong place, or on a disk that cannot be written. No JVM is started."""

from __future__ import annotations

import pytest

from tests.processes.stage import Stage, stage

pytestmark = pytest.mark.slow

GENEROUS = 600.0

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

        assert [each.wait(GENEROUS) for each in (first, second, third, fourth)] == [1, 1, 1, 4]
        assert f"run {run_id} has no processor '7': it has 0 to 0" in log_of(scene, no_slot)
        assert "there is no run 'plain-20200101T000000-abcdef'" in log_of(scene, no_run)
        gone = scene.incarnation(no_disk)
        assert gone.reason.startswith(f"A directory of this machine cannot be written. {in_the_way}: File exists: ")
        refused = scene.incarnation(old_spark)
        assert refused.reason.startswith("Jobs do not run on this version of Spark. this is Spark 4.1.4, and jobs need Spark 4.2 to 4.3: ")
        assert all(task.holder is None for task in scene.detail().tasks)
