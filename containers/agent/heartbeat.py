"""The container's side of its lease: alive, not valid, unreachable.

* Alive: the lease counts from the moment the heartbeat was *sent*.
* Not valid: stop now.
* Unreachable (no answer, a 5xx, a time-out): keep trying, and stop only when one's own lease runs out.

Each renewal is passed on to the watchdog, which ends the process when this loop cannot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from sluice.client import Alive, NotValid
from sluice.clock import Clock
from sluice.core.errors import Unavailable
from sluice.core.ids import Epoch, ExecutionContainerId, Instant
from sluice.core.lease import Trust, next_heartbeat
from sluice.core.lifecycle import RunState

log = logging.getLogger(__name__)

RETRY = timedelta(seconds=1)
"""Between tries while the coordinator is unreachable."""

ANSWER_WITHIN = timedelta(seconds=5)


class Answers(Protocol):
    async def heartbeat(self, execution_id: ExecutionContainerId, epoch: Epoch, within: timedelta) -> Alive | NotValid: ...


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another incarnation has the slot, or the coordinator holds this one for lost."""


@dataclass(frozen=True, slots=True)
class RunOver:
    state: RunState


@dataclass(frozen=True, slots=True)
class LeaseRanOut:
    """The coordinator was not reached for a whole lease."""

    last_error: str


LeaseEnd = Replaced | RunOver | LeaseRanOut


class LeaseKeeper:
    """Beats until the verdict that ends the container. `chance` gives uniform numbers in [0, 1) for the jitter; `on_version` hears with
    each renewal at which version the run's job model is."""

    def __init__(
        self,
        coordinator: Answers,
        execution_id: ExecutionContainerId,
        epoch: Epoch,
        trust: Trust,
        interval: timedelta,
        clock: Clock,
        chance: Callable[[], float],
        on_renewed: Callable[[Instant], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_version: Callable[[int], None] = lambda version: None,
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
        on_renewed(trust.ends_at)

    @property
    def left(self) -> timedelta:
        """How long this container may still act, unheard."""
        return timedelta(seconds=max(0.0, self.trust.ends_at - self._clock.elapsed()))

    async def run(self) -> LeaseEnd:
        """Beat for ever; returns the verdict. The first beat is one interval after the registration."""
        pause = next_heartbeat(self._interval, self._chance())
        error = "no heartbeat was tried"
        while True:
            await self._sleep(min(pause, self.left).total_seconds())
            if self.trust.expired(self._clock.elapsed()):
                return LeaseRanOut(error)
            sent = self._clock.elapsed()
            try:
                answer = await self._coordinator.heartbeat(self._execution_id, self._epoch, min(ANSWER_WITHIN, self.left))
            except Unavailable as trouble:
                error = str(trouble)
                log.warning("heartbeat: %s; %.0f s of the lease left", error, self.left.total_seconds())
                pause = RETRY
                continue
            match answer:
                case NotValid(ended=None):
                    return Replaced()
                case NotValid(ended=RunState() as state):
                    return RunOver(state)
                case Alive(lease=lease, interval=interval, model_version=version):
                    self.trust = Trust(sent, lease, self.trust.margin)
                    self._on_renewed(self.trust.ends_at)
                    self._on_version(version)
                    pause = next_heartbeat(interval, self._chance())
