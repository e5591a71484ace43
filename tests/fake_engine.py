"""An engine without Spark: it keeps the promises of `containers/engine.py`, and its queries do what a test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

from containers.engine import Batch, Callbacks, Emptied, Start
from sluice.core.errors import LeaseLost
from sluice.core.ids import Ssp

T = TypeVar("T")

DEADLINE = 20
"""Seconds that a test waits for what must happen; it happens within milliseconds."""

_tokens = count(1)


async def soon(what: Awaitable[T]) -> T:
    """The result of what must happen, or a TimeoutError that fails the test."""
    return await asyncio.wait_for(what, DEADLINE)


@dataclass
class FakeQuery:
    """A query that has started. It tells of itself on threads of its own, as Spark does."""

    start: Start
    token: str
    callbacks: Callbacks
    stopped: bool = False
    held: bool = False

    async def commits(self, batch: int, offsets: Mapping[Ssp, int] | None = None) -> None:
        told = Batch(self.start.query, batch, 10, 5, offsets or {})
        await asyncio.to_thread(self.callbacks.on_batch, told)

    async def ends(self, error: str | None) -> None:
        await asyncio.to_thread(self.callbacks.on_end, self.token, error)

    async def is_fenced_off(self, why: str) -> None:
        await asyncio.to_thread(self.callbacks.on_lease_lost, LeaseLost(why))


@dataclass
class FakeEngine:
    """Made on the event loop of the test. `on_open`, `on_start`, `on_hold` and `on_stop` run on the engine's threads, and may block or
    raise."""

    on_open: Callable[[], None] = lambda: None
    on_start: Callable[[Start], None] = lambda start: None
    on_stop: Callable[[FakeQuery, threading.Event], bool] = lambda query, forced: True
    on_hold: Callable[[FakeQuery, threading.Event], bool] = lambda query, forced: True
    on_check: Callable[[], None] = lambda: None
    ends_told_early: bool = False
    opened: int = 0
    tries: list[Start] = field(default_factory=list)
    queries: list[FakeQuery] = field(default_factory=list)
    stops: list[tuple[str, timedelta]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Queue[FakeQuery] = asyncio.Queue()
        self._released: asyncio.Queue[FakeQuery] = asyncio.Queue()
        self._callbacks: Callbacks | None = None

    def open(self, callbacks: Callbacks) -> None:
        self.opened += 1
        self._callbacks = callbacks
        self.on_open()

    def start(self, start: Start) -> tuple[str, Any]:
        assert self._callbacks is not None, "not opened"
        self.tries.append(start)
        self.on_start(start)
        query = FakeQuery(start, f"token-{next(_tokens)}", self._callbacks)
        self.queries.append(query)
        if self.ends_told_early:
            self._callbacks.on_end(query.token, "it ended before anybody knew its token")
        self._loop.call_soon_threadsafe(self._started.put_nowait, query)
        return query.token, query

    def stop(self, query: FakeQuery, deadline: timedelta, forced: threading.Event) -> bool:
        self.stops.append((query.start.query, deadline))
        orderly = self.on_stop(query, forced)
        query.stopped, query.held = True, False
        query.callbacks.on_end(query.token, None)
        return orderly

    def hold(self, query: FakeQuery, deadline: timedelta, forced: threading.Event) -> bool:
        if self.on_hold(query, forced):
            query.held = True
        return query.held

    def release(self, query: FakeQuery) -> None:
        query.held = False
        self._loop.call_soon_threadsafe(self._released.put_nowait, query)

    def finish(self, start: Start) -> None: ...

    def ends(self, start: Start) -> Mapping[Ssp, int]:
        return {}

    def empty(self, start: Start, ends: Mapping[Ssp, int]) -> Emptied:
        return Emptied(-1)

    def check(self) -> None:
        self.on_check()

    def close(self) -> None: ...

    async def started(self) -> FakeQuery:
        """The next query that starts."""
        return await soon(self._started.get())

    async def released(self) -> FakeQuery:
        """The next query that goes on after it was held."""
        return await soon(self._released.get())

    async def all_started(self, number: int) -> dict[str, FakeQuery]:
        """The next queries that start, by name."""
        return {query.start.query: query for query in [await self.started() for _ in range(number)]}

    @property
    def acting(self) -> list[str]:
        """Queries that started and were not stopped."""
        return sorted(query.start.query for query in self.queries if not query.stopped)
