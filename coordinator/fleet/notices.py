"""Long polls. A container polls for the notices of its run: a drain, a new job model, a stop. It also waits for tasks that another
container still owns. Notices are rows in the database; the polls wait in memory until the code that added a notice calls `notify`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Generic, TypeVar

from coordinator.store.fleet import ContainerRow, TaskOwnershipRow
from coordinator.store.runs import NoticeRow
from coordinator.store.sql import Store
from sluice.core.errors import UnknownRun
from sluice.core.ids import JobName, RunId, TaskName

K = TypeVar("K", bound=Hashable)


class Waiters(Generic[K]):
    """Requests that wait for a change of a key. For one event loop; there are no locks."""

    def __init__(self) -> None:
        self._events: defaultdict[K, dict[asyncio.Event, None]] = defaultdict(dict)
        """In the order of arrival. They are woken in this order."""
        self.closed = False

    def notify(self, keys: Iterable[K]) -> None:
        """Wake all waiters for these keys. Call it after the transaction that made the change has committed."""
        for key in keys:
            for event in self._events.get(key, ()):
                event.set()

    def notify_all(self) -> None:
        """Wake all waiters."""
        self.notify(list(self._events))

    def close(self) -> None:
        """Wake all waiters, and let later waits end immediately. Called when the coordinator shuts down."""
        self.closed = True
        self.notify_all()

    def waiting(self, key: K) -> int:
        """The number of waiters for the key."""
        return len(self._events.get(key, ()))

    @property
    def total(self) -> int:
        """The number of waiters for all keys."""
        return sum(len(events) for events in self._events.values())

    @contextmanager
    def register(self, key: K) -> Iterator[asyncio.Event]:
        """An event that is set when the key is notified after the block was entered. Enter the block before reading the data, so that no
        change between reading and waiting is missed."""
        event = asyncio.Event()
        if self.closed:
            event.set()
        self._events[key][event] = None
        try:
            yield event
        finally:
            self._events[key].pop(event, None)
            if not self._events[key]:
                del self._events[key]


async def wait(event: asyncio.Event, within: timedelta) -> bool:
    """Whether the event was set within that time."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            return await event.wait()
    except TimeoutError:
        return False


class TaskWaiters(Waiters[tuple[JobName, TaskName]]):
    """Containers that wait until a task is released."""

    def notify_ended(self, containers: Iterable[ContainerRow], released: Iterable[TaskOwnershipRow]) -> None:
        """Wake the waiters for these tasks, or all waiters if a bare container has ended, which owns no tasks."""
        if any(each.bare for each in containers):
            self.notify_all()
        else:
            self.notify_released(released)

    def notify_released(self, released: Iterable[TaskOwnershipRow]) -> None:
        self.notify((row.job, row.task) for row in released)


class Notices:
    """Long polls for the notices of runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._polls: Waiters[RunId] = Waiters()
        self._none_above: dict[RunId, int] = {}
        """For each run: no notice has a higher number than this. A waiting poll has read that, and none was added since, so that further
        polls need not read the database. The polls of thousands of containers cost one read."""

    def notify(self, run_id: RunId) -> None:
        """Wake the polls of the run. Call it after the transaction that added a notice has committed."""
        self._none_above.pop(run_id, None)
        self._polls.notify([run_id])

    def notify_all(self) -> None:
        """Wake the polls of all runs."""
        self._none_above.clear()
        self._polls.notify_all()

    def waiting(self, run_id: RunId) -> int:
        """The number of polls that wait for a notice of the run."""
        return self._polls.waiting(run_id)

    @property
    def polls(self) -> int:
        """The number of polls that wait for notices of all runs."""
        return self._polls.total

    def close(self) -> None:
        """End all polls, and let later ones end immediately. Called when the coordinator shuts down."""
        self._none_above.clear()
        self._polls.close()

    async def after(self, run_id: RunId, seq: int, within: timedelta) -> Sequence[NoticeRow]:
        """The run's notices with numbers above `seq`, as soon as there are any. Empty if none is added within that time. Raises
        UnknownRun."""
        must_read = run_id not in self._none_above or self._none_above[run_id] > seq
        with self._polls.register(run_id) as event:
            try:
                if must_read:
                    found = await self._read(run_id, seq)
                    if found:
                        return found
                    if not event.is_set():
                        self._none_above[run_id] = seq
                if not self._polls.closed and await wait(event, within):
                    return await self._read(run_id, seq)
                return []
            finally:
                if must_read:
                    self._none_above.pop(run_id, None)

    async def _read(self, run_id: RunId, seq: int) -> Sequence[NoticeRow]:
        async with self._store.read() as tx:
            if await tx.runs.get(run_id) is None:
                raise UnknownRun(f"there is no run {run_id!r}")
            return await tx.runs.notices(run_id, seq)
