"""State that a drain has kept: which runs may continue with it, and how they get it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.store.drains import DrainRow, DrainStageRow
from coordinator.store.fleet import StageStateRow
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import SnapshotRow
from coordinator.store.sql import ReadTransaction, WriteTransaction
from coordinator.transitions import get_run, stages_of
from sluice.core.drain import KeptHistory, KeptStage, Mode
from sluice.core.errors import IncompatibleState
from sluice.core.ids import JobName, RunId, StageKey, StageName
from sluice.core.jobmodels.model import JobModel
from sluice.core.jobmodels.spec import RunSpec


@dataclass(frozen=True, slots=True)
class KeptState:
    """The state that `drain` has kept. `spec`: of the drained run. `returns`: the stages of tasks that have run batches since, and must
    return to the drain's commit. `fresh`: the stages of tasks that had run no batch at the drain."""

    drain: DrainRow
    spec: RunSpec
    stages: Sequence[KeptStage]
    returns: Sequence[StageStateRow]
    fresh: Collection[StageKey]


async def read_kept(tx: ReadTransaction, drain: DrainRow, current: RunRow) -> KeptState:
    """The kept state for a run that follows the drain and replaces the job's `current` run. Raises IncompatibleState if it no longer
    exists."""
    await _check_history(tx, drain, current)
    states = {row.key: row for row in await tx.fleet.stage_states(drain.job)}
    rows = await tx.drains.stages(drain.drain_id)
    idle = current.state.ended or current.started_at is None
    moved: list[DrainStageRow] = []
    fresh = set(states) - {_key(drain.job, row) for row in rows}
    for row in rows:
        key = _key(drain.job, row)
        state = states.get(key)
        if row.batch_id is None:
            fresh.add(key)
        elif state is None or not _is_as_kept(state, row) or not idle:
            moved.append(row)
    committed = await tx.drains.snapshots(drain.drain_id, drain.job, "committed") if moved else {}
    returns = [
        _returned(row, states.get(_key(drain.job, row)), committed.get((row.task, row.stage)), drain.job, current.run_id) for row in moved
    ]
    spec = (await get_run(tx, drain.run_id)).spec
    return KeptState(drain, spec, _kept_stages(spec, rows), returns, fresh)


async def _check_history(tx: ReadTransaction, drain: DrainRow, current: RunRow) -> None:
    """Every run that follows a drain begins a history. A run with an explicit start gives up the kept state."""
    if current.run_id == drain.run_id:
        return
    first = await get_run(tx, current.first_run)
    if first.spec.start not in ("checkpoint", "drained"):
        raise IncompatibleState(
            f"the state that drain {drain.drain_id} has kept was given up: run {first.run_id} began with empty state; deploy with the "
            "start checkpoint to continue that run, or with an explicit start"
        )


def _returned(
    row: DrainStageRow, state: StageStateRow | None, committed: SnapshotRow | None, job: JobName, current: RunId
) -> StageStateRow:
    """The stage's state as after a restore of the `committed` snapshot by an operator: a new lineage begins. Raises IncompatibleState if it
    is not retained."""
    if committed is None:
        there = "the job is not backed up" if row.committed is None else f"snapshot {row.committed} no longer exists"
        raise IncompatibleState(
            f"stage {row.stage} of task {row.task} has run since the drain {row.drain_id}, and there is nothing to return to ({there}): "
            f"continue run {current} with the start checkpoint, or deploy with an explicit start"
        )
    base = state or StageStateRow(job, row.task, row.stage, committed.lineage, committed.batch_id, committed.offsets)
    return replace(base, head=row.committed, chosen=True)


def _kept_stages(spec: RunSpec, rows: Sequence[DrainStageRow]) -> Sequence[KeptStage]:
    """A stage that did not report its operators counts as stateful."""
    found = []
    for stage in spec.stage_names:
        of_stage = [row for row in rows if row.stage == stage and row.batch_id is not None]
        operators = next((row.operators for row in of_stage if row.operators is not None), None)
        stateful = bool(of_stage) and (operators is None or bool(operators))
        found.append(KeptStage(stage, spec.reads(stage), stateful, operators or (), {row.task: frozenset(row.offsets) for row in of_stage}))
    return found


def live_stages(run: RunRow, model: JobModel, stage_metrics: StageMetrics) -> Sequence[KeptStage]:
    """What a drain would keep of a run, according to its containers' reports. A stage without a report counts as stateless."""
    reports = stage_metrics.of_run(run.run_id)
    found = []
    for stage in run.spec.stage_names:
        tasks = {each.task: each.ssps for each in stages_of(run, model) if each.stage == stage}
        metrics = [reports[task, stage].metrics for task in tasks if (task, stage) in reports]
        operators = next((each.operators for each in metrics if each is not None and each.operators is not None), ())
        named = [each.operator for each in operators]
        found.append(KeptStage(stage, run.spec.reads(stage), bool(named), named, tasks))
    return found


async def return_to_kept(tx: WriteTransaction, kept: KeptState, fresh_stages: Collection[StageName]) -> None:
    """Let the next run begin with the kept state. `fresh_stages` begin without their former checkpoints."""
    job = kept.drain.job
    await tx.fleet.drop_stage_states(job, kept.fresh)
    await tx.fleet.put_stage_states(kept.returns)
    await tx.fleet.drop_stage_states(job, [row.key for row in await tx.fleet.stage_states(job) if row.stage in fresh_stages])


async def kept_histories(tx: ReadTransaction, kept: KeptState, fresh_stages: Collection[StageName]) -> Sequence[KeptHistory]:
    """The earlier histories of the state with which the next run begins, newest first, for readers of intermediate streams and for a
    rebuild (`coordinator.snapshots.continuation`). The oldest ones are omitted if no snapshot of them is retained: a stage whose newest
    snapshots are lost is restored from an older one."""
    drained = await get_run(tx, kept.drain.run_id)
    found = [KeptHistory(drained.first_run, frozenset(fresh_stages)), *drained.kept]
    runs = [await tx.runs.get(run_id) for run_id in await tx.snapshots.runs(kept.drain.job)]
    used = {run.first_run for run in runs if run is not None}
    while found and None not in runs and found[-1].first_run not in used:  # only after a rebuild are there snapshots of unknown runs
        found.pop()
    return found


async def kept_operators(tx: ReadTransaction, job: JobName, states: Sequence[StageStateRow]) -> Mapping[StageName, Sequence[str]]:
    """The stateful operators of those stages of a task whose state has not changed since the job's last drain kept it."""
    drain = await tx.drains.last_drained(job)
    if drain is None or drain.mode is Mode.DEFAULT:
        return {}
    found: dict[StageName, Sequence[str]] = {}
    for state in states:
        row = await tx.drains.stage(drain.drain_id, state.task, state.stage)
        if row is not None and row.operators is not None and _is_as_kept(state, row):
            found[state.stage] = row.operators
    return found


def _is_as_kept(state: StageStateRow, row: DrainStageRow) -> bool:
    """Whether no batch has run since the drain, or the stage is about to return to its commit of the drain."""
    if row.batch_id is None:
        return False
    if row.committed is not None and state.head == row.committed and (state.chosen or state.batch_id == row.batch_id):
        return True
    return state.lineage == row.lineage and state.batch_id == row.batch_id


def _key(job: JobName, row: DrainStageRow) -> StageKey:
    return StageKey(job, row.task, row.stage)
