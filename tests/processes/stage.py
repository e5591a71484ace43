"""Real processes for tests: a coordinator, containers with their Spark drivers, and a log as input and output."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from sluice.wire import runs as wire_runs
from tests.support.coordinators import Cluster
from tests.support.processes import WAIT_SECONDS, tail, wait_for

FIRST = """
from sluice import Job

job = Job("toy")
numbers = job.input("numbers")
middle = job.intermediate("middle", partitions=2)
out = job.output("out")


@job.stage(reads=numbers, writes=middle)
def first(task):
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), middle, key="v", value="v")
"""
"""The head of a job file: `first` copies `numbers` to `middle`. Tests append the stages that read `middle`."""

TOY = (
    FIRST
    + """

@job.stage(reads=middle, writes=out)
def second(task):
    return task.write(task.read(middle).selectExpr("cast(value as string) v"), out, value="v")
"""
)


class Stage(Cluster):
    """Everything under one directory. Ends the processes that it started."""

    def __init__(self, root: Path, job_text: str = TOY) -> None:
        super().__init__(root, root / "job.py")
        self.job_file.write_text(job_text)
        self.log = Log(self.home / "log")
        self.fed = 0
        """How many numbers were fed."""

    def incarnation(self, execution_id: str) -> wire_runs.ContainerReply:
        return next(each for each in self.detail().incarnations if each.execution_container_id == execution_id)

    def holds_all(self, execution_id: str) -> bool:
        tasks = self.detail().tasks
        return all(task.holder == execution_id for task in tasks)

    def feed(self, count: int) -> None:
        partitions = self.log.partitions("numbers")
        values = [Record(str(n).encode(), partition=n % partitions) for n in range(self.fed, self.fed + count)]
        writer = Writer(Lineage("feeder"), "feeder", Generation(1))
        assert self.log.append("numbers", values, writer=writer, batch=self.fed, now_micros=1)
        self.fed += count

    def feed_again(self, first: int, end: int) -> None:
        """Numbers that were fed before."""
        partitions = self.log.partitions("numbers")
        values = [Record(str(n).encode(), partition=n % partitions) for n in range(first, end)]
        assert self.log.append("numbers", values, writer=Writer(Lineage("again"), "again", Generation(1)), batch=end, now_micros=1)

    def written(self) -> int:
        return sum(self.log.latest("out").values())

    def await_all_written(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until as many records are written as were fed; then check that they are the same, once each."""
        wait_for(f"{self.fed} records in the output", lambda: self.written() >= self.fed, seconds)
        assert self.values() == list(range(self.fed))

    def values(self) -> list[int]:
        """The contents of the output, sorted."""
        return sorted(int(row[3] or b"") for rows in self.log.read("out", 0, 0, 10**9) for row in rows)

    def driver_of(self, container: subprocess.Popen[bytes]) -> psutil.Process:
        return wait_for("the driver", lambda: child_of(container.pid, "containers.driver"))

    def lose_disk(self) -> None:
        shutil.rmtree(self.home / "state")

    def log_tails(self) -> str:
        """The last lines of all logs, for a failed test."""
        return "\n".join(tail(file) for file in sorted(self.root.glob("*.log")))


def child_of(pid: int, module: str) -> psutil.Process | None:
    """The child that runs this module; None if there is none, or it has just ended."""
    for each in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            if module in each.cmdline():
                return each
    return None


@contextmanager
def stage(root: Path, job_text: str = TOY) -> Iterator[Stage]:
    made = Stage(root, job_text)
    try:
        yield made
    except BaseException:
        print(made.log_tails())
        raise
    finally:
        made.close()
