"""A container started by spark-submit: it has the master of that command, and it ends cleanly when its run is stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from tests.processes.stage import stage
from tests.support.processes import WAIT_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "deploy" / "spark" / "sluice_driver.py"

JOB = """
from sluice import Job

job = Job("submitted")
numbers = job.input("numbers")
out = job.output("out")


@job.stage(reads=numbers, writes=out)
def only(task):
    conf = task.spark.sparkContext.getConf()
    assert (conf.get("spark.master"), conf.get("spark.sql.shuffle.partitions")) == ("local[1]", "3"), conf.toDebugString()
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), out, value="v")
"""


def test_a_job_under_spark_submit_keeps_its_settings_and_is_stopped_by_the_api(tmp_path: Path) -> None:
    home = Path(pyspark.__file__).parent
    with stage(tmp_path, JOB) as scene:
        scene.log.create("numbers", 2)
        scene.start_coordinator()
        scene.deploy()
        submit = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=3"]
        submitted = scene.launch(
            "spark-submit",
            [*submit, str(SCRIPT), str(scene.job_file)],
            **scene.container_environment(0, "submitted-1"),
            SPARK_HOME=str(home),
            SPARK_LOCAL_IP="127.0.0.1",
            PYSPARK_PYTHON=sys.executable,
            SLUICE_SPARK_MASTER="spark://127.0.0.1:9",
        )
        scene.feed(200)
        scene.await_all_written()
        assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
        assert submitted.wait(WAIT_SECONDS) == 0
        gone = scene.incarnation("submitted-1")
        assert (gone.state, gone.exit_code) == ("EXITED", 0)
        assert all(task.holder is None for task in scene.detail().tasks)
