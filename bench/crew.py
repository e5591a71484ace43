"""A coordinator and single containers as processes of ours, each container with a disk of its own if it is asked to: as under a cluster
manager that starts nothing again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.deployment import post
from bench.harness import ROOT, BenchFailed, coordinator, end, free_port, get, running, tail
from containers.deploy import deploy_request
from containers.job import load_job
from coordinator import wire
from examples.playing.launch import kill_whole

T = TypeVar("T")

PATIENCE = 600.0
LOOK_SECONDS = 0.1


@dataclass
class Member:
    """A container: its execution id and its watchdog."""

    execution_id: str
    process: subprocess.Popen[bytes]
    said: Path

    def kill(self) -> None:
        """Its watchdog too."""
        kill_whole(self.process)


@dataclass
class Crew:
    """`place` holds everything: `home`, and a disk for each that has one of its own."""

    place: Path
    url: str
    job_file: Path
    environment: Mapping[str, str]
    run_id: str = ""
    members: list[Member] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.place / "home"

    def deploy(self, containers: int, config: dict[str, str] | None = None, system: str = "log") -> None:
        request = deploy_request(load_job(self.job_file), containers, system, "earliest", config or {})
        self.run_id = str(post(f"{self.url}/runs", request.model_dump(mode="json", by_alias=True))["runId"])

    def start(self, slot: int, **settings: str) -> Member:
        execution_id = f"bench-{slot}-{len(self.members)}"
        environment = {
            **os.environ,
            **self.environment,
            "SLUICE_COORDINATOR_URL": self.url,
            "SLUICE_RUN_ID": self.run_id,
            "SLUICE_PROCESSOR_ID": str(slot),
            "SLUICE_HOME": str(self.home),
            "SLUICE_SPARK_MASTER": "local[1]",
            "EXECUTION_ENV_CONTAINER_ID": execution_id,
            **settings,
        }
        said = self.place / f"{execution_id}.log"
        with said.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", "container", str(self.job_file)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
            )
        self.members.append(Member(execution_id, process, said))
        return self.members[-1]

    def detail(self) -> wire.RunDetail:
        return wire.RunDetail.model_validate_json(get(f"{self.url}/runs/{self.run_id}")[2])

    def until(self, what: str, look: Callable[[wire.RunDetail], T | None], *, may_end: Member | None = None) -> T:
        """Look at the run until there is something to see. Raises BenchFailed when that takes too long, or a container ends."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = look(self.detail())
            if found is not None:
                return found
            for each in self.members:
                if each is not may_end and each.process.poll() is not None:
                    raise BenchFailed(f"{each.execution_id} ended: {tail(each.said.read_text(errors='replace'))}")
            time.sleep(LOOK_SECONDS)
        raise BenchFailed(f"{what}: not within {PATIENCE:g} s")


@contextmanager
def crew(place: Path, job_file: Path, environment: Mapping[str, str]) -> Iterator[Crew]:
    """With a coordinator that runs; all that was started is ended."""
    port = free_port()
    with running(coordinator(place / "home", port), port, environment) as server:
        made = Crew(place, server.url, job_file, environment)
        try:
            yield made
        finally:
            for each in made.members:
                end(each.process)
