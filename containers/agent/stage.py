"""One stage of one task: its query, which is restarted after a failure, and its backup and metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from traceback import format_exception
from typing import Any

from containers.agent.async_engine import AsyncEngine
from containers.agent.failures import Failures, RestartPolicy, StageFailed, StageFailure, check_state_fits, headline
from containers.agent.metrics import Meter
from containers.agent.progress import FailureReport, ProgressReport, ProgressReporter
from containers.agent.watermarks import StageWatermarks
from containers.engine import Batch, StageStart
from containers.errors import DiskFull, OperatorsDiffer, StateIncompatible, StateNotLocal
from containers.state.backup import Backup
from sluice.client import sendable
from sluice.clock import Clock
from sluice.core.errors import BadJobFile, CorruptData, LeaseLost
from sluice.core.ids import Ssp
from sluice.disks import NO_DISKS, LocalDisks
from sluice.logconfig import about
from sluice.wire import agents as wire_agents

log = logging.getLogger(__name__)

LOGGED = 20_000
"""How many characters of an error are logged."""

REPORTED = 500
"""How many characters of the problem of a backup are reported."""

LAST_PROGRESS_WITHIN = timedelta(seconds=5)
"""How long a stop waits for the query's last progress: Spark reports it, and then the end, a moment after the stop."""


class StageRunner:
    """Keeps one streaming query running: starts it, waits for its end, and starts it again after a pause that doubles, up to a limit. A
    batch that fails again with the same error is tried only once more.

    `on_started` is called each time the query has started, `on_failure` each time it has failed. `disks`: the disks to check for a lack of
    room after a failure. `check_lease` is called with the error first, and raises LeaseLost if the lease has expired. `job_directory`: that
    of the user's code, whose lines errors name."""

    def __init__(
        self,
        engine: AsyncEngine,
        start: StageStart,
        policy: RestartPolicy,
        clock: Clock,
        on_started: Callable[[], None] = lambda: None,
        on_failure: Callable[[StageFailure], None] = lambda failure: None,
        disks: LocalDisks = NO_DISKS,
        check_lease: Callable[[object], None] = lambda error: None,
        job_directory: Path | None = None,
    ) -> None:
        self.start = start
        self.restarts = 0
        self._engine = engine
        self._policy = policy
        self._failures = Failures(policy)
        self._clock = clock
        self._on_started = on_started
        self._on_failure = on_failure
        self._disks = disks
        self._check_lease = check_lease
        self._job_directory = job_directory
        self._token = ""
        """That of the query; "" while there is none."""
        self._starting: asyncio.Future[str] | None = None
        """The last start. It continues on its thread when `run` is cancelled."""
        self._changing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._paused = asyncio.Event()

    @property
    def paused(self) -> bool:
        """Whether the query waits between two batches, until `run` resumes it."""
        return self._paused.is_set()

    def committed(self) -> None:
        """The query has committed a batch."""
        self._failures.committed()

    async def run(self) -> None:
        """Run until `stop` or `pause`. Raises StageFailed, LeaseLost, and every error that a restart cannot correct."""
        with about(task=self.start.task, stage=self.start.stage.name, generation=self.start.generation):
            if self.paused:
                self._stopping.clear()
                await self._after(await self._resume())
            while not self._stopping.is_set():
                await self._after(await self._run_once())

    async def _after(self, error: str | None) -> None:
        if not self._stopping.is_set():
            await self._wait(self._after_failure(error or "the query ended by itself"))

    async def _wait(self, duration: timedelta) -> None:
        """Wait for the duration, or until `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(duration.total_seconds()):
                await self._stopping.wait()

    async def _run_once(self) -> str | None:
        async with self._engine.starting, self._changing:
            if self._stopping.is_set():
                return None
            self._token = ""
            self._starting = asyncio.ensure_future(self._engine.call(lambda engine: engine.start(self.start)))
            try:
                self._token = await asyncio.shield(self._starting)
            except (LeaseLost, StateNotLocal, OperatorsDiffer, BadJobFile, CorruptData):
                raise
            except Exception as error:
                self._check_lease(error)
                log.warning("%s does not start", self.start.query, exc_info=error)
                return "".join(format_exception(error))
        log.info("%s is running under generation %d", self.start.query, self.start.generation)
        self._on_started()
        return await self._end()

    async def _started(self) -> str:
        """The token of the query; "" if there is none. Waits for the end of a start whose `run` was cancelled."""
        if not self._token and self._starting is not None:
            with suppress(Exception):
                self._token = await asyncio.shield(self._starting)
            self._starting = None
        return self._token

    async def _resume(self) -> str | None:
        async with self._changing:
            if self._stopping.is_set():
                return None
            self._paused.clear()
            await self._engine.call(lambda engine: engine.resume(self._token))
        log.info("%s resumes", self.start.query)
        return await self._end()

    async def _end(self) -> str | None:
        """Wait for the end of the query, and return its error. None if it ended without one, or is paused."""
        end, paused = self._engine.end_of(self._token), asyncio.ensure_future(self._paused.wait())
        either: set[asyncio.Future[Any]] = {end, paused}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            paused.cancel()
        return end.result() if end.done() else None

    def _after_failure(self, error: str) -> timedelta:
        """The pause before the next attempt. Raises StageFailed, StateIncompatible and LeaseLost."""
        line = headline(error, self._job_directory)
        self._check_lease(line)
        if self._disks.explain(error):
            return self._after_full_disk(line, error)
        try:
            check_state_fits(error)
            failure = self._failures.failed(self.start.query, line, self._clock.elapsed())
        except (StageFailed, StateIncompatible):
            log.error("%s failed, and is not restarted: %s", self.start.query, error[:LOGGED])
            self._on_failure(StageFailure(line, max(1, self._failures.recent), None))
            raise
        self.restarts += 1
        pause = failure.retry_in or timedelta(0)
        log.warning(
            "%s failed (%d of %d), restarting in %s: %s", self.start.query, failure.failures, self._policy.limit, pause, error[:LOGGED]
        )
        self._on_failure(failure)
        return pause

    def _after_full_disk(self, line: str, error: str) -> timedelta:
        """The pause before the next attempt after a disk was full. The disks are measured, since the error does not always name one."""
        full = self._disks.shortages()
        failure = self._failures.without_room(f"waiting for room on a disk{f' ({full})' if full else ''}: {line}")
        pause = failure.retry_in or timedelta(0)
        self.restarts += 1
        log.warning("%s: %s; trying again in %s: %s", self.start.query, failure.error, pause, error[:LOGGED])
        self._on_failure(failure)
        return pause

    async def pause(self, within: timedelta) -> bool:
        """Pause the query between two batches, so that `run` returns. Another `run` resumes it. A query that cannot be paused is stopped.
        False if a batch had to be interrupted."""
        self._stopping.set()
        until = self._clock.elapsed() + within.total_seconds()
        async with self._changing:
            token = await self._started()
            if token and (self.paused or await self._engine.call(lambda engine: engine.pause(token, within))):
                self._paused.set()
                return True
        return await self.stop(timedelta(seconds=max(0.0, until - self._clock.elapsed())))

    async def stop(self, within: timedelta) -> bool:
        """Stop the query between two batches, even if it is starting or paused. False if a batch had to be interrupted."""
        self._stopping.set()
        async with self._changing:
            self._paused.clear()
            token = await self._started()
            if not token:
                return True
            orderly = await self._engine.call(lambda engine: engine.stop(token, within))
            self._token, self._starting = "", None
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_PROGRESS_WITHIN.total_seconds()):
                    await asyncio.shield(self._engine.end_of(token))
            return orderly


@dataclass(frozen=True, slots=True)
class StageContext:
    """What the stages of a container share. `new_backup`: None in a run without backups; `new_watermarks`: None for a stage that
    neither writes nor reads an intermediate stream; `trigger`: the shortest time from one batch to the next; `log_place`: where the
    container's log is, "" if that is not known; `disks`, `check_lease` and `job_directory`: see `StageRunner`."""

    policy: RestartPolicy
    trigger: timedelta
    clock: Clock
    reporter: ProgressReporter
    new_backup: Callable[[StageStart], Backup | None]
    new_watermarks: Callable[[StageStart], StageWatermarks | None] = lambda start: None
    job_directory: Path | None = None
    log_place: str = ""
    disks: LocalDisks = NO_DISKS
    check_lease: Callable[[object], None] = lambda error: None


class Stage:
    """One stage of one task, from the acquire of the task to its release. Created and used on the agent's loop.

    `start`: how its query starts the next time; `prepare` and `extend` change it. `backup`: None until the checkpoint is ready, and in a
    run without backups. `started` is set while the query has been started and not stopped.
    """

    def __init__(self, start: StageStart, engine: AsyncEngine, context: StageContext) -> None:
        self.start = start
        self.runner: StageRunner | None = None
        self.backup: Backup | None = None
        self.watermarks = context.new_watermarks(start)
        self.meter = Meter(start.task, start.stage.name, lambda: self.runner.restarts if self.runner else 0, context.trigger, context.clock)
        self.running = False
        self.started = asyncio.Event()
        self._engine = engine
        self._context = context
        self._preparing: asyncio.Future[StageStart] | None = None
        self._interruptions = 0
        self._last_report: ProgressReport | None = None
        self._failing = False

    @property
    def name(self) -> str:
        """The name of its query."""
        return self.start.query

    def extend(self, start: StageStart) -> None:
        """Record that the task was acquired again, and that the stage may have more to read. A running query does not change."""
        if self.backup is None:
            self.start = start
        else:
            self.start = replace(self.start, starts=start.starts, continuation=start.continuation)
            self.backup.extend(start)

    # --- running ---------------------------------------------------------------------------------------------------

    async def prepare(self) -> bool:
        """Prepare the checkpoint on this disk, once. False if `cancel_preparing` was called first."""
        if self.backup is not None or (backup := self._context.new_backup(self.start)) is None:
            return True
        preparing = self._preparing = asyncio.ensure_future(self._prepare_when_there_is_room(backup))
        try:
            await asyncio.wait({preparing})
            if preparing.cancelled():
                return False
            backup.extend(self.start)
            self.start = replace(preparing.result(), starts=self.start.starts, continuation=self.start.continuation)
        finally:
            preparing.cancel()
            self._preparing = None
        self.backup = backup
        return True

    async def _prepare_when_there_is_room(self, backup: Backup) -> StageStart:
        """`Backup.prepare`, repeated until the disk has room for the checkpoint."""
        failures = Failures(self._context.policy)
        while True:
            try:
                prepared = await backup.prepare()
            except DiskFull as error:
                failure = failures.without_room(f"waiting for room on a disk: {error}")
                log.warning("%s: %s", self.name, failure.error)
                self.failed(failure)
                await asyncio.sleep((failure.retry_in or timedelta(0)).total_seconds())
            else:
                if self._failing:
                    self.recovered()
                return prepared

    async def cancel_preparing(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait({self._preparing})

    async def run(self) -> None:
        """Start the query, or resume the one that is paused, and keep it running until it is stopped or paused. Its state is committed
        meanwhile. Raises what `StageRunner.run` and `Backup.run` raise."""
        interruptions = self._interruptions
        if self.runner is None or not self.runner.paused:
            if not await self.prepare() or self._interruptions != interruptions:
                return
            context = self._context
            self.runner = StageRunner(
                self._engine,
                self.start,
                context.policy,
                context.clock,
                self._on_started,
                self.failed,
                context.disks,
                context.check_lease,
                context.job_directory,
            )
        self.running = True
        try:
            works = [each.run() for each in (self.runner, self.backup) if each is not None]
            if self.backup is not None:
                works.append(self.backup.watch(self._report_again))
            await first_of(*works)
        finally:
            self.running = False

    def _on_started(self) -> None:
        self.started.set()
        if self.watermarks is not None and self.runner is not None:
            self.watermarks.started(self._engine.progress(self.name), len(self.runner.start.starts))

    def interrupt(self) -> None:
        """Prepare to stop or pause the query: a query that has not started yet is not started."""
        self._interruptions += 1

    def release_batches(self) -> None:
        """Let batches pass without waiting for commits; see `Backup.release_batches`."""
        if self.backup is not None:
            self.backup.release_batches()

    def hold_batches(self) -> None:
        """Let batches wait for commits again; see `Backup.hold_batches`."""
        if self.backup is not None:
            self.backup.hold_batches()

    def before_batch(self, batch: int) -> None:
        """See `Callbacks`. Called on Spark's threads."""
        if self.backup is not None:
            self.backup.before_batch(batch)

    def before_write(self, batch: int) -> None:
        """See `Callbacks`. Called on Spark's threads."""
        if self.backup is not None:
            self.backup.before_write(batch)

    # --- progress --------------------------------------------------------------------------------------------------

    def failed(self, failure: StageFailure) -> None:
        """Report a failure, so that `sluice status` shows it."""
        start, self._failing = self.start, failure.failures > 0
        seconds = None if failure.retry_in is None else failure.retry_in.total_seconds()
        self._context.reporter.put_failure(
            FailureReport(start.task, start.stage.name, start.generation, failure.error, failure.failures, seconds, self._context.log_place)
        )

    def recovered(self) -> None:
        """Report that the failure is over. A committed batch has the same effect."""
        self.failed(StageFailure("", 0, None))

    def on_batch(self, batch: Batch) -> None:
        if self.runner is not None:
            self.runner.committed()
        if self.watermarks is not None:
            self.watermarks.committed(batch)
        if self.backup is not None:
            self.backup.committed(batch.batch)
        metrics = self.meter.committed(batch)
        self._report(batch.batch, batch.offsets, metrics if self.running else None)

    def on_idle(self) -> None:
        """Report the last batch again, with current metrics, because the query has nothing to read. Before the first batch, report only a
        recovery."""
        metrics, last = self.meter.idle() if self.running else None, self._last_report
        if last is not None:
            self._report(last.batch, last.offsets, metrics)
        elif self.start.reported is not None:
            self._report(self.start.reported, {}, metrics)
        elif self._failing:
            self.recovered()

    def _report_again(self) -> None:
        """Report the last batch again, while nothing else is reported because the next one waits for a backup. Not while the query fails,
        because progress ends a failure."""
        if self._failing:
            return
        metrics, last = self.meter.between_batches() if self.running else None, self._last_report
        if last is not None:
            self._report(last.batch, last.offsets, metrics)
        elif self.start.reported is not None:
            self._report(self.start.reported, {}, metrics)

    def _report(self, batch: int, offsets: Mapping[Ssp, int], metrics: wire_agents.StageMetricsBody | None) -> None:
        start = self.start
        if metrics is not None and self.backup is not None and (problem := self.backup.problem) is not None:
            metrics = metrics.model_copy(update={"backup_problem": sendable(problem)[:REPORTED]})
        report = ProgressReport(start.task, start.stage.name, start.generation, start.lineage, batch, offsets, metrics)
        self._last_report, self._failing = report, False
        self._context.reporter.put(report)


async def first_of(*works: Awaitable[object]) -> None:
    """Wait until the first of these ends, and raise its error, if any. The others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        for done in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            done.result()
    finally:
        for task in tasks:
            task.cancel()
