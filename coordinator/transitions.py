"""State transitions that several packages make inside their own transactions: the end of containers and runs, the phases of drains, entries
of the clean-up queue, and the fencing check. Each function takes an open transaction; none begins one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from uuid import NAMESPACE_OID, uuid5

from coordinator.store.cleanup import CleanupKind, CleanupRow
from coordinator.store.drains import DrainRow, DrainStageRow
from coordinator.store.fleet import ContainerRow, ContainerState, StageStateRow, TaskOwnershipRow
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import PinRow, SnapshotRow
from coordinator.store.sql import ReadTransaction, WriteTransaction
from sluice import tracing
from sluice.core.drain import DrainId, Phase, RunTopology, cancelled, moved
from sluice.core.errors import Bug, LeaseLost, OutdatedContainers, UnknownRun, UnknownTask
from sluice.core.ids import ExecutionContainerId, Generation, Lineage, ProcessorId, RunId, Ssp, StageKey, StageName, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.leases.failover import BackoffUntil, CrashLoopPolicy, Incarnation, backoff_until
from sluice.core.leases.ownership import holds
from sluice.core.lifecycle import RunState
from sluice.core.lifecycle import moved as run_moved
from sluice.core.snapshots.snapshot import BlobStoreName, stage_prefix


async def check_owner(tx: ReadTransaction, run: RunRow, task: TaskName, generation: Generation) -> TaskOwnershipRow:
    """The fencing check: only the current owner of a task, identified by its generation, may report on it.

    Raises UnknownTask, or LeaseLost if the generation is stale.
    """
    row = await tx.fleet.owner(run.job, task)
    if row is None:
        raise UnknownTask(f"task {task!r} of job {run.job} was never acquired")
    if row.run_id != run.run_id or not holds(row.owner, generation):
        raise LeaseLost(
            f"task {task} of job {run.job} is under generation {row.owner.generation}; generation {generation} no longer owns it"
        )
    return row


async def get_run(tx: ReadTransaction, run_id: RunId) -> RunRow:
    """Raises UnknownRun."""
    run = await tx.runs.get(run_id)
    if run is None:
        raise UnknownRun(f"there is no run {run_id!r}")
    return run


async def hosts_of(tx: ReadTransaction, run: RunRow) -> Mapping[ProcessorId, str]:
    """The host of the newest incarnation of each slot. For a slot that has none in this run, the host in earlier runs."""
    return {**await tx.jobmodels.former_hosts(run.job), **{each.processor_id: each.host for each in await tx.fleet.containers(run.run_id)}}


async def end_container(
    tx: WriteTransaction, container: ContainerRow, state: ContainerState, now: datetime, *, exit_code: int | None = None, reason: str = ""
) -> tuple[ContainerRow, Sequence[TaskOwnershipRow]]:
    """End a container and release its tasks. Idempotent: the first recorded end is kept. Returns the container and the tasks that it owned;
    notify `TaskWaiters` of these after the commit."""
    ended = replace(
        container,
        state=container.state if container.ended_at else state,
        ended_at=container.ended_at or now,
        exit_code=exit_code if container.exit_code is None else container.exit_code,
        reason=container.reason or reason,
    )
    await tx.fleet.put_container(ended)
    holds = await tx.fleet.owned_by(container.execution_id)
    await tx.fleet.put_owners(replace(owned, owner=replace(owned.owner, released=True)) for owned in holds)
    return ended, holds


def backoff_of(containers: Sequence[ContainerRow], rule: CrashLoopPolicy, now: datetime) -> BackoffUntil | None:
    """The end of the slot's crash-loop back-off; None if there is none. `containers`: its incarnations, ordered by epoch. A container
    failed if it was LOST, or exited with a code other than 0 and 3. There is no back-off while one of them may still act."""
    if any(each.ended_at is None for each in containers[-1:]):
        return None
    ended = [
        Incarnation(each.registered_at, each.ended_at, each.state is ContainerState.LOST or each.exit_code not in _NO_FAILURES)
        for each in containers
        if each.ended_at is not None
    ]
    return backoff_until(ended, rule, now)


_NO_FAILURES = (None, 0, 3)
"""Exit codes that are not failures: none reported, stopped cleanly, superseded or out of contact."""


async def settle_run(tx: WriteTransaction, run: RunRow, now: datetime) -> RunRow:
    """End the run if it is stopping and its last container has ended. Other runs do not change."""
    if run.state.ended or run.stop_requested_at is None:
        return run
    if await tx.fleet.active_containers(run.run_id, limit=1):
        return run
    ended = replace(run, state=run_moved(run.state, RunState.FAILED if run.failing else RunState.STOPPED), ended_at=now)
    await tx.runs.put(ended)
    await tx.runs.add_notice(run.run_id, "ENDED", now, {"state": ended.state.value, "reason": ended.reason})
    return ended


async def request_stop(tx: WriteTransaction, run: RunRow, now: datetime, reason: str, *, failing: bool = False) -> RunRow:
    """Make the containers of a run stop after their current batch; the run ends when the last has ended. Idempotent: later requests
    change nothing."""
    if run.state.ended or run.stop_requested_at is not None:
        return run
    stopping = replace(run, stop_requested_at=now, reason=reason, failing=failing)
    await tx.runs.put(stopping)
    await tx.runs.add_notice(run.run_id, "STOP", now, {"reason": reason})
    return await settle_run(tx, stopping, now)


log = logging.getLogger(__name__)


KEPT_AFTER_FAILURE = timedelta(days=30)
"""How long the checkpoints to which a failed drain rolled back stay pinned, so that the failure can be investigated."""

KEPT_AFTER_DRAIN = timedelta(days=30)
"""How long the commits of a drain that kept the state stay pinned. Until then another run can start with them (start "drained")."""

_STARTED_AT = {Phase.STOPPING: "stopping_at", Phase.FLUSHING: "flushing_at", Phase.COMMITTING: "committing_at"}


@dataclass(frozen=True, slots=True)
class Reads:
    """A stage of a task, with the partitions that it reads."""

    task: TaskName
    stage: StageName
    ssps: frozenset[Ssp]


def stages_of(run: RunRow, model: JobModel) -> Sequence[Reads]:
    """The stages of each task that read some of its partitions."""
    by_stage = run.spec.stage_division()
    return [Reads(name, stage, ssps) for name, task in sorted(model.tasks.items()) for stage, ssps in by_stage(task.ssps).items()]


MAX_EXIT = 500
"""Characters of the reason of an exit that a drain shows."""


def shape_of(run: RunRow, model: JobModel, containers: Sequence[ContainerRow], holds: Sequence[TaskOwnershipRow]) -> RunTopology:
    return RunTopology(
        slots=model.placement,
        feeders=run.spec.feeders,
        live={each.processor_id for each in containers if each.state is ContainerState.LIVE},
        held={each.task for each in holds if each.run_id == run.run_id and not each.owner.released},
        exits={each.processor_id: each.reason.partition("\n")[0][:MAX_EXIT] for each in sorted(containers, key=attrgetter("epoch"))},
    )


def pin_id(drain_id: DrainId) -> str:
    return f"drain-{drain_id}"


async def drain_of(tx: ReadTransaction, run: RunRow) -> DrainRow:
    """The drain of a DRAINING run."""
    found = await tx.drains.newest(run.run_id)
    if found is None or found.phase.over:
        raise Bug(f"run {run.run_id} is DRAINING without a drain")
    return found


async def containers_of(tx: ReadTransaction, run_id: RunId) -> Sequence[ExecutionContainerId]:
    return [each.execution_id for each in await tx.fleet.containers(run_id)]


async def enter(tx: WriteTransaction, drain: DrainRow, phase: Phase, now: datetime, flushed: Sequence[StageName] = ()) -> DrainRow:
    """Move the drain to the phase, and add a notice for the run's containers. Call `Notices.notify` after the commit."""
    when = {"ended_at": now} if phase.over else {_STARTED_AT[phase]: now}
    entered = replace(drain, phase=moved(drain.phase, phase), **when)  # type: ignore[arg-type]
    await tx.drains.put(entered)
    await add_drain_notice(tx, entered, now, flushed)
    log.info("drain %s of run %s is %s%s", drain.drain_id, drain.run_id, phase, f": {entered.reason}" if entered.reason else "")
    _trace(drain, entered, now)
    return entered


def _trace(before: DrainRow, entered: DrainRow, now: datetime) -> None:
    """Add the phase that has ended to the trace of the drain, and the whole drain when it is over."""
    subject = tracing.drain_subject(entered.drain_id)
    tracing.record_part(subject, f"drain {before.phase.lower()}", before.entered_at, now)
    if entered.phase.over:
        attributes = {"job": entered.job, "run": entered.run_id, "mode": entered.mode.value, "outcome": entered.phase.value}
        tracing.record_whole(subject, "drain", entered.requested_at, now, **attributes)


async def add_drain_notice(tx: WriteTransaction, drain: DrainRow, now: datetime, flushed: Sequence[StageName] = ()) -> None:
    """Add a notice of the drain for the run's containers. `flushed`: the stages that every task has flushed; while the drain is FLUSHING, a
    container needs them, because a stage flushes after its feeders."""
    detail: dict[str, object] = {"uuid": drain.drain_id, "phase": drain.phase.value}
    if drain.reason:
        detail["reason"] = drain.reason
    if drain.phase is Phase.FLUSHING:
        detail["flushed"] = list(flushed)
    await tx.runs.add_notice(drain.run_id, "DRAIN", now, detail)


async def check_keeps_state(tx: ReadTransaction, run: RunRow) -> None:
    """Raises OutdatedContainers if a live container of the run would empty its state in any drain."""
    live = [each for each in await tx.fleet.containers(run.run_id) if each.state is ContainerState.LIVE and not each.can_keep_state]
    if live:
        named = ", ".join(each.execution_id for each in live[:5]) + (f" and {len(live) - 5} more" if len(live) > 5 else "")
        raise OutdatedContainers(
            f"{named}: their release empties the state in every drain; first restart the containers of run {run.run_id} with this release"
        )


async def pin(tx: WriteTransaction, drain: DrainRow, row: DrainStageRow, now: datetime) -> None:
    """Pin the checkpoint that the stage reported, instead of an older one of the same drain."""
    assert row.pinned is not None
    why = "to roll back to if the drain fails"
    await tx.snapshots.put_pins([PinRow(pin_id(drain.drain_id), drain.job, row.task, row.stage, row.pinned, why, now)])


async def pin_kept(tx: WriteTransaction, drain: DrainRow, now: datetime) -> None:
    """Pin the last commits of a drain that has kept the state: a later run may have to return to them."""
    await unpin(tx, drain, now)
    why, until = "state that the drain has kept", now + KEPT_AFTER_DRAIN
    await tx.snapshots.put_pins(
        PinRow(pin_id(drain.drain_id), drain.job, row.task, row.stage, row.committed, why, now, until)
        for row in await tx.drains.stages(drain.drain_id)
        if row.committed is not None
    )


async def unpin(tx: WriteTransaction, drain: DrainRow, now: datetime) -> None:
    await tx.cleanup.put_all(retirement(row.key, now) for row in await tx.snapshots.pin(pin_id(drain.drain_id)))
    await tx.snapshots.drop_pin(pin_id(drain.drain_id))


async def cancel(tx: WriteTransaction, run: RunRow, drain: DrainRow, reason: str, now: datetime) -> tuple[RunRow, DrainRow]:
    """Cancel the drain. The run continues as before. Raises NotCancellable."""
    return await _undo(tx, run, drain, cancelled(drain.phase, drain.mode), reason, now)


async def fail(tx: WriteTransaction, run: RunRow, drain: DrainRow, reason: str, now: datetime) -> tuple[RunRow, DrainRow]:
    """Fail the drain. Before the flush, or if the drain keeps the state, the run continues as before. Otherwise the run stops, and the next
    owners of its tasks restore the pinned checkpoints."""
    if drain.phase.can_go_back(drain.mode):
        return await _undo(tx, run, drain, Phase.FAILED, reason, now)
    left = await _roll_back(tx, drain)
    full_reason = f"{reason}; {left} stages have no checkpoint to roll back to" if left else reason
    pins = await tx.snapshots.pin(pin_id(drain.drain_id))
    await tx.snapshots.put_pins(replace(row, expires_at=now + KEPT_AFTER_FAILURE) for row in pins)
    failed = await enter(tx, replace(drain, reason=full_reason), Phase.FAILED, now)
    running = replace(run, state=run_moved(run.state, RunState.RUNNING))
    return await request_stop(tx, running, now, f"the drain {drain.drain_id} failed: {full_reason}"), failed


async def _undo(tx: WriteTransaction, run: RunRow, drain: DrainRow, phase: Phase, reason: str, now: datetime) -> tuple[RunRow, DrainRow]:
    await unpin(tx, drain, now)
    ended = await enter(tx, replace(drain, reason=reason), phase, now)
    continued = replace(run, state=run_moved(run.state, RunState.RUNNING if run.started_at else RunState.CREATED))
    await tx.runs.put(continued)
    return continued, ended


async def _roll_back(tx: WriteTransaction, drain: DrainRow) -> int:
    """Let each stage continue from its pinned checkpoint, as after a restore by an operator. A stage without a batch begins with empty
    state. Returns the number of stages that can do neither."""
    left, begun, gone = 0, list[StageStateRow](), list[StageKey]()
    stores = {(row.task, row.stage): row for row in await tx.fleet.stage_states(drain.job)}
    retained = await tx.drains.snapshots(drain.drain_id, drain.job, "pinned")
    for stage in await tx.drains.stages(drain.drain_id):
        store = stores.get((stage.task, stage.stage))
        if store is None:
            continue
        if (stage.task, stage.stage) in retained:
            begun.append(replace(store, head=stage.pinned, chosen=True))
        elif stage.began_empty and store.starts:
            lineage = Lineage(str(uuid5(NAMESPACE_OID, f"{drain.drain_id} {store.lineage}")))
            begun.append(StageStateRow(store.job, store.task, store.stage, lineage, starts=store.starts))
        elif stage.began_empty:
            gone.append(store.key)
        else:
            left += 1
    await tx.fleet.put_stage_states(begun)
    await tx.fleet.drop_stage_states(drain.job, gone)
    return left


async def abandon_drain(tx: WriteTransaction, run: RunRow, reason: str, now: datetime) -> RunRow:
    """End the drain of a run that is being stopped, if it has one: it is cancelled if that is still possible, and fails otherwise."""
    if run.state is not RunState.DRAINING:
        return run
    drain = await drain_of(tx, run)
    after, _ = await (cancel if drain.phase.can_go_back(drain.mode) else fail)(tx, run, drain, reason, now)
    return after


def retirement(key: StageKey, now: datetime) -> CleanupRow:
    """A queue entry: apply the retention rule to the snapshots of a stage."""
    prefix = stage_prefix(key)
    return CleanupRow(CleanupKind.RETIRE, BlobStoreName(""), prefix, key.job, key.task, key.stage, now, now)


def keeping(row: SnapshotRow, blob_store: BlobStoreName, now: datetime) -> CleanupRow:
    """A queue entry: remove the TTLs of a snapshot's blobs in one blob store."""
    return CleanupRow(CleanupKind.KEEP, blob_store, row.markers[blob_store].index, row.job, row.task, row.stage, now, now)
