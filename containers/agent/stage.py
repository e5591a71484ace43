"""One stage of one task, kept running: start, wait for its end, start again with growing pauses, up to a limit."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from containers.engine import Engine, StageStart
from containers.errors import StateElsewhere
from sluice.clock import Clock
from sluice.core.errors import BadJobFile, CorruptData, LeaseLost
from sluice.core.ids import Instant
from sluice.job import in_job_file
from sluice.logconfig import about

log = logging.getLogger(__name__)

T = TypeVar("T")

WINDOW = timedelta(minutes=10)
"""Restarts are counted over this long: a query that fails once a day is restarted for ever."""

LAST_WORDS = timedelta(seconds=5)
"""How long a stopped query's last progress is waited for: Spark tells of it, and then of the end, a moment later."""

LONGEST_PAUSE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    limit: int
    pause: timedelta

    def pause_after(self, failures: int) -> timedelta:
        """Before the restart that follows that many failures, doubling from `pause`."""
        return min(LONGEST_PAUSE, self.pause * float(2 ** (failures - 1)))


class StageFailed(Exception):
    """A stage failed too often; the message is its last error."""


class Call(Protocol):
    """Runs a blocking function on the engine's threads."""

    def __call__(self, blocking: Callable[[], T], /) -> Awaitable[T]: ...


class StageRunner:
    """`call` runs a blocking function of the engine on the engine's threads; `end_of` gives the future that the end of a query sets;
    `starting` bounds how many queries of the container start at a time; `on_begun` is called when the query has started."""

    def __init__(
        self,
        engine: Engine,
        start: StageStart,
        policy: RestartPolicy,
        clock: Clock,
        call: Call,
        end_of: Callable[[str], asyncio.Future[str | None]],
        starting: asyncio.Semaphore | None = None,
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self.start = start
        self._starting = starting or asyncio.Semaphore()
        self._engine = engine
        self._policy = policy
        self._clock = clock
        self._call = call
        self._end_of = end_of
        self._on_begun = on_begun
        self._query: Any = None
        self._token = ""
        self._changing = asyncio.Lock()
        self._failures: deque[Instant] = deque()
        self.restarts = 0
        self._stopping = asyncio.Event()
        self._held = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether the query waits between two batches, for `run` to let it go on."""
        return self._held.is_set()

    async def run(self) -> None:
        """Until `stop` or `hold`. Raises StageFailed, LeaseLost, or what no restart can mend."""
        with about(task=self.start.task, stage=self.start.declared.stage.name, generation=self.start.generation):
            if self.held:
                self._stopping.clear()
                await self._after(await self._go_on())
            while not self._stopping.is_set():
                await self._after(await self._run_once())

    async def _after(self, error: str | None) -> None:
        if not self._stopping.is_set():
            await self._pause(self._after_failure(error or "the query ended by itself"))

    async def _pause(self, duration: timedelta) -> None:
        """Wait, but not beyond `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(duration.total_seconds()):
                await self._stopping.wait()

    async def _run_once(self) -> str | None:
        async with self._starting, self._changing:
            if self._stopping.is_set():
                return None
            self._query = None
            try:
                self._token, self._query = await self._call(lambda: self._engine.start(self.start))
            except (LeaseLost, StateElsewhere, BadJobFile, CorruptData):
                raise
            except Exception as error:
                log.warning("%s does not start", self.start.query, exc_info=error)
                return f"{type(error).__name__}: {error}{in_job_file(error)}"
        log.info("%s runs under generation %d", self.start.query, self.start.generation)
        self._on_begun()
        return await self._end()

    async def _go_on(self) -> str | None:
        async with self._changing:
            if self._stopping.is_set():
                return None
            self._held.clear()
            await self._call(lambda: self._engine.release(self._query))
        log.info("%s goes on", self.start.query)
        return await self._end()

    async def _end(self) -> str | None:
        """The error with which the query ended; None also when it is held instead."""
        end, held = self._end_of(self._token), asyncio.ensure_future(self._held.wait())
        either: set[asyncio.Future[Any]] = {end, held}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            held.cancel()
        return end.result() if end.done() else None

    def _after_failure(self, error: str) -> timedelta:
        now = self._clock.elapsed()
        self._failures.append(now)
        while self._failures[0] < now - WINDOW.total_seconds():
            self._failures.popleft()
        failures = len(self._failures)
        if failures > self._policy.limit:
            raise StageFailed(f"{self.start.query} failed {failures} times within {WINDOW}; the last error: {error}")
        self.restarts += 1
        pause = self._policy.pause_after(failures)
        log.warning("%s failed (%d of %d), again in %s: %s", self.start.query, failures, self._policy.limit, pause, error[:2000])
        return pause

    async def hold(self, deadline: timedelta, forced: threading.Event) -> bool:
        """Have the query wait between batches, so that `run` returns, and may be called again; stop one that cannot be held. False if a
        batch had to be interrupted."""
        self._stopping.set()
        until = self._clock.elapsed() + deadline.total_seconds()
        async with self._changing:
            query = self._query
            if query is not None and (self.held or await self._call(lambda: self._engine.hold(query, deadline, forced))):
                self._held.set()
                return True
        return await self.stop(timedelta(seconds=max(0.0, until - self._clock.elapsed())), forced)

    async def stop(self, deadline: timedelta, forced: threading.Event) -> bool:
        """Stop between batches, also a query that is just being started, or is held; False if the batch had to be interrupted."""
        self._stopping.set()
        async with self._changing:
            self._held.clear()
            query = self._query
            if query is None:
                return True
            orderly = await self._call(lambda: self._engine.stop(query, deadline, forced))
            self._query = None
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS.total_seconds()):
                    await asyncio.shield(self._end_of(self._token))
            return orderly
