"""`sluice container`: a small process that outlives its driver's troubles.

It starts the driver in a session of its own, passes SIGTERM on to the driver's Python only (a signal to the group would kill the JVM and
lose its batch), and kills the whole session when the lease ends that the agent last told of: with only Python stopped, or a call that never
lets go of the interpreter, the JVM would go on committing batches. It imports neither pyspark nor the job file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil

from containers.agent.lifecycle import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK
from containers.driver import WATCHDOG_FD
from containers.settings import ContainerSettings
from sluice.client import CoordinatorClient
from sluice.clock import Clock
from sluice.core.errors import CoordinatorUnreachable, SluiceError
from sluice.core.ids import Instant

log = logging.getLogger(__name__)

TICK = timedelta(seconds=0.2)
"""How late the end of a lease is noticed at most."""


TELL_WITHIN = timedelta(seconds=8)
"""How long an exit is told to a coordinator that does not answer."""

STOP_WITH_STDIN = "SLUICE_STOP_WITH_STDIN"
"""Set by a launcher that holds the other end of standard input: its end is a request to stop."""


DRIVER = (sys.executable, "-P", "-m", "containers.driver")
"""With `-P`, as every Python that Sluice starts: else the working directory is first on the path, and what is in it shadows Sluice. The
variable PYTHONSAFEPATH would be inherited by processes that user code starts."""


class Watchdog:
    """One driver and its session. `driver` is its command, which gets the job file as an argument."""

    def __init__(self, job_file: Path, settings: ContainerSettings, clock: Clock, driver: Sequence[str] = DRIVER) -> None:
        self._command = [*driver, str(job_file)]
        self._settings = settings
        self._clock = clock
        self._lease_ends: Instant | None = None
        self._killed_for_lease = False
        self._driver: asyncio.subprocess.Process | None = None
        self._stop_asked = False
        self._told = b""
        self._last_words: tuple[int, str] | None = None
        self._about: dict[str, str] = {}

    async def run(self) -> int:
        """Start the driver and see it out; the container's exit code."""
        sockets = _sockets_directory()
        try:
            return await self._see_out({} if sockets is None else {"SLUICE_SOCKETS_DIR": sockets})
        finally:
            if sockets is not None:
                shutil.rmtree(sockets, ignore_errors=True)

    async def _see_out(self, environment: Mapping[str, str]) -> int:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(each, self._pass_on)
        read_fd, write_fd = os.pipe()
        own = {WATCHDOG_FD: str(write_fd), "EXECUTION_ENV_CONTAINER_ID": self._settings.id}
        self._driver = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[write_fd],
            env={**os.environ, **environment, **own},
            start_new_session=True,
        )
        os.close(write_fd)
        os.set_blocking(read_fd, False)
        loop.add_reader(read_fd, self._hear, read_fd)
        if self._stop_asked:
            self._pass_on()
        if os.environ.get(STOP_WITH_STDIN):
            with suppress(PermissionError):  # a plain file, or /dev/null: it never ends, so nobody holds the other end
                loop.add_reader(0, self._launcher_gone)
        guard = asyncio.create_task(self._guard())
        code = await self._driver.wait()
        guard.cancel()
        with suppress(BlockingIOError):  # a child that the driver forked may hold the other end
            self._hear(read_fd)
        cleared = await self._clear_session()
        shutil.rmtree(self._settings.scratch_directory, ignore_errors=True)
        exit_code, reason = self._verdict(code)
        if cleared:
            await self._tell(exit_code, reason)
        return exit_code

    def _hear(self, fd: int) -> None:
        """`lease T`: the driver may act until T on the clock of leases; `job NAME`: what it works for, for the log; `end CODE REASON`."""
        told = os.read(fd, 65536)
        if not told:
            asyncio.get_running_loop().remove_reader(fd)
        *lines, self._told = (self._told + told).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            if word == b"lease":
                self._lease_ends = Instant(float(value))
            elif word == b"job":
                self._about = {"job": value.decode()}
            elif word == b"end":
                code, _, reason = value.decode(errors="replace").partition(" ")
                self._last_words = int(code), reason.replace("\0", "\n")

    def _launcher_gone(self) -> None:
        if not os.read(0, 1024):
            asyncio.get_running_loop().remove_reader(0)
            self._pass_on()

    def _pass_on(self) -> None:
        self._stop_asked = True
        if self._driver is not None and self._driver.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._driver.pid, signal.SIGTERM)

    async def _guard(self) -> None:
        """Kill the session when the lease is over. A driver that has registered tells of it; before that it holds nothing."""
        while True:
            await asyncio.sleep(TICK.total_seconds())
            if self._lease_ends is not None and self._clock.elapsed() >= self._lease_ends:
                break
        assert self._driver is not None
        self._killed_for_lease = True
        kill_session(self._driver.pid)  # before a word is said about it: whoever reads our log may read no more
        log.error("the lease of %s ended and its driver had not: its session was killed", self._settings.id, extra=self._about)

    async def _clear_session(self) -> bool:
        """End whatever the driver left behind: its JVM and Python workers. False if something cannot be killed: it may still act, so nobody
        is told that this container is gone, and its tasks wait for the lease and the grace."""
        assert self._driver is not None
        for _ in range(100):
            if not kill_session(self._driver.pid):
                return True
            await asyncio.sleep(TICK.total_seconds() / 4)
        log.error("processes of session %d cannot be killed", self._driver.pid, extra=self._about)
        return False

    def _verdict(self, code: int) -> tuple[int, str]:
        if self._killed_for_lease:
            return EXIT_LEASE_LOST, "killed: its lease ended and it did not stop"
        if self._last_words is not None and self._last_words[0] == code:
            return self._last_words
        if code == -signal.SIGTERM and self._stop_asked:
            return EXIT_OK, "told to stop before it had begun"
        if code < 0:
            return EXIT_FAILED, f"its driver was ended by {signal.Signals(-code).name}"
        return EXIT_FAILED, f"its driver ended with exit code {code} and not by itself: user code ended the process, or it could not begin"

    async def _tell(self, exit_code: int, reason: str) -> None:
        """Report the exit, so that nobody waits for the lease to end. A coordinator that is just restarting is waited for a little; after
        that the lease does what the report would have done."""
        coordinator = CoordinatorClient(self._settings.coordinator_url)
        try:
            with suppress(SluiceError, TimeoutError):
                async with asyncio.timeout(TELL_WITHIN.total_seconds()):
                    await self._tell_until_heard(coordinator, exit_code, reason)
        finally:
            await coordinator.close()

    async def _tell_until_heard(self, coordinator: CoordinatorClient, exit_code: int, reason: str) -> None:
        while True:
            try:
                return await coordinator.exited(self._settings.id, exit_code, reason)
            except CoordinatorUnreachable:
                await asyncio.sleep(1)


def _sockets_directory() -> str | None:
    """A new one with a short path, that nobody else can enter; None where there is no room for it, and Spark does without."""
    try:
        return tempfile.mkdtemp(prefix="sluice-")
    except OSError as error:
        log.warning("no directory for Spark's sockets: %s", error)
        return None


def session_members(session: int) -> list[int]:
    """The processes of a session that are not dead yet."""
    members = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                members.append(pid)
    return members


def kill_session(session: int) -> int:
    """SIGKILL every process of a session; how many there were. Call it until it finds none: a process may be just forking."""
    members = session_members(session)
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(members)
