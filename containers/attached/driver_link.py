"""The supervisor's end of the connection to a driver that has called `sluice.attach`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from containers.attached import messages
from containers.attached.claim import Claim
from containers.attached.confirmation import refusal
from containers.attached.drain_link import DrainLink, last_drain_of
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.clock import Clock, SystemClock
from sluice.core.errors import ClientError, LeaseLost, SluiceError, Unavailable
from sluice.core.ids import Instant, JobName, StageName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.wire import agents as wire_agents

if TYPE_CHECKING:
    from containers.attached.checkpoints.backups import ScriptBackups
    from sluice.core.snapshots.snapshot import CommitId

log = logging.getLogger("sluice")

RETRY = timedelta(seconds=2)

LAST_BACKUP = timedelta(seconds=60)
"""How long the last backup of a script that has ended may take. A platform that ends this process first loses nothing but the batches since
the last snapshot."""


class DriverLink:
    """The connection to one driver at a time. `is_ours` returns whether a process may be that driver."""

    def __init__(self, job: JobName, coordinator: AgentClient, is_ours: Callable[[int], bool], clock: Clock | None = None) -> None:
        self._job = job
        self._coordinator = coordinator
        self._is_ours = is_ours
        self._clock = clock or SystemClock()
        self._backups: ScriptBackups | None = None
        self._claim: Claim | None = None
        self._drains: DrainLink | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self._lease_ends: Instant | None = None
        self._outgoing: _Outgoing | None = None
        self._ended = asyncio.Event()
        self._stopped = asyncio.Event()
        self._reports: wire_agents.QueriesRequest | None = None
        self._new_report = asyncio.Event()
        self._confirming: set[asyncio.Task[None]] = set()
        self.error: str | None = None
        """How the script has ended: "" without an error, otherwise its exception. None until the script reports its end."""

    @property
    def connected(self) -> bool:
        return self._outgoing is not None

    async def granted(self, claim: Claim) -> None:
        """Record that the command may run, and inform the driver. A drain in progress is read before, because the driver must pause its
        queries from their start."""
        drains = self._drains = DrainLink(self._coordinator, claim.run, claim.generation, self._send, self._backed_up)
        if claim.drain is not None:
            await drains.begin(claim.drain.uuid)
        self._claim = claim
        self._greet()

    def renewed(self, ends_at: Instant) -> None:
        """Record the new end of the lease, and inform the driver."""
        self._lease_ends = ends_at
        self._send("lease", ends=ends_at)

    async def listen(self, name: str) -> asyncio.Server:
        """Accept the driver at this name in the abstract namespace of sockets."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(f"\0{name}")
        return await asyncio.start_unix_server(self._accept, sock=listening, limit=messages.LONGEST)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid, uid = _peer(writer)
        if uid != os.getuid() or not self._is_ours(pid) or self.connected:
            why = "another driver of this command is attached" if self.connected else "it is not a process of this command"
            log.warning("process %d is not attached: %s", pid, why)
            writer.write(messages.encode("refused", why=why))
            writer.close()
            return
        await self.serve(reader, writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read messages until the driver ends."""
        outgoing = self._outgoing = _Outgoing(writer.get_extra_info("socket").dup())
        self._ended.clear()
        self._stopped.clear()
        if self._drains is not None:
            self._drains.driver_began()
        try:
            self._greet()
            while line := await reader.readline():
                self._read(messages.decode(line))
        except (OSError, ValueError) as error:
            log.warning("the connection to the driver is lost: %s", error)
        finally:
            self._outgoing = None
            for each in self._confirming:
                each.cancel()
            self._ended.set()
            if self._drains is not None:
                self._drains.driver_ended()
            outgoing.close()
            writer.close()

    def _greet(self) -> None:
        if self._claim is not None:
            drain = None if self._drains is None else self._drains.fields()
            self._send("granted", job=self._job, run=self._claim.run, generation=self._claim.generation, drain=drain)
        if self._lease_ends is not None:
            self.renewed(self._lease_ends)

    def _read(self, message: messages.Message) -> None:
        match message:
            case {"kind": "queries", "queries": list(queries)} if self._claim is not None:
                try:
                    self._reports = wire_agents.QueriesRequest.model_validate({"generation": self._claim.generation, "queries": queries})
                except ValidationError as error:
                    log.warning("a report of the script's queries is wrong: %s", error)
                else:
                    self._new_report.set()
            case {"kind": "stopped", "interrupted": list(interrupted)}:
                if interrupted:
                    log.warning("batches of %s had to be interrupted; Spark runs them again at the next start", ", ".join(interrupted))
                self._stopped.set()
            case {"kind": "step" | "drained"} if self._drains is not None:
                self._drains.take(message)
            case {"kind": "where" | "checkpoint" | "plan"}:
                self._read_of_checkpoint(message)
            case {"kind": "confirm", "number": int(number)} if self._claim is not None:
                confirming = asyncio.create_task(self._confirm(number, self._claim))
                self._confirming.add(confirming)
                confirming.add_done_callback(self._confirming.discard)
            case {"kind": "ending", "error": str(error)}:
                self.error = error

    def _read_of_checkpoint(self, message: messages.Message) -> None:
        match message:
            case {"kind": "where", "stage": str(stage)}:
                self._answer(self._answer_where(stage))
            case {"kind": "checkpoint", "stage": str(stage)} if self._claim is not None:
                self._answer(self._answer_checkpoint(stage, message, self._claim))
            case {"kind": "plan", "number": int(number), "stage": str(stage), "batch": int(batch)}:
                self._answer(self._answer_plan(number, stage, batch))

    def _answer(self, answer: Coroutine[None, None, None]) -> None:
        self._answers.add(task := asyncio.create_task(answer))
        task.add_done_callback(self._answers.discard)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    async def _answer_checkpoint(self, stage: str, message: messages.Message, claim: Claim) -> None:
        try:
            ready = await self._prepared(stage, message, claim)
        except (SluiceError, OSError) as error:
            self._send("ready", stage=stage, failed=str(error) or type(error).__name__)
        except Exception as error:
            log.exception("checkpoint %s", stage)
            self._send("ready", stage=stage, failed=f"{type(error).__name__}: {error}")
        else:
            self._send("ready", stage=stage, failed="", **ready)

    async def _prepared(self, stage: str, message: messages.Message, claim: Claim) -> dict[str, Any]:
        found: Any = import_module("containers.attached.checkpoints.backups")  # other commands need no clients of blob stores
        if self._backups is None:
            self._backups = found.ScriptBackups(self._job, claim, self._coordinator, self._clock)
        wanted = found.Wanted(
            StageName(stage),
            Path(str(message["state"])),
            str(message["folder"]),
            str(message["code"]),
            int(message["replays"]),
            bool(message["adopts"]),
        )
        made = await self._backups.prepare(wanted)
        return asdict(made) | {"replay": {str(batch): text for batch, text in made.replay.items()}}

    async def _answer_plan(self, number: int, stage: str, batch: int) -> None:
        failed = "" if self._backups is None else await self._backups.keep_plan(StageName(stage), batch)
        self._send("kept", number=number, failed=failed)

    async def _backed_up(self, stage: StageName) -> CommitId | None:
        return None if self._backups is None else await self._backups.durable(stage)

    async def adopt_stores(self) -> None:
        """The run has other blob stores."""
        if self._backups is not None:
            await self._backups.adopt_stores()

    def repair(self, lost: object) -> None:
        """Blob stores have lost blobs of snapshots of these stages."""
        if self._backups is not None:
            self._backups.repair(lost)

    async def finish_backups(self) -> None:
        """The driver has ended: make the last snapshots of its checkpoints, while the lease is kept."""
        if self._backups is not None:
            await self._backups.finish(LAST_BACKUP)

    async def close(self) -> None:
        """End the backups."""
        for each in self._answers:
            each.cancel()
        if self._backups is not None:
            await self._backups.close()

    async def _confirm(self, number: int, claim: Claim) -> None:
        self._send("owner", number=number, lost=await refusal(self._coordinator, claim))

    def _send(self, kind: str, **fields: object) -> None:
        if self._outgoing is not None:
            self._outgoing.send(messages.encode(kind, **fields))

    async def stop(self, within: timedelta, *, sigterm: bool = False) -> bool:
        """Let the driver stop all its queries between batches. Returns True when they have ended, or the driver has; False if no driver is
        attached, or the queries have not ended in time. `sigterm`: this is in place of a SIGTERM to the driver."""
        if not self.connected:
            return False
        self._send("stop", seconds=within.total_seconds(), sigterm=sigterm)
        waits = [asyncio.create_task(each.wait()) for each in (self._stopped, self._ended)]
        done, pending = await asyncio.wait(
            waits, timeout=within.total_seconds() + GRACE.total_seconds(), return_when=asyncio.FIRST_COMPLETED
        )
        for each in pending:
            each.cancel()
        return bool(done)

    async def _answer_where(self, stage: str) -> None:
        while True:
            try:
                assert self._claim is not None
                found = await last_drain_of(self._coordinator, self._job, self._claim.run, stage)
            except Unavailable as error:
                log.warning("waiting: %s", error)
                await asyncio.sleep(RETRY.total_seconds())
            except Refused as refused:
                self._send("begins", stage=stage, seq=0, suffix="", offsets={}, failed=str(refused))
                return
            else:
                self._send("begins", stage=stage, **found)
                return

    async def drain(self, uuid: str) -> None:
        """The run has a drain, or its phase has changed."""
        if self._drains is not None:
            await self._drains.begin(uuid)

    async def report_drains(self) -> None:
        """Send the driver's steps of drains to the coordinator until cancelled."""
        if self._drains is not None:
            await self._drains.run()

    def refuse(self, why: str) -> None:
        """Inform the driver that the script may not start now."""
        self._send("refused", why=why)

    def lost(self, why: str) -> None:
        """Inform the driver, which is not ended, that the lease is lost."""
        self._send("lost", why=why)

    async def report(self) -> None:
        """Send the driver's reports to the coordinator until cancelled. A newer one replaces an older one that was not sent yet."""
        while True:
            await self._new_report.wait()
            self._new_report.clear()
            request, claim = self._reports, self._claim
            if request is None or claim is None:
                continue
            if self._backups is not None:
                request = request.model_copy(update={"queries": self._backups.shown(request.queries)})
            try:
                reply = await self._coordinator.report_queries(claim.run, ATTACHED_TASK, request)
            except Unavailable as error:
                log.warning("the queries are not reported yet: %s", error)
                self._new_report.set()
                await asyncio.sleep(RETRY.total_seconds())
            except (LeaseLost, ClientError, Refused) as refused:
                log.warning("the coordinator refuses the report of the script's queries: %s", refused)
            else:
                for each in reply.refused:
                    self._send("refuse", stage=each.stage, why=each.why)


GRACE = timedelta(seconds=5)
"""How much longer than its own deadline a driver may take to report that its queries have ended."""


class _Outgoing:
    """Sends messages to a driver, and drops them when the driver has ended. A transport of asyncio would also drop what it has not yet
    read, when a message finds the driver gone: how the script has ended would not be known."""

    def __init__(self, connection: socket.socket) -> None:
        """`connection`: a duplicate of the socket that the transport reads, in non-blocking mode."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()

    def send(self, message: bytes) -> None:
        waits = bool(self._unsent)
        self._unsent += message
        if not waits:
            self._send_some()
            if self._unsent:
                self._loop.add_writer(self._connection, self._on_writable)

    def _on_writable(self) -> None:
        self._send_some()
        if not self._unsent:
            self._loop.remove_writer(self._connection)

    def _send_some(self) -> None:
        try:
            del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            log.debug("the driver does not read: %s", error)
            self._unsent.clear()

    def close(self) -> None:
        self._loop.remove_writer(self._connection)
        self._connection.close()


def _peer(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """The pid and the user id of the process at the other end (unix(7), SO_PEERCRED)."""
    found = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", found)
    return pid, uid
