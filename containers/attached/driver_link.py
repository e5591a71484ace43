"""The agent's end of the connection to a driver that has called `sluice.attach`."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent import futures
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from containers.agent.lifecycle import ContainerLifecycle
from containers.agent.notices import BlobsLost, Event, NewBlobStores, StopRequested, events
from containers.attached.claim import Claim
from containers.attached.port import Beginning, Grant, Made, NotGranted, Wanted, agent_methods, driver_methods
from containers.attached.script_drains import ScriptDrains, last_drain_of
from containers.retries import until_available
from containers.rpc.connection import Connection, Link
from containers.rpc.socket_link import SocketLink
from sluice.blobs.port import BlobStore
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.clock import Clock, SystemClock
from sluice.core.errors import ClientError, LeaseLost, Unavailable
from sluice.core.ids import Instant, JobName, StageName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.wire import agents as wire_agents
from sluice.wire import drains as wire_drains

if TYPE_CHECKING:
    from containers.attached.checkpoints.backups import ScriptBackups
    from sluice.core.snapshots.snapshot import CommitId

log = logging.getLogger("sluice")

RETRY = timedelta(seconds=2)

LAST_BACKUP = timedelta(seconds=60)
"""How long the last backup of a script that has ended may take. A platform that ends this process first loses nothing but the batches since
the last snapshot."""

GRACE = timedelta(seconds=5)
"""How much longer than its own deadline a driver may take to report that its queries have ended."""


def refuse(connected: socket.socket, why: str) -> None:
    """Refuse the driver at the other end, and end the connection."""
    connection = Connection(SocketLink(connected), driver_methods(), {}, {})
    connection.start()
    connection.tell("refused", why)
    connection.close()


class DriverLink:
    """The connection to one driver at a time. Created and used on the agent's loop."""

    def __init__(
        self,
        job: JobName,
        coordinator: AgentClient,
        clock: Clock | None = None,
        open_blobs: Callable[[str], BlobStore] | None = None,
    ) -> None:
        """`open_blobs`: for tests."""
        self._job = job
        self._open_blobs = open_blobs
        self._coordinator = coordinator
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._backups: ScriptBackups | None = None
        self._claimed: asyncio.Future[Claim] = self._loop.create_future()
        self._lifecycle = ContainerLifecycle(self._clock, RETRY, lambda reason: None)  # the agent ends when the claim does
        self._drains: ScriptDrains | None = None
        self._lease_ends: Instant | None = None
        self._driver: Connection | None = None
        self._listening: asyncio.Task[None] | None = None
        self._serving: set[futures.Future[Any]] = set()
        self._ended = asyncio.Event()
        self._stopped = asyncio.Event()
        self._reports: wire_agents.QueriesRequest | None = None
        self._new_report = asyncio.Event()
        self.error: str | None = None
        """How the script has ended: "" without an error, otherwise its exception. None until the script reports its end."""

    @property
    def connected(self) -> bool:
        return self._driver is not None

    async def driver_ended(self) -> None:
        """Wait until the driver has ended, and all that it has sent is taken."""
        await self._ended.wait()

    def granted(self, claim: Claim) -> None:
        """Record that the command may run, and let the driver run. In a drain it pauses its queries from their start."""
        self._drains = ScriptDrains(self._coordinator, claim.run, claim.generation, self._lifecycle, self._backed_up)
        self._drains.begin(claim.drain)
        self._claimed.set_result(claim)

    def refuse(self, why: str) -> None:
        """Inform the driver that the script may not start now."""
        self._tell("refused", why)

    def renewed(self, ends_at: Instant) -> None:
        """Record the new end of the lease, and inform the driver."""
        self._lease_ends = ends_at
        self._tell("renewed", ends_at)

    def lost(self, why: str) -> None:
        """Inform the driver, which is not ended, that the lease is lost."""
        self._tell("lost", why)

    def _tell(self, method: str, *values: object) -> None:
        if self._driver is not None:
            self._driver.tell(method, *values)

    # --- the connection --------------------------------------------------------------------------------------------

    def listen(self, name: str, is_ours: Callable[[int], bool]) -> None:
        """Accept drivers at this name in the abstract namespace of sockets, one at a time. `is_ours`: whether the process with this pid may
        be one. Its user may be another one: a command may use sudo."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(f"\0{name}")
        listening.listen()
        listening.setblocking(False)
        self._listening = self._loop.create_task(self._accept(listening, is_ours))

    async def _accept(self, listening: socket.socket, is_ours: Callable[[int], bool]) -> None:
        with listening:
            while True:
                try:
                    connected, _ = await self._loop.sock_accept(listening)
                except OSError as error:  # there are no file descriptors now
                    log.warning("a driver that attaches is not accepted yet: %s", error)
                    await asyncio.sleep(RETRY.total_seconds())
                    continue
                connected.setblocking(True)
                pid, ours = _peer(connected), False
                with suppress(OSError):  # the table of processes cannot be read now
                    ours = is_ours(pid)
                if self.connected or not ours:
                    why = "another driver of this command is attached" if self.connected else "it is not a process of this command"
                    log.warning("process %d is not attached: %s", pid, why)
                    await asyncio.to_thread(refuse, connected, why)
                else:
                    self.connect(SocketLink(connected))

    def connect(self, link: Link) -> None:
        """Serve this driver until it ends."""
        self._ended.clear()
        self._stopped.clear()
        self.error = None
        methods = {
            "attach": self._served(self._attach),
            "beginning": self._served(self._beginning),
            "prepare": self._served(self._prepare),
            "keep_plan": self._served(self._keep_plan),
            "confirm": self._served(self._confirm),
            "queries": self._told(self._take_queries),
            "stopped": self._told(self._take_stopped),
            "ending": self._told(self._take_ending),
        }
        made = self._driver = Connection(link, driver_methods(), agent_methods(), methods, self._told(lambda: self._on_lost(made)))
        made.start()
        if self._lease_ends is not None:
            self._tell("renewed", self._lease_ends)

    def _told(self, method: Callable[..., None]) -> Callable[..., None]:
        def tell(*values: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(method, *values)

        return tell

    def _served(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def run(*values: object) -> Any:
            return await method(*values)

        def call(*values: object) -> Any:
            answer = asyncio.run_coroutine_threadsafe(run(*values), self._loop)
            self._serving.add(answer)
            try:
                return answer.result()
            finally:
                self._serving.discard(answer)

        return call

    def _on_lost(self, driver: Connection) -> None:
        if self._driver is driver:
            self._driver = None
            self._ended.set()
            if self._drains is not None:
                self._drains.driver_ended()

    async def hang_up(self) -> None:
        """The driver's process has ended: take what it has sent, and end the connection, also if a process that it has forked keeps the
        other end open."""
        driver = self._driver
        if driver is not None:
            await asyncio.to_thread(driver.close)
            await self._ended.wait()

    async def close(self) -> None:
        """End the connection and the backups."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self.hang_up()
        for each in list(self._serving):
            each.cancel()
        await self._lifecycle.cancel_background()
        if self._backups is not None:
            await self._backups.close()

    # --- what the driver tells -------------------------------------------------------------------------------------

    def _take_queries(self, queries: object) -> None:
        try:
            generation = self._claimed.result().generation
            self._reports = wire_agents.QueriesRequest.model_validate({"generation": generation, "queries": queries})
        except ValidationError as error:
            log.warning("a report of the script's queries is wrong: %s", error)
        else:
            self._new_report.set()

    def _take_stopped(self, interrupted: object) -> None:
        if isinstance(interrupted, tuple) and interrupted:
            log.warning("batches of %s had to be interrupted; Spark runs them again at the next start", ", ".join(interrupted))
        self._stopped.set()

    def _take_ending(self, error: str) -> None:
        self.error = error

    # --- what the driver asks --------------------------------------------------------------------------------------

    async def _attach(self, job: JobName) -> Grant:
        claim = await asyncio.shield(self._claimed)
        if job != self._job:
            raise NotGranted(f"`sluice exec` runs this command as job {self._job}, and the script is attached as {job}")
        if self.has_drained:  # its command has started it again: another container may run the job as soon as it is started
            raise NotGranted(f"a drain has ended run {claim.run} of job {job}: `sluice start {job}` starts it")
        if self._drains is not None and self._driver is not None:
            self._drains.attached(self._driver)  # before the answer, so that no query starts in between
        return Grant(claim.run, claim.generation)

    async def _beginning(self, stage: StageName) -> Beginning:
        run = self._claimed.result().run
        return await until_available(lambda: last_drain_of(self._coordinator, self._job, run, stage))

    async def _prepare(self, wanted: Wanted) -> Made:
        found: Any = import_module("containers.attached.checkpoints.backups")  # other commands need no clients of blob stores
        if self._backups is None:
            self._backups = found.ScriptBackups(self._job, self._claimed.result(), self._coordinator, self._clock, self._open_blobs)
        made: Made = await self._backups.prepare(wanted)
        return made

    async def _keep_plan(self, stage: StageName, batch: int) -> str:
        return "" if self._backups is None else await self._backups.keep_plan(stage, batch)

    async def _confirm(self) -> None:
        """Asks until the coordinator answers. Raises LeaseLost."""
        claim = self._claimed.result()
        try:
            await until_available(lambda: self._coordinator.confirm_owner(claim.run, ATTACHED_TASK, claim.generation))
        except (ClientError, Refused) as refused:
            raise LeaseLost(str(refused) or type(refused).__name__) from refused

    # --- backups ---------------------------------------------------------------------------------------------------

    async def _backed_up(self, stage: StageName) -> CommitId | None:
        return None if self._backups is None else await self._backups.durable(stage)

    async def finish_backups(self) -> None:
        """The driver has ended: make the last snapshots of its checkpoints, while the lease is kept."""
        if self._backups is not None:
            await self._backups.finish(LAST_BACKUP)

    # --- stops, drains, reports ------------------------------------------------------------------------------------

    async def follow_events(self) -> None:
        """Follow the run's events until it is to stop, or has ended."""
        run = self._claimed.result().run
        await follow(events(self._coordinator, run, self._clock), lambda: self._drains, lambda: self._backups)

    async def stop(self, within: timedelta, *, sigterm: bool = False) -> bool:
        """Let the driver stop all its queries between batches. Returns True when they have ended, or the driver has; False if no driver is
        attached, or the queries have not ended in time. `sigterm`: this is in place of a SIGTERM to the driver."""
        if not self.connected:
            return False
        self._tell("stop", within, sigterm)
        waits = [asyncio.create_task(each.wait()) for each in (self._stopped, self._ended)]
        done, pending = await asyncio.wait(
            waits, timeout=within.total_seconds() + GRACE.total_seconds(), return_when=asyncio.FIRST_COMPLETED
        )
        for each in pending:
            each.cancel()
        return bool(done)

    @property
    def has_drained(self) -> bool:
        """See `ScriptDrains.has_drained`."""
        return self._drains is not None and self._drains.has_drained

    async def take_part_in_drains(self) -> None:
        """Take part in the drains of the run until cancelled."""
        if self._drains is not None:
            await self._drains.run()

    async def report(self) -> None:
        """Send the driver's reports to the coordinator until cancelled. A newer one replaces an older one that was not sent yet."""
        while True:
            await self._new_report.wait()
            self._new_report.clear()
            request = self._reports
            if request is None:
                continue
            if self._backups is not None:
                request = request.model_copy(update={"queries": self._backups.shown(request.queries)})
            try:
                reply = await self._coordinator.report_queries(self._claimed.result().run, ATTACHED_TASK, request)
            except Unavailable as error:
                log.warning("the queries are not reported yet: %s", error)
                self._new_report.set()
                await asyncio.sleep(RETRY.total_seconds())
            except (LeaseLost, ClientError, Refused) as refused:
                log.warning("the coordinator refuses the report of the script's queries: %s", refused)
            else:
                for each in reply.refused:
                    self._tell("refuse", StageName(each.stage), each.why)


async def follow(
    found: AsyncIterator[Event], drains: Callable[[], ScriptDrains | None], backups: Callable[[], ScriptBackups | None]
) -> None:
    """Pass the events on until one is a stop. There may be no drains and no backups yet."""
    async for event in found:
        match event:
            case StopRequested():
                return
            case wire_drains.DrainNotice() if (taking_part := drains()) is not None:
                taking_part.advance(event)
            case NewBlobStores() if (backed_up := backups()) is not None:
                backed_up.adopt_stores()
            case BlobsLost(_, stage, blob_store) if (backed_up := backups()) is not None:
                backed_up.repair(stage, blob_store)


def _peer(connected: socket.socket) -> int:
    """The pid of the process at the other end (unix(7), SO_PEERCRED)."""
    pid, _, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)
