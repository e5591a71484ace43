"""Notices: what containers must learn at once. They are rows in the database; long polls wait here for new ones, and so do containers that
wait for a task to become free.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from coordinator.store.port import NoticeRow, Store, TaskOwnershipRow
from sluice.core.errors import UnknownRun
from sluice.core.ids import JobName, RunId, TaskName


class Notices:
    """Long polls over the notices of runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._bells: defaultdict[RunId, set[asyncio.Event]] = defaultdict(set)
        self._none_above: dict[RunId, int] = {}
        """By run: a poll that goes on found no notice above this number, and nobody has rung since, so the next need not look."""
        self._closed = False

    def ring(self, run_id: RunId) -> None:
        """Wake everybody who waits for a notice of the run. Call it when the transaction that added one has ended."""
        self._none_above.pop(run_id, None)
        for bell in self._bells.get(run_id, ()):
            bell.set()

    def waiting(self, run_id: RunId) -> int:
        """How many polls wait for a notice of the run."""
        return len(self._bells.get(run_id, ()))

    @property
    def polls(self) -> int:
        """How many polls wait, for notices of all runs."""
        return sum(len(bells) for bells in self._bells.values())

    def close(self) -> None:
        """End all polls, and later ones at once: the coordinator is going down."""
        self._closed = True
        for run_id in list(self._bells):
            self.ring(run_id)

    async def after(self, run_id: RunId, seq: int, wait: timedelta) -> Sequence[NoticeRow]:
        """The run's notices with numbers above `seq`, as soon as there are any; none after `wait`. Raises UnknownRun."""
        bell = asyncio.Event()
        self._bells[run_id].add(bell)
        looked = run_id not in self._none_above or self._none_above[run_id] > seq
        try:
            if looked:
                found = await self._read(run_id, seq)
                if found:
                    return found
                if not bell.is_set():
                    self._none_above[run_id] = seq
            if not self._closed and await _rung(bell, wait):
                return await self._read(run_id, seq)
            return []
        finally:
            if looked:
                self._none_above.pop(run_id, None)
            self._bells[run_id].discard(bell)
            if not self._bells[run_id]:
                del self._bells[run_id]

    async def _read(self, run_id: RunId, seq: int) -> Sequence[NoticeRow]:
        async with self._store.read() as tx:
            if await tx.run(run_id) is None:
                raise UnknownRun(f"there is no run {run_id!r}")
            return await tx.notices(run_id, seq)


async def _rung(bell: asyncio.Event, wait: timedelta) -> bool:
    try:
        async with asyncio.timeout(wait.total_seconds()):
            return await bell.wait()
    except TimeoutError:
        return False


class TaskWaiters:
    """Bells by task. One event loop's; no locks."""

    def __init__(self) -> None:
        self._bells: defaultdict[tuple[JobName, TaskName], set[asyncio.Event]] = defaultdict(set)
        self._closed = False

    def ring(self, holds: Iterable[TaskOwnershipRow]) -> None:
        """Wake those who wait for these tasks. Call it when the transaction that freed them has ended."""
        for hold in holds:
            for bell in self._bells.get((hold.job, hold.task), ()):
                bell.set()

    def close(self) -> None:
        """Let nobody wait any more: the coordinator is going down."""
        self._closed = True
        for bells in self._bells.values():
            for bell in bells:
                bell.set()

    def waiting(self, job: JobName, task: TaskName) -> int:
        """How many wait for the task."""
        return len(self._bells.get((job, task), ()))

    @contextmanager
    def bell(self, job: JobName, task: TaskName) -> Iterator[asyncio.Event]:
        """Set when the task has been freed since the block was entered."""
        made = asyncio.Event()
        if self._closed:
            made.set()
        self._bells[job, task].add(made)
        try:
            yield made
        finally:
            self._bells[job, task].discard(made)
            if not self._bells[job, task]:
                del self._bells[job, task]


async def rung(bell: asyncio.Event, within: timedelta) -> None:
    """Wait for the bell, no longer than that."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            await bell.wait()
    except TimeoutError:
        pass
