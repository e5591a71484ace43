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


def tree(container: subprocess.Popen[bytes]) -> list[int]:
    """The processes of a container: the agent, the guardian, and the driver with Python, the JVM and the Python workers."""
    return [container.pid, *(each.pid for each in psutil.Process(container.pid).children(recursive=True))]


def pause(container: subprocess.Popen[bytes]) -> None:
    """Suspend all processes of a container, like a frozen machine, including those that it was just starting."""
    stopped: set[int] = set()
    while new := set(tree(container)) - stopped:
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= new


def resume(container: subprocess.Popen[bytes]) -> None:
    """Resume the guardian and the agent last: the test is about what the others do before these check the clock."""
    for pid in sorted(tree(container), key=lambda pid: container.pid in (pid, psutil.Process(pid).ppid())):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def jvm_of(driver: psutil.Process) -> psutil.Process:
    return next(each for each in driver.children() if each.name() == "java")
