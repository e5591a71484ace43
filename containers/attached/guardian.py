"""The second process of a supervisor: it ends the command when the supervisor cannot, because it was killed or is stopped.

Standard input is a pipe from the supervisor. The line `lease T` allows the command to run until T on the clock of leases. The line
`token TOKEN` has the container's token, which is needed to report the exit. The end of the pipe means that the supervisor was killed: a
supervisor that ends normally kills the guardian first. The guardian has a session of its own, and ignores the signals that request a
process to stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from containers.agent.lifecycle import EXIT_FAILED
from containers.attached import processes
from containers.attached.processes import Process, ProcessId, Table
from containers.exit_report import report_exit
from sluice import logconfig
from sluice.clock import Clock, SystemClock
from sluice.core.ids import ExecutionContainerId, Instant

log = logging.getLogger("sluice")

MARK = "EXECUTION_ENV_CONTAINER_ID"
"""The environment variable that the command and its descendants inherit."""

TICK_SECONDS = 0.2
SCAN_SECONDS = 1.0
"""How often the descendants are listed."""


@dataclass
class Descendants:
    """The descendants of the supervisor that were seen so far, also those that have left its tree. `seen` begins with the processes of a
    driver that was not started by the supervisor."""

    supervisor: int
    container: ExecutionContainerId
    seen: set[ProcessId] = field(default_factory=set)

    def scan(self) -> Table:
        table = processes.processes()
        here = {each.id for each in table.values()}
        below = processes.descendants(table, [self.supervisor, *(each.pid for each in self.seen & here)])
        self.seen = (self.seen & here) | {each.id for each in below if each.id.pid != os.getpid()}
        return table

    def find(self) -> Iterable[Process]:
        table = self.scan()
        known = {each.id: each for each in table.values() if each.id in self.seen}
        known |= {each.id: each for each in processes.marked(table, MARK, self.container)}
        return [each for each in known.values() if each.id.pid not in (os.getpid(), self.supervisor)]


class Guardian:
    """`coordinator`: the URL to which the exit is reported when the supervisor was killed."""

    def __init__(
        self, supervisor: int, container: ExecutionContainerId, coordinator: str, clock: Clock, drivers: Collection[ProcessId] = ()
    ) -> None:
        self._descendants = Descendants(supervisor, container, set(drivers))
        self._container = container
        self._coordinator = coordinator
        self._clock = clock
        self._lease_ends: Instant | None = None
        self._unread = b""
        self._token = ""

    def run(self) -> None:
        scanned_at = self._clock.elapsed() - SCAN_SECONDS
        expired = False
        while self._read():
            now = self._clock.elapsed()
            if now - scanned_at >= SCAN_SECONDS:
                self._descendants.scan()
                scanned_at = now
            if self._lease_ends is not None and now >= self._lease_ends:
                killed, _ = processes.end_all(self._descendants.find)
                if not expired or killed:
                    log.error("the lease of %s expired and its supervisor had not ended the command: it was killed", self._container)
                expired = True
        killed, all_ended = processes.end_all(self._descendants.find)
        log.error("the supervisor of %s was killed: its command was killed, too (%d processes)", self._container, killed)
        if all_ended:
            asyncio.run(report_exit(self._coordinator, self._container, EXIT_FAILED, "its supervisor was killed", self._token))

    def _read(self) -> bool:
        """Wait up to one tick for lines of the supervisor. False when it has ended."""
        ready, _, _ = select.select([0], [], [], TICK_SECONDS)
        if not ready:
            return True
        read = os.read(0, 65536)
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            key, _, value = line.partition(b" ")
            if key == b"lease":
                self._lease_ends = Instant(float(value))
            elif key == b"token":
                self._token = value.decode()
        return bool(read)


def main() -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    logconfig.configure(logconfig.read_log_settings())
    supervisor, container, coordinator, *drivers = sys.argv[1:]
    known = list(map(ProcessId.parse, drivers))
    Guardian(int(supervisor), ExecutionContainerId(container), coordinator, SystemClock(), known).run()


class GuardianProcess:
    """Starts the guardian, and sends the lease and the token to it. Used by the supervisor. `drivers`: see `Descendants`."""

    def __init__(self, container: ExecutionContainerId, coordinator: str, drivers: Collection[ProcessId] = ()) -> None:
        self._container = container
        self._coordinator = coordinator
        self._drivers = drivers
        self._process: asyncio.subprocess.Process | None = None
        self._lease_ends: Instant | None = None
        self._token = ""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def renewed(self, ends_at: Instant) -> None:
        self._lease_ends = ends_at
        self._write(f"lease {ends_at!r}")

    def has_token(self, token: str) -> None:
        self._token = token

    async def start(self) -> None:
        """Returns when the guardian knows the lease. Raises OSError."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "containers.attached.guardian"),
            *(str(os.getpid()), self._container, self._coordinator),
            *map(str, self._drivers),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != MARK},
            start_new_session=True,
        )
        self._write(f"token {self._token}")
        if self._lease_ends is not None:
            self._write(f"lease {self._lease_ends!r}")

    async def keep(self) -> None:
        """Restart the guardian whenever it ends, until cancelled."""
        while self._process is not None:
            await self._process.wait()
            log.warning("the guardian process has ended and is started again")
            await self.start()

    async def end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _write(self, line: str) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(f"{line}\n".encode())


if __name__ == "__main__":
    main()
