"""The watchdog process, `sluice container`: it starts the driver, and kills it when its lease expires.

The driver gets a session of its own. SIGTERM is passed on to the driver's Python only, because a signal to the process group would kill the
JVM and lose its batch. When the lease expires that the agent reported last, the whole session is killed: if only Python were stopped, or a
call did not release the interpreter lock, the JVM would keep committing batches. The watchdog imports neither pyspark nor the job file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from containers import scratch
from containers.agent.lifecycle import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK
from containers.driver import WATCHDOG_FD
from containers.errors import signal_name
from containers.exit_report import report_exit
from containers.scratch import Scratch, session_members
from containers.settings import ContainerSettings
from sluice.clock import Clock
from sluice.core.ids import Instant

log = logging.getLogger(__name__)

TICK = timedelta(seconds=0.2)
"""The interval of checks. The end of a lease is noticed at most this late."""

STOP_WITH_STDIN = "SLUICE_STOP_WITH_STDIN"
"""An environment variable that is set by a launcher that holds the other end of standard input. The end of standard input is then a request
to stop."""

DRIVER = (sys.executable, "-P", "-m", "containers.driver")
"""The command of the driver. Sluice starts every Python with `-P`: otherwise the working directory is first on the path, and files in it
shadow Sluice. The variable PYTHONSAFEPATH would be inherited by processes that user code starts."""

AGENT = (sys.executable, "-P", "-m", "containers.agent_process")
"""The command of an agent that is not in the driver and starts it, in the same session."""


class Watchdog:
    """One driver and its session. `driver` is its command, to which the job file is appended."""

    def __init__(self, job_file: Path, settings: ContainerSettings, clock: Clock, driver: Sequence[str] = DRIVER) -> None:
        self._command = [*driver, str(job_file)]
        self._settings = settings
        self._clock = clock
        self._lease_ends: Instant | None = None
        self._killed_for_lease = False
        self._driver: asyncio.subprocess.Process | None = None
        self._stop_requested = False
        self._unread = b""
        self._exit_reason: tuple[int, str] | None = None
        self._token = ""
        self._log_fields: dict[str, str] = {}
        self._scratch: Scratch | None = None

    async def run(self) -> int:
        """Start the driver and wait for its end; the container's exit code."""
        self._scratch = scratch.claim(self._settings.home, self._settings.id)
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(each, self._stop_driver)
        read_fd, write_fd = os.pipe()
        own = {WATCHDOG_FD: str(write_fd), "EXECUTION_ENV_CONTAINER_ID": self._settings.id}
        self._driver = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[write_fd] if self._scratch is None else [write_fd, self._scratch.lock],
            env={**os.environ, **own, **self._sockets()},
            start_new_session=True,
        )
        os.close(write_fd)
        if self._scratch is not None:
            self._scratch.started(self._driver.pid)
        clearing = asyncio.create_task(self._clear_leftovers())
        os.set_blocking(read_fd, False)
        loop.add_reader(read_fd, self._read, read_fd)
        if self._stop_requested:
            self._stop_driver()
        if os.environ.get(STOP_WITH_STDIN):
            with suppress(PermissionError):  # a plain file or /dev/null, which has no other end
                loop.add_reader(0, self._on_launcher_end)
        lease = asyncio.create_task(self._enforce_lease())
        code = await self._driver.wait()
        lease.cancel()
        with suppress(BlockingIOError):  # a child that the driver forked may hold the other end
            self._read(read_fd)
        cleared = await self._clear_session()
        if cleared and self._scratch is not None:
            self._scratch.remove()
        exit_code, reason = self._verdict(code)
        if cleared:
            await report_exit(self._settings.coordinator_url, self._settings.id, exit_code, reason, self._token)
        await clearing
        return exit_code

    def _sockets(self) -> Mapping[str, str]:
        return {} if self._scratch is None or self._scratch.sockets is None else {"SLUICE_SOCKETS_DIR": str(self._scratch.sockets)}

    async def _clear_leftovers(self) -> None:
        """Delete the temporary files of containers that were killed together with their watchdogs."""
        if left := await asyncio.to_thread(scratch.clear, self._settings.home):
            log.info("deleted the temporary files of %d dead containers: %s", len(left), ", ".join(left), extra=self._log_fields)

    def _read(self, fd: int) -> None:
        """Read lines of the driver: `lease T`, it may act until T on the clock of leases; `job NAME`, for the log; `token TOKEN`, to report
        the exit; `end CODE REASON`."""
        read = os.read(fd, 65536)
        if not read:
            asyncio.get_running_loop().remove_reader(fd)
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            key, _, value = line.partition(b" ")
            if key == b"lease":
                self._lease_ends = Instant(float(value))
            elif key == b"token":
                self._token = value.decode()
            elif key == b"job":
                self._log_fields = {"job": value.decode()}
            elif key == b"end":
                code, _, reason = value.decode(errors="replace").partition(" ")
                self._exit_reason = int(code), reason.replace("\0", "\n")

    def _on_launcher_end(self) -> None:
        if not os.read(0, 1024):
            asyncio.get_running_loop().remove_reader(0)
            self._stop_driver()

    def _stop_driver(self) -> None:
        self._stop_requested = True
        if self._driver is not None and self._driver.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._driver.pid, signal.SIGTERM)

    async def _enforce_lease(self) -> None:
        """Kill the session when the lease expires. A driver that has not registered has no lease, and owns nothing."""
        while True:
            await asyncio.sleep(TICK.total_seconds())
            if self._lease_ends is not None and self._clock.elapsed() >= self._lease_ends:
                break
        assert self._driver is not None
        self._killed_for_lease = True
        kill_session(self._driver.pid)  # before the log line: a full pipe would block it
        log.error("the lease of %s expired and its driver had not ended: its session was killed", self._settings.id, extra=self._log_fields)

    async def _clear_session(self) -> bool:
        """Kill what the driver left behind: its JVM and Python workers. False if a process cannot be killed. It may still act, so the exit
        is not reported, and the tasks are reassigned after the lease and the grace period."""
        assert self._driver is not None
        for _ in range(100):
            if not kill_session(self._driver.pid):
                return True
            await asyncio.sleep(TICK.total_seconds() / 4)
        log.error("processes of session %d cannot be killed", self._driver.pid, extra=self._log_fields)
        return False

    def _verdict(self, code: int) -> tuple[int, str]:
        log_place = f"\nlog: {self._settings.log_place}" if self._settings.log_place else ""
        if self._killed_for_lease:
            return EXIT_LEASE_LOST, "killed: its lease expired and it did not stop"
        if self._exit_reason is not None and self._exit_reason[0] == code:
            return self._exit_reason
        if code == -signal.SIGTERM and self._stop_requested:
            return EXIT_OK, "stop requested before the driver had started"
        if code < 0:
            return EXIT_FAILED, f"its driver was killed by {signal_name(-code)}{log_place}"
        why = f"its driver exited with code {code} without a reason: user code ended the process, or it could not start"
        return EXIT_FAILED, f"{why}{log_place}"


def kill_session(session: int) -> int:
    """Send SIGKILL to every process of a session. Returns how many there were. Repeat it until there are none, because a process may be
    forking."""
    members = session_members(session)
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(members)
