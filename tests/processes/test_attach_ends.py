"""How scripts with `sluice.attach` end: by themselves, by an exception, by signals. Their Sparks start at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.processes.conftest import SHORT_LIVED
from tests.processes.test_attach import BUSY_SECONDS, OPTIONS, descendants
from tests.support.coordinators import Running, running
from tests.support.deployed import ROOT
from tests.support.processes import SLUICE, await_line, kill_whole, must_run, start, tail, wait_for
from tests.support.terminal import at_terminal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import os, sys, time

from pyspark.sql import SparkSession

import sluice

job = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
app = sluice.attach(spark, job=job, observe=job == "observed")
print("attached.", flush=True)
match job:
    case "exit":
        sys.exit(3)
    case "exception":
        raise ValueError("no such currency")
    case "os-exit":
        os._exit(5)
    case "observed":
        time.sleep(1000)

rates = spark.readStream.format("rate").load()
query = rates.writeStream.foreachBatch(lambda rows, batch: time.sleep(1)).option("checkpointLocation", "checkpoint").start()
query.awaitTermination()
print("the script ends.", flush=True)
"""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("ends") / "home") as found:
        yield found


class Scripts:
    """Starts of the script. The name of each job says what its script does."""

    def __init__(self, coordinator: Running, root: Path) -> None:
        self._coordinator = coordinator
        self._root = root
        self._file = root / "script.py"
        self._file.write_text(SCRIPT)
        submit = [*OPTIONS, "--driver-java-options", SHORT_LIVED]
        self.environment = {
            "SLUICE_COORDINATOR_URL": str(coordinator.http.base_url),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": " ".join([*(f'"{each}"' for each in submit), "pyspark-shell"]),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        self._submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), *submit]

    def python(self, job: str) -> list[str]:
        return [sys.executable, str(self._file), job]

    def submit(self, job: str) -> list[str]:
        return [*self._submit, str(self._file), job]

    def under_exec(self, job: str, command: list[str]) -> list[str]:
        return [*SLUICE, "exec", "--job", job, "--", *command]

    def start(self, job: str, command: list[str]) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._root / f"{job}.log"
        return start(command, log, cwd=self._root, environment=self.environment, new_session=True), log

    def batches(self, kind: str) -> set[str]:
        directory = self._root / "checkpoint" / kind
        return {each.name for each in directory.iterdir() if each.name.isdigit()} if directory.exists() else set()

    def container(self, job: str) -> dict[str, Any]:
        (run,) = self._coordinator.http.get("/runs", params={"job": job, "limit": 1}).json()["runs"]
        (found,) = self._coordinator.http.get(f"/runs/{run['runId']}").json()["incarnations"]
        return dict(found)


@pytest.mark.long  # as tests/integration/processes/test_exec.py, and the SIGTERM in test_attach.py
def test_exit_codes_and_errors_are_those_of_the_script_and_signals_end_it_in_order(coordinator: Running, tmp_path: Path) -> None:
    scripts = Scripts(coordinator, tmp_path)
    with ExitStack() as stack:

        def started(job: str, command: list[str]) -> tuple[subprocess.Popen[bytes], Path]:
            process, log = scripts.start(job, command)
            stack.callback(kill_whole, process)
            return process, log

        submitted, submitted_log = started("sigterm", scripts.under_exec("sigterm", scripts.submit("sigterm")))
        observed, observed_log = started("observed", scripts.python("observed"))
        ending = {job: started(job, scripts.under_exec(job, scripts.python(job))) for job in ("exit", "exception", "os-exit")}
        (other := tmp_path / "terminal").mkdir()
        variables = [f"{name}={value}" for name, value in scripts.environment.items()]
        interrupted = ["env", "-C", str(other), *variables, *scripts.under_exec("ctrl-c", scripts.python("ctrl-c"))]
        terminal = stack.enter_context(at_terminal(interrupted))

        for job, code, reason in (
            ("exit", 3, "the command exited with code 3"),
            ("exception", 1, "the command exited with code 1: ValueError: no such currency"),
            ("os-exit", 5, "the command exited with code 5"),
        ):
            process, log = ending[job]
            assert process.wait(BUSY_SECONDS) == code, tail(log)
            found = scripts.container(job)
            assert (found["state"], found["exitCode"]) == ("EXITED", code)
            assert found["reason"].startswith(reason)

        def runs_a_batch() -> bool:
            must_run(submitted, submitted_log)
            return len(scripts.batches("offsets") - scripts.batches("commits")) == 1 and bool(scripts.batches("commits"))

        wait_for("a batch that runs", runs_a_batch, BUSY_SECONDS, details=lambda: tail(submitted_log))
        submitted.send_signal(signal.SIGTERM)
        assert submitted.wait(BUSY_SECONDS) == 0, tail(submitted_log)
        assert "the script ends." in submitted_log.read_text()
        assert scripts.batches("offsets") == scripts.batches("commits")
        assert scripts.container("sigterm")["reason"] == "the command ended"

        terminal.until("attached.")
        terminal.press_ctrl_c()
        assert terminal.process.wait(BUSY_SECONDS) == 128 + signal.SIGINT, terminal.text
        assert scripts.container("ctrl-c")["reason"] == "the command was ended by SIGINT"

        await_line(observed, observed_log, r"^(attached\.)")
        (agent,) = (each for each, command in descendants(observed.pid) if "containers.attached.agent_process" in command)
        agent.kill()
        await_line(observed, observed_log, "(this script is not protected any more)")
        assert observed.poll() is None
