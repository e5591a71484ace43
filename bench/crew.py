"""A coordinator and single containers as processes of ours, each container with a disk of its own if it is asked to: as under a cluster
manager that starts nothing again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from bench.harness import cores, pinned
from sluice.wire import runs as wire_runs
from tests.support.coordinators import Cluster, Container
from tests.support.processes import must_run, wait_for

T = TypeVar("T")

PATIENCE = 600.0


class Crew(Cluster):
    """Its containers are to run: a look at the run fails where one has ended."""

    def __init__(self, root: Path, job_file: Path, environment: Mapping[str, str]) -> None:
        super().__init__(root, job_file, environment)
        self.containers: list[Container] = []

    def start_container(self, slot: int = 0, **settings: str) -> Container:
        self.containers.append(super().start_container(slot, **settings))
        return self.containers[-1]

    def until(self, what: str, look: Callable[[wire_runs.RunDetail], T | None], *, may_end: Container | None = None) -> T:
        """Look at the run until there is something to see. Raises TooSlow, or EndedEarly where a container has ended."""

        def found() -> T | None:
            for each in self.containers:
                if each is not may_end:
                    must_run(each.process, self.container_log(each))
            return look(self.detail())

        return wait_for(what, found, PATIENCE)


@contextmanager
def crew(root: Path, job_file: Path, environment: Mapping[str, str]) -> Iterator[Crew]:
    """With a coordinator that runs, on the server's core; all that was started is ended."""
    made = Crew(root, job_file, environment)
    try:
        with pinned(cores()[0]):
            made.start_coordinator()
        yield made
    finally:
        made.close()
