"""The agent of a script: it gets and keeps the lease, follows the notices of the run, and ends the driver when the lease is lost.

Its driver is a command that it starts (`sluice exec`), or a script that has started this process (`sluice.attach`). When the lease of a
driver that is only observed is lost, the driver is told so, and not ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import timedelta

from containers.attached.claim import Claim, Claims, Request, describe_end, has_drained, is_lost
from containers.attached.driver_link import DriverLink, refuse
from containers.attached.drivers import AttachedScript, Command, NotStarted, Outcome
from containers.supervision.driver_processes import DriverProcesses
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK, report
from containers.supervision.processes import ProcessId
from sluice import logconfig
from sluice.blobs.port import BlobStore
from sluice.client.agents import AgentClient
from sluice.clock import Clock, SystemClock
from sluice.core.errors import LeaseLost, SluiceError
from sluice.core.ids import ExecutionContainerId, Instant, JobName

log = logging.getLogger("sluice")

AFTER_QUERIES = timedelta(seconds=10)
"""How long after a SIGTERM the script may continue when its queries have ended. Then the SIGTERM is sent to the command."""


class ScriptAgent:
    """One driver. `stop_timeout`: how long its queries may take to stop, and then the script to end."""

    def __init__(
        self,
        request: Request,
        driver: Command | AttachedScript,
        coordinator: AgentClient,
        found: DriverProcesses,
        clock: Clock,
        stop_timeout: timedelta,
        open_blobs: Callable[[str], BlobStore] | None = None,
    ) -> None:
        self._request = request
        self._driver = driver
        self._coordinator = coordinator
        self._processes = found
        self._clock = clock
        self._stop_timeout = stop_timeout
        self._link = DriverLink(request.job, coordinator, clock, open_blobs)
        self._terminated = False
        """Whether a SIGTERM has made the driver stop its queries."""
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """The exit code, which is also reported: that of the driver, and EXIT_LEASE_LOST if the lease was lost. Raises what `Claims.claim`
        raises."""
        self._driver.open(self._link, self._processes, self._on_sigterm)
        claims = Claims(self._coordinator, self._clock, self._on_renewed, self._processes.guardian.has_token, self._processes.stopped)
        outcome = Outcome(EXIT_FAILED, "the agent failed")
        all_ended = True
        try:
            claim = await self._claimed(claims)
            outcome, all_ended = (self._driver.not_granted(), True) if claim is None else await self._run_driver(claim)
        except SluiceError as error:
            self._link.refuse(str(error))
            outcome = Outcome(EXIT_LEASE_LOST if isinstance(error, LeaseLost) else EXIT_FAILED, str(error))
            if not isinstance(error, LeaseLost):
                raise
        except BaseException:  # cancelled, or a fault: the lease is not kept any more, so the driver must end
            all_ended = False
            all_ended = await self._end_driver()
            raise
        finally:
            for each in self._background:
                each.cancel()
            await self._processes.close()  # the lease may end while the exit is reported
            await self._link.close()
            if claims.registered and all_ended:
                await report(self._coordinator, self._request.container, min(outcome.exit_code, 255), outcome.reason)
            await self._coordinator.close()
        return outcome.exit_code

    async def _claimed(self, claims: Claims) -> Claim | None:
        """None if the driver ends, or is to end, before it may run."""
        claiming = asyncio.create_task(claims.claim(self._request))
        given_up = asyncio.create_task(self._driver.given_up())
        await asyncio.wait([claiming, given_up], return_when=asyncio.FIRST_COMPLETED)
        given_up.cancel()
        if claiming.done():
            return claiming.result()
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        return None

    # --- the driver ------------------------------------------------------------------------------------------------

    async def _run_driver(self, claim: Claim) -> tuple[Outcome, bool]:
        """Let the driver run until it ends, or the lease is lost. Returns its outcome, and whether all processes have ended."""
        if not self._driver.observed:
            await self._processes.watch()
        self._in_background(self._link.report())
        self._link.granted(claim)
        self._in_background(self._link.take_part_in_drains())
        try:
            await self._driver.start(self._environment(claim))
        except NotStarted as error:
            claim.ends.cancel()
            log.error("%s", error)
            return error.outcome, True
        self._in_background(self._stop_when_requested())
        ended = asyncio.create_task(self._driver.ended())
        try:
            await asyncio.wait([ended, claim.ends], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and has_drained(claim):
                await self._await_script(ended)
            if not ended.done():
                return await self._on_lease_end(claim)
            all_ended = await self._end_leftovers(claim)
            await self._link.hang_up()
            if not self._driver.observed or not self._driver.runs:
                await self._finish_backups(claim)
            claim.ends.cancel()
            return await self._driver.outcome(self._link.error), all_ended
        finally:
            ended.cancel()

    def _environment(self, claim: Claim) -> dict[str, str]:
        return {
            "EXECUTION_ENV_CONTAINER_ID": self._request.container,
            "SLUICE_JOB": self._request.job,
            "SLUICE_RUN_ID": claim.run,
            "SLUICE_EPOCH": str(claim.epoch),
            "SLUICE_GENERATION": str(claim.generation),
        }

    async def _await_script(self, ended: asyncio.Task[None]) -> None:
        """The drain has ended the run, and with it the lease. The queries have ended before: the script may end by itself."""
        within = self._stop_timeout + self._driver.leftovers
        self._on_renewed(Instant(self._clock.elapsed() + (within + self._driver.leftovers).total_seconds()))  # see `_end_leftovers`
        await asyncio.wait([ended], timeout=within.total_seconds())

    async def _on_lease_end(self, claim: Claim) -> tuple[Outcome, bool]:
        reason = describe_end(claim.ends.result())
        if self._driver.observed and has_drained(claim):
            return Outcome(EXIT_OK, reason), True
        if self._driver.observed:
            log.error("%s: the driver is only observed, and is not ended", reason)
            self._link.lost(reason)
            return Outcome(EXIT_LEASE_LOST, reason), True
        killed, all_ended = await asyncio.to_thread(self._processes.end_all)
        log.error("%s: the %s was killed (%d processes)", reason, self._driver.what, killed)
        return Outcome(EXIT_LEASE_LOST, reason), all_ended

    async def _end_driver(self) -> bool:
        return self._driver.observed or (await asyncio.to_thread(self._processes.end_all))[1]

    async def _end_leftovers(self, claim: Claim) -> bool:
        """Wait until all processes of the driver have ended, and kill those that have not soon; whether all have ended. The lease is kept
        meanwhile. If it is lost, they are killed immediately; after a drain it is not needed any more."""
        if self._driver.observed:
            return True
        until = self._clock.elapsed() + self._driver.leftovers.total_seconds()
        while any(not each.ended for each in self._processes.find()):
            if is_lost(claim) or self._clock.elapsed() >= until:
                break
            await asyncio.sleep(0.1)
        killed, all_ended = await asyncio.to_thread(self._processes.end_all)
        if killed:
            log.warning(
                "the %s has ended, and %d processes that it left behind were killed: run the driver in the foreground",
                self._driver.what,
                killed,
            )
        return all_ended

    async def _finish_backups(self, claim: Claim) -> None:
        """Make the last snapshots, as long as the lease lasts."""
        finishing = asyncio.create_task(self._link.finish_backups())
        await asyncio.wait([finishing, claim.ends], return_when=asyncio.FIRST_COMPLETED)
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)

    # --- stopping --------------------------------------------------------------------------------------------------

    async def _stop_when_requested(self) -> None:
        await self._link.follow_events()
        if self._link.connected:
            log.info("the job is being stopped: the queries end between two batches")
            await self._stop_queries(self._stop_timeout)
        elif not self._link.has_drained:
            if self._link.error is not None:  # a script has ended, and perhaps the command does
                await asyncio.sleep(AFTER_QUERIES.total_seconds())
            log.info("the job is being stopped: sending SIGTERM to the %s", self._driver.what)
            self._driver.send(signal.SIGTERM)
        if self._driver.observed:
            return
        await asyncio.sleep(self._stop_timeout.total_seconds())
        log.warning("the %s did not stop within %g s and is killed", self._driver.what, self._stop_timeout.total_seconds())
        await asyncio.to_thread(self._processes.end_all)

    async def _stop_queries(self, script: timedelta, *, sigterm: bool = False) -> None:
        """Let the driver stop its queries between batches. The script then ends as it does when its queries are stopped. If it does not
        within the time `script`, it gets SIGTERM. `sigterm`: a SIGTERM is the reason, so that the next one ends the script immediately."""
        await self._link.stop(self._stop_timeout, sigterm=sigterm)
        if self._driver.observed:
            return
        await asyncio.sleep(script.total_seconds())
        log.warning("the queries have ended, and the %s has not: sending SIGTERM to it", self._driver.what)
        self._driver.send(signal.SIGTERM)

    def _on_sigterm(self) -> bool:
        """A SIGTERM for the command has arrived: whether its queries are stopped first."""
        if self._terminated or not self._link.connected:
            return False
        self._terminated = True
        self._in_background(self._stop_queries(AFTER_QUERIES, sigterm=True))
        return True

    def _on_renewed(self, ends_at: Instant) -> None:
        self._processes.guardian.renewed(ends_at)
        self._link.renewed(ends_at)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def run(request: Request, driver: Command | AttachedScript, url: str, stop_timeout: timedelta) -> int:
    """Run the driver as the only one of its job. Returns its exit code. Raises what `Claims.claim` raises, and for a command ClientError on
    a system without /proc."""
    found = DriverProcesses(request.container, url)
    return await ScriptAgent(request, driver, AgentClient(url), found, SystemClock(), stop_timeout).run()


async def run_command(request: Request, arguments: Sequence[str], url: str, stop_timeout: timedelta) -> int:
    """See `run`."""
    return await run(request, Command(arguments, request.container, url), url, stop_timeout)


def command(request: Request, driver: Collection[ProcessId], url: str, stop_timeout: timedelta, *, observed: bool) -> list[str]:
    """The command line of the agent of a script. Its standard input must be the socket. `driver`: the script's Python and its JVM."""
    settings = {
        "job": request.job,
        "container": request.container,
        "host": request.host,
        "replace": request.replace,
        "wait": request.wait,
        "processes": list(map(str, driver)),
        "observed": observed,
        "url": url,
        "stop_timeout": stop_timeout.total_seconds(),
    }
    return [sys.executable, "-P", "-m", "containers.attached.agent_process", json.dumps(settings)]


def main() -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    connected, found = socket.socket(fileno=os.dup(0)), json.loads(sys.argv[1])
    request = Request(
        JobName(found["job"]), ExecutionContainerId(found["container"]), found["host"], replace=found["replace"], wait=found["wait"]
    )

    async def run_script() -> int:
        script = AttachedScript(list(map(ProcessId.parse, found["processes"])), connected, observed=found["observed"])
        return await run(request, script, found["url"], timedelta(seconds=found["stop_timeout"]))

    try:
        logconfig.configure(logconfig.read_log_settings()).fields["job"] = request.job
    except SluiceError as error:
        refuse(connected, str(error))
        raise SystemExit(EXIT_FAILED) from None
    try:
        code = asyncio.run(run_script())
    except SluiceError:  # the driver has the reason
        code = EXIT_FAILED
    raise SystemExit(code)


if __name__ == "__main__":
    main()
