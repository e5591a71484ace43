"""Regrouping of stateless jobs: a new run assigns partitions to other tasks than the former run.

A deployment regroups a stateless job with another grouper, another `max_tasks`, or new partition counts. The first acquire of the run waits
until no container of the job's former runs can commit any more. Then each stage of each task begins at the offsets that the same stage
committed last, in any task. The rule is in `sluice.core.leases.ownership`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping

from coordinator.fleet.acting import Acting
from coordinator.store.fleet import StageStateRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import WriteTransaction
from coordinator.transitions import stages_of
from sluice.core.ids import JobName, Lineage, RunId, Ssp, StageKey, StageName, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.leases.ownership import RegroupedStage, StagePosition, Wait, regrouped

log = logging.getLogger(__name__)


class Regrouping:
    """`new_lineage` returns a new id. `on_regrouped` is called when the offsets of a run have changed without reports."""

    def __init__(self, acting: Acting, new_lineage: Callable[[], Lineage], on_regrouped: Callable[[RunId], None]) -> None:
        self._acting = acting
        self._new_lineage = new_lineage
        self._on_regrouped = on_regrouped
        self._settled: dict[JobName, RunId] = {}

    async def settle(self, tx: WriteTransaction, run: RunRow, model: JobModel) -> Wait | None:
        """Store the start offsets of the tasks of the run, before the first of them is granted. Returns how long a container of a former
        run may still act; None when the offsets are stored. Call `settled` after the commit."""
        if run.spec.stateful or self._settled.get(run.job) == run.run_id:
            return None
        rows: defaultdict[StageName, dict[TaskName, StageStateRow]] = defaultdict(dict)
        for row in await tx.fleet.stage_states(run.job):
            rows[row.stage][row.task] = row
        changes = {stage: change for stage, change in _changes(run, model, rows).items() if not change.nothing}
        if not changes:
            return None
        acting = await self._acting.owners(tx, run)
        if acting is not None:
            return acting
        for stage, change in changes.items():
            begun = [StageStateRow(run.job, task, stage, self._new_lineage(), starts=starts) for task, starts in change.begin.items()]
            extended = [rows[stage][task].beginning(starts) for task, starts in change.extend.items()]
            await tx.fleet.put_stage_states([*begun, *extended])
            await tx.fleet.drop_stage_states(run.job, [StageKey(run.job, task, stage) for task in change.gone])
        log.info(
            "run %s continues at the offsets that other tasks of job %s have committed, in stage %s",
            run.run_id,
            run.job,
            ", ".join(changes),
        )
        return None

    def settled(self, run: RunRow) -> None:
        """Record that a task of the run was granted."""
        if self._settled.get(run.job) != run.run_id:
            self._settled[run.job] = run.run_id
            self._on_regrouped(run.run_id)

    def forget(self) -> None:
        """Check again whether runs are settled."""
        self._settled.clear()


def _changes(
    run: RunRow, model: JobModel, rows: Mapping[StageName, Mapping[TaskName, StageStateRow]]
) -> Mapping[StageName, RegroupedStage]:
    reads: dict[StageName, dict[TaskName, frozenset[Ssp]]] = {stage: {} for stage in run.spec.stage_names}
    for each in stages_of(run, model):
        reads[each.stage][each.task] = each.ssps
    streams = {each.id: each for each in run.spec.streams_read}

    def change(stage: StageName, tasks: Mapping[TaskName, frozenset[Ssp]]) -> RegroupedStage:
        positions = {task: StagePosition(row.position, row.reported_at) for task, row in rows.get(stage, {}).items()}
        everywhere = {ssp for ssps in tasks.values() for ssp in ssps if streams[ssp.stream_id].read_by_all(ssp.partition)}
        return regrouped(positions, tasks, everywhere)

    return {stage: change(stage, tasks) for stage, tasks in reads.items()}
