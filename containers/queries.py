"""The queries of a container: started on the engine's threads, heard of on the event loop, and stopped together."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from containers.backups import Backup
from containers.engine import Batch, Callbacks, Engine, Start
from containers.meters import Meters
from containers.pacing import Pacer
from containers.pulse import Pulse
from containers.reports import Report, Reports
from containers.stagerunner import RestartPolicy, StageRunner
from coordinator import wire
from coordinator.clock import Clock
from coordinator.core.errors import LeaseLost
from coordinator.core.ids import Ssp, TaskName

log = logging.getLogger(__name__)

T = TypeVar("T")


class UserCodeEnded(Exception):
    """User code raised what is no error but the end of something: SystemExit, KeyboardInterrupt, StopIteration."""


HURRY = timedelta(seconds=3)
"""How long a stop still waits once it was told to hurry: user code that blocks cannot be interrupted."""

BEYOND_TIME_OUT = timedelta(seconds=10)
"""How long a stop waits for Spark after a batch was interrupted at its time-out."""


STARTING = os.cpu_count() or 1
"""How many queries start at a time: each starts a Python process that needs a second or two of a core, and Spark gives it ten seconds."""


class Queries:
    """One engine and what runs on it. Its callbacks come from any thread; all else is on the loop's."""

    def __init__(
        self,
        engine: Engine,
        policy: RestartPolicy,
        clock: Clock,
        reports: Reports,
        on_lease_lost: Callable[[str], None],
        pacer_of: Callable[[Start], Pacer | None],
        backup_of: Callable[[Start], Backup | None],
        meters: Meters,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._clock = clock
        self._reports = reports
        self._on_lease_lost = on_lease_lost
        self._pacer_of = pacer_of
        self._backup_of = backup_of
        self._meters = meters
        self._last: dict[str, Report] = {}
        self._pacers: dict[str, Pacer] = {}
        self._backups: dict[str, Backup] = {}
        self._preparing: set[asyncio.Future[Start]] = set()
        self._stopping = self._paused = False
        self._loop = asyncio.get_running_loop()
        self._runners: dict[str, StageRunner] = {}
        self._ends: dict[str, asyncio.Future[str | None]] = {}
        self._forced = threading.Event()
        self._hurry = asyncio.Event()
        self._starting = asyncio.Semaphore(STARTING)
        self._threads = ThreadPoolExecutor(max_workers=64, thread_name_prefix="sluice-spark")
        self._pulse_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sluice-pulse")
        self._gone = False

    async def open(self) -> None:
        """Start the engine; seconds."""
        callbacks = Callbacks(
            on_batch=lambda batch: self._from_thread(self._on_batch, batch),
            on_idle=lambda query: self._from_thread(self._on_idle, query),
            on_end=lambda token, error: self._from_thread(self._on_query_end, token, error),
            on_lease_lost=lambda lost: self._from_thread(self._lost, lost),
        )
        await self._call(lambda: self._engine.open(callbacks))

    async def run(self, starts: Sequence[Start]) -> None:
        """Start these and keep them running until `stop`. Raises what `StageRunner.run` raises."""
        await asyncio.gather(*(self._keep(start) for start in starts))

    async def _keep(self, start: Start) -> None:
        """Keep one running, in step with the same stage of other tasks where that is asked for."""
        pacer = self._pacer_of(start)
        if pacer is not None:
            self._pacers[start.query] = pacer
            start = replace(start, around=(*start.around, pacer))
        prepared = await self._ready(start)
        if prepared is None or self._paused:
            return
        start, backup = prepared, self._backups.get(start.query)
        runner = self._runners[start.query] = StageRunner(
            self._engine, start, self._policy, self._clock, self._call, self._end_of, self._starting
        )
        self._meters.begin(start, lambda: runner.restarts)
        beside = [each.run() for each in (pacer, backup) if each is not None]
        works = [asyncio.ensure_future(work) for work in (runner.run(), *beside)]
        try:
            for done in (await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED))[0]:
                done.result()
        finally:
            for work in works:
                work.cancel()
            self._meters.forget(start)

    async def prepare(self, starts: Sequence[Start]) -> Sequence[Start] | None:
        """Make the stores of these ready without starting their queries; None when the container stops meanwhile."""
        ready = await asyncio.gather(*map(self._ready, starts))
        return None if None in ready else [start for start in ready if start is not None]

    async def _ready(self, start: Start) -> Start | None:
        """The start with its store made ready, which is done once in a container's life."""
        if (known := self._backups.get(start.query)) is not None:
            return replace(known.ready, around=(*start.around, known))
        backup = self._backup_of(start)
        if backup is None:
            return start
        prepared = await self._prepared(backup)
        if prepared is not None:
            self._backups[start.query] = backup
        return prepared

    async def _prepared(self, backup: Backup) -> Start | None:
        """How to start a stage whose store was made ready; None when the container stops meanwhile, and the store is left alone."""
        if self._stopping:
            return None
        preparing = asyncio.ensure_future(backup.prepare())
        self._preparing.add(preparing)
        try:
            await asyncio.wait({preparing})
            return None if preparing.cancelled() else preparing.result()
        finally:
            preparing.cancel()
            self._preparing.discard(preparing)

    async def _stop_preparing(self) -> None:
        self._stopping = True
        for preparing in self._preparing:
            preparing.cancel()
        if self._preparing:
            await asyncio.wait(set(self._preparing))

    def backup(self, start: Start) -> Backup | None:
        """Of a stage whose store was made ready."""
        return self._backups.get(start.query)

    async def on_engine(self, work: Callable[[Engine], T]) -> T:
        """Do something with the engine, on its threads."""
        return await self._call(lambda: work(self._engine))

    async def _call(self, blocking: Callable[[], T]) -> T:
        """Run a call into Spark on the threads that are for that: the default pool also resolves names, and heartbeats need it."""
        in_context = partial(copy_context().run, _contained, blocking)  # so that records of those threads say what they are about
        return await self._loop.run_in_executor(self._threads, in_context)

    async def until_spark_is_gone(self, patience: timedelta) -> str:
        """Returns why, once Spark has not answered for that long or has ended. From then on `stop` waits for nothing."""
        why = await Pulse(lambda: self._loop.run_in_executor(self._pulse_thread, self._engine.check), patience).run()
        self._gone = True
        self.hurry()
        return why

    def _from_thread(self, call: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(call, *args)

    def _lost(self, lost: LeaseLost) -> None:
        self._on_lease_lost(str(lost))

    def _end_of(self, token: str) -> asyncio.Future[str | None]:
        """The future of a query's end, for whoever comes first: the one who started it, or the one who tells of its end."""
        return self._ends.setdefault(token, self._loop.create_future())

    def _on_query_end(self, token: str, error: str | None) -> None:
        future = self._end_of(token)
        if not future.done():
            future.set_result(error)

    def _on_batch(self, batch: Batch) -> None:
        if (pacer := self._pacers.get(batch.query)) is not None:
            pacer.committed(batch.batch, batch.event_time_max)
        if (backup := self._backups.get(batch.query)) is not None:
            backup.committed(batch.batch)
        runner = self._runners.get(batch.query)
        if runner is not None:
            self._report(runner.start, batch.batch, batch.offsets, self._meters.committed(batch))

    def _on_idle(self, query: str) -> None:
        """Tell the last batch again, with what it is like without a new one. Before the first there is none to tell."""
        runner = self._runners.get(query)
        if runner is None:
            return
        measures, start, last = self._meters.idle(query), runner.start, self._last.get(query)
        if last is not None:
            self._report(start, last.batch, last.offsets, measures)
        elif start.reported is not None:
            self._report(start, start.reported, {}, measures)

    def _report(self, start: Start, batch: int, offsets: Mapping[Ssp, int], measures: wire.MeasuresBody | None) -> None:
        report = Report(start.task, start.declared.stage.name, start.generation, start.lineage, batch, offsets, measures)
        self._last[start.query] = report
        self._reports.put(report)

    def hurry(self) -> None:
        """Interrupt running batches instead of waiting for them."""
        self._forced.set()
        self._abandon()
        self._hurry.set()

    async def pause(self, deadline: timedelta) -> None:
        """Stop every query between batches, so that `run` returns, until `resume`. The container goes on."""
        self._paused = True
        late = self._loop.call_later(deadline.total_seconds(), self._abandon)
        try:
            await self._stop_all(deadline)
        finally:
            late.cancel()

    def resume(self) -> None:
        """Queries may be run again."""
        self._paused = False

    async def stop(self, deadline: timedelta) -> set[TaskName]:
        """Stop every query between batches; the tasks of which one has not ended in time, and may still act."""
        await self._stop_preparing()
        if self._gone:
            return {runner.start.task for runner in self._runners.values()}
        late = self._loop.call_later(deadline.total_seconds(), self._abandon)
        try:
            acting = await self._stop_all(deadline)
        finally:
            late.cancel()
        await self._finish_backups(acting, deadline)
        return acting

    def _abandon(self) -> None:
        for backup in self._backups.values():
            backup.abandon()

    async def _finish_backups(self, acting: set[TaskName], within: timedelta) -> None:
        """The last commits, of the tasks whose queries have ended. What cannot be committed is on this disk, and its plans are durable."""
        ended = [backup for backup in self._backups.values() if backup.ready.task not in acting]
        finishing = [asyncio.create_task(backup.finish()) for backup in ended]
        hurried = asyncio.create_task(self._hurried(within))
        while finishing and not hurried.done() and not all(each.done() for each in finishing):
            await asyncio.wait({hurried, *(each for each in finishing if not each.done())}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        for each in finishing:
            error = each.exception() if each.done() else TimeoutError("it took too long")
            each.cancel()
            if error is not None:
                log.warning("the last commit failed: %s", error)

    async def _stop_all(self, deadline: timedelta) -> set[TaskName]:
        for pacer in self._pacers.values():
            pacer.open()
        stopping = {
            asyncio.create_task(runner.stop(deadline, self._forced), name=name): runner.start.task for name, runner in self._runners.items()
        }
        stops, ended = set(stopping), set[asyncio.Task[bool]]()
        hurried = asyncio.create_task(self._hurried(deadline))
        while stops and not hurried.done():
            stopped, _ = await asyncio.wait({*stops, hurried}, return_when=asyncio.FIRST_COMPLETED)
            ended |= {stop for stop in stops & stopped if _has_ended(stop)}
            stops -= stopped
        hurried.cancel()
        for stop in stops:
            log.warning("%s did not stop in time", stop.get_name())
        return {stopping[stop] for stop in stopping.keys() - ended}

    async def _hurried(self, deadline: timedelta) -> None:
        """Returns when stopping has taken as long as it may: the deadline and a little, or a moment after it was told to hurry."""
        with suppress(TimeoutError):
            async with asyncio.timeout((deadline + BEYOND_TIME_OUT).total_seconds()):
                await self._hurry.wait()
                await asyncio.sleep(0 if self._gone else HURRY.total_seconds())


def _has_ended(stop: asyncio.Task[bool]) -> bool:
    """Whether a query has ended, as its stop tells. One whose stop failed may still act."""
    error = stop.exception()
    if error is not None:
        log.warning("%s: %s", stop.get_name(), error)
    elif not stop.result():
        log.warning("%s: its batch was interrupted and runs again at the next start", stop.get_name())
    return error is None


def _contained(blocking: Callable[[], T]) -> T:
    """Call it, and raise nothing but what is safe to raise on an event loop. User code calls sys.exit(), or lets a StopIteration pass: the
    first would end the loop, the second (before Python 3.12) would never reach the one who waits. Raises UserCodeEnded for such."""
    try:
        return blocking()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise UserCodeEnded(f"user code raised {type(error).__name__}: {error}").with_traceback(error.__traceback__) from error
