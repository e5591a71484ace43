"""`sluice exec`: starts a command when it may run, keeps its lease while it runs, and ends it when the lease is lost.

The command keeps the session, the process group and the standard input of this process, so that a terminal treats both as one. A signal
from the terminal reaches the command directly; a signal from a process is passed on. The lease is not renewed while the driver is stopped
(SIGSTOP, Ctrl-Z): another container may take over, and the stopped one is killed before it does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

from containers.attached import messages
from containers.attached.claim import Claim, Claims, Request, describe_end, has_drained, is_lost, stop_requested
from containers.attached.driver_link import DriverLink
from containers.errors import signal_name
from containers.supervision import processes
from containers.supervision.exit_report import EXIT_LEASE_LOST, report_exit
from containers.supervision.guardian import MARK
from containers.supervision.guardian_process import GuardianProcess
from containers.supervision.processes import Process
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.errors import ClientError, LeaseLost
from sluice.core.ids import Instant, RunId

log = logging.getLogger("sluice")

PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})

LEFTOVERS = timedelta(seconds=10)
"""How long processes may outlive the command. A JVM ends a moment after its Python."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a command that cannot be started, as those of the shell (POSIX, Shell Command Language 2.8.2)."""

_ERROR_LINE = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b")


AFTER_QUERIES = timedelta(seconds=10)
"""How long after a SIGTERM the script may continue when its queries have ended. Then the SIGTERM is sent to the command."""


def socket_of(request: Request) -> str:
    """The name of the supervisor's socket, see `containers.attached.messages`."""
    return f"sluice-{request.container}"


def not_started(error: OSError) -> int:
    """The exit code for a command that cannot be started."""
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


class Supervisor:
    """One command. `stop_timeout`: how long a driver that was asked to stop may take."""

    def __init__(self, request: Request, command: Sequence[str], url: str, clock: Clock, stop_timeout: timedelta) -> None:
        self._request = request
        self._command = command
        self._url = url
        self._clock = clock
        self._stop_timeout = stop_timeout
        self._process: asyncio.subprocess.Process | None = None
        self._guardian = GuardianProcess(request.container, url)
        self._link: DriverLink | None = None
        self._terminated = False
        """Whether a SIGTERM has made the driver stop its queries."""
        self._token = ""
        self._signalled = asyncio.Event()
        self._signal: signal.Signals | None = None
        self._early_signals: list[signal.Signals] = []
        self._last_lines: deque[str] = deque(maxlen=50)
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """The exit code of the command; 128 and the number of the signal that ended it; EXIT_LEASE_LOST if the lease was lost. Raises what
        `Claims.claim` raises."""
        if not processes.become_subreaper():
            raise ClientError("sluice exec needs Linux with /proc, to end a driver that has lost its lease")
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        threading.Thread(target=self._wait_for_signals, args=(asyncio.get_running_loop(),), name="signals", daemon=True).start()
        coordinator = AgentClient(self._url)
        link = self._link = DriverLink(
            self._request.job, coordinator, lambda pid: any(each.id.pid == pid for each in self._descendants()), self._clock
        )
        drivers = await link.listen(socket_of(self._request))
        claims = Claims(coordinator, self._clock, self._on_renewed, self._on_token, self._driver_stopped)
        code, reason, all_ended = 1, "sluice exec failed", True
        try:
            claim = await self._claimed(claims)
            if claim is None:
                code, reason = 128 + (self._signal or 0), f"{signal_name(self._signal or 0)} before the command was started"
            else:
                await self._guardian.start()
                self._in_background(self._guardian.keep())
                self._in_background(link.report())
                await link.granted(claim)
                self._in_background(link.report_drains())
                code, reason, all_ended = await self._supervise(claim, coordinator, unblocked)
        except LeaseLost as lost:
            code, reason = EXIT_LEASE_LOST, str(lost)
        except BaseException:  # cancelled, or a fault: the lease is not kept any more, so the command must end
            all_ended = False
            _, all_ended = await asyncio.to_thread(processes.end_all, self._descendants)
            raise
        finally:
            for each in self._background:
                each.cancel()
            await self._guardian.end()  # the lease may end while the exit is reported
            if claims.registered and all_ended:
                await report_exit(self._url, self._request.container, min(code, 255), reason, self._token)
            drivers.close()
            await link.close()
            await coordinator.close()
        return code

    async def _claimed(self, claims: Claims) -> Claim | None:
        """None if a signal arrives first."""
        claiming = asyncio.create_task(claims.claim(self._request))
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait([claiming, signalled], return_when=asyncio.FIRST_COMPLETED)
        if claiming.done():
            signalled.cancel()
            return claiming.result()
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        return None

    # --- the command -----------------------------------------------------------------------------------------------

    async def _supervise(self, claim: Claim, coordinator: AgentClient, unblocked: Collection[int]) -> tuple[int, str, bool]:
        """Run the command. Returns its exit code, the reason, and whether all processes have ended."""
        read_fd, errors = (None, None) if sys.stderr.isatty() else os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stderr=errors,
                env={**os.environ, **self._environment(claim)},
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, unblocked) and None,
            )
        except OSError as error:
            claim.ends.cancel()
            log.error("%s: %s", self._command[0], error.strerror)
            return not_started(error), f"{self._command[0]}: {error.strerror}", True
        finally:
            if errors is not None:
                os.close(errors)
        for number in self._early_signals:
            self._send(number)
        copying = threading.Thread(target=self._copy_errors, args=(read_fd,), name="standard error", daemon=True)
        copying.start()
        self._in_background(self._follow_notices(coordinator, claim.run))
        waiting = asyncio.create_task(self._process.wait())
        await asyncio.wait([waiting, claim.ends], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done() and has_drained(claim):
            await self._await_script(waiting)
        if not waiting.done():
            killed, all_ended = await asyncio.to_thread(processes.end_all, self._descendants)
            reason = describe_end(claim.ends.result())
            log.error("%s: the command was killed (%d processes)", reason, killed)
            return EXIT_LEASE_LOST, reason, all_ended
        code = waiting.result()
        all_ended = await self._end_leftovers(claim)
        await self._finish_backups(claim)
        claim.ends.cancel()
        await asyncio.to_thread(copying.join, 2)
        if code < 0:
            return 128 - code, f"the command was ended by {signal_name(-code)}", all_ended
        return code, self._reason(code), all_ended

    async def _await_script(self, waiting: asyncio.Task[int]) -> None:
        """The drain has ended the run, and with it the lease. The queries have ended before: the script may end by itself."""
        within = self._stop_timeout + LEFTOVERS
        self._on_renewed(Instant(self._clock.elapsed() + (within + LEFTOVERS).total_seconds()))  # see `_end_leftovers`
        await asyncio.wait([waiting], timeout=within.total_seconds())

    def _environment(self, claim: Claim) -> dict[str, str]:
        """Variables for the command. `MARK` also identifies its descendants."""
        return {
            MARK: self._request.container,
            "EXECUTION_ENV_CONTAINER_ID": self._request.container,
            messages.SOCKET: socket_of(self._request),
            "SLUICE_COORDINATOR_URL": self._url,
            "SLUICE_JOB": self._request.job,
            "SLUICE_RUN_ID": claim.run,
            "SLUICE_EPOCH": str(claim.epoch),
            "SLUICE_GENERATION": str(claim.generation),
        }

    async def _end_leftovers(self, claim: Claim) -> bool:
        """Wait until the descendants have ended, and kill those that have not within LEFTOVERS; whether all have ended. The lease is kept
        meanwhile. If it is lost, they are killed immediately; after a drain it is not needed any more."""
        until = self._clock.elapsed() + LEFTOVERS.total_seconds()
        while self._alive():
            if is_lost(claim) or self._clock.elapsed() >= until:
                break
            await asyncio.sleep(0.1)
        killed, all_ended = await asyncio.to_thread(processes.end_all, self._descendants)
        if killed:
            log.warning("the command has ended, and %d processes that it left behind were killed: run the driver in the foreground", killed)
        return all_ended

    async def _finish_backups(self, claim: Claim) -> None:
        """Make the last snapshots, as long as the lease lasts."""
        assert self._link is not None
        finishing = asyncio.create_task(self._link.finish_backups())
        await asyncio.wait([finishing, claim.ends], return_when=asyncio.FIRST_COMPLETED)
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)

    def _alive(self) -> bool:
        return any(not each.ended for each in self._descendants())

    def _descendants(self) -> Iterable[Process]:
        """All descendants of this process except the guardian. Those that have ended are reaped."""
        table, own = processes.processes(), os.getpid()
        guardian, command = self._guardian.pid, self._process.pid if self._process is not None else None
        processes.reap(table.values(), own, {pid for pid in (guardian, command) if pid is not None})
        return [each for each in processes.descendants(table, [own]) if each.id.pid != guardian]

    def _driver_stopped(self) -> str | None:
        if self._process is None or self._process.returncode is not None:
            return None
        found = processes.stopped_driver(processes.processes(), self._process.pid, processes.arguments)
        return None if found is None else f"process {found.id.pid} ({found.name}) of the command is stopped"

    def _reason(self, code: int) -> str:
        if code == 0:
            return "the command ended"
        lines = [line for line in self._last_lines if line.strip()]
        last = next((line for line in reversed(lines) if _ERROR_LINE.match(line)), lines[-1] if lines else "")
        return f"the command exited with code {code}{f': {last.strip()[:2000]}' if last else ''}"

    def _copy_errors(self, source: int | None) -> None:
        """Copy standard error unchanged, and keep the last lines. `source`: None if standard error is a terminal. The command then writes
        to it directly, because many programs write differently to a terminal."""
        unfinished = b""
        while source is not None and (read := os.read(source, 65536)):
            _write_all(2, read)
            *lines, unfinished = (unfinished[-10_000:] + read).split(b"\n")
            self._last_lines.extend(line.decode(errors="replace") for line in lines[-50:])

    # --- signals, notices ------------------------------------------------------------------------------------------

    def _wait_for_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            found = signal.sigwaitinfo(PASSED_ON)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_signal, signal.Signals(found.si_signo), found.si_code > 0)

    def _on_signal(self, number: signal.Signals, from_kernel: bool) -> None:
        """`from_kernel`: the terminal has sent the signal, and the command has received it, too."""
        self._signal = number
        self._signalled.set()
        if from_kernel:
            return
        if number is signal.SIGTERM and not self._terminated and self._link is not None and self._link.connected:
            self._terminated = True
            self._in_background(self._stop_queries(self._link, AFTER_QUERIES, sigterm=True))
        else:
            self._send(number)

    def _send(self, number: signal.Signals) -> None:
        """Send the signal to the command. If it is being started, it gets the signal as soon as its process is known."""
        if self._process is None:
            self._early_signals.append(number)
        elif self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    # --- stopping --------------------------------------------------------------------------------------------------

    async def _follow_notices(self, coordinator: AgentClient, run: RunId) -> None:
        link = self._link
        assert link is not None
        await stop_requested(coordinator, run, link.drain, link.adopt_stores, link.repair)
        if self._link is not None and self._link.connected:
            log.info("the job is being stopped: the queries end between two batches")
            await self._stop_queries(self._link, self._stop_timeout)
        else:
            log.info("the job is being stopped: sending SIGTERM to the command")
            self._send(signal.SIGTERM)
        await asyncio.sleep(self._stop_timeout.total_seconds())
        log.warning("the command did not stop within %g s and is killed", self._stop_timeout.total_seconds())
        await asyncio.to_thread(processes.end_all, self._descendants)

    async def _stop_queries(self, link: DriverLink, script: timedelta, *, sigterm: bool = False) -> None:
        """Let the driver stop its queries between batches. The script then ends as it does when its queries are stopped. If it does not
        within the time `script`, it gets SIGTERM. `sigterm`: a SIGTERM is the reason, so that the next one ends the script immediately."""
        await link.stop(self._stop_timeout, sigterm=sigterm)
        await asyncio.sleep(script.total_seconds())
        log.warning("the queries have ended, and the command has not: sending SIGTERM to it")
        self._send(signal.SIGTERM)

    def _on_renewed(self, ends_at: Instant) -> None:
        self._guardian.renewed(ends_at)
        if self._link is not None:
            self._link.renewed(ends_at)

    def _on_token(self, token: str) -> None:
        self._token = token
        self._guardian.has_token(token)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _write_all(fd: int, data: bytes) -> None:
    with suppress(OSError):  # the reader has closed it
        while data:
            data = data[os.write(fd, data) :]
