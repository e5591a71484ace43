"""Changes of state that several packages make inside their own transactions: how containers and runs end, how a drain moves, what is queued
for clean-up, and the check that every report about a task passes. Each function takes the open transaction; none begins one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from coordinator.store.cleanup import CleanupKind, CleanupRow
from coordinator.store.drains import DrainRow, DrainStageRow
from coordinator.store.fleet import ContainerRow, ContainerState, TaskOwnershipRow
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import PinRow, SnapshotRow
from coordinator.store.sql import ReadTransaction, WriteTransaction
from sluice.core.drain import DrainId, Phase, Shape, cancelled, moved
from sluice.core.errors import Bug, LeaseLost, UnknownRun, UnknownTask
from sluice.core.failover import BackoffUntil, CrashLoopPolicy, Incarnation, backoff_until
from sluice.core.ids import ExecutionContainerId, Generation, RunId, Ssp, StageKey, StageName, TaskName
from sluice.core.lifecycle import RunState
from sluice.core.lifecycle import moved as run_moved
from sluice.core.model import JobModel
from sluice.core.ownership import holds
from sluice.core.snapshot import BlobStoreName, stage_prefix


async def check_owner(tx: ReadTransaction, run: RunRow, task: TaskName, generation: Generation) -> TaskOwnershipRow:
    """The task's hold, which must be of this generation and run. Raises UnknownTask, LeaseLost."""
    row = await tx.fleet.owner(run.job, task)
    if row is None:
        raise UnknownTask(f"nobody ever held task {task!r} of job {run.job}")
    if row.run_id != run.run_id or not holds(row.owner, generation):
        raise LeaseLost(
            f"task {task} of job {run.job} is under generation {row.owner.generation}; generation {generation} does not hold it any more"
        )
    return row


async def get_run(tx: ReadTransaction, run_id: RunId) -> RunRow:
    """The run. Raises UnknownRun."""
    run = await tx.runs.get(run_id)
    if run is None:
        raise UnknownRun(f"there is no run {run_id!r}")
    return run


async def end_container(
    tx: WriteTransaction, container: ContainerRow, state: ContainerState, now: datetime, *, exit_code: int | None = None, reason: str = ""
) -> tuple[ContainerRow, Sequence[TaskOwnershipRow]]:
    """The container is gone: free its tasks. What is known of its end already is kept, so this may run twice. The container, and the tasks
    that it owned: notify the `TaskWaiters` of them after the transaction has committed."""
    gone = replace(
        container,
        state=container.state if container.ended_at else state,
        ended_at=container.ended_at or now,
        exit_code=exit_code if container.exit_code is None else container.exit_code,
        reason=container.reason or reason,
    )
    await tx.fleet.put_container(gone)
    holds = await tx.fleet.owned_by(container.execution_id)
    for owned in holds:
        await tx.fleet.put_owner(replace(owned, owner=replace(owned.owner, released=True)))
    return gone, holds


def backoff_of(containers: Sequence[ContainerRow], rule: CrashLoopPolicy) -> BackoffUntil | None:
    """Until when the slot with these incarnations, by epoch, is held back. Not while one of them may still act, nor for one that was
    replaced, or ended since its time was up: that was no failure of its own."""
    if any(each.ended_at is None for each in containers[-1:]):
        return None
    ended = [
        Incarnation(each.registered_at, each.ended_at, each.state is ContainerState.LOST or each.exit_code not in _NO_FAILURES)
        for each in containers
        if each.ended_at is not None
    ]
    return backoff_until(ended, rule)


_NO_FAILURES = (None, 0, 3)


async def settle_run(tx: WriteTransaction, run: RunRow, now: datetime) -> RunRow:
    """End a run that was asked to stop once its last container is gone; any other run stays as it is."""
    if run.state.ended or run.stop_requested_at is None:
        return run
    if await tx.fleet.has_active_containers(run.run_id):
        return run
    ended = replace(run, state=run_moved(run.state, RunState.FAILED if run.failing else RunState.STOPPED), ended_at=now)
    await tx.runs.put(ended)
    await tx.runs.add_notice(run.run_id, "ENDED", now, {"state": ended.state.value, "reason": ended.reason})
    return ended


async def request_stop(tx: WriteTransaction, run: RunRow, now: datetime, reason: str, *, failing: bool = False) -> RunRow:
    """Tell a run's containers to stop between batches; the run ends when the last is gone. May run twice: the first request stands."""
    if run.state.ended or run.stop_requested_at is not None:
        return run
    asked = replace(run, stop_requested_at=now, reason=reason, failing=failing)
    await tx.runs.put(asked)
    await tx.runs.add_notice(run.run_id, "STOP", now, {"reason": reason})
    return await settle_run(tx, asked, now)


log = logging.getLogger(__name__)


KEPT_AFTER_FAILURE = timedelta(days=30)
"""How long the checkpoints that a failed drain went back to stay pinned, for whoever looks into it."""

_BEGAN = {Phase.STOPPING: "stopping_at", Phase.FLUSHING: "flushing_at", Phase.COMMITTING: "committing_at"}


@dataclass(frozen=True, slots=True)
class Reads:
    """A stage of a task, and the partitions that it reads."""

    task: TaskName
    stage: StageName
    ssps: frozenset[Ssp]


def stages_of(run: RunRow, model: JobModel) -> Sequence[Reads]:
    """The stages of each task that read something of it."""
    return [Reads(name, stage, ssps) for name, task in sorted(model.tasks.items()) for stage, ssps in run.spec.by_stage(task.ssps).items()]


def shape_of(run: RunRow, model: JobModel, containers: Sequence[ContainerRow], holds: Sequence[TaskOwnershipRow]) -> Shape:
    return Shape(
        slots=model.placement,
        feeders=run.spec.feeders,
        live={each.processor_id for each in containers if each.state is ContainerState.LIVE},
        held={each.task for each in holds if each.run_id == run.run_id and not each.owner.released},
    )


def pin_id(drain_id: DrainId) -> str:
    return f"drain-{drain_id}"


async def drain_of(tx: ReadTransaction, run: RunRow) -> DrainRow:
    """The drain that a DRAINING run is under."""
    found = await tx.drains.newest(run.run_id)
    if found is None or found.phase.over:
        raise Bug(f"run {run.run_id} is DRAINING without a drain")
    return found


async def containers_of(tx: ReadTransaction, run_id: RunId) -> Sequence[ExecutionContainerId]:
    return [each.execution_id for each in await tx.fleet.containers(run_id)]


async def enter(tx: WriteTransaction, drain: DrainRow, phase: Phase, now: datetime, flushed: Sequence[StageName] = ()) -> DrainRow:
    """Move the drain to the phase, and tell the run's containers; see `tell`. Ring the run's notices when the transaction has ended."""
    when = {"ended_at": now} if phase.over else {_BEGAN[phase]: now}
    entered = replace(drain, phase=moved(drain.phase, phase), **when)  # type: ignore[arg-type]
    await tx.drains.put(entered)
    await tell(tx, entered, now, flushed)
    log.info("drain %s of run %s is %s%s", drain.drain_id, drain.run_id, phase, f": {entered.reason}" if entered.reason else "")
    return entered


async def tell(tx: WriteTransaction, drain: DrainRow, now: datetime, flushed: Sequence[StageName] = ()) -> None:
    """Add a notice of the drain for the run's containers. `flushed`: the stages that every task has flushed; while the drain is FLUSHING, a
    container needs to know them, because a stage flushes after those that feed it."""
    detail: dict[str, object] = {"uuid": drain.drain_id, "phase": drain.phase.value}
    if drain.reason:
        detail["reason"] = drain.reason
    if drain.phase is Phase.FLUSHING:
        detail["flushed"] = list(flushed)
    await tx.runs.add_notice(drain.run_id, "DRAIN", now, detail)


async def pin(tx: WriteTransaction, drain: DrainRow, row: DrainStageRow, now: datetime) -> None:
    """Keep the stage's checkpoint, instead of an older one that it reported under this drain."""
    assert row.pinned is not None
    await tx.snapshots.put_pin(
        PinRow(pin_id(drain.drain_id), drain.job, row.task, row.stage, row.pinned, "to go back to if the drain fails", now)
    )


async def unpin(tx: WriteTransaction, drain: DrainRow, now: datetime) -> None:
    for row in await tx.snapshots.pin(pin_id(drain.drain_id)):
        await tx.cleanup.put(retirement(row.key, now))
    await tx.snapshots.drop_pin(pin_id(drain.drain_id))


async def cancel(tx: WriteTransaction, run: RunRow, drain: DrainRow, reason: str, now: datetime) -> tuple[RunRow, DrainRow]:
    """The run goes on as it was. Raises NotCancellable."""
    return await _undo(tx, run, drain, cancelled(drain.phase), reason, now)


async def fail(tx: WriteTransaction, run: RunRow, drain: DrainRow, reason: str, now: datetime) -> tuple[RunRow, DrainRow]:
    """Before anything was flushed the run goes on as it was. Afterwards it stops, and its next holders go back to what was pinned."""
    if drain.phase.can_go_back:
        return await _undo(tx, run, drain, Phase.FAILED, reason, now)
    left = await _go_back(tx, drain)
    told = f"{reason}; {left} stages have no checkpoint to go back to" if left else reason
    for row in await tx.snapshots.pin(pin_id(drain.drain_id)):
        await tx.snapshots.put_pin(replace(row, expires_at=now + KEPT_AFTER_FAILURE))
    failed = await enter(tx, replace(drain, reason=told), Phase.FAILED, now)
    running = replace(run, state=run_moved(run.state, RunState.RUNNING))
    return await request_stop(tx, running, now, f"the drain {drain.drain_id} failed: {told}"), failed


async def _undo(tx: WriteTransaction, run: RunRow, drain: DrainRow, phase: Phase, reason: str, now: datetime) -> tuple[RunRow, DrainRow]:
    await unpin(tx, drain, now)
    over = await enter(tx, replace(drain, reason=reason), phase, now)
    back = replace(run, state=run_moved(run.state, RunState.RUNNING if run.started_at else RunState.CREATED))
    await tx.runs.put(back)
    return back, over


async def _go_back(tx: WriteTransaction, drain: DrainRow) -> int:
    """Choose each stage's pinned checkpoint, as an operator would; one that had no batch begins anew. How many can do neither."""
    left = 0
    stores = {(row.task, row.stage): row for row in await tx.fleet.stage_states(drain.job)}
    for stage in await tx.drains.stages(drain.drain_id):
        store = stores.get((stage.task, stage.stage))
        if store is None:
            continue
        if stage.pinned is not None:
            await tx.fleet.put_stage_state(replace(store, head=stage.pinned, chosen=True))
        elif stage.began_empty:
            await tx.fleet.drop_stage_states(store.job, store.task, store.stage)
        else:
            left += 1
    return left


async def abandon_drain(tx: WriteTransaction, run: RunRow, reason: str, now: datetime) -> RunRow:
    """End the drain of a run that is being stopped, if it has one: it is cancelled if that is still possible, and fails otherwise."""
    if run.state is not RunState.DRAINING:
        return run
    drain = await drain_of(tx, run)
    after, _ = await (cancel if drain.phase.can_go_back else fail)(tx, run, drain, reason, now)
    return after


def retirement(key: StageKey, now: datetime) -> CleanupRow:
    """Look which snapshots of a store are to be retained."""
    prefix = stage_prefix(key)
    return CleanupRow(CleanupKind.RETIRE, BlobStoreName(""), prefix, key.job, key.task, key.stage, now, now)


def keeping(row: SnapshotRow, blob_store: BlobStoreName, now: datetime) -> CleanupRow:
    """Remove the TTLs of a snapshot in one blob store."""
    return CleanupRow(CleanupKind.KEEP, blob_store, row.markers[blob_store].index, row.job, row.task, row.stage, now, now)
