"""Drains: ask for one, report its steps, cancel it, see how it stands."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from coordinator.blobpool import BlobStores
from coordinator.drains.inspect import Emptying, emptying
from coordinator.fleet.notices import Notices
from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.store.drains import DrainRow, DrainStageRow
from coordinator.store.fleet import ContainerRow, TaskOwnershipRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import (
    cancel,
    check_owner,
    enter,
    fail,
    get_run,
    pin,
    stages_of,
    tell,
    unpin,
)
from sluice.clock import Clock
from sluice.core.drain import DrainId, Phase, StageAt, Step, Times, advanced, begins, counts, drained_offsets, to_catch_up
from sluice.core.errors import (
    CheckpointNeeded,
    ForeignDrain,
    NotEmptied,
    StaleRun,
    StreamUnavailable,
    UnknownDrain,
    UnknownJob,
    UnknownSnapshot,
    UnknownSystem,
    UnknownTask,
)
from sluice.core.ids import Generation, JobName, RunId, Ssp, StageKey, StageName, StreamId, TaskName
from sluice.core.lifecycle import RunState, moved
from sluice.core.model import JobModel
from sluice.core.snapshot import CommitId
from sluice.streams.port import StreamSystem

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """A request. `mode` has one value yet; `times` None for those of the settings."""

    run_id: RunId
    mode: str
    times: Times
    require_empty: bool = False


@dataclass(frozen=True, slots=True)
class StepReport:
    """A stage took a step; see `DrainStageRow`."""

    generation: Generation
    drain_id: DrainId
    step: Step
    batch: int | None
    offsets: Mapping[Ssp, int]
    checkpoint: CommitId | None
    rows_left: int | None = None
    operators_left: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The drain after a step. `flushed`: the stages that every task has flushed, if the step changed that or began FLUSHING, else None.
    `catch_up`: see `DrainRow`."""

    phase: Phase
    flushed: Sequence[StageName] | None
    catch_up: Mapping[Ssp, int]


@dataclass(frozen=True, slots=True)
class DrainDetails:
    """A drain with all that hangs on it, as it was `at` that time."""

    at: datetime
    drain: DrainRow
    run: RunRow
    model: JobModel
    stages: Sequence[DrainStageRow]
    containers: Sequence[ContainerRow]
    holds: Sequence[TaskOwnershipRow]


class Drains:
    """`model_of` gives a run's job model, `new_id` makes ids."""

    def __init__(
        self,
        store: Store,
        systems: Mapping[str, StreamSystem],
        blob_stores: BlobStores,
        stage_metrics: StageMetrics,
        notices: Notices,
        clock: Clock,
        model_of: Callable[[ReadTransaction, RunRow], Awaitable[JobModel]],
        new_id: Callable[[], DrainId],
    ) -> None:
        self._store = store
        self._systems = systems
        self._blob_stores = blob_stores
        self._stage_metrics = stage_metrics
        self._notices = notices
        self._clock = clock
        self._model_of = model_of
        self._new_id = new_id
        self._final_ends: dict[DrainId, Mapping[Ssp, int]] = {}

    # --- the request -----------------------------------------------------------------------------------------------

    async def request(self, asked: DrainRequest) -> tuple[DrainRow, bool]:
        """The drain of the run, and whether it is a new one; see the table in `core.drain`.

        Raises UnknownRun, StaleRun, NotEmptied, UnknownSystem and StreamUnavailable for the ends of intermediate streams.
        """
        async with self._store.read() as tx:
            run = await get_run(tx, asked.run_id)
            known = await self._standing(tx, run)
        if known is not None:
            return known, False
        pinned = await self._ends(run.spec.intermediates)
        async with self._store.begin() as tx:
            run = await get_run(tx, asked.run_id)
            known = await self._standing(tx, run)
            if known is not None:
                return known, False
            model = await self._model_of(tx, run)
            if asked.require_empty:
                _check_emptied(emptying(run, model, self._stage_metrics))
            drain = await self._begin(tx, run, model, asked, pinned)
        self._notices.notify(run.run_id)
        return drain, True

    async def _standing(self, tx: ReadTransaction, run: RunRow) -> DrainRow | None:
        """The drain that answers a request; None for a new one. Raises StaleRun."""
        newest = await tx.drains.newest(run.run_id)
        flushed = newest is not None and newest.flushing_at is not None
        stopping = run.stop_requested_at is not None
        if not begins(run.state, stopping=stopping, newest=newest.phase if newest else None, flushed=flushed):
            return newest
        current = await tx.runs.current(run.job)
        if current is None or current.run_id != run.run_id:
            raise StaleRun(f"run {run.run_id} is not the current run of job {run.job}")
        return None

    async def _begin(self, tx: WriteTransaction, run: RunRow, model: JobModel, asked: DrainRequest, pinned: Mapping[Ssp, int]) -> DrainRow:
        now = self._clock.now()
        last = await tx.drains.page(run.job, None, 1)
        drain = DrainRow(
            drain_id=self._new_id(),
            run_id=run.run_id,
            job=run.job,
            seq=1 + (last[0].seq if last else 0),
            mode=asked.mode,
            phase=Phase.REQUESTED,
            model_version=run.model_version,
            requested_at=now,
            soft=asked.times.soft,
            hard=asked.times.hard,
            budgets=asked.times.budgets,
            pinned=pinned,
        )
        await tx.drains.put(drain)
        await tx.drains.put_stages(DrainStageRow(drain.drain_id, each.task, each.stage) for each in stages_of(run, model))
        await tx.runs.put(replace(run, state=moved(run.state, RunState.DRAINING)))
        await tell(tx, drain, now)
        log.info("run %s is to be drained: %s", run.run_id, drain.drain_id)
        return drain if run.started_at is None else await enter(tx, drain, Phase.STOPPING, now)

    async def _ends(self, streams: frozenset[StreamId]) -> Mapping[Ssp, int]:
        found: dict[Ssp, int] = {}
        for stream in sorted(streams):
            if stream.system not in self._systems:
                raise UnknownSystem(f"no system {stream.system!r} is configured any more, and the run's stream {stream} is of it")
            for partition, offset in (await self._systems[stream.system].latest(stream.stream)).items():
                found[Ssp(stream.system, stream.stream, partition)] = offset
        return found

    async def cancel(self, drain_id: DrainId) -> DrainRow:
        """The run goes on as it was. May run twice. Raises UnknownDrain, NotCancellable."""
        async with self._store.begin() as tx:
            drain = await get_drain(tx, drain_id)
            if drain.phase is Phase.CANCELLED:
                return drain
            _, drain = await cancel(tx, await get_run(tx, drain.run_id), drain, "cancelled", self._clock.now())
        self._notices.notify(drain.run_id)
        return drain

    async def expire(self, drain_id: DrainId, reason: str) -> DrainRow:
        """Its hard deadline has passed: it fails, unless it is over. Raises UnknownDrain."""
        async with self._store.begin() as tx:
            drain = await get_drain(tx, drain_id)
            if drain.phase.over:
                return drain
            _, drain = await fail(tx, await get_run(tx, drain.run_id), drain, reason, self._clock.now())
        self._notices.notify(drain.run_id)
        return drain

    # --- steps -----------------------------------------------------------------------------------------------------

    async def report(self, run_id: RunId, task: TaskName, stage: StageName, took: StepReport) -> StepOutcome:
        """A stage of a task took a step. A step that was reported before, or that comes when the drain is over, changes nothing.

        Raises UnknownRun, UnknownTask, LeaseLost, ForeignDrain, DrainTooEarly, CheckpointNeeded, UnknownSnapshot, and with a last step
        StreamUnavailable: ask again.
        """
        ends = await self._ends_of(took.drain_id) if took.step is Step.COMMITTED else None
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, took.generation)
            drain = await tx.drains.get(took.drain_id)
            if drain is None or drain.run_id != run_id:
                raise ForeignDrain(f"run {run_id} is not under drain {took.drain_id}: read the run again")
            row = await tx.drains.stage(drain.drain_id, task, stage)
            if row is None:
                raise UnknownTask(f"the model that drain {drain.drain_id} pinned has no stage {stage!r} of task {task!r}")
            if not counts(drain.phase, row.step, took.step):
                return StepOutcome(drain.phase, None, drain.catch_up)
            now = self._clock.now()
            row = await self._taken(tx, run, row, took, now)
            await tx.drains.put_stages([row])
            if took.step is Step.STOPPED and row.pinned is not None:
                await pin(tx, drain, row, now)
            after = await self._advance(tx, run, drain, ends, now)
            moved_on = after.phase is not drain.phase
            flushed = None
            if after.phase is Phase.FLUSHING and (moved_on or await _flushed_everywhere(tx, row)):
                flushed = await _flushed(tx, run, after)
                if not moved_on:
                    await tell(tx, after, now, flushed)
        if moved_on or flushed is not None:
            self._notices.notify(run_id)
        if after.phase.over:
            self._final_ends.pop(after.drain_id, None)
        return StepOutcome(after.phase, flushed, after.catch_up)

    async def _taken(self, tx: WriteTransaction, run: RunRow, row: DrainStageRow, took: StepReport, now: datetime) -> DrainStageRow:
        if took.step in (Step.STOPPED, Step.COMMITTED):
            await self._check_durable(tx, run, row, took)
        row = replace(row, step=took.step, generation=took.generation, batch_id=took.batch, offsets=took.offsets)
        row = replace(row, note=took.note, reported_at=now)
        if took.rows_left is not None:  # else what the flush left stays told
            row = replace(row, rows_left=took.rows_left, operators_left=tuple(took.operators_left))
        match took.step:
            case Step.STOPPED:
                return replace(row, pinned=took.checkpoint, began_empty=took.batch is None)
            case Step.COMMITTED:
                return replace(row, committed=took.checkpoint)
            case _:
                return row

    async def _check_durable(self, tx: ReadTransaction, run: RunRow, row: DrainStageRow, took: StepReport) -> None:
        """Never stopped or drained without a durable commit. Without a batch there is nothing to commit."""
        if took.checkpoint is not None:
            if await tx.snapshots.get(StageKey(run.job, row.task, row.stage), took.checkpoint) is None:
                raise UnknownSnapshot(f"stage {row.stage} of task {row.task} has no snapshot {took.checkpoint}: report it first")
        elif took.batch is not None and self._blob_stores.backup(run.backup).to:
            raise CheckpointNeeded(f"run {run.run_id} is backed up: commit stage {row.stage} of task {row.task}, and report the checkpoint")

    async def _advance(self, tx: WriteTransaction, run: RunRow, drain: DrainRow, ends: Mapping[Ssp, int] | None, now: datetime) -> DrainRow:
        to = advanced(drain.phase, await tx.drains.lowest_step(drain.drain_id))
        match to:
            case Phase.FLUSHING if to is not drain.phase:
                positions = await self._positions(tx, run, drain)
                inputs = to_catch_up(positions)
                read_twice = {ssp: offset for ssp, offset in inputs.items() if ssp.stream_id not in run.spec.intermediates}
                return await enter(tx, replace(drain, catch_up=read_twice), to, now, flushed=await _flushed(tx, run, drain))
            case Phase.DRAINED if ends is None:
                raise StreamUnavailable("the ends of the intermediate streams have not been looked up yet: ask again")
            case Phase.DRAINED:
                assert ends is not None
                return await self._end(tx, run, drain, ends, now)
            case _:
                return drain if to is drain.phase else await enter(tx, drain, to, now)

    async def _end(self, tx: WriteTransaction, run: RunRow, drain: DrainRow, ends: Mapping[Ssp, int], now: datetime) -> DrainRow:
        """Record where the next run begins, and end the run. Its containers see that, and go."""
        positions = await self._positions(tx, run, drain)
        apart = {ssp for ssp in to_catch_up(positions) if ssp.stream_id not in run.spec.intermediates}
        if apart:
            log.warning(
                "drain %s: readers of %s ended at different offsets; the next run begins at the lowest, and some records are read twice",
                drain.drain_id,
                ", ".join(map(str, sorted(apart))),
            )
        await unpin(tx, drain, now)
        offsets = drained_offsets(await tx.runs.start_offsets(run.run_id), positions, ends)
        drained = await enter(tx, replace(drain, drained=offsets), Phase.DRAINED, now)
        ended = replace(run, state=moved(run.state, RunState.DRAINED), ended_at=now, reason=f"drained: {drain.drain_id}")
        await tx.runs.put(ended)
        await tx.runs.add_notice(run.run_id, "ENDED", now, {"state": ended.state.value, "reason": ended.reason})
        return drained

    async def _positions(self, tx: ReadTransaction, run: RunRow, drain: DrainRow) -> Sequence[Mapping[Ssp, int]]:
        """Where each stage of each task stands: where it reported to be, else where the run starts."""
        starts = await tx.runs.start_offsets(run.run_id)
        told = {(row.task, row.stage): row.offsets for row in await tx.drains.stages(drain.drain_id)}
        reads = stages_of(run, await self._model_of(tx, run))
        return [{ssp: told.get((each.task, each.stage), {}).get(ssp, starts[ssp]) for ssp in each.ssps} for each in reads]

    async def _ends_of(self, drain_id: DrainId) -> Mapping[Ssp, int] | None:
        """The ends of the intermediate streams, looked up once: when the drain is COMMITTING everybody has flushed, and nobody writes. None
        before."""
        if drain_id not in self._final_ends:
            async with self._store.read() as tx:
                drain = await tx.drains.get(drain_id)
                if drain is None or drain.phase is not Phase.COMMITTING:
                    return None
                run = await get_run(tx, drain.run_id)
            self._final_ends[drain_id] = await self._ends(run.spec.intermediates)
        return self._final_ends[drain_id]

    # --- looking ---------------------------------------------------------------------------------------------------

    async def describe(self, drain_id: DrainId) -> DrainDetails:
        """Raises UnknownDrain."""
        async with self._store.read() as tx:
            drain = await get_drain(tx, drain_id)
            run = await get_run(tx, drain.run_id)
            return DrainDetails(
                at=self._clock.now(),
                drain=drain,
                run=run,
                model=await self._model_of(tx, run),
                stages=await tx.drains.stages(drain_id),
                containers=await tx.fleet.containers(run.run_id),
                holds=[row for row in await tx.fleet.owners(run.job) if row.run_id == run.run_id],
            )

    async def of_job(self, job: JobName, before: int | None, limit: int) -> Sequence[DrainRow]:
        """Newest first. Raises UnknownJob."""
        async with self._store.read() as tx:
            if await tx.runs.current(job) is None:
                raise UnknownJob(f"there is no job {job!r}")
            return await tx.drains.page(job, before, limit)

    async def plan(self, run_id: RunId) -> tuple[RunRow, Sequence[Emptying]]:
        """What a flush of the run could not empty, as its containers told last. Raises UnknownRun, StaleRun."""
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            if run.state.ended:
                raise StaleRun(f"run {run_id} has ended as {run.state}: there is nothing to drain")
            return run, emptying(run, await self._model_of(tx, run), self._stage_metrics)


async def get_drain(tx: ReadTransaction, drain_id: DrainId) -> DrainRow:
    """Raises UnknownDrain."""
    found = await tx.drains.get(drain_id)
    if found is None:
        raise UnknownDrain(f"there is no drain {drain_id!r}")
    return found


async def _flushed_everywhere(tx: ReadTransaction, row: DrainStageRow) -> bool:
    return row.step is Step.FLUSHED and not await tx.drains.is_behind(row.drain_id, row.stage, Step.FLUSHED)


async def _flushed(tx: ReadTransaction, run: RunRow, drain: DrainRow) -> Sequence[StageName]:
    """The stages that every task has flushed."""
    return [stage for stage in run.spec.stage_names if not await tx.drains.is_behind(drain.drain_id, stage, Step.FLUSHED)]


def stages_at(rows: Sequence[DrainStageRow]) -> Sequence[StageAt]:
    return [StageAt(row.task, row.stage, row.step) for row in rows]


def _check_emptied(stages: Sequence[Emptying]) -> None:
    left = [f"stage {each.stage}: {', '.join(each.operators)}" for each in stages if each.operators]
    unknown = [f"stage {each.stage}: {len(each.untold)} of {each.tasks} tasks have not told yet" for each in stages if each.untold]
    if left or unknown:
        raise NotEmptied(f"a flush would leave rows, or it is not known ({'; '.join([*left, *unknown])}): drain without requireEmpty")
