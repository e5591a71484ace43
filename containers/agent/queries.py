"""The queries of a container: started on the engine's threads, heard of on the event loop, and stopped together."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar

from containers.agent.alignment import Aligner
from containers.agent.liveness import Pulse
from containers.agent.metrics import Meters
from containers.agent.progress import Report, Reports
from containers.agent.stage import RestartPolicy, StageRunner
from containers.engine import STARTING, Batch, Callbacks, Engine, StageStart
from containers.state.backup import Backup
from sluice.clock import Clock
from sluice.core.errors import LeaseLost
from sluice.core.ids import Ssp, TaskName
from sluice.wire import agents as wire_agents

log = logging.getLogger(__name__)

T = TypeVar("T")


class UserCodeEnded(Exception):
    """User code raised what is no error but the end of something: SystemExit, KeyboardInterrupt, StopIteration."""


class Queries:
    """One engine and what runs on it. Its callbacks come from any thread; all else is on the loop's."""

    def __init__(
        self,
        engine: Engine,
        policy: RestartPolicy,
        clock: Clock,
        reports: Reports,
        on_lease_lost: Callable[[str], None],
        pacer_of: Callable[[StageStart], Aligner | None],
        backup_of: Callable[[StageStart], Backup | None],
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
        self._pacers: dict[str, Aligner] = {}
        self._backups: dict[str, Backup] = {}
        self._preparing: dict[asyncio.Future[StageStart], str] = {}
        self._at_work: dict[asyncio.Future[Any], TaskName] = {}
        self._stopping = False
        self._pauses = 0
        self._stops: Counter[str] = Counter()
        self._begun: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._loop = asyncio.get_running_loop()
        self._runners: dict[str, StageRunner] = {}
        self._ends: dict[str, asyncio.Future[str | None]] = {}
        self._patience = ShutdownDeadline()
        self._starting = asyncio.Semaphore(STARTING)
        self._threads = ThreadPoolExecutor(max_workers=64, thread_name_prefix="sluice-spark")
        self._pulse_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sluice-pulse")

    async def open(self) -> None:
        """Start the engine; seconds."""
        callbacks = Callbacks(
            on_batch=lambda batch: self._from_thread(self._on_batch, batch),
            on_idle=lambda query: self._from_thread(self._on_idle, query),
            on_end=lambda token, error: self._from_thread(self._on_query_end, token, error),
            on_lease_lost=lambda lost: self._from_thread(self._lost, lost),
        )
        await self._call(lambda: self._engine.open(callbacks))

    async def run(self, starts: Sequence[StageStart]) -> None:
        """Start these, or let them go on that a pause has held, and keep them running until `stop` or `pause`. Raises what
        `StageRunner.run` raises."""
        await asyncio.gather(*(self._keep(start, self._quiets(start.query)) for start in starts))

    def _quiets(self, query: str) -> tuple[int, int]:
        """What changes with each pause, and each stop of the query."""
        return self._pauses, self._stops[query]

    async def _keep(self, start: StageStart, quiets: tuple[int, int]) -> None:
        """Keep one running, in step with the same stage of other tasks where that is asked for."""
        runner = self._runners.get(start.query)
        if runner is None or not runner.held:
            runner = await self._new_runner(start, quiets)
        if runner is None or self._quiets(start.query) != quiets:
            return
        pacer, backup = self._pacers.get(start.query), self._backups.get(start.query)
        if pacer is not None:
            pacer.close()
        self._revive([start.query])
        self._meters.begin(runner.start, lambda: runner.restarts)
        try:
            await _first(runner.run(), *(each.run() for each in (pacer, backup) if each is not None))
        finally:
            self._meters.forget(runner.start)

    async def _new_runner(self, start: StageStart, quiets: tuple[int, int]) -> StageRunner | None:
        """None when it was stopped meanwhile, or all was paused: another `run` then begins anew."""
        pacer = self._pacer_of(start)
        prepared = await self._ready(start if pacer is None else replace(start, around=(*start.around, pacer)))
        if prepared is None or self._stopping or self._quiets(start.query) != quiets:
            return None
        if pacer is not None:
            self._pacers[start.query] = pacer
        runner = StageRunner(
            self._engine,
            prepared,
            self._policy,
            self._clock,
            self._call,
            self._end_of,
            self._starting,
            on_begun=self._begun[start.query].set,
        )
        self._runners[start.query] = runner
        return runner

    async def prepare(self, starts: Sequence[StageStart]) -> Sequence[StageStart] | None:
        """Make the stores of these ready without starting their queries; None when the container stops meanwhile."""
        ready = await asyncio.gather(*map(self._ready, starts))
        return None if None in ready else [start for start in ready if start is not None]

    async def _ready(self, start: StageStart) -> StageStart | None:
        """The start with its store made ready, which is done once in a container's life."""
        if (known := self._backups.get(start.query)) is not None:
            return replace(known.ready, starts=start.starts, around=(*start.around, known))
        backup = self._backup_of(start)
        if backup is None:
            return start
        prepared = await self._prepared(backup, start.query)
        if prepared is not None:
            self._backups[start.query] = backup
        return prepared

    async def _prepared(self, backup: Backup, query: str) -> StageStart | None:
        """How to start a stage whose store was made ready; None when it is stopped meanwhile, and the store is left alone."""
        if self._stopping:
            return None
        preparing = asyncio.ensure_future(backup.prepare())
        self._preparing[preparing] = query
        try:
            await asyncio.wait({preparing})
            return None if preparing.cancelled() else preparing.result()
        finally:
            preparing.cancel()
            self._preparing.pop(preparing, None)

    async def _stop_preparing(self, queries: Collection[str]) -> None:
        stopped = [preparing for preparing, query in self._preparing.items() if query in queries]
        for preparing in stopped:
            preparing.cancel()
        if stopped:
            await asyncio.wait(stopped)

    def backup(self, start: StageStart) -> Backup | None:
        """Of a stage whose store was made ready."""
        return self._backups.get(start.query)

    async def run_on_engine(self, start: StageStart, work: Callable[[Engine], T]) -> T:
        """Do something for a stage with the engine, on its threads. A stop waits for it, also when nobody else does any more."""
        doing = asyncio.ensure_future(self._call(lambda: work(self._engine)))
        self._at_work[doing] = start.task
        doing.add_done_callback(self._worked)
        return await asyncio.shield(doing)

    def _worked(self, done: asyncio.Future[Any]) -> None:
        task = self._at_work.pop(done, None)
        if not done.cancelled() and (error := done.exception()) is not None:  # asyncio would complain of one that nobody waits for any more
            log.debug("work for %s on the engine failed: %s", task, error)

    async def _call(self, blocking: Callable[[], T]) -> T:
        """Run a call into Spark on the threads that are for that: the default pool also resolves names, and heartbeats need it."""
        in_context = partial(copy_context().run, _contained, blocking)  # so that records of those threads say what they are about
        return await self._loop.run_in_executor(self._threads, in_context)

    async def until_spark_is_gone(self, patience: timedelta) -> str:
        """Returns why, once Spark has not answered for that long or has ended. From then on `stop` waits for nothing."""
        why = await Pulse(lambda: self._loop.run_in_executor(self._pulse_thread, self._engine.check), patience).run()
        self._patience.spark_is_gone = True
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

    def _report(self, start: StageStart, batch: int, offsets: Mapping[Ssp, int], measures: wire_agents.StageMetricsBody | None) -> None:
        report = Report(start.task, start.declared.stage.name, start.generation, start.lineage, batch, offsets, measures)
        self._last[start.query] = report
        self._reports.put(report)

    def hurry(self) -> None:
        """Interrupt running batches instead of waiting for them."""
        self._abandon(self._backups)
        self._patience.hurry()

    async def pause(self, deadline: timedelta) -> None:
        """Have every query wait between two batches, or stop it there, so that `run` returns. The container goes on."""
        self._pauses += 1
        await self._each(StageRunner.hold, self._runners, deadline)

    async def concurrently_with_commits(self, starts: Sequence[StageStart], work: Awaitable[T]) -> T:
        """Do the work while the stores of these are backed up as ever: batches wait for overdue commits. Raises what the work and
        `Backup.run` raise."""
        doing = asyncio.ensure_future(work)
        backups = [backup for start in starts if (backup := self._backups.get(start.query)) is not None]
        self._revive(start.query for start in starts)
        await _first(doing, *(backup.run() for backup in backups))
        return doing.result()

    async def stop(self, deadline: timedelta) -> set[TaskName]:
        """Stop every query between batches, for good; the tasks of which one has not ended in time, and may still act."""
        self._stopping = True
        await self._stop_preparing(set(self._preparing.values()))
        if self._patience.spark_is_gone:
            return {runner.start.task for runner in self._runners.values()}
        tasks = {query: runner.start.task for query, runner in self._runners.items()}
        acting = {tasks[query] for query in await self._each(StageRunner.stop, tasks, deadline)} | await self._await_works(deadline)
        ended = [backup for backup in self._backups.values() if backup.ready.task not in acting]
        await finished(ended, deadline, self._patience)
        return acting

    # --- some of them ----------------------------------------------------------------------------------------------

    async def begun(self, queries: Collection[str]) -> None:
        """Wait until these have started, since they were stopped last."""
        for query in queries:
            await self._begun[query].wait()

    async def stop_some(self, queries: Collection[str], deadline: timedelta) -> Collection[str]:
        """Stop these between batches, so that their `run` returns; those that have not ended in time, and may still act. They may be run
        again, with more to read."""
        for query in queries:
            self._stops[query] += 1
            self._begun[query].clear()
        await self._stop_preparing(queries)
        return await self._each(StageRunner.stop, queries, deadline)

    async def give_up(self, queries: Collection[str], deadline: timedelta) -> None:
        """Make the last commits of these, which have ended, and forget them: another container is to run them."""
        backups = [self._backups[query] for query in queries if query in self._backups]
        await finished(backups, deadline, self._patience)
        for backup in backups:
            backup.forget()
        for query in queries:
            for known in (self._runners, self._backups, self._pacers, self._last, self._begun):
                known.pop(query, None)

    def _revive(self, queries: Iterable[str]) -> None:
        """Not once the container was told to hurry: that stands."""
        for query in queries:
            if (backup := self._backups.get(query)) is not None and not self._patience.forced.is_set():
                backup.revive()

    def _abandon(self, queries: Iterable[str]) -> None:
        for query in queries:
            if (backup := self._backups.get(query)) is not None:
                backup.abandon()

    async def _each(self, quieten: StopOrPause, queries: Collection[str], deadline: timedelta) -> Collection[str]:
        """Stop or hold these; those that have not ended in time."""
        for query in queries:
            if (pacer := self._pacers.get(query)) is not None:
                pacer.open()
        runners = {query: self._runners[query] for query in queries if query in self._runners}
        return await stop_or_pause_all(runners, quieten, deadline, self._patience, self._abandon)

    async def _await_works(self, deadline: timedelta) -> set[TaskName]:
        """The tasks for which the engine is still at work after that. A batch that runs at the deadline waits for nothing more."""
        late = self._loop.call_later(deadline.total_seconds(), lambda: self._abandon(self._backups))
        await self._patience.wait(lambda: self._at_work, deadline)
        late.cancel()
        return {task for doing, task in self._at_work.items() if not doing.done()}  # one that just ended may not have told it yet


async def _first(*works: Awaitable[object]) -> None:
    """Until the first of these has ended; the others are cancelled, and an error of it is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        for done in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            done.result()
    finally:
        for task in tasks:
            task.cancel()


def _contained(blocking: Callable[[], T]) -> T:
    """Call it, and raise nothing but what is safe to raise on an event loop. User code calls sys.exit(), or lets a StopIteration pass: the
    first would end the loop, the second (before Python 3.12) would never reach the one who waits. Raises UserCodeEnded for such."""
    try:
        return blocking()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise UserCodeEnded(f"user code raised {type(error).__name__}: {error}").with_traceback(error.__traceback__) from error


StopOrPause: TypeAlias = Callable[[StageRunner, timedelta, threading.Event], Coroutine[Any, Any, bool]]
"""`StageRunner.hold` or `stop`."""

HURRY = timedelta(seconds=3)
"""How long a stop still waits once it was told to hurry: user code that blocks cannot be interrupted."""

BEYOND_TIME_OUT = timedelta(seconds=10)
"""How long a stop waits for Spark after a batch was interrupted at its time-out."""


class ShutdownDeadline:
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


async def stop_or_pause_all(
    runners: Mapping[str, StageRunner],
    quieten: StopOrPause,
    deadline: timedelta,
    patience: ShutdownDeadline,
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


async def finished(backups: Collection[Backup], within: timedelta, patience: ShutdownDeadline) -> None:
    """The last commits of stores whose queries have ended. What cannot be committed is on this disk, and its plans are durable."""
    finishing = [asyncio.create_task(backup.finish()) for backup in backups]
    await patience.wait(lambda: finishing, within)
    for each in finishing:
        error = each.exception() if each.done() else TimeoutError("it took too long")
        each.cancel()
        if error is not None:
            log.warning("the last commit failed: %s", error)
