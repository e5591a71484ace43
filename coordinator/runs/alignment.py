"""Watermark alignment: tasks report their event time, and the answer says whether to wait. The rule is in `sluice.core.watermarks`.

Kept in memory, because no lease and no fencing decision depends on it. After a restart the tasks of an aligned stage wait until all of them
have reported, about a second.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store
from coordinator.transitions import check_owner, get_run
from sluice.clock import Clock
from sluice.core.errors import NotAligned, StreamUnavailable
from sluice.core.ids import Generation, Instant, RunId, Ssp, StageName, StreamId, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.watermarks import AlignmentDecision, TaskEventTime, decide_alignment
from sluice.streams.port import Offsets, StreamSystem

CACHED_FOR = timedelta(seconds=1)
"""For how long the owners and the idle tasks of a stage are cached."""

ANSWER_WITHIN = timedelta(seconds=8)
"""Time limit for the ends of the streams that a stage reads. Containers wait 10 s for the whole answer."""


@dataclass(frozen=True, slots=True)
class EventTimeReport:
    """The last report of a stage of a task by the owner with this generation, and the decision in the answer."""

    generation: Generation
    event_time: datetime | None
    decision: AlignmentDecision
    at: datetime


@dataclass(frozen=True, slots=True)
class StageTasks:
    """The tasks of a stage at one moment. `owners`: task -> generation of its owner, 0 without one; `idle`: those with nothing to read."""

    owners: Mapping[TaskName, Generation]
    idle: frozenset[TaskName]
    read_at: Instant


@dataclass(frozen=True, slots=True)
class _StageRows:
    """The data of a stage's tasks in the database. `offsets`: the partitions of its streams that each task reads, with the task's
    offsets."""

    owners: Mapping[TaskName, Generation]
    offsets: Mapping[TaskName, Mapping[Ssp, int]]
    reads: frozenset[StreamId]


class AlignmentCoordinator:
    """`model_of` returns a run's job model. The ends of streams are looked up outside of transactions, so that a system that does not
    answer blocks no database connection. Concurrent reports of a stage share one lookup."""

    def __init__(
        self,
        store: Store,
        systems: Mapping[str, StreamSystem],
        clock: Clock,
        model_of: Callable[[ReadTransaction, RunRow], Awaitable[JobModel]],
    ) -> None:
        self._store = store
        self._systems = systems
        self._clock = clock
        self._model_of = model_of
        self._reports: defaultdict[tuple[RunId, StageName], dict[TaskName, EventTimeReport]] = defaultdict(dict)
        self._stages: dict[tuple[RunId, StageName], StageTasks] = {}
        self._lookups: dict[tuple[RunId, StageName], asyncio.Task[StageTasks]] = {}

    async def report(
        self, run_id: RunId, task: TaskName, generation: Generation, stage: StageName, event_time: datetime | None
    ) -> AlignmentDecision:
        """Record the newest event time that the stage has committed, None before its first batch, and decide whether it must wait.

        Raises UnknownRun, UnknownTask, LeaseLost, and NotAligned for a run without `maxEventSkewSeconds` or a stage that it does not have.
        """
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, generation)
            max_skew = _max_skew(run, stage)
            if (run_id, stage) not in self._reports:
                await self._forget_ended(tx)
            lookup, tasks = self._lookups.get((run_id, stage)), self._fresh(run_id, stage)
            rows = await self._rows(tx, run, stage) if tasks is None and lookup is None else None
        if tasks is None:
            tasks = await asyncio.shield(lookup or self._look_up(run_id, stage, rows))
        reports = self._reports[run_id, stage]
        former = reports.get(task)
        if former is not None and former.event_time is not None:
            event_time = max(event_time or former.event_time, former.event_time)
        decision = AlignmentDecision(wait=True, lead=None) if former is None else former.decision
        reports[task] = EventTimeReport(generation, event_time, decision, self._clock.now())
        times = _event_times(reports, tasks) | {task: TaskEventTime(event_time, reported=True, idle=False)}
        decision = decide_alignment(task, times, max_skew, waiting=decision.wait)
        reports[task] = EventTimeReport(generation, event_time, decision, self._clock.now())
        return decision

    def of_run(self, run_id: RunId) -> Mapping[tuple[StageName, TaskName], EventTimeReport]:
        """The last reports of a run's stages."""
        return {(stage, task): each for (run, stage), reports in self._reports.items() if run == run_id for task, each in reports.items()}

    async def _forget_ended(self, tx: ReadTransaction) -> None:
        """Drop the reports of runs that have ended. Called with the first report of a stage, so that memory is bounded."""
        active = {run.run_id for run in await tx.runs.active()}
        for key in [key for key in self._reports if key[0] not in active]:
            del self._reports[key]
            self._stages.pop(key, None)

    def _fresh(self, run_id: RunId, stage: StageName) -> StageTasks | None:
        known = self._stages.get((run_id, stage))
        return known if known is not None and self._clock.elapsed() - known.read_at < CACHED_FOR.total_seconds() else None

    async def _rows(self, tx: ReadTransaction, run: RunRow, stage: StageName) -> _StageRows:
        reads = run.spec.reads(stage)
        tasks = (await self._model_of(tx, run)).tasks
        starts = await tx.runs.start_offsets(run.run_id)
        committed = {row.task: row.position for row in await tx.fleet.stage_states(run.job) if row.stage == stage}
        owners = {
            row.task: row.owner.generation for row in await tx.fleet.owners(run.job) if row.run_id == run.run_id and not row.owner.released
        }

        def offsets(task: TaskName, ssps: frozenset[Ssp]) -> Mapping[Ssp, int]:
            at = committed.get(task, {})
            return {ssp: at.get(ssp, starts.get(ssp, 0)) for ssp in ssps if ssp.stream_id in reads}

        return _StageRows(
            owners={name: owners.get(name, Generation(0)) for name in tasks},
            offsets={name: offsets(name, task.ssps) for name, task in tasks.items()},
            reads=frozenset(reads),
        )

    def _look_up(self, run_id: RunId, stage: StageName, rows: _StageRows | None) -> asyncio.Task[StageTasks]:
        """The running lookup for this stage, or a new one."""
        key = (run_id, stage)
        running = self._lookups.get(key)
        if running is not None:
            return running
        assert rows is not None
        task = self._lookups[key] = asyncio.create_task(self._stage_tasks(key, rows), name=f"tasks of {stage}")

        def ended(done: asyncio.Task[StageTasks]) -> None:
            del self._lookups[key]
            if not done.cancelled():
                done.exception()  # all reports that waited for it may have been abandoned

        task.add_done_callback(ended)
        return task

    async def _stage_tasks(self, key: tuple[RunId, StageName], rows: _StageRows) -> StageTasks:
        """Raises StreamUnavailable."""
        read_at = self._clock.elapsed()
        try:
            async with asyncio.timeout(ANSWER_WITHIN.total_seconds()):
                ends = {stream: await self._latest(stream) for stream in sorted(rows.reads)}
        except TimeoutError as error:
            raise StreamUnavailable(
                f"{', '.join(map(str, sorted(rows.reads)))}: no answer within {ANSWER_WITHIN.total_seconds():g} s"
            ) from error

        def has_unread(offsets: Mapping[Ssp, int]) -> bool:
            return any(ends[ssp.stream_id].get(ssp.partition, 0) > offset for ssp, offset in offsets.items())

        idle = frozenset(name for name, offsets in rows.offsets.items() if not has_unread(offsets))
        found = self._stages[key] = StageTasks(rows.owners, idle, read_at)
        return found

    async def _latest(self, stream: StreamId) -> Offsets:
        """Raises StreamUnavailable, which the container retries, also for a system that is no longer configured."""
        if stream.system not in self._systems:
            raise StreamUnavailable(f"the run reads {stream}, and the system {stream.system!r} is no longer configured: configure it again")
        return await self._systems[stream.system].latest(stream.stream)


def _event_times(reports: Mapping[TaskName, EventTimeReport], tasks: StageTasks) -> dict[TaskName, TaskEventTime]:
    found = {}
    for task in tasks.owners.keys() | tasks.idle | reports.keys():
        report = reports.get(task)
        reported = report is not None and tasks.owners.get(task) == report.generation
        found[task] = TaskEventTime(report.event_time if report else None, reported, idle=task in tasks.idle)
    return found


def _max_skew(run: RunRow, stage: StageName) -> timedelta:
    max_skew = run.spec.max_event_skew
    if max_skew is None:
        raise NotAligned(f"run {run.run_id} was deployed without maxEventSkewSeconds: its tasks are not aligned")
    if stage not in run.spec.stage_names:
        raise NotAligned(f"run {run.run_id} has no stage {stage!r}")
    return max_skew
