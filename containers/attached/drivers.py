"""The driver of a script, as its agent sees it: a `Command` that the agent starts, or an `AttachedScript` that has started the agent. Both
have the same methods, and are used on the agent's loop. `what` they are is for messages. `observed`: the driver is never ended.
`leftovers`: how long other processes of it may outlive it: Python waits for threads, and a JVM ends a moment after its Python.

The command keeps the session and the standard input of the agent, and at a terminal also the process group, so that a terminal treats both
as one. A signal from the terminal reaches the command directly; a signal from a process is passed on. Without a terminal the command has a
process group of its own: `timeout`, supervisord and others signal the whole group of the agent, and a JVM that gets SIGTERM ends in the
middle of a batch. The lease is not renewed while the driver is stopped
(SIGSTOP, Ctrl-Z): another container may take over, and the stopped one is killed before it does.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from containers.agent.failures import TRACEBACK, headline
from containers.attached.agent_socket import SOCKET, own_name
from containers.attached.driver_link import DriverLink
from containers.errors import signal_name
from containers.rpc.socket_link import SocketLink
from containers.supervision import processes
from containers.supervision.driver_processes import DriverProcesses
from containers.supervision.exit_report import EXIT_FAILED, EXIT_OK
from containers.supervision.guardian import MARK
from containers.supervision.processes import ProcessId, runs
from sluice.core.errors import ClientError
from sluice.core.ids import ExecutionContainerId

PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a command that cannot be started, as those of the shell (POSIX, Shell Command Language 2.8.2)."""

TICK_SECONDS = 0.5

KEPT_LINES = 1000
"""Lines of standard error that are kept."""

_PLAN = re.compile(r"^(\s|[:+'~])")
"""A line of a plan of Spark. The error of a query ends with one, which may be long."""

_ERROR_LINE = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a driver has ended."""

    exit_code: int
    reason: str


class NotStarted(Exception):
    """The command cannot be started."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name}: {error.strerror}")
        self.outcome = Outcome(not_started(error), str(self))


def not_started(error: OSError) -> int:
    """The exit code for a command that cannot be started."""
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


class AttachedScript:
    """A script that has called `sluice.attach`. `found`: its Python and its JVM, which need not descend from one another. When the lease is
    lost, they and their descendants are ended, and nothing else, such as the shell that started them."""

    what = "script"
    leftovers = timedelta(seconds=30)

    def __init__(self, found: Sequence[ProcessId], connected: socket.socket, *, observed: bool) -> None:
        self.observed = observed
        self._found = found
        self._connected = connected
        self._link: DriverLink | None = None

    @property
    def runs(self) -> bool:
        """An open connection does not prove it, because a process that Python has forked may hold its end."""
        return runs(self._found[0])

    def open(self, link: DriverLink, found: DriverProcesses, on_sigterm: Callable[[], bool]) -> None:
        """Make the driver known to the link and to its processes."""
        self._link = link
        found.has(self._found)
        link.connect(SocketLink(self._connected))

    async def given_up(self) -> None:
        """Wait until it has ended, although it may not run yet."""
        await self.ended()

    def not_granted(self) -> Outcome:
        """Its outcome then."""
        return Outcome(EXIT_OK, "the script ended before it had the lease")

    async def start(self, environment: Mapping[str, str]) -> None:
        """It runs already."""

    async def ended(self) -> None:
        assert self._link is not None
        ended = asyncio.create_task(self._link.driver_ended())
        try:
            while not ended.done() and self.runs:
                await asyncio.wait([ended], timeout=TICK_SECONDS)
        finally:
            ended.cancel()
        while self._link.error is not None and self.runs:  # noqa: ASYNC110 — Python is ending, which it has reported
            await asyncio.sleep(TICK_SECONDS)

    async def outcome(self, error: str | None) -> Outcome:
        """How it has ended. It is not a child of this process, so its own exit code is not known. `error`: see `DriverLink.error`."""
        if error is None:
            return Outcome(EXIT_FAILED, "the driver was killed, or ended by os._exit")
        return Outcome(EXIT_FAILED, error) if error else Outcome(EXIT_OK, "the script ended")

    def send(self, number: signal.Signals) -> None:
        if self.runs and not self.observed:
            with suppress(ProcessLookupError):
                os.kill(self._found[0].pid, number)


class Command:
    """A command that the agent starts, whose processes may attach."""

    what = "command"
    observed = False
    leftovers = timedelta(seconds=10)

    def __init__(self, command: Sequence[str], container: ExecutionContainerId, url: str) -> None:
        """`url`: that of the coordinator."""
        self._command = command
        self._own = {MARK: container, "SLUICE_COORDINATOR_URL": url}  # MARK also identifies its descendants
        self._process: asyncio.subprocess.Process | None = None
        self._processes: DriverProcesses | None = None
        self._on_sigterm: Callable[[], bool] = lambda: False
        self._unblocked: Collection[int] = ()
        self._signalled = asyncio.Event()
        self._signal: signal.Signals | None = None
        self._early_signals: list[signal.Signals] = []
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._copying: threading.Thread | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def open(self, link: DriverLink, found: DriverProcesses, on_sigterm: Callable[[], bool]) -> None:
        """Make the driver known to the link and to its processes. `on_sigterm` is called when a SIGTERM arrives for the command. It returns
        whether the signal is kept back. Raises ClientError where processes that lose their parent cannot be ended."""
        if not processes.become_subreaper():
            raise ClientError("sluice exec needs Linux with /proc, to end a driver that has lost its lease")
        self._processes, self._on_sigterm = found, on_sigterm
        self._unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        threading.Thread(target=self._wait_for_signals, args=(asyncio.get_running_loop(),), name="signals", daemon=True).start()
        link.listen(own_name(), lambda pid: any(each.id.pid == pid for each in found.find()))

    async def given_up(self) -> None:
        """Wait for a signal."""
        await self._signalled.wait()

    def not_granted(self) -> Outcome:
        number = self._signal or signal.SIGTERM
        return Outcome(128 + number, f"{signal_name(number)} before the command was started")

    async def start(self, environment: Mapping[str, str]) -> None:
        """Raises NotStarted."""
        read_fd, errors = (None, None) if sys.stderr.isatty() else os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stderr=errors,
                env={**os.environ, **environment, **self._own, SOCKET: own_name()},
                process_group=None if _at_terminal() else 0,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, self._unblocked) and None,
            )
        except OSError as error:
            raise NotStarted(self._command[0], error) from error
        finally:
            if errors is not None:
                os.close(errors)
        assert self._processes is not None
        self._processes.waited_for = self._process.pid
        for number in self._early_signals:
            self.send(number)
        self._copying = threading.Thread(target=self._copy_errors, args=(read_fd,), name="standard error", daemon=True)
        self._copying.start()

    async def ended(self) -> None:
        assert self._process is not None
        await self._process.wait()

    async def outcome(self, error: str | None) -> Outcome:
        """Its exit code; 128 and the number of the signal that ended it."""
        assert self._process is not None
        assert self._copying is not None
        code = await self._process.wait()
        await asyncio.to_thread(self._copying.join, 2)
        if code < 0:
            return Outcome(128 - code, f"the command was ended by {signal_name(-code)}")
        return Outcome(code, self._reason(code))

    def _reason(self, code: int) -> str:
        if code == 0:
            return "the command ended"
        lines = [line for line in self._last_lines if line.strip()]
        last = next((line for line in reversed(lines[-50:]) if _ERROR_LINE.match(line)), lines[-1] if lines else "")
        if _PLAN.match(last) and any(line.startswith(TRACEBACK) for line in lines):
            last = headline("\n".join(lines), None)
        return f"the command exited with code {code}{f': {last.strip()[:2000]}' if last else ''}"

    def _copy_errors(self, source: int | None) -> None:
        """Copy standard error unchanged, and keep the last lines. `source`: None if standard error is a terminal. The command then writes
        to it directly, because many programs write differently to a terminal."""
        unfinished = b""
        while source is not None and (read := os.read(source, 65536)):
            _write_all(2, read)
            *lines, unfinished = (unfinished[-10_000:] + read).split(b"\n")
            self._last_lines.extend(line[:2000].decode(errors="replace") for line in lines[-KEPT_LINES:])

    # --- signals ---------------------------------------------------------------------------------------------------

    def _wait_for_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            found = signal.sigwaitinfo(PASSED_ON)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_signal, signal.Signals(found.si_signo), found.si_code > 0)

    def _on_signal(self, number: signal.Signals, from_kernel: bool) -> None:
        """`from_kernel`: the terminal has sent the signal, and the command has also received it."""
        self._signal = number
        self._signalled.set()
        if not from_kernel and not (number is signal.SIGTERM and self._on_sigterm()):
            self.send(number)

    def send(self, number: signal.Signals) -> None:
        """If the command is being started, it gets the signal as soon as its process is known."""
        if self._process is None:
            self._early_signals.append(number)
        elif self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


def _at_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _write_all(fd: int, data: bytes) -> None:
    with suppress(OSError):  # the reader has closed it
        while data:
            data = data[os.write(fd, data) :]
