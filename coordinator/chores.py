"""Chores: small bounded pieces of periodic work, each with `run_once() -> counts`, and the loop that runs them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from coordinator.store.sql import Store
from sluice.clock import Clock
from sluice.core.errors import DatabaseInUse, SluiceError

log = logging.getLogger(__name__)


class Chore(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def every(self) -> timedelta: ...

    async def run_once(self) -> Mapping[str, int]:
        """Do what is due; what was done, by kind. May run twice: the second run finds nothing."""
        ...


@dataclass(frozen=True, slots=True)
class KeepClaim:
    """Look whether the database is still ours alone, and take the claim again when it was lost; `usurped` is told when it is another's."""

    store: Store
    usurped: Callable[[DatabaseInUse], None]
    every: timedelta = timedelta(seconds=1)
    name: str = "keep_claim"

    async def run_once(self) -> Mapping[str, int]:
        held = self.store.claimed
        try:
            await self.store.claim()
        except DatabaseInUse as error:
            self.usurped(error)
            raise
        if held:
            return {}
        log.info("the claim on the database is held again")
        return {"taken_again": 1}


class ChoreScheduler:
    """Runs chores, each at its own pace, until it is left. A chore that fails is counted, logged unless it failed alike at its turn
    before, and tried again at its next."""

    def __init__(self, chores: Sequence[Chore], clock: Clock) -> None:
        self._chores = chores
        self._clock = clock
        self._loops: list[asyncio.Task[None]] = []
        self.done: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.turns: defaultdict[str, int] = defaultdict(int)
        """How often each chore had its turn, and came to an end of it."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """How long these turns took in all."""

    async def __aenter__(self) -> ChoreScheduler:
        self._loops = [asyncio.create_task(self._loop(chore), name=chore.name) for chore in self._chores]
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    @property
    def dead(self) -> list[str]:
        """Chores whose loop has ended although it should not have."""
        return [loop.get_name() for loop in self._loops if loop.done()]

    async def _loop(self, chore: Chore) -> None:
        told = ""
        while True:
            began = self._clock.elapsed()
            try:
                for what, count in (await chore.run_once()).items():
                    self.done[chore.name, what] += count
                told = ""
            except SluiceError as error:
                self.done[chore.name, "failed"] += 1
                if str(error) != told:
                    log.warning("%s: %s", chore.name, error)
                told = str(error)
            except Exception:
                self.done[chore.name, "failed"] += 1
                log.exception("%s failed; it runs again in %s", chore.name, chore.every)
            self.turns[chore.name] += 1
            self.seconds[chore.name] += self._clock.elapsed() - began
            await asyncio.sleep(chore.every.total_seconds())
