"""Queries that stop, or wait, all at a time: within a deadline, and sooner once the container was told to hurry."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias

from containers.backups import Backup
from containers.stagerunner import StageRunner

log = logging.getLogger(__name__)

Quieten: TypeAlias = Callable[[StageRunner, timedelta, threading.Event], Coroutine[Any, Any, bool]]
"""`StageRunner.hold` or `stop`."""

HURRY = timedelta(seconds=3)
"""How long a stop still waits once it was told to hurry: user code that blocks cannot be interrupted."""

BEYOND_TIME_OUT = timedelta(seconds=10)
"""How long a stop waits for Spark after a batch was interrupted at its time-out."""


class Patience:
    """How long stops wait. `forced` is for the engine's threads; `spark_is_gone`: there is nobody left to wait for."""

    def __init__(self) -> None:
        self.forced = threading.Event()
        self.spark_is_gone = False
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Batches are not waited for any more."""
        self.forced.set()
        self._hurry.set()

    async def wait(self, works: Callable[[], Iterable[asyncio.Future[Any]]], deadline: timedelta) -> None:
        """Until there are no works left, or waiting has taken as long as it may: the deadline and a little, or a moment after it was told
        to hurry."""
        spent = asyncio.create_task(self._spent(deadline))
        while not spent.done() and (left := {work for work in works() if not work.done()}):
            await asyncio.wait({spent, *left}, return_when=asyncio.FIRST_COMPLETED)
        spent.cancel()

    async def _spent(self, deadline: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout((deadline + BEYOND_TIME_OUT).total_seconds()):
                await self._hurry.wait()
                await asyncio.sleep(0 if self.spark_is_gone else HURRY.total_seconds())


async def quietened(
    runners: Mapping[str, StageRunner],
    quieten: Quieten,
    deadline: timedelta,
    patience: Patience,
    abandon: Callable[[Collection[str]], None],
) -> Collection[str]:
    """Stop or hold these; those that have not ended in time. At the deadline what still runs is abandoned: its batches wait for nothing
    more."""
    stops = {name: asyncio.create_task(quieten(runner, deadline, patience.forced), name=name) for name, runner in runners.items()}
    loop = asyncio.get_running_loop()
    late = loop.call_later(deadline.total_seconds(), lambda: abandon([name for name, stop in stops.items() if not stop.done()]))
    await patience.wait(stops.values, deadline)
    late.cancel()
    return [name for name, stop in stops.items() if not _has_ended(stop)]


def _has_ended(stop: asyncio.Task[bool]) -> bool:
    """Whether a query has ended, as its stop tells. One whose stop failed may still act."""
    if not stop.done():
        log.warning("%s did not stop in time", stop.get_name())
        return False
    error = stop.exception()
    if error is not None:
        log.warning("%s: %s", stop.get_name(), error)
    elif not stop.result():
        log.warning("%s: its batch was interrupted and runs again at the next start", stop.get_name())
    return error is None


async def finished(backups: Collection[Backup], within: timedelta, patience: Patience) -> None:
    """The last commits of stores whose queries have ended. What cannot be committed is on this disk, and its plans are durable."""
    finishing = [asyncio.create_task(backup.finish()) for backup in backups]
    await patience.wait(lambda: finishing, within)
    for each in finishing:
        error = each.exception() if each.done() else TimeoutError("it took too long")
        each.cancel()
        if error is not None:
            log.warning("the last commit failed: %s", error)
