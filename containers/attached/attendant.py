"""The supervisor of a driver that was not started by `sluice exec`: `sluice.attach` starts it.

Standard input is a socket to the driver. The supervisor gets and keeps the lease, as `containers.attached.supervisor` does for a command.
When the lease is lost, it ends the driver's Python, its JVM and their descendants, and nothing else, such as the shell that started them. A
driver that is only observed is not ended; it gets a message that the lease is lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from containers.attached import messages
from containers.attached.claim import Claim, Claims, Request, describe_end, has_drained, is_lost, stop_requested
from containers.attached.driver_link import DriverLink
from containers.supervision import processes
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK, report_exit
from containers.supervision.guardian import SCAN_SECONDS, Descendants
from containers.supervision.guardian_process import GuardianProcess
from containers.supervision.processes import Process, ProcessId
from sluice import logconfig
from sluice.client.agents import AgentClient
from sluice.clock import Clock, SystemClock
from sluice.core.errors import LeaseLost, SluiceError
from sluice.core.ids import ExecutionContainerId, Instant, JobName

log = logging.getLogger("sluice")

LEFTOVERS = timedelta(seconds=30)
"""How long processes of the driver may outlive its connection: Python waits for threads, and stops Spark."""

TICK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Driver:
    """`processes`: the driver's Python and its JVM. `observed`: it is never ended."""

    processes: tuple[ProcessId, ...]
    observed: bool = False


class Attendant:
    """`stop_timeout`: how long the queries may take to stop, and then the script to end, before it is ended."""

    def __init__(self, request: Request, driver: Driver, url: str, clock: Clock, stop_timeout: timedelta) -> None:
        self._request = request
        self._driver = driver
        self._url = url
        self._clock = clock
        self._stop_timeout = stop_timeout
        self._coordinator = AgentClient(url)
        self._link = DriverLink(request.job, self._coordinator, lambda pid: True, clock)
        self._guardian = GuardianProcess(request.container, url)
        self._descendants = Descendants(os.getpid(), request.container, set(driver.processes))
        self._token = ""
        self._background: set[asyncio.Task[None]] = set()

    async def run(self, connection: socket.socket) -> int:
        """The exit code that is reported for the driver: 0 if the script ended without an exception. The driver is not a child of this
        process, so its own exit code is not known."""
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=messages.LONGEST)
        serving = asyncio.create_task(self._link.serve(reader, writer))
        claims = Claims(self._coordinator, self._clock, self._on_renewed, self._on_token, self._stopped)
        claiming = asyncio.create_task(claims.claim(self._request))
        code, reason, all_ended = EXIT_OK, "the script ended before it had the lease", True
        try:
            await asyncio.wait([serving, claiming], return_when=asyncio.FIRST_COMPLETED)
            if claiming.done():
                code, reason, all_ended = await self._attend(claiming.result(), serving, connection)
        except (LeaseLost, SluiceError) as error:
            self._link.refuse(str(error))
            code, reason = EXIT_LEASE_LOST if isinstance(error, LeaseLost) else EXIT_FAILED, str(error)
        finally:
            for each in (claiming, serving, *self._background):
                each.cancel()
            await asyncio.gather(claiming, serving, return_exceptions=True)
            await self._guardian.end()  # the lease may end while the exit is reported
            if claims.registered and all_ended:
                await report_exit(self._url, self._request.container, code, reason, self._token)
            await self._link.close()
            await self._coordinator.close()
        return code

    async def _attend(self, claim: Claim, serving: asyncio.Task[None], connection: socket.socket) -> tuple[int, str, bool]:
        """Wait until the driver ends, or the lease is lost. Returns the exit code, the reason, and whether all processes have ended."""
        if not self._driver.observed:
            await self._guardian.start(self._driver.processes)
            self._in_background(self._guardian.keep())
            self._in_background(self._remember_processes())
        self._in_background(self._link.report())
        self._in_background(self._follow_notices(claim))
        await self._link.granted(claim)
        self._in_background(self._link.report_drains())
        while not serving.done() and not claim.ends.done() and self._runs():
            await asyncio.wait([serving, claim.ends], timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if claim.ends.done() and has_drained(claim):
            await self._await_script(serving)
        elif claim.ends.done():
            reason = describe_end(claim.ends.result())
            if self._driver.observed:
                log.error("%s: the driver is only observed, and is not ended", reason)
                self._link.lost(reason)
                return EXIT_LEASE_LOST, reason, True
            killed, all_ended = await asyncio.to_thread(processes.end_all, self._processes)
            log.error("%s: the driver was killed (%d processes)", reason, killed)
            return EXIT_LEASE_LOST, reason, all_ended
        # How the script has ended may lie in the socket, unread. A shutdown makes the connection end after what it holds, also if a forked
        # process keeps the other end open.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RD)
        all_ended = await self._await_end(claim)
        await asyncio.wait([serving], timeout=LEFTOVERS.total_seconds())
        if not self._driver.observed or not self._runs():
            await self._finish_backups(claim)
        claim.ends.cancel()
        if self._link.error is None:
            return EXIT_FAILED, "the driver was killed, or ended by os._exit", all_ended
        return (EXIT_FAILED, self._link.error, all_ended) if self._link.error else (EXIT_OK, "the script ended", all_ended)

    async def _finish_backups(self, claim: Claim) -> None:
        """Make the last snapshots, as long as the lease lasts."""
        finishing = asyncio.create_task(self._link.finish_backups())
        await asyncio.wait([finishing, claim.ends], return_when=asyncio.FIRST_COMPLETED)
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)

    async def _await_script(self, serving: asyncio.Task[None]) -> None:
        """The drain has ended the run, and with it the lease. The queries have ended before: the script may end by itself."""
        within = self._stop_timeout + LEFTOVERS
        self._on_renewed(Instant(self._clock.elapsed() + (within + LEFTOVERS).total_seconds()))  # see `_await_end`
        until = self._clock.elapsed() + within.total_seconds()
        while not serving.done() and self._runs() and self._clock.elapsed() < until:
            await asyncio.wait([serving], timeout=TICK_SECONDS)

    async def _await_end(self, claim: Claim) -> bool:
        """Wait until the driver's processes have ended, and kill those that have not within LEFTOVERS; whether all have ended."""
        until = self._clock.elapsed() + LEFTOVERS.total_seconds()
        if self._driver.observed:
            return True
        while any(not each.ended for each in self._processes()):
            if is_lost(claim) or self._clock.elapsed() >= until:
                break
            await asyncio.sleep(TICK_SECONDS / 5)
        else:
            return True
        killed, all_ended = await asyncio.to_thread(processes.end_all, self._processes)
        log.warning("the script has ended, and %d processes that it left behind were killed", killed)
        return all_ended

    async def _follow_notices(self, claim: Claim) -> None:
        await stop_requested(self._coordinator, claim.run, self._link.drain, self._link.adopt_stores, self._link.repair)
        log.info("the job is being stopped: the queries end between two batches")
        await self._link.stop(self._stop_timeout)
        if self._driver.observed:
            return
        await asyncio.sleep(self._stop_timeout.total_seconds())
        log.warning("the queries have ended, and the script has not within %g s: sending SIGTERM", self._stop_timeout.total_seconds())
        python = self._driver.processes[0]
        if (now := processes.process(python.pid)) is not None and now.id == python:
            with suppress(ProcessLookupError):
                os.kill(python.pid, signal.SIGTERM)
        await asyncio.sleep(LEFTOVERS.total_seconds())
        await asyncio.to_thread(processes.end_all, self._processes)

    def _runs(self) -> bool:
        """Whether the driver's Python runs. An open connection does not prove it, because a process that it has forked may hold its end."""
        python = self._driver.processes[0]
        found = processes.process(python.pid)
        return found is not None and found.id == python and not found.ended

    async def _remember_processes(self) -> None:
        """List the driver's processes until cancelled. Those whose parent ends later have left its tree when they must be ended."""
        while True:
            self._descendants.scan()
            await asyncio.sleep(SCAN_SECONDS)

    def _processes(self) -> Iterable[Process]:
        """The driver's processes and their descendants seen so far, without this one and those that it has started."""
        found = self._descendants.find()
        own = {each.id.pid for each in processes.descendants(processes.processes(), [os.getpid()])}
        return [each for each in found if each.id.pid not in own]

    def _stopped(self) -> str | None:
        """Why no heartbeat may be sent, if the driver is stopped; otherwise None."""
        table = processes.processes()
        for each in self._driver.processes:
            found = processes.stopped_driver(table, each.pid, processes.arguments)
            if found is not None and found.id.pid != os.getpid():
                return f"process {found.id.pid} ({found.name}) of the driver is stopped"
        return None

    def _on_renewed(self, ends_at: Instant) -> None:
        self._guardian.renewed(ends_at)
        self._link.renewed(ends_at)

    def _on_token(self, token: str) -> None:
        self._token = token
        self._guardian.has_token(token)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def command(request: Request, driver: Driver, url: str, stop_timeout: timedelta) -> list[str]:
    """The command line of an attendant. Its standard input must be a socket."""
    settings = {
        "job": request.job,
        "container": request.container,
        "host": request.host,
        "replace": request.replace,
        "wait": request.wait,
        "processes": list(map(str, driver.processes)),
        "observed": driver.observed,
        "url": url,
        "stop_timeout": stop_timeout.total_seconds(),
    }
    return [sys.executable, "-P", "-m", "containers.attached.attendant", json.dumps(settings)]


def main() -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    try:
        attendant = _configured(json.loads(sys.argv[1]))
    except SluiceError as error:
        connection.sendall(messages.encode("refused", why=str(error)))
        raise SystemExit(EXIT_FAILED) from None
    raise SystemExit(asyncio.run(attendant.run(connection)))


def _configured(arguments: Mapping[str, Any]) -> Attendant:
    """Raises BadSettings."""
    logconfig.configure(logconfig.read_log_settings()).fields["job"] = arguments["job"]
    request = Request(
        JobName(arguments["job"]), ExecutionContainerId(arguments["container"]), arguments["host"], arguments["replace"], arguments["wait"]
    )
    driver = Driver(tuple(map(ProcessId.parse, arguments["processes"])), arguments["observed"])
    return Attendant(request, driver, arguments["url"], SystemClock(), timedelta(seconds=arguments["stop_timeout"]))


if __name__ == "__main__":
    main()
