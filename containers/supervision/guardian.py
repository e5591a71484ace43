"""Ends the driver when the agent cannot, because it was killed or is stopped: a process beside the agent.

Standard input is a pipe from the agent. The line `lease T` allows the driver to run until T on the clock of leases. The lines `url URL`,
`home DIRECTORY` and `token TOKEN` have what is needed to report the exit. The end of the pipe means that the agent was killed: one that
ends normally kills the guardian first. The guardian has a session of its own, and ignores the signals that request a process to stop. It
imports only the standard library, and needs no lock and no network, so that nothing that stops an agent stops it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from containers.supervision import processes
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST, Ending, replace_process
from containers.supervision.processes import Process, ProcessId, Table
from sluice.clock import Clock, SystemClock
from sluice.core.ids import ExecutionContainerId, Instant

MARK = "SLUICE_PROCESS_OF"
"""The environment variable that the driver and its descendants inherit. Its value is the id of the container."""

TICK_SECONDS = 0.2
SCAN_SECONDS = 1.0
"""How often the descendants are listed."""

SHARE_OF_SCANS = 0.01
"""The part of the time in which the descendants are listed. A scan lasts longer on a machine of thousands of processes."""

DIES_WITHIN = 2.0
"""How many seconds the death of an agent may take that was killed. The first process of a container cannot be killed from inside it; then
the exit is not reported."""

ENDS_WITHIN = 5.0
"""How many seconds an agent that is not stopped has to end after the end of its lease. A machine that was suspended resumes all processes
at once."""


@dataclass
class Descendants:
    """The descendants of the agent that were seen so far, also those that have left its tree. `seen` begins with the processes of a driver
    that the agent has not started. `apart`: processes that do not belong to the driver, among them the agent."""

    agent: int
    container: ExecutionContainerId
    seen: set[ProcessId] = field(default_factory=set)
    apart: set[int] = field(default_factory=set)

    def scan(self) -> Table:
        table = processes.processes()
        here = {each.id for each in table.values()}
        below = processes.descendants(table, [self.agent, *(each.pid for each in self.seen & here)])
        self.seen = (self.seen & here) | {each.id for each in below if each.id.pid not in self._apart}
        return table

    def find(self) -> Iterable[Process]:
        table = self.scan()
        known = {each.id: each for each in table.values() if each.id in self.seen}
        known |= {each.id: each for each in processes.marked(table, MARK, self.container)}
        return [each for each in known.values() if each.id.pid not in self._apart]

    @property
    def _apart(self) -> set[int]:
        return {os.getpid(), self.agent, *self.apart}


class Guardian:
    """`drivers`: see `Descendants`."""

    def __init__(self, agent: int, container: ExecutionContainerId, clock: Clock, drivers: Collection[ProcessId] = ()) -> None:
        self._agent = processes.process(agent)
        self._container = container
        self._descendants = Descendants(agent, container, set(drivers))
        self._clock = clock
        self._told: dict[str, str] = {}
        self._unread = b""

    def run(self) -> Ending:
        """Wait until the driver must be ended, and end it."""
        scan_at = self._clock.elapsed()
        while self._read():
            now = self._clock.elapsed()
            if now >= scan_at:
                self._descendants.scan()
                took = self._clock.elapsed() - now
                scan_at = Instant(now + max(SCAN_SECONDS, took / SHARE_OF_SCANS))
            if "lease" in self._told and now >= float(self._told["lease"]):
                return self._on_expired()
        return self._ended(EXIT_FAILED, "its agent was killed")

    def _on_expired(self) -> Ending:
        """End the driver at once. The agent ends by itself, if it is able to."""
        processes.end_all(self._descendants.find)
        until = self._clock.elapsed() + ENDS_WITHIN
        while self._read() and self._clock.elapsed() < until:
            processes.end_all(self._descendants.find)
        if self._agent is not None:
            processes.kill(self._agent.id)
        return self._ended(EXIT_LEASE_LOST, "killed: its lease expired and it did not stop")

    def _ended(self, exit_code: int, reason: str) -> Ending:
        _, all_ended = processes.end_all(self._descendants.find)
        until = self._clock.elapsed() + DIES_WITHIN
        while (lives := self._agent is not None and processes.runs(self._agent.id)) and self._clock.elapsed() < until:
            time.sleep(TICK_SECONDS)
        told = {name: self._told.get(name, "") for name in ("url", "home", "token")}
        return Ending(container=self._container, exit_code=exit_code, reason=reason, all_ended=all_ended and not lives, **told)

    def _read(self) -> bool:
        """Wait up to one tick for lines of the agent, and read all of them: older ones may end with the lease that was then. False when it
        has ended."""
        wait = TICK_SECONDS
        while select.select([0], [], [], wait)[0]:
            read = os.read(0, 65536)
            if not read:
                return False
            *lines, self._unread = (self._unread + read).split(b"\n")
            self._told.update((key, value) for key, _, value in (line.decode().partition(" ") for line in lines))
            wait = 0
        return True


def main() -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    agent, container, *drivers = sys.argv[1:]
    guardian = Guardian(int(agent), ExecutionContainerId(container), SystemClock(), list(map(ProcessId.parse, drivers)))
    replace_process(guardian.run())


if __name__ == "__main__":
    main()
