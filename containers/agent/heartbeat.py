"""The container's side of its lease. Each heartbeat has one of three outcomes:

* Alive: the lease is renewed, counted from the moment the heartbeat was *sent*.
* Not valid: stop now.
* Unreachable (no answer, a 5xx, a timeout): retry, and stop only when the lease expires.

Each renewal is passed on to the guardian, which ends the driver if this loop cannot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from sluice.client.agents import AgentClient, Alive, NotValid
from sluice.clock import Clock
from sluice.core.errors import CoordinatorUnreachable, Unavailable
from sluice.core.ids import Epoch, ExecutionContainerId, Instant, RunId
from sluice.core.leases.lease import ContainerLease, next_heartbeat
from sluice.core.lifecycle import RunState
from sluice.randomness import fraction
from sluice.wire import agents as wire_agents

log = logging.getLogger(__name__)

RETRY = timedelta(seconds=1)
"""The pause before a heartbeat is repeated while the coordinator is unreachable."""

ANSWER_WITHIN = timedelta(seconds=5)


class HeartbeatClient(Protocol):
    async def heartbeat(self, execution_id: ExecutionContainerId, epoch: Epoch, within: timedelta) -> Alive | NotValid: ...


class GatedHeartbeats(HeartbeatClient):
    """Sends no heartbeats while `not_now` returns a reason. The lease then expires, unless `not_now` returns None before."""

    def __init__(self, client: HeartbeatClient, not_now: Callable[[], str | None]) -> None:
        self._client = client
        self._not_now = not_now

    async def heartbeat(self, execution_id: ExecutionContainerId, epoch: Epoch, within: timedelta) -> Alive | NotValid:
        reason = self._not_now()
        if reason is not None:
            raise CoordinatorUnreachable(f"not sent: {reason}")
        return await self._client.heartbeat(execution_id, epoch, within)


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another incarnation has the slot, or the coordinator considers this one lost."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    state: RunState


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The coordinator was unreachable for a whole lease."""

    last_error: str


LeaseEnd = Replaced | RunEnded | LeaseExpired


class LeaseKeeper:
    """Sends heartbeats until the lease ends. `chance` gives uniform numbers in [0, 1) for the jitter; `on_version` is called with the
    version of the run's job model at each renewal, and `on_adopted` with the version that the coordinator has recorded as adopted, if that
    is an older one."""

    def __init__(
        self,
        coordinator: HeartbeatClient,
        execution_id: ExecutionContainerId,
        epoch: Epoch,
        trust: ContainerLease,
        interval: timedelta,
        clock: Clock,
        chance: Callable[[], float],
        on_renewed: Callable[[Instant], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_version: Callable[[int], None] = lambda version: None,
        on_adopted: Callable[[int], None] = lambda version: None,
    ) -> None:
        self.trust = trust
        self._coordinator = coordinator
        self._execution_id = execution_id
        self._epoch = epoch
        self._interval = interval
        self._clock = clock
        self._chance = chance
        self._on_renewed = on_renewed
        self._sleep = sleep
        self._on_version = on_version
        self._on_adopted = on_adopted
        on_renewed(trust.ends_at)

    @property
    def left(self) -> timedelta:
        """How long this container may run without a further renewal."""
        return timedelta(seconds=max(0.0, self.trust.ends_at - self._clock.elapsed()))

    async def run(self) -> LeaseEnd:
        """Send heartbeats until the lease ends; how it ended. The first heartbeat is sent one interval after the registration."""
        pause = next_heartbeat(self._interval, self._chance())
        error = "no heartbeat was sent"
        while True:
            await self._sleep(min(pause, self.left).total_seconds())
            if self.trust.expired(self._clock.elapsed()):
                return LeaseExpired(error)
            sent = self._clock.elapsed()
            try:
                answer = await self._coordinator.heartbeat(self._execution_id, self._epoch, min(ANSWER_WITHIN, self.left))
            except Unavailable as unreachable:
                error = str(unreachable)
                log.warning("heartbeat: %s; %.0f s of the lease left", error, self.left.total_seconds())
                pause = RETRY
                continue
            match answer:
                case NotValid(ended=None):
                    return Replaced()
                case NotValid(ended=RunState() as state):
                    return RunEnded(state)
                case Alive(lease=lease, interval=interval, model_version=version, adopted=adopted):
                    self.trust = ContainerLease(sent, lease, self.trust.margin)
                    self._on_renewed(self.trust.ends_at)
                    self._on_version(version)
                    if adopted is not None:
                        self._on_adopted(adopted)
                    pause = next_heartbeat(interval, self._chance())


async def register(
    coordinator: AgentClient,
    run: RunId,
    request: wire_agents.RegisterRequest,
    clock: Clock,
    on_renewed: Callable[[Instant], None],
    on_token: Callable[[str], None],
    not_now: Callable[[], str | None],
    **more: Any,
) -> tuple[wire_agents.RegisterReply, LeaseKeeper]:
    """Register, and use the token of the answer from now on. Returns the lease, which counts from the moment the request was sent. Raises
    Refused, Unavailable. `more`: as in `LeaseKeeper`."""
    sent = clock.elapsed()
    reply = await coordinator.register(run, request)
    if reply.token is not None:
        coordinator.act_as(reply.token)
        on_token(reply.token)
    trust = ContainerLease(sent, timedelta(seconds=reply.lease_seconds), timedelta(seconds=reply.margin_seconds))
    interval, heartbeats = timedelta(seconds=reply.heartbeat_seconds), GatedHeartbeats(coordinator, not_now)
    container, epoch = ExecutionContainerId(request.execution_container_id), Epoch(reply.epoch)
    return reply, LeaseKeeper(heartbeats, container, epoch, trust, interval, clock, fraction, on_renewed, **more)
