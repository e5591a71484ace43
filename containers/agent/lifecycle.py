"""Background work of a container, and the first reason for it to exit.

Exit codes: 0 stopped cleanly, or the run has ended; 1 failed (logged and reported to the coordinator); 3 lost its lease: exit immediately
and touch nothing, since the successor may already be using it; 4 failed, and the next container would probably fail with the same error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Any, TypeVar

from containers.agent.failures import StageFailed
from containers.errors import EXIT_REPEATED_FAILURE, JavaMissing, OperatorsDiffer, StateIncompatible
from containers.rpc.connection import ConnectionLost
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK
from sluice.client import Refused
from sluice.clock import Clock
from sluice.core.errors import CoordinatorUnreachable, LeaseLost, SluiceError, StaleRun, Unavailable
from sluice.core.ids import Instant
from sluice.installed_spark import PySparkMissing, SparkUnsupported

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY = timedelta(seconds=1)
"""The pause before a request to the coordinator is repeated."""

EXPIRED = "the lease expired while heartbeats were not sent or not answered, or while this process did not run"

_RECURRING = (StateIncompatible, OperatorsDiffer, JavaMissing, PySparkMissing, SparkUnsupported)
"""Errors that would recur at every start of the same code on this machine."""


def exit_code_of(error: SluiceError) -> int:
    """The exit code of a container that this error ends."""
    return EXIT_REPEATED_FAILURE if isinstance(error, _RECURRING) else EXIT_FAILED


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why the container exits, and with which exit code."""

    exit_code: int
    reason: str


class ContainerLifecycle:
    """The lifecycle of one container, on the agent's loop. `connect_timeout`: how long requests are repeated where nothing else limits
    that. `on_lease_lost` ends the process."""

    def __init__(self, clock: Clock, connect_timeout: timedelta, on_lease_lost: Callable[[str], None]) -> None:
        self._clock = clock
        self._connect_timeout = connect_timeout
        self._on_lease_lost = on_lease_lost
        self._background: set[asyncio.Task[None]] = set()
        self._lease_ends = Instant(inf)
        self.exit_reason: asyncio.Future[ExitReason] = asyncio.get_running_loop().create_future()

    @property
    def exiting(self) -> bool:
        """Whether there is a reason to exit."""
        return self.exit_reason.done()

    def exit(self, reason: ExitReason) -> None:
        """Exit in an orderly way, or immediately if the lease has expired. Only the first reason counts."""
        if self.exiting:
            return
        if self._lease_expired:
            self.lose_lease(EXPIRED)
        else:
            self._exit(reason)

    def _exit(self, reason: ExitReason) -> None:
        if not self.exiting:
            log.info("exiting: %s", reason.reason)
            self.exit_reason.set_result(reason)

    # --- the lease -------------------------------------------------------------------------------------------------

    def renewed(self, ends_at: Instant) -> None:
        """The lease lasts until then."""
        self._lease_ends = ends_at

    @property
    def _lease_expired(self) -> bool:
        return self._clock.elapsed() >= self._lease_ends

    def check_lease(self, error: object) -> None:
        """Raises LeaseLost if the lease has expired: the error then follows from that, since another container may act. When a process
        continues after a suspension, an error may come before the heartbeats notice the end of the lease."""
        if self._lease_expired:
            log.info("after the end of the lease: %s", error)
            raise LeaseLost(EXPIRED)

    @contextmanager
    def under_lease(self) -> Iterator[None]:
        """`check_lease` for an error that the block raises."""
        try:
            yield
        except Exception as error:
            self.check_lease(error)
            raise

    def lose_lease(self, reason: str) -> None:
        """End the process immediately, because it may not write any more."""
        self._on_lease_lost(reason)
        self._exit(ExitReason(EXIT_LEASE_LOST, reason))

    # --- work and requests -----------------------------------------------------------------------------------------

    def in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run the work concurrently. Its error is a reason to exit."""

        async def guarded() -> None:
            try:
                with self.under_lease():
                    await work
            except LeaseLost as lost:
                self.lose_lease(str(lost))
            except ConnectionLost as lost:
                log.info("%s: %s", name, lost)  # `Agent.driver_ended` names the reason
            except StaleRun as stale:
                self.exit(ExitReason(EXIT_OK, str(stale)))
            except StageFailed as failed:
                self.exit(ExitReason(EXIT_REPEATED_FAILURE if failed.repeated else EXIT_FAILED, str(failed)))
            except SluiceError as error:
                self.exit(ExitReason(exit_code_of(error), f"{name}: {error.title()} {error}"))
            except Exception as error:
                log.error("%s failed", name, exc_info=error)
                self.exit(ExitReason(EXIT_FAILED, f"{name}: {error}"))

        task = asyncio.create_task(guarded(), name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(lambda _: work.close())  # the task may be cancelled before it has begun

    async def cancel_background(self) -> None:
        """Cancel the background work and wait for its end: it must not send anything after the exit was reported."""
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=RETRY.total_seconds())

    async def pause(self, duration: timedelta) -> None:
        """Wait for the duration, or until there is a reason to exit."""
        await asyncio.wait([self.exit_reason], timeout=duration.total_seconds())

    async def unless_exiting(self, work: Awaitable[T]) -> None:
        """Wait for the work, or until there is a reason to exit. An exception of the work is raised."""
        task = asyncio.ensure_future(work)
        waited: set[asyncio.Future[Any]] = {task, self.exit_reason}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()

    async def connect(self, request: Callable[[], Awaitable[T]], within: timedelta | None = None) -> T:
        """Repeat the request until the coordinator answers, for `within` at most (default: `connect_timeout`). Raises
        CoordinatorUnreachable, StaleRun, and what `request` raises."""
        give_up = self._clock.elapsed() + (self._connect_timeout if within is None else within).total_seconds()
        while True:
            try:
                return await _answer(request)
            except CoordinatorUnreachable as error:
                if self._clock.elapsed() >= give_up or self.exiting:
                    raise
                log.warning("waiting for the coordinator: %s", error)
                await self.pause(RETRY)

    async def until_answered(self, request: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat the request until the coordinator answers, while the lease lasts; None when the container exits first. Raises StaleRun,
        and what else `request` raises."""
        while not self.exiting:
            try:
                return await _answer(request)
            except Unavailable as error:
                log.warning("waiting for the coordinator: %s", error)
                await self.pause(RETRY)
        return None


async def _answer(request: Callable[[], Awaitable[T]]) -> T:
    try:
        return await request()
    except Refused as refused:
        if refused.refused_as == StaleRun.slug:
            raise StaleRun(str(refused)) from refused
        raise
