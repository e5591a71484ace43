"""Checks what the owners of tasks report: progress, snapshots, and steps of drains. The rule is in `sluice.core.leases.ownership`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime

from coordinator.store.fleet import StageStateRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction
from sluice.core.errors import FalseReport
from sluice.core.ids import JobName, Ssp, StageName, StreamId, TaskName
from sluice.core.jobmodels.model import JobModel, TaskModel
from sluice.core.leases.ownership import Committed, check_report
from sluice.streams.port import Offsets

log = logging.getLogger(__name__)


class ReportChecks:
    """`model_of` returns a run's job model. `ends_after` returns cached ends of streams that were looked up after a given time; no report
    waits for a stream's system. `refused`: rejected reports by job and reason."""

    def __init__(
        self,
        model_of: Callable[[ReadTransaction, RunRow], Awaitable[JobModel]],
        ends_after: Callable[[datetime | None], Mapping[StreamId, Offsets]],
    ) -> None:
        self._model_of = model_of
        self._ends_after = ends_after
        self._tasks: dict[JobName, tuple[JobModel, Mapping[TaskName, TaskModel]]] = {}
        self.refused: Counter[tuple[JobName, str]] = Counter()

    async def check(
        self,
        tx: ReadTransaction,
        run: RunRow,
        task: TaskName,
        stage: StageName,
        report: Committed,
        known: StageStateRow | None,
        *,
        only_own: bool = False,
    ) -> Committed:
        """Check a report of the task's owner. `known`: the stage as stored. Returns the report. With `only_own`, partitions that the stage
        does not read are removed from it; otherwise they are rejected. Raises FalseReport, and counts it."""
        found = (await self._tasks_of(tx, run)).get(task)
        reads = run.spec.by_stage(found.ssps).get(stage, frozenset()) if found is not None else frozenset[Ssp]()
        if only_own:
            report = replace(report, offsets={ssp: offset for ssp, offset in report.offsets.items() if ssp in reads})
        ends: dict[Ssp, int] = {}
        if known is not None:
            looked_up = self._ends_after(known.reported_at)
            ends = {
                ssp: looked_up[ssp.stream_id][ssp.partition] for ssp in known.offsets if ssp.partition in looked_up.get(ssp.stream_id, {})
            }
        try:
            check_report(report, reads, known.committed if known is not None else None, ends)
        except FalseReport as refusal:
            self.refused[run.job, refusal.reason] += 1
            log.warning("run %s: a report of stage %s of task %s is rejected: %s", run.run_id, stage, task, refusal)
            raise
        return report

    async def _tasks_of(self, tx: ReadTransaction, run: RunRow) -> Mapping[TaskName, TaskModel]:
        """The tasks of the run's model, cached for each version."""
        model = await self._model_of(tx, run)
        known = self._tasks.get(run.job)
        if known is None or known[0] is not model:
            known = self._tasks[run.job] = (model, model.tasks)
        return known[1]
