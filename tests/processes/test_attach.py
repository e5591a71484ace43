"""The script of the README, with `sluice.attach`, under spark-submit under `sluice exec`. test_script_life.py has a script alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pyspark
import pytest

from tests.processes.test_readme import blocks
from tests.support.coordinators import Running, running
from tests.support.deployed import ROOT
from tests.support.processes import SLUICE, WAIT_SECONDS, await_line, kill_whole, must_run, start, tail, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]


BUSY_SECONDS = WAIT_SECONDS

OPTIONS = ("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=1")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("attach") / "home") as found:
        yield found


class Script:
    """The script of the README in a folder of its own, as a job of its own."""

    def __init__(self, coordinator: Running, root: Path) -> None:
        _, text = blocks("python")
        assert 'app = sluice.attach(spark, job="orders")' in text
        self.coordinator = coordinator
        self.root = root
        self.job = f"orders-{uuid4().hex[:8]}"
        self.file = root / "orders.py"
        self.file.write_text(text.replace('"orders"', f'"{self.job}"') + '\nprint("the script ends.", flush=True)\n')
        (root / "in").mkdir()
        self.environment = {
            "SLUICE_COORDINATOR_URL": str(coordinator.http.base_url),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": " ".join([*OPTIONS, "pyspark-shell"]),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),  # see `make matrix`
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def feed(self, name: str, *values: str) -> None:
        part = self.root / "in" / f".{name}"
        part.write_text("".join(f"{value}\n" for value in values))
        part.rename(part.with_name(name))

    def start(self, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.root / f"start-{len(self.started)}.log"
        process = start(command, log, cwd=self.root, environment=self.environment, new_session=True)
        self.started.append(process)
        return process, log

    def submit(self) -> list[str]:
        home = Path(pyspark.__file__).parent
        return [str(home / "bin" / "spark-submit"), *OPTIONS, str(self.file)]

    def under_exec(self, command: list[str], *options: str) -> list[str]:
        return [*SLUICE, "exec", "--job", self.job, *options, "--", *command]

    def sluice(self, *arguments: str) -> str:
        environment = {**os.environ, **self.environment}
        command = [*SLUICE, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=BUSY_SECONDS).stdout

    def detail(self) -> dict[str, Any]:
        runs = self.coordinator.http.get("/runs", params={"job": self.job, "limit": 1})
        if runs.status_code != 200:
            return {"stages": [], "tasks": [], "incarnations": []}
        found: dict[str, Any] = self.coordinator.http.get(f"/runs/{runs.json()['runs'][0]['runId']}").json()
        return found

    def await_batches(self, process: subprocess.Popen[bytes], log: Path, stage: str, at_least: int) -> dict[str, Any]:
        """Wait until the stage has committed that batch."""

        def look() -> dict[str, Any] | None:
            must_run(process, log)
            for each in (stage for task in self.detail()["tasks"] for stage in task["stages"]):
                if each["stage"] == stage and (each["batchId"] or 0) >= at_least and each["metrics"] is not None:
                    return dict(each)
            return None

        return wait_for(f"batch {at_least} of {stage}", look, BUSY_SECONDS, details=lambda: tail(log))

    def batches(self, kind: str) -> list[str]:
        return sorted(each.name for each in (self.root / "checkpoints" / "counts" / kind).iterdir() if each.name.isdigit())

    def end(self) -> None:
        for each in self.started:
            kill_whole(each)


@pytest.fixture
def orders(coordinator: Running, tmp_path: Path) -> Iterator[Script]:
    made = Script(coordinator, tmp_path)
    try:
        yield made
    finally:
        made.end()


def descendants(pid: int) -> list[tuple[psutil.Process, list[str]]]:
    """The processes below this one that have not ended, and their command lines."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # ZombieProcess is one
            if command := each.cmdline():
                found.append((each, command))
    return found


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_script_of_the_readme_under_spark_submit_is_reported_and_stopped_between_batches(orders: Script) -> None:
    orders.feed("one", "book", "book", "pen")
    process, log = orders.start(*orders.under_exec(orders.submit()))
    stage = orders.await_batches(process, log, "counts", 0)
    assert stage["checkpoint"].endswith(f"{orders.root}/checkpoints/counts")
    assert stage["metrics"]["stateRows"] == 2
    assert "counts" in orders.sluice("status", orders.job)
    orders.sluice("stop", orders.job)
    assert process.wait(BUSY_SECONDS) == 0, tail(log)
    assert "the script ends." in log.read_text()
    assert orders.batches("offsets") == orders.batches("commits")
    (container,) = orders.detail()["incarnations"]
    assert (container["state"], container["exitCode"]) == ("EXITED", 0)
    waiting, waiting_log = orders.start(*orders.under_exec(orders.submit()))
    await_line(waiting, waiting_log, r"(sluice start)")
