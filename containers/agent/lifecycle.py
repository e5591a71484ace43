"""The life of a container: what goes on beside, and the first reason that ends it.

0  stopped in order, or the run is over
1  failure: the reason is logged and told to the coordinator
3  lease lost: the process ends at once, without touching anything that the next holder may use
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from sluice.client import Refused
from sluice.clock import Clock
from sluice.core.errors import CoordinatorUnreachable, LeaseLost, SluiceError, StaleRun, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_OK, EXIT_FAILED, EXIT_LEASE_LOST = 0, 1, 3

RETRY = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why the container ends, and how."""

    exit_code: int
    reason: str


class ContainerLifecycle:
    """Of one container. On the agent's loop. `patience`: how long the coordinator is waited for where nothing else ends the waiting."""

    def __init__(self, clock: Clock, patience: timedelta, on_lease_lost: Callable[[str], None]) -> None:
        self._clock = clock
        self._patience = patience
        self._on_lease_lost = on_lease_lost
        self._background: set[asyncio.Task[None]] = set()
        self.ending: asyncio.Future[ExitReason] = asyncio.get_running_loop().create_future()

    @property
    def over(self) -> bool:
        """Whether there is a reason to end."""
        return self.ending.done()

    def end(self, ending: ExitReason) -> None:
        """The first reason stands."""
        if not self.over:
            log.info("ending: %s", ending.reason)
            self.ending.set_result(ending)

    def lose_lease(self, why: str) -> None:
        """Ends the process: nothing more may be written, so nothing is stopped in order."""
        self._on_lease_lost(why)
        self.end(ExitReason(EXIT_LEASE_LOST, why))

    def in_background(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Do it beside; its error ends the container."""

        async def guarded() -> None:
            try:
                await work
            except LeaseLost as lost:
                self.lose_lease(str(lost))
            except StaleRun as stale:
                self.end(ExitReason(EXIT_OK, str(stale)))
            except SluiceError as error:
                self.end(ExitReason(EXIT_FAILED, f"{what}: {error.title()} {error}"))
            except Exception as error:
                log.error("%s failed", what, exc_info=error)
                self.end(ExitReason(EXIT_FAILED, f"{what}: {error}"))

        task = asyncio.create_task(guarded(), name=what)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(lambda _: work.close())  # it may have been cancelled before it began

    async def end_background(self) -> None:
        """Cancel what goes on beside, and see it end: nothing of it may speak after the goodbye."""
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=RETRY.total_seconds())

    async def pause(self, duration: timedelta) -> None:
        """Wait, but not beyond the end."""
        await asyncio.wait([self.ending], timeout=duration.total_seconds())

    async def unless_over(self, work: Awaitable[T]) -> None:
        """Wait for the work or for the end, whichever comes first. An exception of the work is raised."""
        task = asyncio.ensure_future(work)
        waited: set[asyncio.Future[Any]] = {task, self.ending}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()

    async def reach(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the coordinator answers, for as long as patience lasts. Raises CoordinatorUnreachable, StaleRun, and what `ask`
        raises."""
        give_up = self._clock.elapsed() + self._patience.total_seconds()
        while True:
            try:
                return await _asked(ask)
            except CoordinatorUnreachable as error:
                if self._clock.elapsed() >= give_up or self.over:
                    raise
                log.warning("waiting for the coordinator: %s", error)
                await self.pause(RETRY)

    async def until_told(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask until the coordinator answers, as long as the lease lasts; None when the container ends first. Raises StaleRun, and what else
        `ask` raises."""
        while not self.over:
            try:
                return await _asked(ask)
            except Unavailable as error:
                log.warning("waiting for the coordinator: %s", error)
                await self.pause(RETRY)
        return None


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    try:
        return await ask()
    except Refused as refused:
        if refused.refused_as == StaleRun.slug:
            raise StaleRun(str(refused)) from refused
        raise
