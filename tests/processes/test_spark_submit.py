"""A container started by spark-submit: it has the master of that command, and it ends cleanly when its run is stopped."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
import pytest

from tests.processes.stage import stage
from tests.support.processes import WAIT_SECONDS, wait_for

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


def agent_of(execution_id: str) -> psutil.Process | None:
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            is_agent = "containers.agent_process" in each.cmdline()
            if is_agent and each.environ().get("EXECUTION_ENV_CONTAINER_ID") == execution_id:
                return each
    return None


def test_a_job_under_spark_submit_keeps_its_settings_is_stopped_by_the_api_and_ends_with_its_agent(tmp_path: Path) -> None:
    home = Path(pyspark.__file__).parent
    with stage(tmp_path, JOB) as scene:
        scene.log.create("numbers", 2)
        scene.start_coordinator()
        scene.deploy()
        command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=3"]

        def submit(execution_id: str) -> subprocess.Popen[bytes]:
            return scene.launch(
                "spark-submit",
                [*command, str(SCRIPT), str(scene.job_file)],
                **scene.container_environment(0, execution_id),
                SPARK_HOME=str(home),
                SPARK_LOCAL_IP="127.0.0.1",
                PYSPARK_PYTHON=sys.executable,
                SLUICE_SPARK_MASTER="spark://127.0.0.1:9",
            )

        submitted = submit("submitted-1")
        scene.feed(200)
        scene.await_all_written()
        assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
        assert submitted.wait(WAIT_SECONDS) == 0
        gone = wait_for("the report", lambda: found if (found := scene.incarnation("submitted-1")).exit_code is not None else None)
        assert (gone.state, gone.exit_code) == ("EXITED", 0)
        assert all(task.holder is None for task in scene.detail().tasks)

        scene.deploy()
        submitted = submit("submitted-2")
        wait_for("its registration", lambda: scene.detail().incarnations)
        agent = wait_for("its agent", lambda: agent_of("submitted-2"))
        below = psutil.Process(submitted.pid).children(recursive=True)
        agent.kill()
        assert submitted.wait(WAIT_SECONDS) != 0
        wait_for("the end of its processes", lambda: not any(each.is_running() for each in below))
        gone = wait_for("the report", lambda: found if (found := scene.incarnation("submitted-2")).exit_code is not None else None)
        assert (gone.exit_code, gone.reason.splitlines()[0]) == (1, "its agent was killed")
