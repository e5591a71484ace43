"""Freed tasks: whoever waits for one hears at once that its former holder has let go of it, instead of asking again and again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from coordinator.store.port import HoldRow
from sluice.core.ids import JobName, TaskName


class Freed:
    """Bells by task. One event loop's; no locks."""

    def __init__(self) -> None:
        self._bells: defaultdict[tuple[JobName, TaskName], set[asyncio.Event]] = defaultdict(set)
        self._closed = False

    def ring(self, holds: Iterable[HoldRow]) -> None:
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
