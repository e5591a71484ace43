"""A job whose batches wait at a gate, so that a test knows that a container is in the middle of a batch; and functions that suspend whole
containers.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from containers.scratch import session_members
from tests.processes.stage import Stage
from tests.support.processes import wait_for

GATED = """
import os
import time
from pathlib import Path

from pyspark.sql.functions import udf

from sluice import Job

job = Job("gated")
numbers = job.input("numbers")
out = job.output("out")
gate = Path(__file__).parent / "gates" / os.environ.get("EXECUTION_ENV_CONTAINER_ID", "none")


def waits_at_the_gate(value):
    (gate / "reached").touch()
    while not (gate / "open").exists():
        time.sleep(0.02)
    return value


@job.stage(reads=numbers, writes=out)
def only(task):
    rows = task.read(numbers).selectExpr("cast(value as string) v")
    return task.write(rows.select(udf(waits_at_the_gate, "string")("v").alias("v")), out, value="v")
"""


class Gate:
    """The gate of one container of the job GATED, by its execution id."""

    def __init__(self, scene: Stage, execution_id: str) -> None:
        self._directory: Path = scene.root / "gates" / execution_id
        self._directory.mkdir(parents=True, exist_ok=True)

    def await_batch(self) -> None:
        wait_for("a batch at the gate", (self._directory / "reached").exists, 600)

    def open(self) -> None:
        (self._directory / "open").touch()

    def close(self) -> None:
        """For the next batch, while none runs."""
        for each in ("open", "reached"):
            (self._directory / each).unlink(missing_ok=True)


def tree(watchdog: subprocess.Popen[bytes], driver: psutil.Process) -> list[int]:
    """The processes of a container: the watchdog, and the session of its driver with Python, the JVM and the Python workers."""
    return [watchdog.pid, *session_members(driver.pid)]


def pause(watchdog: subprocess.Popen[bytes], driver: psutil.Process) -> None:
    """Suspend all processes of a container, like a frozen machine, including those that it was just starting."""
    stopped: set[int] = set()
    while new := set(tree(watchdog, driver)) - stopped:
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= new


def resume(watchdog: subprocess.Popen[bytes], driver: psutil.Process) -> None:
    """Resume the watchdog last: the test is about what the others do before it checks the clock."""
    for pid in reversed(tree(watchdog, driver)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def jvm_of(driver: psutil.Process) -> psutil.Process:
    return next(each for each in driver.children() if each.name() == "java")
