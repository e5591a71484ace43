"""Tasks: acquire, report progress, release. A request contains the owner's generation. A request of an older owner is refused
(`lease-lost`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from coordinator.blobpool import BlobStores
from coordinator.drains.kept import kept_operators
from coordinator.fleet import notices
from coordinator.fleet.acting import Acting
from coordinator.fleet.leases import Leases
from coordinator.fleet.notices import TaskWaiters
from coordinator.fleet.report_checks import ReportChecks
from coordinator.fleet.script_queries import ScriptQuery
from coordinator.fleet.stage_metrics import StageFailure, StageMetrics, StageReport
from coordinator.fleet.strangers import UNKNOWN_HOLDER, Strangers
from coordinator.runs.regrouping import Regrouping
from coordinator.snapshots.continuation import continuation
from coordinator.store.drains import DrainRow
from coordinator.store.fleet import ContainerState, StageStateRow, TaskOwnershipRow
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import SnapshotRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import check_owner, drain_of, get_run
from sluice.clock import Clock
from sluice.core.drain import Step, histories_of_state
from sluice.core.errors import Bug, LeaseLost, NotAttached, OutdatedContainers, StaleRun, TaskNotYours, UnknownTask
from sluice.core.ids import (
    Epoch,
    ExecutionContainerId,
    Generation,
    JobName,
    Lineage,
    ProcessorId,
    RunId,
    Ssp,
    StageKey,
    StageName,
    TaskName,
    checked_name,
)
from sluice.core.jobmodels.grouping import PreviousAssignment
from sluice.core.jobmodels.model import JobModel, TaskModel
from sluice.core.jobmodels.spec import JobKind
from sluice.core.leases.ownership import Committed, TaskOwner, Wait, acquire, holds, updated_offsets
from sluice.core.lifecycle import RunState
from sluice.core.waits import not_ahead
from sluice.wire.agents import StageMetricsBody
from sluice.wire.snapshots import Continuation

MAX_JOBS = 10_000
"""Maximum number of runs whose job is cached."""


@dataclass(frozen=True, slots=True)
class StageStart:
    """Where a stage resumes: after `store.batch_id`, or at the offsets `starts` if there is no batch. `snapshot`: the snapshot to restore,
    if any. `step`: the last step that it has reported in the current drain. `kept_operators`: the operators whose state a drain has kept
    for this start; None if there is no such drain, or a batch has run since. `earlier_histories`: see `histories_of_state`."""

    store: StageStateRow
    starts: Mapping[Ssp, int]
    snapshot: SnapshotRow | None
    step: Step = Step.NONE
    kept_operators: Sequence[str] | None = None
    earlier_histories: Sequence[RunId] = ()


@dataclass(frozen=True, slots=True)
class _Assignment:
    """The assignment of a job at a run and a version of its model. `owned`: the same by task. `starts`: the run's start offsets, which a
    version may add to or replace."""

    of: tuple[RunId, int]
    whole: PreviousAssignment
    owned: Mapping[TaskName, Sequence[Ssp]]
    starts: Mapping[Ssp, int]


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint of an attached job. `snapshot`: the one to restore, if any. `state`: None if the job does not have it. `place`: where it
    was reported last, "" if that is not known."""

    state: StageStateRow | None
    snapshot: SnapshotRow | None
    new: bool
    place: str = ""


@dataclass(frozen=True, slots=True)
class AcquiredTask:
    generation: Generation
    stages: Sequence[StageStart]
    drain: DrainRow | None
    continuation: Continuation


class Tasks:
    """`model_of` returns the job model of a run; `new_lineage` makes ids. `strangers`: containers that a restored database does not
    know."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        clock: Clock,
        model_of: Callable[[ReadTransaction, RunRow], Awaitable[JobModel]],
        new_lineage: Callable[[], Lineage],
        stage_metrics: StageMetrics,
        reports: ReportChecks,
        blob_stores: BlobStores,
        regrouping: Regrouping,
        acting: Acting,
        task_waiters: TaskWaiters | None = None,
        strangers: Strangers | None = None,
    ) -> None:
        self._strangers = strangers or Strangers()
        self._store = store
        self._leases = leases
        self._clock = clock
        self._model_of = model_of
        self._new_lineage = new_lineage
        self._stage_metrics = stage_metrics
        self._reports = reports
        self._regrouping = regrouping
        self._acting = acting
        self._blob_stores = blob_stores
        self._task_waiters = task_waiters or TaskWaiters()
        self._assignments: dict[JobName, _Assignment] = {}
        self._jobs: dict[RunId, JobName] = {}

    def forget(self) -> None:
        """Clear what is cached from the database."""
        self._assignments.clear()
        self._jobs.clear()
        self._regrouping.forget()

    async def acquire(
        self, run_id: RunId, task: TaskName, execution_id: ExecutionContainerId, epoch: Epoch, wait: timedelta = timedelta(0)
    ) -> AcquiredTask | Wait:
        """Grant the task to the valid incarnation of the slot that the job model names, or return how long the former owner may still act.
        A bare container that may run the task counts as its owner. Waits up to `wait` for the former owner to release it. A repeated
        request of the owner is answered with the same generation, with the partitions of the current model.

        Raises UnknownRun, UnknownTask, TaskNotYours, StaleRun, OutdatedContainers, CatalogIncomplete, NumbersNotReserved, and LeaseLost
        for an incarnation that is no longer valid.
        """
        with self._task_waiters.register((await self._job_of(run_id), task)) as released:  # before it may be released
            found = await self._acquire(run_id, task, execution_id, epoch)
            if wait and isinstance(found, Wait):
                await notices.wait(released, min(wait, found.delay))
                found = await self._acquire(run_id, task, execution_id, epoch)
        return found

    async def _job_of(self, run_id: RunId) -> JobName:
        """Cached, because it never changes. Raises UnknownRun."""
        job = self._jobs.get(run_id)
        if job is None:
            async with self._store.read() as tx:
                job = (await get_run(tx, run_id)).job
            if len(self._jobs) >= MAX_JOBS:
                self._jobs.clear()
            self._jobs[run_id] = job
        return job

    async def _acquire(self, run_id: RunId, task: TaskName, execution_id: ExecutionContainerId, epoch: Epoch) -> AcquiredTask | Wait:
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            model = await self._model_of(tx, run)
            slot, task_model = await self._check(tx, run, model, task, execution_id, epoch)
            others = await self._acting.bare(tx, run, slot, [task], execution_id) or await self._regrouping.settle(tx, run, model)
            if others is not None:
                return others
            row = await tx.fleet.owner(run.job, task)
            known = row.owner.generation if row else Generation(0)
            self._strangers.check_catalog()
            if (delay := self._strangers.delay(known)) is not None:
                return Wait(UNKNOWN_HOLDER, delay)
            former_free_at = self._leases.free_at(row.owner.holder) if row else None
            decision = acquire(row.owner if row else None, execution_id, former_free_at, self._clock.elapsed())
            if isinstance(decision, Wait):
                return decision
            generation = decision.generation if decision.generation == known else Generation(await tx.origin.next_number(known))
            hold = TaskOwner(generation, execution_id, released=False)
            await tx.fleet.put_owners([TaskOwnershipRow(run.job, task, run_id, hold, self._clock.now(), run.model_version)])
            drain = await drain_of(tx, run) if run.state is RunState.DRAINING else None
            if row is not None and row.owner != hold:
                await self._leave_checkpoint(tx, run, task, row.owner.holder, execution_id)
            assigned = await self._assignment(tx, run)
            stages = await self._starts(tx, run, task_model, assigned.starts)
            await _check_compares(tx, execution_id, stages)
            if drain is not None:
                stages = [replace(each, step=await _step(tx, drain, each.store)) for each in stages]
            starts: dict[Ssp, int] = {}
            for ssp, at in (found for each in stages for found in each.starts.items()):
                starts[ssp] = min(at, starts.get(ssp, at))
            continued = continuation(run, slot, task_model, assigned.owned.get(task, ()), assigned.whole, starts)
            acquired = AcquiredTask(generation, stages, drain, continued)
        self._regrouping.settled(run)
        return acquired

    async def _assignment(self, tx: ReadTransaction, run: RunRow) -> _Assignment:
        """Cached, because it has rows for each partition, and all tasks of a run need it when the run starts."""
        known = self._assignments.get(run.job)
        if known is None or known.of != (run.run_id, run.model_version):
            whole, owned = await tx.jobmodels.assignment(run.job), defaultdict[TaskName, list[Ssp]](list)
            for ssp, task in whole.tasks.items():
                owned[task].append(ssp)
            starts = await tx.runs.start_offsets(run.run_id)
            known = self._assignments[run.job] = _Assignment((run.run_id, run.model_version), whole, owned, starts)
        return known

    async def _check(
        self, tx: ReadTransaction, run: RunRow, model: JobModel, task: TaskName, execution_id: ExecutionContainerId, epoch: Epoch
    ) -> tuple[ProcessorId, TaskModel]:
        current = await tx.runs.current(run.job)
        if run.state.ended or run.stop_requested_at is not None or current is None or current.run_id != run.run_id:
            raise StaleRun(f"run {run.run_id} of job {run.job} has ended, is stopping or was replaced: its tasks are not granted")
        container = await tx.fleet.container(execution_id)
        if container is None or container.run_id != run.run_id or container.state is not ContainerState.LIVE or container.epoch != epoch:
            raise LeaseLost(f"{execution_id} with epoch {epoch} is not a valid container of run {run.run_id}")
        found = model.task(task)
        if found is None:
            raise UnknownTask(f"the model of job {run.job} has no task {task!r}")
        if found[0] != container.processor_id:
            raise TaskNotYours(f"task {task} belongs to slot {found[0]}, not to slot {container.processor_id}")
        return found

    async def _starts(self, tx: WriteTransaction, run: RunRow, task: TaskModel, run_starts: Mapping[Ssp, int]) -> Sequence[StageStart]:
        """The start of each stage that reads partitions of this task. A stage that starts for the first time gets a lineage. The start
        offsets of a stateless stage are stored, because another task may continue from them before this one has reported."""
        known = {row.stage: row for row in await tx.fleet.stage_states(run.job, task.name)}
        kept = await kept_operators(tx, run.job, list(known.values()))
        found = []
        for name, ssps in run.spec.by_stage(task.ssps).items():
            before = known.get(name)
            row = before or StageStateRow(run.job, task.name, name, self._new_lineage())
            starts = {ssp: row.starts.get(ssp, run_starts[ssp]) for ssp in sorted(ssps)}
            if not run.spec.stateful and not ssps <= row.position.keys():
                row = row.beginning(starts)
            if row != before:
                await tx.fleet.put_stage_states([row])
            known[name] = row
            head = known[name].head
            snapshot = None if head is None else await tx.snapshots.get(StageKey(run.job, task.name, name), head)
            if snapshot is None and head is not None:
                raise Bug(f"stage {name} of task {task.name} of job {run.job} continues from snapshot {head}, which does not exist")
            _, *earlier = histories_of_state(run.first_run, run.kept, name)
            found.append(StageStart(known[name], starts, snapshot, kept_operators=kept.get(name), earlier_histories=earlier))
        return found

    async def _leave_checkpoint(
        self, tx: WriteTransaction, run: RunRow, task: TaskName, former: ExecutionContainerId, holder: ExecutionContainerId
    ) -> None:
        """A stateless task that moves to another slot without a backup leaves its checkpoint behind on the disk. It begins a new lineage at
        its last reported offsets. Batches that it committed after that are read again."""
        if run.spec.stateful or self._blob_stores.backup(run.backup).to:
            return
        slots = [each.processor_id for each in (await tx.fleet.container(former), await tx.fleet.container(holder)) if each is not None]
        if len(set(slots)) < 2:
            return
        for row in await tx.fleet.stage_states(run.job, task):
            await tx.fleet.put_stage_states([StageStateRow(run.job, task, row.stage, self._new_lineage(), starts=row.position)])

    async def progress(self, run_id: RunId, task: TaskName, stage: StageName, report: StageReport) -> None:
        """Record the last committed batch of a stage, and its metrics. An older batch, or one of an abandoned lineage, is ignored. The same
        batch again, as an idle stage reports it, updates the metrics without a write to the database. Late rows get the time of their
        report, since the container's clock may be wrong. Raises UnknownRun, UnknownTask, LeaseLost, FalseReport."""
        report = replace(report, metrics=self._dated(report.metrics))
        known = self._stage_metrics.latest(run_id, task, stage)
        if known is not None and report.repeats(known) and report.offsets.keys() <= known.offsets.keys():
            async with self._store.read() as tx:
                await check_owner(tx, await get_run(tx, run_id), task, report.generation)
            self._stage_metrics.report(run_id, task, stage, replace(known, metrics=report.metrics))
        else:
            row = await self._record_batch(run_id, task, stage, report)
            if row is not None:
                self._stage_metrics.report(run_id, task, stage, replace(report, offsets=row.offsets))

    def _dated(self, metrics: StageMetricsBody | None) -> StageMetricsBody | None:
        """The metrics with times that no clock which is ahead has set."""
        if metrics is None:
            return None
        now = self._clock.now()
        times = {"at": not_ahead(metrics.at, now), "late_rows_at": None if metrics.late_rows_at is None else now}
        return metrics.model_copy(update=times)

    async def _record_batch(self, run_id: RunId, task: TaskName, stage: StageName, report: StageReport) -> StageStateRow | None:
        """Store the batch unless it is already stored. Returns the stage's row, or None if the batch is ignored. A batch that is reported
        again keeps the offsets of its first report."""
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, report.generation)
            row = next((row for row in await tx.fleet.stage_states(run.job, task) if row.stage == stage), None)
            reported = Committed(report.generation, report.lineage, report.batch, report.offsets)
            await self._reports.check(tx, run, task, stage, reported, row)
            if row is None or row.lineage != report.lineage or (row.batch_id is not None and row.batch_id > report.batch):
                return None
            self._stage_metrics.restore(run_id, task, stage, row.late_rows)
            if row.batch_id != report.batch:
                offsets = updated_offsets(row.committed, reported)
                row = replace(row, batch_id=report.batch, offsets=offsets, generation=report.generation, reported_at=self._clock.now())
                late_rows = self._stage_metrics.late_rows_after(run_id, task, stage, report)
                await tx.fleet.put_stage_states([replace(row, late_rows=late_rows) if late_rows.rows else row])
            return row

    async def failed(
        self,
        run_id: RunId,
        task: TaskName,
        stage: StageName,
        generation: Generation,
        error: str,
        failures: int,
        retry_in: timedelta | None,
        log: str,
    ) -> None:
        """Record that a stage fails; with 0 failures, that it has recovered. Raises UnknownRun, UnknownTask, LeaseLost."""
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, generation)
        if stage not in run.spec.stage_names:
            raise UnknownTask(f"run {run_id} has no stage {stage!r}")
        if failures:
            now = self._clock.now()
            retry_at = None if retry_in is None else now + retry_in
            self._stage_metrics.failed(run_id, task, stage, StageFailure(generation, error, failures, now, retry_at, log))
        else:
            self._stage_metrics.recovered(run_id, task, stage, generation)

    async def queries(
        self, run_id: RunId, task: TaskName, generation: Generation, reported: Sequence[ScriptQuery]
    ) -> Mapping[StageName, JobName]:
        """Record the queries of an attached job. Returns those whose checkpoint another job uses, with that job; they are not recorded.
        Raises UnknownRun, UnknownTask, LeaseLost, NotAttached."""
        scripts, refused = self._stage_metrics.scripts, dict[StageName, JobName]()
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, generation)
            if run.spec.kind is not JobKind.ATTACHED:
                raise NotAttached(f"job {run.job} is run from a job file, whose containers report its stages")
            for query in reported:
                for other, report in scripts.users(query.checkpoint, but=run.job):
                    row = await tx.fleet.owner(report.job, task) if query.active else None
                    if row is not None and row.run_id == other and holds(row.owner, report.generation):
                        refused[query.stage] = report.job
        known, now = scripts.of_run(run_id), self._clock.now()
        begun = [each for each in reported if each.batch is not None and _is_first(each, known.get(each.stage))]
        if begun and not self._blob_stores.backup(run.backup).to:
            await self._record_first_batches(run_id, task, generation, begun, now)
        scripts.put(
            run_id,
            run.job,
            generation,
            [self._received(each, known.get(each.stage), now) for each in reported if each.stage not in refused],
        )
        return refused

    async def _record_first_batches(
        self, run_id: RunId, task: TaskName, generation: Generation, begun: Sequence[ScriptQuery], now: datetime
    ) -> None:
        """Record that checkpoints without a snapshot have batches: a script must not begin them again on another disk. Raises UnknownRun,
        UnknownTask, LeaseLost."""
        queries = {(each.stage, each.lineage): each for each in begun}
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, generation)
            found = [(row, queries.get((row.stage, row.lineage))) for row in await tx.fleet.stage_states(run.job, task)]
            await tx.fleet.put_stage_states(
                replace(row, batch_id=query.batch, offsets=query.offsets, generation=generation, reported_at=now)
                for row, query in found
                if query is not None and row.batch_id is None
            )

    async def open_checkpoint(
        self, run_id: RunId, task: TaskName, stage: StageName, generation: Generation, lineage: Lineage | None, *, create: bool
    ) -> OpenedCheckpoint:
        """Let a query of an attached job use the checkpoint of that name. Its lineage is `lineage`, that of the checkpoint on the script's
        machine, as long as there is no snapshot; afterwards it is that of the snapshots. Idempotent. Raises UnknownRun, UnknownTask,
        LeaseLost, NotAttached, BadName, CatalogIncomplete."""
        checked_name("stage", stage)
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, generation)
            if run.spec.kind is not JobKind.ATTACHED:
                raise NotAttached(f"job {run.job} is run from a job file, whose stages have checkpoints of their own")
            self._strangers.check_catalog()
            key = StageKey(run.job, task, stage)
            row = await tx.fleet.stage_state(key)
            if row is None and not create:
                return OpenedCheckpoint(None, None, new=True)
            now = row or StageStateRow(run.job, task, stage, lineage or self._new_lineage())
            if row is not None and row.head is None and lineage not in (None, row.lineage):
                now = replace(row, lineage=lineage, former=row.lineage, batch_id=None, generation=None)
            if now != row:
                await tx.fleet.put_stage_states([now])
            head = None if now.head is None else await tx.snapshots.get(key, now.head)
            return OpenedCheckpoint(now, head, new=row is None, place=self._stage_metrics.scripts.place(run_id, now.lineage))

    def _received(self, query: ScriptQuery, before: ScriptQuery | None, now: datetime) -> ScriptQuery:
        same = before is not None and (before.error, before.failures) == (query.error, query.failures)
        failed_at = before.failed_at if before is not None and same else now
        return replace(query, reported_at=now, failed_at=failed_at, metrics=self._dated(query.metrics))

    async def confirm_owner(self, run_id: RunId, task: TaskName, generation: Generation) -> None:
        """Raises UnknownRun, UnknownTask, and LeaseLost if the task is no longer owned under that generation."""
        async with self._store.read() as tx:
            await check_owner(tx, await get_run(tx, run_id), task, generation)

    async def release(self, run_id: RunId, task: TaskName, generation: Generation) -> None:
        """Release the task, so that its next owner need not wait for the lease to expire. Idempotent. Raises UnknownRun, UnknownTask,
        LeaseLost."""
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            row = await tx.fleet.owner(run.job, task)
            if row is not None and row.owner.generation == generation and row.owner.released:
                return
            row = await check_owner(tx, run, task, generation)
            await tx.fleet.put_owners([replace(row, owner=replace(row.owner, released=True))])
        self._task_waiters.notify_released([row])


def _is_first(query: ScriptQuery, before: ScriptQuery | None) -> bool:
    """Whether no batch of its checkpoint was in the report before."""
    return before is None or before.batch is None or before.lineage != query.lineage


async def _check_compares(tx: ReadTransaction, execution_id: ExecutionContainerId, stages: Sequence[StageStart]) -> None:
    """Raises OutdatedContainers for a container that could run other stateful operators on state that a drain has kept."""
    kept = [each.store.stage for each in stages if each.kept_operators]
    container = await tx.fleet.container(execution_id)
    if kept and container is not None and not container.can_keep_state:
        raise OutdatedContainers(
            f"{execution_id} is of a release that does not compare stateful operators, and the state of stage {', '.join(kept)} was kept "
            "by a drain: start a container of this release"
        )


async def _step(tx: ReadTransaction, drain: DrainRow, store: StageStateRow) -> Step:
    row = await tx.drains.stage(drain.drain_id, store.task, store.stage)
    return row.step if row is not None else Step.NONE
