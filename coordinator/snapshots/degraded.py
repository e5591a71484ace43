"""Chore: find runs that are not backed up as requested, for `sluice status`, `/readyz` and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from coordinator.blobpool import BlobStores
from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.snapshots.reports import Snapshots
from coordinator.store.runs import RunRow
from coordinator.store.sql import Store
from sluice.clock import Clock
from sluice.core.ids import Instant, JobName, RunId, StageKey
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.core.snapshots.degraded import BackupProblem, Degradation, StageOfTask, backup_problems
from sluice.core.snapshots.snapshot import BlobStoreName

TOLERATED_FOR = timedelta(seconds=20)
"""How long a stage may have no snapshot, or a blob store may fail to open, before it is reported. With the interval of this chore and the
shipped Prometheus configuration, the alert is raised within a minute."""

AT_ONCE = (Degradation.NOT_CONFIGURED, Degradation.OVERDUE)
"""What is reported immediately. Containers report a backup only when it is overdue by their setting commit_late_seconds."""

STAGES_PER_TURN = 500
"""Stages that are looked at before the event loop processes other requests."""

Seen = tuple[RunId, BlobStoreName, Degradation]


@dataclass(slots=True)
class BackupMonitor:
    store: Store
    blob_stores: BlobStores
    snapshots: Snapshots
    stage_metrics: StageMetrics
    clock: Clock
    every: timedelta = timedelta(seconds=5)
    name: str = "backup_monitor"
    requested: Mapping[JobName, Sequence[BlobStoreName]] = field(default_factory=dict)
    """The blob stores of each job with a live run, as of the last run of this chore."""
    _problems: Mapping[RunId, Sequence[BackupProblem]] = field(default_factory=dict)
    _jobs: Mapping[RunId, JobName] = field(default_factory=dict)
    _since: dict[Seen, Instant] = field(default_factory=dict)

    def of_run(self, run_id: RunId) -> Sequence[BackupProblem]:
        return self._problems.get(run_id, ())

    @property
    def of_jobs(self) -> Mapping[JobName, Sequence[BackupProblem]]:
        return {self._jobs[run_id]: problems for run_id, problems in self._problems.items()}

    def sentences(self) -> Sequence[str]:
        """The problems of all jobs."""
        return [f"{job}: {each}" for job, problems in sorted(self.of_jobs.items()) for each in problems]

    async def run_once(self) -> Mapping[str, int]:
        async with self.store.read() as tx:
            runs = [run for run in await tx.runs.active() if run.stop_requested_at is None]
        found = {run.run_id: await self._of(run) for run in runs}
        now = self.clock.elapsed()
        seen = {(run_id, each.blob_store, each.reason) for run_id, problems in found.items() for each in problems}
        self._since = {key: self._since.get(key, now) for key in seen}
        self._problems = {
            run_id: [each for each in problems if self._counts((run_id, each.blob_store, each.reason), now)]
            for run_id, problems in found.items()
        }
        self._jobs = {run.run_id: run.job for run in runs}
        self.requested = {run.job: self.blob_stores.requested(run.backup) for run in runs}
        return {}

    def _counts(self, key: Seen, now: Instant) -> bool:
        return key[2] in AT_ONCE or now - self._since[key] >= TOLERATED_FOR.total_seconds()

    async def _of(self, run: RunRow) -> Sequence[BackupProblem]:
        requested = self.blob_stores.requested(run.backup)
        if not requested:
            return ()
        problems = {name: self.blob_stores.problem(name) for name in requested if name in self.blob_stores.places}
        unavailable = {name: problem for name, problem in problems.items() if problem is not None}
        reports = self.stage_metrics.of_run(run.run_id)
        stages = [of for of, report in reports.items() if report.batch >= 0]
        await self.snapshots.look_up(run.job, stages)
        heads = {}
        for number, of in enumerate(stages, 1):
            heads[of] = self._stores(run.job, of)
            if number % STAGES_PER_TURN == 0:
                await asyncio.sleep(0)
        overdue = {of: each.metrics.backup_problem for of, each in reports.items() if each.metrics and each.metrics.backup_problem}
        for stage, query in self.stage_metrics.scripts.of_run(run.run_id).items():
            if query.metrics is not None and query.metrics.backup_problem:
                overdue[ATTACHED_TASK, stage] = query.metrics.backup_problem
        return backup_problems(requested, self.blob_stores.places, unavailable, heads, overdue)

    def _stores(self, job: JobName, of: StageOfTask) -> frozenset[BlobStoreName]:
        return self.snapshots.stores.get(StageKey(job, *of), frozenset())
