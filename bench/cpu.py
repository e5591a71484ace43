"""The CPU time of a process and of all its descendants, also of those that have ended.

A process has the time of the children that it has waited for. But some parents ignore SIGCHLD, as PySpark's daemon does: the time of their
children is lost when these end, so that a sum over the processes that run can fall. The processes are therefore looked at once a second,
and of those that have ended the time that was last seen counts.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import psutil

LOOK_SECONDS = 1.0

P = TypeVar("P", bound=Hashable)


@dataclass(slots=True)
class Used(Generic[P]):
    """The CPU seconds of one process, as last seen. `parent`: None for the first process. `own`: without children. `children`: of the
    children that it has waited for, with theirs."""

    parent: P | None
    own: float = 0.0
    children: float = 0.0
    ended: bool = False


def total(processes: Mapping[P, Used[P]]) -> float:
    """The sum over all processes. The time of one that has ended is counted once: in `children` of its parent if that has waited for it,
    or else as last seen."""
    below: dict[P | None, list[P]] = {}
    for process, used in processes.items():
        below.setdefault(used.parent, []).append(process)

    def of(process: P) -> float:
        used, here = processes[process], below.get(process, ())
        running = sum(of(child) for child in here if not processes[child].ended)
        ended = sum(of(child) for child in here if processes[child].ended)
        return used.own + running + max(used.children, ended)

    return sum(of(process) for process in below.get(None, ()))


class CpuMeter:
    """Made by `measuring`. Thread-safe."""

    def __init__(self, process: psutil.Process) -> None:
        self._processes: dict[psutil.Process, Used[psutil.Process]] = {process: Used(None)}
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """The CPU seconds since the start of the process."""
        with self._lock:
            for found, parent in list(self._found()):
                self._processes.setdefault(found, Used(parent))
            for process, used in self._processes.items():
                self._look(process, used)
            return total(self._processes)

    def _found(self) -> Iterator[tuple[psutil.Process, psutil.Process]]:
        """The descendants that run, each with its parent; also those of a process whose parent has ended, which is no descendant now."""
        for top, used in self._processes.items():
            if not used.ended and (used.parent is None or self._processes[used.parent].ended):
                parents = {top.pid: top}
                with suppress(psutil.Error):
                    for each in top.children(recursive=True):
                        parents[each.pid] = each
                        with suppress(psutil.Error):
                            yield each, parents.get(each.ppid(), top)

    @staticmethod
    def _look(process: psutil.Process, used: Used[psutil.Process]) -> None:
        if used.ended:
            return
        try:
            times = process.cpu_times()
        except psutil.Error:
            used.ended = True
            return
        used.own, used.children = times.user + times.system, times.children_user + times.children_system


@contextmanager
def measuring(process: psutil.Process) -> Iterator[CpuMeter]:
    """A meter that looks at the processes while the block runs."""
    meter, over = CpuMeter(process), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            meter.seconds()

    looking = threading.Thread(target=look, name="cpu")
    looking.start()
    try:
        yield meter
    finally:
        over.set()
        looking.join()
