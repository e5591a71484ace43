"""Getting the right to run a command: slot 0 of the job, and its task.

A registration makes the former container of the slot invalid immediately, but that container may act until its lease ends. So the right to
run is the task: the coordinator gives it only when the former container can no longer act.

Without `replace`, the registration waits until the slot is free. It also waits while the job's last run has ended: `sluice stop` and a
drain end a run, and only `sluice start` makes the next one. The first run of a job is made here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from containers.agent.heartbeat import LeaseExpired, LeaseKeeper, Replaced, RunEnded, register
from containers.attached.script_drains import commit
from containers.retries import until_available
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.drain import Phase
from sluice.core.errors import (
    Conflict,
    CoordinatorUnavailable,
    CoordinatorUnreachable,
    LeaseLost,
    NotAttached,
    SlotInUse,
    StaleRun,
    UnknownJob,
)
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, Instant, JobName, ProcessorId, RunId
from sluice.core.jobmodels.spec import ATTACHED_TASK, JobKind
from sluice.core.lifecycle import RunState
from sluice.wire import agents as wire_agents
from sluice.wire import runs as wire_runs

log = logging.getLogger("sluice")

SLOT = ProcessorId("0")
RETRY = timedelta(seconds=2)
ACQUIRE_WAIT = timedelta(seconds=20)


COMMAND, REFUSED = "attached.command", "attached.refused-command"
"""Names in the config of a run that `sluice upgrade` has made: the digest of the only command that may start, and that of a command that
may not."""


def command_digest(command: Sequence[str]) -> str:
    """A short name of a command and its arguments."""
    return sha256(json.dumps(list(command)).encode()).hexdigest()[:16]


class MustWait(Conflict):
    """The command may not be started now."""


@dataclass(frozen=True, slots=True)
class Request:
    """`replace`: make a container that has the slot stop. `wait`: wait until the command may be started, instead of raising MustWait.
    `command`: its digest, "" if it is not known."""

    job: JobName
    container: ExecutionContainerId
    host: str
    replace: bool = False
    wait: bool = True
    command: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to start the command. `ends` completes when the lease ends. `drain`: the run's drain in progress, if any."""

    run: RunId
    epoch: Epoch
    generation: Generation
    ends: asyncio.Task[Replaced | RunEnded | LeaseExpired]
    drain: wire_runs.DrainOfRun | None = None
    continuation: Mapping[str, Any] | None = None
    """See `containers.engine.StageStart`."""


class Claims:
    """`on_renewed` is called with the end of the lease at each renewal, `on_token` with the container's token. `not_now` returns why no
    heartbeat may be sent now; None if one may."""

    def __init__(
        self,
        coordinator: AgentClient,
        clock: Clock,
        on_renewed: Callable[[Instant], None],
        on_token: Callable[[str], None],
        not_now: Callable[[], str | None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._on_renewed = on_renewed
        self._on_token = on_token
        self._not_now = not_now
        self._sleep = sleep
        self._last_warning = ""
        self.registered = False

    async def claim(self, request: Request) -> Claim:
        """Wait until the command may be started. A drain whose queries were all flushed is ended first, and then there is nothing to start.
        Raises LeaseLost if another container has replaced this one meanwhile, NotAttached, and, without `wait`, MustWait and
        CoordinatorUnreachable."""
        while True:
            claim = await self._claim(request)
            drain = claim.drain
            if drain is None or drain.phase is not Phase.COMMITTING:
                return claim
            await commit(self._coordinator, claim.run, claim.generation, drain.uuid)
            claim.ends.cancel()

    async def _claim(self, request: Request) -> Claim:
        while True:
            try:
                run = await self._run(request)
                reply, lease = await self._register(run, request)
                break
            except Refused as refused:
                if refused.refused_as not in (SlotInUse.slug, StaleRun.slug):
                    raise
                await self._pause(request, f"job {request.job} is running: {refused}")
            except _Stopped as stopped:
                await self._pause(request, f"{stopped}; `sluice start {request.job}` starts it")
            except CoordinatorUnreachable as unreachable:
                if not request.wait:
                    raise
                await self._pause(request, _without_coordinator(unreachable))
        self.registered = True
        epoch = Epoch(reply.epoch)
        ends = asyncio.create_task(lease.run(), name="lease")
        acquired = asyncio.create_task(self._acquire(run, request, epoch), name="acquire")
        await asyncio.wait([ends, acquired], return_when=asyncio.FIRST_COMPLETED)
        if not acquired.done():
            acquired.cancel()
            raise LeaseLost(f"while it waited for the task: {ends.result()}")
        try:
            task = acquired.result()
            return Claim(run, epoch, Generation(task.generation), ends, task.drain, task.continuation)
        except BaseException:
            ends.cancel()
            raise

    async def _pause(self, request: Request, why: str) -> None:
        if not request.wait:
            raise MustWait(why)
        if why != self._last_warning:
            log.warning("waiting: %s", why)
            self._last_warning = why
        await self._sleep(RETRY.total_seconds())

    async def _run(self, request: Request) -> RunId:
        job = request.job
        try:
            (run,) = (await self._coordinator.runs(job, 1)).runs
        except Refused as refused:
            if refused.refused_as != UnknownJob.slug:
                raise
            return RunId((await self._coordinator.deploy(attached_request(job))).run_id)
        if run.kind is not JobKind.ATTACHED:
            raise NotAttached(f"job {job} is run from a job file (run {run.run_id}): give the command a job name of its own")
        if run.state.ended:
            raise _Stopped(f"job {job} is {run.state.value}{f': {run.reason}' if run.reason else ''}")
        if run.stop_requested_at is not None:
            raise _Stopped(f"job {job} is stopping")
        config = (await self._coordinator.run(RunId(run.run_id))).config
        if request.command == config.get(REFUSED) or config.get(COMMAND, request.command) != request.command:
            raise _Stopped(f"since an upgrade, run {run.run_id} of job {job} is for another command; after a stop or a drain")
        return RunId(run.run_id)

    async def _register(self, run: RunId, request: Request) -> tuple[wire_agents.RegisterReply, LeaseKeeper]:
        body = wire_agents.RegisterRequest(
            processor_id=SLOT, execution_container_id=request.container, host=request.host, only_if_free=not request.replace
        )
        return await register(self._coordinator, run, body, self._clock, self._on_renewed, self._on_token, self._not_now, sleep=self._sleep)

    async def _acquire(self, run: RunId, request: Request, epoch: Epoch) -> wire_agents.AcquireReply:
        acquire = partial(self._coordinator.acquire, run, ATTACHED_TASK, request.container, epoch, ACQUIRE_WAIT)
        while True:
            reply = await until_available(acquire, what="waiting: the task cannot be acquired")
            if isinstance(reply, wire_agents.AcquireReply):
                return reply
            log.warning("waiting: the former container, %s, may still act for %.0f s", reply.former, reply.wait_seconds)


def has_drained(claim: Claim) -> bool:
    """Whether the lease has ended because a drain has ended the run."""
    end = claim.ends.result() if claim.ends.done() and not claim.ends.cancelled() else None
    return isinstance(end, RunEnded) and end.state is RunState.DRAINED


def is_lost(claim: Claim) -> bool:
    """Whether the lease has ended, and not because a drain has ended the run. After a drain nothing runs the job until it is started, so
    that the script may end by itself."""
    return claim.ends.done() and not has_drained(claim)


def describe_end(end: Replaced | RunEnded | LeaseExpired) -> str:
    """Why the lease has ended."""
    match end:
        case Replaced():
            return "the lease is lost: the coordinator considers this container replaced or lost"
        case RunEnded(state=state):
            return f"the run has ended: {state}"
        case LeaseExpired(last_error=error):
            return f"the lease expired: {error}"


class _Stopped(Exception):
    """The job's run has ended, or is stopping."""


def attached_request(job: JobName) -> wire_runs.RunRequest:
    """The request that makes the run of an attached job."""
    return wire_runs.RunRequest(job=job, kind=JobKind.ATTACHED, containers=1, inputs=(), stages=())


def _without_coordinator(error: CoordinatorUnreachable) -> str:
    """Why a claim waits: the coordinator is not ready, or there is none."""
    if isinstance(error, CoordinatorUnavailable):
        return str(error)
    return f"the coordinator cannot be reached: {error}; start one with `sluice coordinator`, or set SLUICE_COORDINATOR_URL"
