"""A coordinator and single containers as child processes, each container optionally with a disk of its own. They are not restarted, as
under a cluster manager without a restart policy.
"""

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
    """The containers must keep running: a poll of the run fails if one has ended."""

    def __init__(self, root: Path, job_file: Path, environment: Mapping[str, str]) -> None:
        super().__init__(root, job_file, environment)
        self.containers: list[Container] = []

    def start_container(self, slot: int = 0, **settings: str) -> Container:
        self.containers.append(super().start_container(slot, **settings))
        return self.containers[-1]

    def until(self, what: str, look: Callable[[wire_runs.RunDetail], T | None], *, may_end: Container | None = None) -> T:
        """Poll the run until `look` returns a value. Raises TooSlow, or EndedEarly if a container has ended."""

        def found() -> T | None:
            for each in self.containers:
                if each is not may_end:
                    must_run(each.process, self.container_log(each))
            return look(self.detail())

        return wait_for(what, found, PATIENCE)


@contextmanager
def crew(root: Path, job_file: Path, environment: Mapping[str, str]) -> Iterator[Crew]:
    """A crew with a running coordinator on the server's core. All processes are ended when the block ends."""
    made = Crew(root, job_file, environment)
    try:
        with pinned(cores()[0]):
            made.start_coordinator()
        yield made
    finally:
        made.close()
