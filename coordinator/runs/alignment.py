"""Paces: what tasks say of their event time, and the word that they get back. In memory: nobody's right to act hangs on it.

After a restart of the coordinator the tasks of an aligned stage wait until each of them has been heard again, a second or so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from coordinator.store.port import Reading, RunRow, Store
from coordinator.transitions import check_owner as held_by
from coordinator.transitions import get_run
from sluice.clock import Clock
from sluice.core.alignment import AlignmentDecision, TaskEventTime, decide_alignment
from sluice.core.errors import NotAligned, StreamUnavailable
from sluice.core.ids import Generation, Instant, RunId, Ssp, StageName, StreamId, TaskName
from sluice.core.model import JobModel
from sluice.streams.port import Offsets, StreamSystem

FRESH = timedelta(seconds=1)
"""How long what was read about a stage serves the words of all its tasks."""


@dataclass(frozen=True, slots=True)
class EventTimeReport:
    """What a task said last of one of its stages, under which generation, and the word that it got."""

    generation: Generation
    event_time: datetime | None
    word: AlignmentDecision
    at: datetime


@dataclass(frozen=True, slots=True)
class Standing:
    """What the database and the streams say of a stage's tasks: task -> generation that holds it, and those with nothing left to read."""

    holders: Mapping[TaskName, Generation]
    idle: frozenset[TaskName]
    read_at: Instant


class AlignmentCoordinator:
    """`model_of` gives a run's job model."""

    def __init__(
        self,
        store: Store,
        systems: Mapping[str, StreamSystem],
        clock: Clock,
        model_of: Callable[[Reading, RunRow], Awaitable[JobModel]],
    ) -> None:
        self._store = store
        self._systems = systems
        self._clock = clock
        self._model_of = model_of
        self._told: defaultdict[tuple[RunId, StageName], dict[TaskName, EventTimeReport]] = defaultdict(dict)
        self._standing: dict[tuple[RunId, StageName], Standing] = {}

    async def tell(
        self, run_id: RunId, task: TaskName, generation: Generation, stage: StageName, event_time: datetime | None
    ) -> AlignmentDecision:
        """Keep the newest event time that the stage has committed (None before the first) and answer whether it must wait.

        Raises UnknownRun, UnknownTask, LeaseLost, NotAligned for a run without `maxEventSkewSeconds` or a stage that it has not.
        """
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            await held_by(tx, run, task, generation)
            max_skew = _max_skew(run, stage)
            if (run_id, stage) not in self._told:
                await self._forget_ended(tx)
            standing = await self._stands(tx, run, stage)
        told = self._told[run_id, stage]
        before = told.get(task)
        if before is not None and before.event_time is not None:
            event_time = max(event_time or before.event_time, before.event_time)
        waiting = AlignmentDecision(hold=True, lead=None) if before is None else before.word
        told[task] = EventTimeReport(generation, event_time, waiting, self._clock.now())
        word = decide_alignment(
            task, self._paces(told, standing) | {task: TaskEventTime(event_time, heard=True, idle=False)}, max_skew, held=waiting.hold
        )
        told[task] = EventTimeReport(generation, event_time, word, self._clock.now())
        return word

    def of_run(self, run_id: RunId) -> Mapping[tuple[StageName, TaskName], EventTimeReport]:
        """What is known of a run's stages."""
        return {(stage, task): told for (run, stage), tasks in self._told.items() if run == run_id for task, told in tasks.items()}

    async def _forget_ended(self, tx: Reading) -> None:
        """Drop what is known of runs that are over, whenever a new one is heard of."""
        active = {run.run_id for run in await tx.active_runs()}
        for key in [key for key in self._told if key[0] not in active]:
            del self._told[key]
            self._standing.pop(key, None)

    def _paces(self, told: Mapping[TaskName, EventTimeReport], standing: Standing) -> dict[TaskName, TaskEventTime]:
        paces = {}
        for task in standing.holders.keys() | standing.idle | told.keys():
            known = told.get(task)
            heard = known is not None and standing.holders.get(task) == known.generation
            paces[task] = TaskEventTime(known.event_time if known else None, heard, idle=task in standing.idle)
        return paces

    async def _stands(self, tx: Reading, run: RunRow, stage: StageName) -> Standing:
        known = self._standing.get((run.run_id, stage))
        if known is not None and self._clock.elapsed() - known.read_at < FRESH.total_seconds():
            return known
        reads = run.spec.reads(stage)
        tasks = (await self._model_of(tx, run)).tasks
        positions = dict(await tx.starts(run.run_id))
        committed = {row.task: row.offsets for row in await tx.stores(run.job) if row.stage == stage}
        holders = {row.task: row.hold.generation for row in await tx.holds(run.job) if row.run_id == run.run_id and not row.hold.released}
        ends = {stream: await self._latest(stream) for stream in reads}

        def waiting(task: TaskName, ssps: frozenset[Ssp]) -> bool:
            at = positions | dict(committed.get(task, {}))
            return any(_end(ends, ssp) > at.get(ssp, 0) for ssp in ssps if ssp.stream_id in reads)

        idle = frozenset(name for name, task in tasks.items() if not waiting(name, task.ssps))
        found = Standing({name: holders.get(name, Generation(0)) for name in tasks}, idle, self._clock.elapsed())
        self._standing[run.run_id, stage] = found
        return found

    async def _latest(self, stream: StreamId) -> Offsets:
        """Raises StreamUnavailable also for a system that an operator took out of the settings: it passes when that is mended."""
        if stream.system not in self._systems:
            raise StreamUnavailable(f"the run reads {stream}, and no system {stream.system!r} is configured any more: configure it again")
        return await self._systems[stream.system].latest(stream.stream)


def _end(ends: Mapping[StreamId, Offsets], ssp: Ssp) -> int:
    return ends[ssp.stream_id].get(ssp.partition, 0)


def _max_skew(run: RunRow, stage: StageName) -> timedelta:
    max_skew = run.spec.max_event_skew
    if max_skew is None:
        raise NotAligned(f"run {run.run_id} was deployed without maxEventSkewSeconds: its tasks need not ask")
    if stage not in run.spec.stage_names:
        raise NotAligned(f"run {run.run_id} has no stage {stage!r}")
    return max_skew
