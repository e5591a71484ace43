"""Real processes for tests: a coordinator, containers with their watchdogs and Spark drivers, and a log to feed and to read."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import httpx
import psutil

from containers.deploy import deploy_request
from containers.job import load_job
from coordinator import wire
from coordinator.core.ids import Generation, Lineage
from coordinator.streams.log import Log, Record, Writer
from examples.playing.launch import kill_whole

T = TypeVar("T")

TOY = """
from containers import Job

job = Job("toy")
numbers = job.input("numbers")
middle = job.intermediate("middle", partitions=2)
out = job.output("out")


@job.stage(reads=numbers, writes=middle)
def first(task):
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), middle, key="v", value="v")


@job.stage(reads=middle, writes=out)
def second(task):
    return task.write(task.read(middle).selectExpr("cast(value as string) v"), out, value="v")
"""


def wait_for(what: str, look: Callable[[], T], seconds: float = 120) -> T:
    """Look until there is something to see; processes and files give no events. Fails after a generous time, with `what` was missing."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds:g} s")


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """All at once. The second SIGTERM, once the first was heard, is an impatient stop."""
    for patience in (1, 30):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        until = time.monotonic() + patience
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
    for process in processes:
        if process.poll() is None:
            kill_whole(process)


class Stage:
    """Everything under one directory; ends what it started."""

    def __init__(self, root: Path, job_text: str = TOY) -> None:
        self.root = root
        self.job_file = root / "job.py"
        self.job_file.write_text(job_text)
        self.log = Log(root / "home" / "log")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=20)
        self.coordinator: subprocess.Popen[bytes] | None = None
        self.run_id = ""
        self.system = "log"
        self.environment: dict[str, str] = {}
        """For the coordinator and the containers alike."""
        self._started: list[subprocess.Popen[bytes]] = []
        self._fed = 0

    def launch(self, name: str, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self.environment, **environment},
            )
        self._started.append(process)
        return process

    def _popen(self, name: str, arguments: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        return self.launch(name, [sys.executable, "-m", "coordinator.cli", *arguments], **environment)

    def start_coordinator(self, **flags: float) -> subprocess.Popen[bytes]:
        extra = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        home = ["--home", str(self.root / "home"), "--port", str(self.port)]
        self.coordinator = self._popen("coordinator", ["coordinator", *home, *extra])
        wait_for("the coordinator's answer", self.ready, 30)
        return self.coordinator

    def ready(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def deploy(self, containers: int = 1, start: str = "checkpoint") -> str:
        request = deploy_request(load_job(self.job_file), containers, self.system, start, {})
        answer = self.http.post("/runs", content=request.model_dump_json(by_alias=True), headers={"Content-Type": "application/json"})
        assert answer.status_code == 201, answer.text
        self.run_id = str(answer.json()["runId"])
        return self.run_id

    def start_container(self, slot: int = 0, **settings: str) -> tuple[str, subprocess.Popen[bytes]]:
        """A container's execution id and its watchdog."""
        execution_id = f"test-{uuid4().hex[:12]}"
        process = self._popen(
            f"container-{slot}-{execution_id}",
            ["container", str(self.job_file)],
            **{**self.container_environment(slot, execution_id), "SLUICE_SPARK_MASTER": "local[1]", **settings},
        )
        return execution_id, process

    def container_environment(self, slot: int, execution_id: str) -> dict[str, str]:
        return {
            "SLUICE_COORDINATOR_URL": f"http://127.0.0.1:{self.port}",
            "SLUICE_RUN_ID": self.run_id,
            "SLUICE_PROCESSOR_ID": str(slot),
            "SLUICE_HOME": str(self.root / "home"),
            "EXECUTION_ENV_CONTAINER_ID": execution_id,
        }

    def detail(self) -> wire.RunDetail:
        answer = self.http.get(f"/runs/{self.run_id}")
        assert answer.status_code == 200, answer.text
        return wire.RunDetail.model_validate_json(answer.content)

    def incarnation(self, execution_id: str) -> wire.ContainerReply:
        return next(each for each in self.detail().incarnations if each.execution_container_id == execution_id)

    def holds_all(self, execution_id: str) -> bool:
        tasks = self.detail().tasks
        return all(task.holder == execution_id for task in tasks)

    def feed(self, count: int) -> None:
        partitions = self.log.partitions("numbers")
        values = [Record(str(n).encode(), partition=n % partitions) for n in range(self._fed, self._fed + count)]
        writer = Writer(Lineage("feeder"), "feeder", Generation(1))
        assert self.log.append("numbers", values, writer=writer, batch=self._fed, now_micros=1)
        self._fed += count

    def feed_again(self, first: int, end: int) -> None:
        """Numbers that were fed before."""
        partitions = self.log.partitions("numbers")
        values = [Record(str(n).encode(), partition=n % partitions) for n in range(first, end)]
        assert self.log.append("numbers", values, writer=Writer(Lineage("again"), "again", Generation(1)), batch=end, now_micros=1)

    def written(self) -> int:
        return sum(self.log.latest("out").values())

    def await_all_written(self, seconds: float = 180) -> None:
        """Until as many records are out as were fed, and then that they are the same ones, each once."""
        wait_for(f"{self._fed} records in the output", lambda: self.written() >= self._fed, seconds)
        assert self.values() == list(range(self._fed))

    def values(self) -> list[int]:
        """What is in the output, sorted."""
        return sorted(int(row[3] or b"") for rows in self.log.read("out", 0, 0, 10**9) for row in rows)

    def driver_of(self, watchdog: subprocess.Popen[bytes]) -> psutil.Process:
        return wait_for("the driver", lambda: next(iter(psutil.Process(watchdog.pid).children()), None), 30)

    def lose_disk(self) -> None:
        shutil.rmtree(self.root / "home" / "state")

    def tell(self) -> str:
        """The ends of all logs, for a failed test."""
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in sorted(self.root.glob("*.log")))

    def close(self) -> None:
        """Containers by their watchdogs, which a killed driver session needs, and before the coordinator, which hears their last words."""
        _end([process for process in reversed(self._started) if process is not self.coordinator])
        _end([process for process in self._started if process is self.coordinator])
        self.http.close()


@contextmanager
def stage(root: Path, job_text: str = TOY) -> Iterator[Stage]:
    made = Stage(root, job_text)
    try:
        yield made
    except BaseException:
        print(made.tell())
        raise
    finally:
        made.close()
