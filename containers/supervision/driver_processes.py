"""The processes of a driver, as its agent sees them: all of them are ended when the driver must not act any more."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from containers.supervision import processes
from containers.supervision.guardian import Descendants
from containers.supervision.guardian_process import GuardianProcess
from containers.supervision.processes import Process, ProcessId
from sluice.core.ids import ExecutionContainerId

log = logging.getLogger("sluice")


REMEMBER_SECONDS = 10
"""How often the processes are listed. The guardian does it more often."""


class DriverProcesses:
    """Used on the agent's loop. `url` and `home`: see `containers.supervision.exit_report.Ending`."""

    def __init__(self, container: ExecutionContainerId, url: str, home: Path | None = None) -> None:
        self.guardian = GuardianProcess(container, url, home)
        self.waited_for: int | None = None
        """A child of this process, other than the guardian, for whose end other code waits."""
        self._descendants = Descendants(os.getpid(), container)
        self._roots: Sequence[ProcessId] = ()
        self._background: list[asyncio.Task[None]] = []

    def has(self, roots: Sequence[ProcessId]) -> None:
        """These processes belong to the driver, with all that descends from them. This process has not started them."""
        self._roots = roots
        self._descendants.seen |= set(roots)

    async def watch(self) -> None:
        """Start the guardian, and begin to remember the processes: those whose parent ends may leave its tree. Raises OSError."""
        await self.guardian.start(self._roots)
        self._background = [asyncio.create_task(self.guardian.keep()), asyncio.create_task(self._remember())]

    async def _remember(self) -> None:
        while True:
            with suppress(OSError):
                table = self._descendants.scan()
                if self._roots or self.waited_for is not None:  # otherwise the driver is being started, by code that waits for its end
                    processes.reap(table.values(), os.getpid(), self._not_reaped)
            await asyncio.sleep(REMEMBER_SECONDS)

    @property
    def _not_reaped(self) -> set[int]:
        return {pid for pid in (self.waited_for, self.guardian.pid) if pid is not None}

    def find(self) -> Iterable[Process]:
        """The processes of the driver, without the guardian. Those that have ended are reaped. Raises OSError."""
        self._descendants.apart = set() if self.guardian.pid is None else {self.guardian.pid}
        found = list(self._descendants.find())
        processes.reap(found, os.getpid(), self._not_reaped)
        return found

    def end_all(self) -> tuple[int, bool]:
        """See `processes.end_all`. Blocks."""
        return processes.end_all(self.find)

    def stopped(self) -> str | None:
        """Why no heartbeat may be sent: a Python or a JVM of the driver is stopped. None if none is, or if that is not known."""
        try:
            table = processes.processes()
        except OSError as error:  # the table cannot be read now
            log.warning("it is not known whether the driver is stopped: %s", error)
            return None
        if self._roots:  # this process may descend from one of them
            own = {os.getpid(), *(each.id.pid for each in processes.descendants(table, [os.getpid()]))}
            table = {pid: each for pid, each in table.items() if pid not in own}
        for pid in [each.pid for each in self._roots] or ([] if self.waited_for is None else [self.waited_for]):
            if (found := processes.stopped_driver(table, pid, processes.arguments)) is not None:
                return f"process {found.id.pid} ({found.name}) of the driver is stopped"
        return None

    async def close(self) -> None:
        """End the guardian."""
        for each in self._background:
            each.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.guardian.end()
