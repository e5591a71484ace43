"""Chores: small, bounded periodic tasks, each with `run_once() -> counts`, and the scheduler that runs them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from coordinator.store.sql import KEEP_CLAIM_SECONDS, Store
from sluice.clock import Clock
from sluice.core.errors import Bug, DatabaseInUse, SluiceError
from sluice.core.ids import Instant

log = logging.getLogger(__name__)


class Chore(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def every(self) -> timedelta: ...

    async def run_once(self) -> Mapping[str, int]:
        """Do what is due. Returns counts of what was done, by kind. Idempotent: a second run finds nothing to do."""
        ...


@dataclass(frozen=True, slots=True)
class KeepClaim:
    """Check the claim on the database, and take it again if it was lost. `on_claim_lost` is called if another coordinator has taken it.
    `on_confirmed` is called with the time at which the request that confirmed the claim was sent."""

    store: Store
    on_claim_lost: Callable[[DatabaseInUse], None]
    clock: Clock
    on_confirmed: Callable[[Instant], None]
    every: timedelta = timedelta(seconds=KEEP_CLAIM_SECONDS)
    name: str = "keep_claim"

    async def run_once(self) -> Mapping[str, int]:
        held, sent = self.store.claimed, self.clock.elapsed()
        try:
            await self.store.claim()
        except DatabaseInUse as error:
            self.on_claim_lost(error)
            raise
        self.on_confirmed(sent)
        if held:
            return {}
        log.info("took the claim on the database again")
        return {"taken_again": 1}


class ChoreScheduler:
    """An async context in which chores run, each at its own interval. A failure is counted, and logged unless it is the same as at the
    previous run; the chore runs again at its next interval. `pace`: the factor by which all intervals are multiplied; infinite: each chore
    runs once."""

    def __init__(self, chores: Sequence[Chore], clock: Clock, pace: float = 1.0) -> None:
        self._chores = chores
        self._clock = clock
        self._pace = pace
        self._loops: list[asyncio.Task[None]] = []
        self.done: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.turns: defaultdict[str, int] = defaultdict(int)
        """Completed runs of each chore, including failed ones."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Total duration of these runs."""
        self.failures: defaultdict[str, int] = defaultdict(int)
        """Failures of each chore since it last succeeded."""
        self._ended: dict[str, Instant] = {}

    async def __aenter__(self) -> ChoreScheduler:
        self._ended = {chore.name: self._clock.elapsed() for chore in self._chores}
        self._loops = [asyncio.create_task(self._loop(chore), name=chore.name) for chore in self._chores]
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    @property
    def dead(self) -> list[str]:
        """Chores whose loop has ended, which is a bug."""
        return [loop.get_name() for loop in self._loops if loop.done()]

    @property
    def intervals(self) -> Mapping[str, float]:
        """The pause after each run, in seconds, by chore."""
        return {chore.name: chore.every.total_seconds() * self._pace for chore in self._chores}

    @property
    def since_last_run(self) -> Mapping[str, float]:
        """Seconds since the last run of each chore ended, or since the start before the first."""
        now = self._clock.elapsed()
        return {name: now - ended for name, ended in self._ended.items()}

    async def _loop(self, chore: Chore) -> None:
        last_error = ""
        while True:
            began = self._clock.elapsed()
            try:
                for what, count in (await chore.run_once()).items():
                    self.done[chore.name, what] += count
                last_error = ""
            except Exception as error:
                self.done[chore.name, "failed"] += 1
                self.failures[chore.name] += 1
                if isinstance(error, Bug) or not isinstance(error, SluiceError):
                    log.exception("%s failed; it runs again in %s", chore.name, chore.every)
                elif str(error) != last_error:
                    log.warning("%s: %s", chore.name, error)
                last_error = str(error)
            else:
                self.failures[chore.name] = 0
            self.turns[chore.name] += 1
            self._ended[chore.name] = self._clock.elapsed()
            self.seconds[chore.name] += self._clock.elapsed() - began
            await asyncio.sleep(chore.every.total_seconds() * self._pace)
