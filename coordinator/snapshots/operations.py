"""Errands: what somebody asked for that takes long, and how far it has come. In memory: a restart forgets them, and they are asked for
again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sluice.clock import Clock
from sluice.core.errors import SluiceError, UnknownErrand

log = logging.getLogger(__name__)

REMEMBERED = 100


@dataclass(slots=True)
class Progress:
    """`done` of `total` `unit`; whoever does the work counts."""

    unit: str
    done: int = 0
    total: int | None = None


class ErrandState(StrEnum):
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(slots=True)
class LongRunningOperation:
    errand: str
    kind: str
    subject: str
    progress: Progress
    began_at: datetime
    state: ErrandState = ErrandState.RUNNING
    ended_at: datetime | None = None
    error: str | None = None
    result: Mapping[str, Any] | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)


Work = Callable[[Progress], Awaitable[Mapping[str, Any]]]


class Operations:
    """`new_id` makes ids. Of one kind and subject at most one runs at a time."""

    def __init__(self, clock: Clock, new_id: Callable[[], str]) -> None:
        self._clock = clock
        self._new_id = new_id
        self._errands: dict[str, LongRunningOperation] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, kind: str, subject: str, unit: str, work: Work) -> LongRunningOperation:
        """Begin the work, or find it going on."""
        for each in self._errands.values():
            if (each.kind, each.subject, each.state) == (kind, subject, ErrandState.RUNNING):
                return each
        made = LongRunningOperation(self._new_id(), kind, subject, Progress(unit), self._clock.now())
        self._errands[made.errand] = made
        self._forget()
        task = asyncio.create_task(self._run(made, work), name=f"{kind} {made.errand}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return made

    def _forget(self) -> None:
        ended = [each for each in self._errands.values() if each.state is not ErrandState.RUNNING]
        for each in ended[: max(0, len(self._errands) - REMEMBERED)]:
            del self._errands[each.errand]

    async def _run(self, errand: LongRunningOperation, work: Work) -> None:
        try:
            errand.result = await work(errand.progress)
            errand.state = ErrandState.DONE
        except SluiceError as error:
            errand.state, errand.error = ErrandState.FAILED, f"{error.title()} {error}"
        except Exception as error:
            log.exception("%s %s failed", errand.kind, errand.subject)
            errand.state, errand.error = ErrandState.FAILED, f"Sluice failed in a way that it does not know: {type(error).__name__}"
        finally:
            errand.ended_at = self._clock.now()
            errand.over.set()

    async def look(self, errand: str, wait: timedelta) -> LongRunningOperation:
        """How it is, as soon as it is over, or after `wait`. Raises UnknownErrand."""
        found = self._errands.get(errand)
        if found is None:
            raise UnknownErrand(
                f"there is no errand {errand!r}; a restart of the coordinator forgets them: ask again for what it was to do"
            )
        try:
            async with asyncio.timeout(wait.total_seconds()):
                await found.over.wait()
        except TimeoutError:
            pass
        return found

    async def close(self) -> None:
        """End all that run."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
