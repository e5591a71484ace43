"""Waits that a jump of the wall clock neither ends nor prolongs. docs/waits.md lists all waits of the coordinator.

A short wait, such as a drain's deadline, is measured with the monotonic clock (`Waits`). The recorded time of its start is used once, when
the coordinator first sees it. A long wait must survive restarts, so its end is a recorded time. Before a deletion, a jump of the wall clock
could end it too early, so all deletions are suspended for some time after a jump (`DeletionHold`).

`EventLoopLag` measures by how much the event loop is late.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from sluice.clock import Clock
from sluice.core.ids import Instant
from sluice.core.waits import TOLERANCE, age

log = logging.getLogger(__name__)

K = TypeVar("K")


class Waits(Generic[K]):
    """Measures how long each of a set of keys has been waiting. A chore processes all of them in rounds: `waited` for each, then
    `end_round`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_at = clock.now()
        self._last_round = clock.elapsed()
        self._since: dict[K, float] = {}

    def waited(self, key: K, recorded: datetime, at_most: timedelta = timedelta.max) -> timedelta:
        """How long the key has been waiting. `recorded`: the wall-clock time at which its wait began.

        A new key cannot have waited longer than since the last round. If its wait began before the coordinator started, the wall clock is
        used, up to `at_most`."""
        elapsed = self._clock.elapsed()
        if key not in self._since:
            before = age(recorded, self._clock.now())
            since_last_round = timedelta(seconds=elapsed - self._last_round)
            before = min(before, at_most) if recorded < self._started_at else min(before, since_last_round)
            self._since[key] = elapsed - before.total_seconds()
        return timedelta(seconds=elapsed - self._since[key])

    def end_round(self, waiting: Collection[K]) -> None:
        """End a round in which all keys were checked. Keys that are not in `waiting` are dropped."""
        self._last_round = self._clock.elapsed()
        self._since = {key: since for key, since in self._since.items() if key in waiting}


class DeletionHold:
    """Nothing is deleted for `lasting` after the wall clock has jumped ahead, nor while `incomplete` returns True, because the database may
    not list all snapshots that there are.

    `lasting` is the grace period of garbage, which is longer than any commit. Therefore all uploads that were running at the time of the
    jump have been reported when the hold ends. Every chore that deletes checks it in each run."""

    def __init__(self, clock: Clock, lasting: timedelta, incomplete: Callable[[], bool] = lambda: False) -> None:
        self._clock = clock
        self._lasting = lasting
        self._incomplete = incomplete
        self._offset = self._offset_now()
        self._until = Instant(clock.elapsed())
        self._jump = timedelta(0)

    @property
    def jump(self) -> timedelta:
        """By how much the clock has jumped ahead; zero unless deletions are held."""
        return self._jump if self._jumped() else timedelta(0)

    @property
    def incomplete(self) -> bool:
        """Whether the database may lack snapshots that there are."""
        return self._incomplete()

    def active(self) -> bool:
        return self._jumped() or self._incomplete()

    def _jumped(self) -> bool:
        offset = self._offset_now()
        if offset - self._offset > TOLERANCE.total_seconds():
            self._begin(timedelta(seconds=offset - self._offset))
        self._offset = offset
        return self._clock.elapsed() < self._until

    def check_start(self, newest: datetime | None) -> None:
        """At the start of the coordinator. `newest`: when the newest snapshot of an active run was reported; None if there is none. If it
        is too old, the clock may have jumped while no coordinator ran."""
        if newest is not None and age(newest, self._clock.now()) > self._lasting:
            self._begin(age(newest, self._clock.now()))

    def _begin(self, jump: timedelta) -> None:
        self._jump = jump
        self._until = Instant(self._clock.elapsed() + self._lasting.total_seconds())
        log.error("the clock has jumped ahead by %s: deletions are suspended for %s; check the clock", jump, self._lasting)

    def _offset_now(self) -> float:
        return self._clock.now().timestamp() - self._clock.elapsed()


LAG_INTERVAL = timedelta(seconds=0.5)
LAG_WINDOW = timedelta(seconds=30)
"""At least two intervals at which Prometheus reads it, so that no delay is missed."""


class EventLoopLag:
    """Sleeps for LAG_INTERVAL repeatedly, and records for LAG_WINDOW by how much each sleep was too long. Nothing is measured before
    `start`. `time`: a monotonic clock in seconds."""

    def __init__(self, time: Callable[[], float], interval: timedelta = LAG_INTERVAL, window: timedelta = LAG_WINDOW) -> None:
        self._time = time
        self._interval = interval.total_seconds()
        self._window = window.total_seconds()
        self._late: deque[tuple[float, float]] = deque()
        """When a sleep ended, and by how much it was too long."""
        self._due = 0.0
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Call on the event loop."""
        self._due = self._time() + self._interval
        self._next = asyncio.get_running_loop().call_later(self._interval, self._woken)

    def stop(self) -> None:
        """Idempotent."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def longest(self) -> float:
        """The longest delay within LAG_WINDOW, in seconds. It includes one that has not ended."""
        now = self._time()
        self._forget(now)
        waiting = now - self._due if self._next is not None else 0.0
        return max([waiting, 0.0, *(late for _, late in self._late)])

    def _woken(self) -> None:
        now = self._time()
        self._forget(now)
        self._late.append((now, now - self._due))
        self.start()

    def _forget(self, now: float) -> None:
        while self._late and self._late[0][0] < now - self._window:
            self._late.popleft()
