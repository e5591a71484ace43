"""Request a drain, report its steps, cancel and describe it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from coordinator.blobpool import BlobStores
from coordinator.drains.inspect import FlushCheck, check_flush
from coordinator.fleet.notices import Notices
from coordinator.fleet.report_checks import ReportChecks
from coordinator.fleet.script_queries import ScriptQuery
from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.store.drains import DrainRow, DrainStageRow
from coordinator.store.fleet import ContainerRow, TaskOwnershipRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import (
    add_drain_notice,
    cancel,
    check_keeps_state,
    check_owner,
    enter,
    fail,
    get_run,
    pin,
    pin_kept,
    stages_of,
    unpin,
)
from sluice.clock import Clock
from sluice.core.drain import (
    DrainId,
    DrainTimeLimits,
    Mode,
    Phase,
    StageAt,
    Step,
    advanced,
    begins,
    check_mode,
    counts,
    drained_offsets,
    to_catch_up,
)
from sluice.core.errors import (
    AttachedJob,
    CheckpointNeeded,
    DrainIdInUse,
    ForeignDrain,
    NotEmptied,
    OutdatedContainers,
    QueriesNotDrainable,
    StaleRun,
    StreamUnavailable,
    UnknownDrain,
    UnknownJob,
    UnknownSnapshot,
    UnknownSystem,
    UnknownTask,
)
from sluice.core.ids import Generation, JobName, RunId, Ssp, StageKey, StageName, StreamId, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.jobmodels.spec import ATTACHED_TASK, JobKind
from sluice.core.leases.ownership import Committed
from sluice.core.lifecycle import RunState, moved
from sluice.core.snapshots.snapshot import CommitId
from sluice.streams.port import StreamSystem

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """`require_empty`: refuse a drain that cannot empty all state. `soft`, `hard`: the deadlines in the request, if any. `drain_id`: the id
    in the request for a new drain, if any."""

    run_id: RunId
    mode: Mode
    times: DrainTimeLimits
    require_empty: bool = False
    soft: timedelta | None = None
    hard: timedelta | None = None
    drain_id: DrainId | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step that a stage of a task has taken; see `DrainStageRow`. `operators`: the stateful operators whose state the stage keeps; None
    if the report does not contain them."""

    generation: Generation
    drain_id: DrainId
    step: Step
    batch: int | None
    offsets: Mapping[Ssp, int]
    checkpoint: CommitId | None
    rows_left: int | None = None
    operators_left: Sequence[str] = ()
    note: str = ""
    operators: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The drain after a step. `flushed`: the stages that every task has flushed; None if the step neither changed them nor began FLUSHING.
    `catch_up`: see `DrainRow`."""

    phase: Phase
    flushed: Sequence[StageName] | None
    catch_up: Mapping[Ssp, int]


@dataclass(frozen=True, slots=True)
class DrainDetails:
    """A drain with its run, model, stages, containers and tasks, read at the time `at`."""

    at: datetime
    drain: DrainRow
    run: RunRow
    model: JobModel
    stages: Sequence[DrainStageRow]
    containers: Sequence[ContainerRow]
    holds: Sequence[TaskOwnershipRow]


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The stages of a run, in the order of the request. `refused`: why a drain that empties the state would be refused; "" if it would be
    accepted. `cannot_keep`: the same for a drain that keeps the state."""

    run: RunRow
    stages: Sequence[FlushCheck]
    cannot_keep: str = ""
    refused: str = ""


class Drains:
    """`model_of` returns a run's job model. `new_id` returns a new drain id."""

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
        reports: ReportChecks,
    ) -> None:
        self._store = store
        self._systems = systems
        self._blob_stores = blob_stores
        self._stage_metrics = stage_metrics
        self._notices = notices
        self._clock = clock
        self._model_of = model_of
        self._new_id = new_id
        self._reports = reports
        self._final_ends: dict[DrainId, Mapping[Ssp, int]] = {}

    # --- the request -----------------------------------------------------------------------------------------------

    async def request(self, request: DrainRequest) -> tuple[DrainRow, bool]:
        """Start a drain, or return the existing one. Returns the drain and whether it is new; see the table in `sluice.core.drain`. Later
        deadlines in the request extend an active drain.

        Raises UnknownRun, AttachedJob, QueriesNotDrainable, StaleRun, OtherDrainMode, OutdatedContainers, NotEmptied, DrainIdInUse for the
        id of another run's drain, UnknownSystem and StreamUnavailable for the ends of intermediate streams.
        """
        async with self._store.read() as tx:
            run = await get_run(tx, request.run_id)
            present = await self._present(tx, run, request)
        if present is not None:
            return (await self._extended(present.drain_id, request) if _extends(present, request) else present), False
        pinned = await self._ends(run.spec.intermediates)
        async with self._store.begin() as tx:
            run = await get_run(tx, request.run_id)
            present = await self._present(tx, run, request)
            if present is not None:
                return await _extend(tx, present, request), False
            model = await self._model_of(tx, run)
            if run.spec.kind is JobKind.ATTACHED:
                _check_queries(run, self._active_queries(run), request.mode)
            elif request.mode is Mode.KEEP_STATE:
                await check_keeps_state(tx, run)
            if request.require_empty and request.mode is Mode.DEFAULT:
                _check_emptied(check_flush(run, model, self._stage_metrics))
            drain = await self._begin(tx, run, model, request, pinned)
        self._notices.notify(run.run_id)
        return drain, True

    async def _extended(self, drain_id: DrainId, request: DrainRequest) -> DrainRow:
        async with self._store.begin() as tx:
            return await _extend(tx, await get_drain(tx, drain_id), request)

    async def _present(self, tx: ReadTransaction, run: RunRow, request: DrainRequest) -> DrainRow | None:
        """The existing drain that is the answer to a request; None if a new one must begin. A drain with the id of the request is the
        answer even after it has ended, so that the request may be repeated. Raises StaleRun, OtherDrainMode, DrainIdInUse."""
        named = None if request.drain_id is None else await tx.drains.get(request.drain_id)
        if named is not None:
            if named.run_id != run.run_id:
                raise DrainIdInUse(f"drain {request.drain_id} belongs to run {named.run_id}: choose another id")
            check_mode(named.mode, named.phase, request.mode)
            return named
        newest = await tx.drains.newest(run.run_id)
        stopping = run.stop_requested_at is not None
        emptied = newest is not None and newest.emptied
        if not begins(run.state, stopping=stopping, newest=newest.phase if newest else None, flushed=emptied):
            assert newest is not None
            check_mode(newest.mode, newest.phase, request.mode)
            return newest
        current = await tx.runs.current(run.job)
        if current is None or current.run_id != run.run_id:
            raise StaleRun(f"run {run.run_id} is not the current run of job {run.job}")
        return None

    async def _begin(
        self, tx: WriteTransaction, run: RunRow, model: JobModel, request: DrainRequest, pinned: Mapping[Ssp, int]
    ) -> DrainRow:
        now = self._clock.now()
        last = await tx.drains.page(run.job, None, 1)
        drain = DrainRow(
            drain_id=request.drain_id or self._new_id(),
            run_id=run.run_id,
            job=run.job,
            seq=1 + (last[0].seq if last else 0),
            mode=request.mode,
            phase=Phase.REQUESTED,
            model_version=run.model_version,
            requested_at=now,
            soft=request.times.soft,
            hard=request.times.hard,
            budgets=request.times.budgets,
            pinned=pinned,
        )
        await tx.drains.put(drain)
        await tx.drains.put_stages(DrainStageRow(drain.drain_id, task, stage) for task, stage in self._stages(run, model))
        await tx.runs.put(replace(run, state=moved(run.state, RunState.DRAINING)))
        await add_drain_notice(tx, drain, now)
        log.info("drain %s of run %s is requested, mode %s", drain.drain_id, run.run_id, drain.mode)
        return drain if run.started_at is None else await enter(tx, drain, Phase.STOPPING, now)

    def _stages(self, run: RunRow, model: JobModel) -> Sequence[tuple[TaskName, StageName]]:
        """What must be drained: the stages of each task; for an attached job its active queries."""
        if run.spec.kind is JobKind.ATTACHED:
            return [(ATTACHED_TASK, each.stage) for each in self._active_queries(run)]
        return [(each.task, each.stage) for each in stages_of(run, model)]

    def _active_queries(self, run: RunRow) -> Sequence[ScriptQuery]:
        return [each for each in self._stage_metrics.scripts.of_run(run.run_id).values() if each.active]

    async def _ends(self, streams: frozenset[StreamId]) -> Mapping[Ssp, int]:
        found: dict[Ssp, int] = {}
        for stream in sorted(streams):
            if stream.system not in self._systems:
                raise UnknownSystem(f"the run uses {stream}, and the system {stream.system!r} is no longer configured")
            for partition, offset in (await self._systems[stream.system].latest(stream.stream)).items():
                found[Ssp(stream.system, stream.stream, partition)] = offset
        return found

    async def cancel(self, drain_id: DrainId) -> DrainRow:
        """Cancel the drain; the run continues as before. Idempotent. Raises UnknownDrain, NotCancellable."""
        async with self._store.begin() as tx:
            drain = await get_drain(tx, drain_id)
            if drain.phase is Phase.CANCELLED:
                return drain
            _, drain = await cancel(tx, await get_run(tx, drain.run_id), drain, "cancelled", self._clock.now())
        self._notices.notify(drain.run_id)
        return drain

    async def expire(self, seen: DrainRow, reason: str) -> DrainRow:
        """Fail a drain whose hard deadline has passed, unless it has ended or was extended since `seen` was read. Raises UnknownDrain."""
        async with self._store.begin() as tx:
            drain = await get_drain(tx, seen.drain_id)
            if drain.phase.over or drain.hard > seen.hard:
                return drain
            _, drain = await fail(tx, await get_run(tx, drain.run_id), drain, reason, self._clock.now())
        self._notices.notify(drain.run_id)
        return drain

    # --- steps -----------------------------------------------------------------------------------------------------

    async def report(self, run_id: RunId, task: TaskName, stage: StageName, report: StepReport) -> StepOutcome:
        """Record a step of a stage of a task. A repeated report, or one after the end of the drain, changes nothing.

        Raises UnknownRun, UnknownTask, LeaseLost, ForeignDrain, DrainTooEarly, FalseReport, CheckpointNeeded, UnknownSnapshot, and for the
        last step StreamUnavailable, which the container retries.
        """
        ends = await self._ends_of(report.drain_id) if report.step is Step.COMMITTED else None
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, report.generation)
            drain = await tx.drains.get(report.drain_id)
            if drain is None or drain.run_id != run_id:
                raise ForeignDrain(f"run {run_id} is not under drain {report.drain_id}: read the run again")
            row = await _stage_row(tx, run, drain, task, stage, report.step)
            known = await tx.fleet.stage_state(StageKey(run.job, task, stage))
            if not counts(drain.phase, row.step, report.step):
                return StepOutcome(drain.phase, None, drain.catch_up)
            if known is not None:
                committed = Committed(report.generation, known.lineage, report.batch, report.offsets)
                await self._reports.check(tx, run, task, stage, committed, known, only_own=True)
            now = self._clock.now()
            row = await self._with_step(tx, run, row, report, now)
            await tx.drains.put_stages([row])
            if report.step is Step.STOPPED and row.pinned is not None:
                await pin(tx, drain, row, now)
            after = await self._advance(tx, run, drain, ends, now)
            moved_on = after.phase is not drain.phase
            flushed = None
            if after.phase is Phase.FLUSHING and (moved_on or await _flushed_everywhere(tx, row)):
                flushed = await _flushed(tx, run, after)
                if not moved_on:
                    await add_drain_notice(tx, after, now, flushed)
        if moved_on or flushed is not None:
            self._notices.notify(run_id)
        if after.phase.over:
            self._final_ends.pop(after.drain_id, None)
        return StepOutcome(after.phase, flushed, after.catch_up)

    async def _with_step(self, tx: WriteTransaction, run: RunRow, row: DrainStageRow, report: StepReport, now: datetime) -> DrainStageRow:
        if report.step in (Step.STOPPED, Step.COMMITTED):
            await self._check_durable(tx, run, row, report)
        row = replace(row, step=report.step, generation=report.generation, batch_id=report.batch, offsets=report.offsets)
        row = replace(row, note=report.note, reported_at=now)
        state = await tx.fleet.stage_state(StageKey(run.job, row.task, row.stage))
        row = replace(row, lineage=None if state is None else state.lineage)
        if report.operators is not None:
            row = replace(row, operators=tuple(report.operators))
        if report.rows_left is not None:  # otherwise the rows that the flush left remain recorded
            row = replace(row, rows_left=report.rows_left, operators_left=tuple(report.operators_left))
        match report.step:
            case Step.STOPPED:
                return replace(row, pinned=report.checkpoint, began_empty=report.batch is None)
            case Step.COMMITTED:
                return replace(row, committed=report.checkpoint)
            case _:
                return row

    async def _check_durable(self, tx: ReadTransaction, run: RunRow, row: DrainStageRow, report: StepReport) -> None:
        """A backed-up stage must not stop or end without a durable commit. Without a batch there is nothing to commit. A query of a script
        may have a checkpoint that is not backed up.

        Raises UnknownSnapshot, CheckpointNeeded.
        """
        if report.checkpoint is not None:
            if await tx.snapshots.get(StageKey(run.job, row.task, row.stage), report.checkpoint) is None:
                raise UnknownSnapshot(f"stage {row.stage} of task {row.task} has no snapshot {report.checkpoint}: report it first")
        elif report.batch is not None and run.spec.kind is not JobKind.ATTACHED and self._blob_stores.backup(run.backup).to:
            raise CheckpointNeeded(f"run {run.run_id} is backed up: commit stage {row.stage} of task {row.task}, and report the checkpoint")

    async def _advance(self, tx: WriteTransaction, run: RunRow, drain: DrainRow, ends: Mapping[Ssp, int] | None, now: datetime) -> DrainRow:
        to = advanced(drain.phase, await tx.drains.lowest_step(drain.drain_id))
        match to:
            case Phase.FLUSHING if to is not drain.phase:
                positions = await self._positions(tx, run, drain)
                inputs = {} if run.spec.kind is JobKind.ATTACHED else to_catch_up(positions)  # queries continue where each has ended
                read_twice = {ssp: offset for ssp, offset in inputs.items() if ssp.stream_id not in run.spec.intermediates}
                return await enter(tx, replace(drain, catch_up=read_twice), to, now, flushed=await _flushed(tx, run, drain))
            case Phase.DRAINED if ends is None:
                raise StreamUnavailable("the ends of the intermediate streams have not been looked up yet: try again")
            case Phase.DRAINED:
                assert ends is not None
                return await self._end(tx, run, drain, ends, now)
            case _:
                return drain if to is drain.phase else await enter(tx, drain, to, now)

    async def _end(self, tx: WriteTransaction, run: RunRow, drain: DrainRow, ends: Mapping[Ssp, int], now: datetime) -> DrainRow:
        """Record where the next run begins, and end the run. Its containers then exit."""
        positions = await self._positions(tx, run, drain)
        read_twice = {ssp for ssp in to_catch_up(positions) if ssp.stream_id not in run.spec.intermediates}
        if read_twice:
            log.warning(
                "drain %s: readers of %s ended at different offsets; the next run begins at the lowest, and some records are read twice",
                drain.drain_id,
                ", ".join(map(str, sorted(read_twice))),
            )
        await self._settle_pins(tx, drain, now)
        offsets = drained_offsets(await tx.runs.start_offsets(run.run_id), positions, ends)
        drained = await enter(tx, replace(drain, drained=offsets), Phase.DRAINED, now)
        how = "drained with its state" if drain.mode is Mode.KEEP_STATE else "drained"
        ended = replace(run, state=moved(run.state, RunState.DRAINED), ended_at=now, reason=f"{how}: {drain.drain_id}")
        await tx.runs.put(ended)
        await tx.runs.add_notice(run.run_id, "ENDED", now, {"state": ended.state.value, "reason": ended.reason})
        return drained

    async def _settle_pins(self, tx: WriteTransaction, drain: DrainRow, now: datetime) -> None:
        """Before a drain becomes DRAINED: release the pins of the previous drain, because no run can return to its state, and the drain's
        own pins unless it keeps the state. If it does, also record the last batch of each stage, so that no older checkpoint is used."""
        before = await tx.drains.last_drained(drain.job)
        if before is not None:
            await unpin(tx, before, now)
        if drain.mode is Mode.DEFAULT:
            await unpin(tx, drain, now)
            return
        await pin_kept(tx, drain, now)
        states, kept = {(each.task, each.stage): each for each in await tx.fleet.stage_states(drain.job)}, []
        for row in await tx.drains.stages(drain.drain_id):
            state = states.get((row.task, row.stage))
            if state is not None and row.batch_id is not None and state.lineage == row.lineage and (state.batch_id or -1) < row.batch_id:
                kept.append(replace(state, batch_id=row.batch_id, offsets=row.offsets, generation=row.generation, reported_at=now))
        await tx.fleet.put_stage_states(kept)

    async def _positions(self, tx: ReadTransaction, run: RunRow, drain: DrainRow) -> Sequence[Mapping[Ssp, int]]:
        """The offsets of each stage of each task: reported in the drain, otherwise before it, otherwise the start offsets."""
        if run.spec.kind is JobKind.ATTACHED:
            return [row.offsets for row in await tx.drains.stages(drain.drain_id)]
        run_starts = await tx.runs.start_offsets(run.run_id)
        before = {(row.task, row.stage): row.position for row in await tx.fleet.stage_states(run.job)}
        reported = {(row.task, row.stage): row.offsets for row in await tx.drains.stages(drain.drain_id)}
        found = []
        for each in stages_of(run, await self._model_of(tx, run)):
            at = {**before.get((each.task, each.stage), {}), **reported.get((each.task, each.stage), {})}
            found.append({ssp: at.get(ssp, run_starts[ssp]) for ssp in each.ssps})
        return found

    async def _ends_of(self, drain_id: DrainId) -> Mapping[Ssp, int] | None:
        """The ends of the intermediate streams; None before the drain is COMMITTING. They are looked up once, because no stage writes after
        all have flushed."""
        if drain_id not in self._final_ends:
            async with self._store.read() as tx:
                drain = await tx.drains.get(drain_id)
                if drain is None or drain.phase is not Phase.COMMITTING:
                    return None
                run = await get_run(tx, drain.run_id)
            self._final_ends[drain_id] = await self._ends(run.spec.intermediates)
        return self._final_ends[drain_id]

    # --- reading ---------------------------------------------------------------------------------------------------

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

    async def plan(self, run_id: RunId) -> DrainPlan:
        """What a drain would do to the state of the run, as its containers last reported. Raises UnknownRun, AttachedJob, StaleRun."""
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            if run.state.ended:
                raise StaleRun(f"run {run_id} has ended as {run.state}: there is nothing to drain")
            stages = check_flush(run, await self._model_of(tx, run), self._stage_metrics)
            if run.spec.kind is JobKind.ATTACHED:
                queries = self._active_queries(run)
                _check_reported(run, queries)
                return DrainPlan(run, stages, STOP_KEEPS_STATE, _undrainable(queries))
            try:
                await check_keeps_state(tx, run)
            except OutdatedContainers as refused:
                return DrainPlan(run, stages, str(refused))
            return DrainPlan(run, stages)


STOP_KEEPS_STATE = "a script keeps its state with `sluice stop`, and continues with its checkpoints at the next start"


def _check_reported(run: RunRow, queries: Sequence[ScriptQuery]) -> None:
    """Raises AttachedJob."""
    if not queries:
        raise AttachedJob(
            f"job {run.job} has reported no running query: a drain needs a script that calls sluice.attach, and whose queries run; "
            f"`sluice stop {run.job}` stops any command"
        )


def _check_queries(run: RunRow, queries: Sequence[ScriptQuery], mode: Mode) -> None:
    """Raises AttachedJob, QueriesNotDrainable."""
    _check_reported(run, queries)
    if mode is Mode.KEEP_STATE:
        raise AttachedJob(STOP_KEEPS_STATE)
    if refused := _undrainable(queries):
        raise QueriesNotDrainable(f"job {run.job}: {refused}")


def _undrainable(queries: Sequence[ScriptQuery]) -> str:
    """The queries that cannot be drained, and why; "" if there are none."""
    found = [f"{each.stage} ({', '.join(each.undrainable)})" for each in queries if each.undrainable]
    return f"these queries cannot be drained: {'; '.join(found)}" if found else ""


def _extends(drain: DrainRow, request: DrainRequest) -> bool:
    """Whether the request names a later deadline for an active drain."""
    return not drain.phase.over and ((request.soft or drain.soft) > drain.soft or (request.hard or drain.hard) > drain.hard)


async def _extend(tx: WriteTransaction, drain: DrainRow, request: DrainRequest) -> DrainRow:
    """Extend the deadlines. They are never moved to an earlier time."""
    if not _extends(drain, request):
        return drain
    extended = replace(drain, soft=max(drain.soft, request.soft or drain.soft), hard=max(drain.hard, request.hard or drain.hard))
    await tx.drains.put(extended)
    log.info("drain %s of run %s is extended: late after %s, failed after %s", drain.drain_id, drain.run_id, extended.soft, extended.hard)
    return extended


async def get_drain(tx: ReadTransaction, drain_id: DrainId) -> DrainRow:
    """Raises UnknownDrain."""
    found = await tx.drains.get(drain_id)
    if found is None:
        raise UnknownDrain(f"there is no drain {drain_id!r}")
    return found


async def _stage_row(tx: ReadTransaction, run: RunRow, drain: DrainRow, task: TaskName, stage: StageName, step: Step) -> DrainStageRow:
    """Raises UnknownTask."""
    row = await tx.drains.stage(drain.drain_id, task, stage)
    if row is None and run.spec.kind is JobKind.ATTACHED and step is Step.STOPPED:
        return DrainStageRow(drain.drain_id, task, stage)  # a query that the script has started since its last report
    if row is None:
        raise UnknownTask(f"the model that drain {drain.drain_id} pinned has no stage {stage!r} of task {task!r}")
    return row


async def _flushed_everywhere(tx: ReadTransaction, row: DrainStageRow) -> bool:
    return row.step is Step.FLUSHED and not await tx.drains.is_behind(row.drain_id, row.stage, Step.FLUSHED)


async def _flushed(tx: ReadTransaction, run: RunRow, drain: DrainRow) -> Sequence[StageName]:
    """The stages that every task has flushed."""
    return [stage for stage in run.spec.stage_names if not await tx.drains.is_behind(drain.drain_id, stage, Step.FLUSHED)]


def stages_at(rows: Sequence[DrainStageRow]) -> Sequence[StageAt]:
    return [StageAt(row.task, row.stage, row.step) for row in rows]


def _check_emptied(stages: Sequence[FlushCheck]) -> None:
    left = [f"stage {each.stage}: {', '.join(each.operators)}" for each in stages if each.operators]
    unknown = [
        f"stage {each.stage}: {len(each.unknown_tasks)} of {each.tasks} tasks have not reported yet"
        for each in stages
        if each.unknown_tasks
    ]
    if left or unknown:
        raise NotEmptied(f"a flush would leave rows, or may leave rows ({'; '.join([*left, *unknown])}): drain without requireEmpty")
