"""Coordinators as processes, alone or with the containers of a job."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import httpx

from sluice.deploy import deploy_request
from sluice.job import load_job
from sluice.wire import runs as wire_runs
from tests.support.processes import (
    ROOT,
    SLUICE,
    WAIT_SECONDS,
    ProcessFailed,
    await_answer,
    await_line,
    completed,
    end,
    free_port,
    kill_whole,
    start,
)

GENEROUS = WAIT_SECONDS


def refused(*flags: str, **environment: str) -> str:
    """The error, without its remedy, of a coordinator that refuses to start."""
    done = completed([*SLUICE, "coordinator", *flags], environment={**os.environ, **environment})
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1, done.stderr
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("sluice: ")
    assert lines[1].startswith("remedy: ")
    return lines[0]


class Running:
    """A coordinator process and its address."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, url: str) -> None:
        self.process = process
        self.log = log
        self.http = httpx.Client(base_url=url, timeout=GENEROUS, verify=False)
        self.port = httpx.URL(url).port


@contextmanager
def running(home: Path, *flags: str, limits: str = "", program: Sequence[str] = SLUICE, **environment: str) -> Iterator[Running]:
    """A running coordinator with this home and its log in it. It is killed at the end. `limits`: options of `ulimit`. `program`: the
    beginning of the command."""
    log = home.with_name(f"{home.name}-coordinator.log")
    limited = ["bash", "-c", f'ulimit {limits} && exec "$@"', "bash"] if limits else []
    process = start([*limited, *program, "coordinator", "--home", str(home), "--port", "0", *flags], log, environment=environment)
    try:
        made = Running(process, log, await_line(process, log, r"coordinator on ([^,\s]+)"))
        try:
            yield made
        finally:
            made.http.close()
    finally:
        kill_whole(process)


class Front:
    """One address for several coordinators, of which it forwards to one."""

    def __init__(self) -> None:
        self.url = ""
        self._to = 0
        self._connections: set[asyncio.StreamWriter] = set()

    def forward_to(self, port: int) -> None:
        """Also closes the connections to the coordinator before."""
        self._to = port
        for each in self._connections:
            each.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        self._connections.add(writer)
        with suppress(OSError, asyncio.CancelledError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._to)
            await asyncio.gather(pipe(reader, server_writer), pipe(server_reader, writer))
        writer.close()
        self._connections.discard(writer)


@asynccontextmanager
async def front() -> AsyncIterator[Front]:
    made = Front()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made
        made.forward_to(0)
        server.close()


def _good(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise ProcessFailed(f"{answer.request.method} {answer.url} answered {answer.status_code}: {answer.text}")
    return answer


class Container(NamedTuple):
    """The execution id of a container, and the process of its agent."""

    execution_id: str
    process: subprocess.Popen[bytes]


class Cluster:
    """A coordinator and the containers of one job, all under one directory. `environment` is set for all of them; `system` is the system
    of the streams.
    """

    def __init__(self, root: Path, job_file: Path, environment: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.home = root / "home"
        self.job_file = job_file
        self.environment = dict(environment or {})
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=GENEROUS, trust_env=False, verify=False)
        self.coordinator: subprocess.Popen[bytes] | None = None
        self.run_id = ""
        self.system = "log"
        self._started: list[subprocess.Popen[bytes]] = []

    def log_file(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def launch(self, name: str, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start a process that is ended with the cluster. A process with the same name continues the log file."""
        return self.launch_in(ROOT, name, command, environment)

    def launch_in(self, cwd: Path, name: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = start(command, self.log_file(name), cwd=cwd, environment={**self.environment, **environment}, append=True)
        self._started.append(process)
        return process

    def start_coordinator(self, **flags: float) -> subprocess.Popen[bytes]:
        extra = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        home = ["--home", str(self.home), "--port", str(self.port)]
        self.coordinator = self.launch("coordinator", [*SLUICE, "coordinator", *home, *extra])
        await_answer(self.coordinator, f"{self.url}/readyz", self.log_file("coordinator"))
        return self.coordinator

    def deploy(self, containers: int = 1, start: str = "checkpoint", config: Mapping[str, str] | None = None) -> str:
        request = deploy_request(load_job(self.job_file), containers, self.system, start, dict(config or {}))
        self.run_id = str(_good(self.http.post("/runs", json=request.model_dump(mode="json", by_alias=True))).json()["runId"])
        return self.run_id

    def start_container(self, slot: int = 0, **settings: str) -> Container:
        execution_id = f"test-{uuid4().hex[:12]}"
        environment = {**self.container_environment(slot, execution_id), "SLUICE_SPARK_MASTER": "local[1]", **settings}
        name = f"container-{slot}-{execution_id}"
        return Container(execution_id, self.launch(name, [*SLUICE, "container", str(self.job_file)], **environment))

    def container_environment(self, slot: int, execution_id: str) -> dict[str, str]:
        return {
            "SLUICE_COORDINATOR_URL": self.url,
            "SLUICE_RUN_ID": self.run_id,
            "SLUICE_PROCESSOR_ID": str(slot),
            "SLUICE_HOME": str(self.home),
            "EXECUTION_ENV_CONTAINER_ID": execution_id,
        }

    def container_log(self, container: Container) -> Path:
        return next(self.root.glob(f"container-*-{container.execution_id}.log"))

    def detail(self) -> wire_runs.RunDetail:
        return wire_runs.RunDetail.model_validate_json(_good(self.http.get(f"/runs/{self.run_id}")).content)

    def close(self) -> None:
        """End the containers before the coordinator, so that it receives their exit reports, and through their agents, because a killed
        driver leaves a session behind. A second SIGTERM, after the first was processed, makes a container stop without waiting.
        """
        self.http.close()
        try:
            end(*(process for process in reversed(self._started) if process is not self.coordinator), waits=(1, GENEROUS))
        finally:
            end(*(process for process in self._started if process is self.coordinator), waits=(1, GENEROUS))
