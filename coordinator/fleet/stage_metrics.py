"""The metrics that containers last reported for each stage of a task, and the last failure of each.

Kept in memory, because no lease and no fencing decision depends on them. After a restart of the coordinator a stage is missing here until
its container reports again: with its next batch, or within about ten seconds while it has nothing to read. Only the counts of late rows are
also in the database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from coordinator.fleet.script_queries import ScriptQueries
from coordinator.store.fleet import LateRows
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, TaskName
from sluice.wire import agents as wire_agents
from sluice.wire import runs as wire_runs


@dataclass(frozen=True)
class StageReport:
    """A stage's last committed batch, and its metrics. `offsets`: partition -> next offset."""

    generation: Generation
    lineage: Lineage
    batch: int
    offsets: Mapping[Ssp, int] = field(default_factory=dict)
    metrics: wire_agents.StageMetricsBody | None = None

    @cached_property
    def metrics_reply(self) -> wire_runs.StageMetricsReply | None:
        """The metrics as they were reported, for answers. Kept, because a page of a large job shows thousands of them every two seconds."""
        return None if self.metrics is None else wire_runs.StageMetricsReply.model_validate(self.metrics.model_dump())

    def repeats(self, other: StageReport) -> bool:
        """Whether both are of the same batch, by the same owner."""
        return (self.generation, self.lineage, self.batch) == (other.generation, other.lineage, other.batch)


@dataclass(frozen=True, slots=True)
class StageFailure:
    """The last failure of a stage. `error`: one line. `failures`: how often it failed within ten minutes. `retry_at`: when its container
    tries again; None if it does not. `log`: where the log of that container is. `over`: the stage has made progress since."""

    generation: Generation
    error: str
    failures: int
    at: datetime
    retry_at: datetime | None
    log: str
    over: bool = False


Failures = Mapping[tuple[TaskName, StageName], StageFailure]

Stages = Mapping[tuple[TaskName, StageName], StageReport]


class StageMetrics:
    """The newest report of each stage, of runs that have not ended."""

    def __init__(self) -> None:
        self._reports: defaultdict[RunId, dict[tuple[TaskName, StageName], StageReport]] = defaultdict(dict)
        self._failures: defaultdict[RunId, dict[tuple[TaskName, StageName], StageFailure]] = defaultdict(dict)
        self._late: defaultdict[RunId, dict[tuple[TaskName, StageName], LateRows]] = defaultdict(dict)
        self.scripts = ScriptQueries()
        """The queries of attached jobs, whose runs have no stages."""

    def report(self, run_id: RunId, task: TaskName, stage: StageName, report: StageReport) -> None:
        """Store an accepted report of the task's owner. It replaces the previous report, but not one of a later owner."""
        known = self._reports[run_id].get((task, stage))
        if known is None or known.generation <= report.generation:
            self._reports[run_id][task, stage] = report
            self.recovered(run_id, task, stage, report.generation)
            if report.metrics is not None and report.metrics.late_rows:
                self._late[run_id][task, stage] = self.late_rows_after(run_id, task, stage, report)

    def late_rows_after(self, run_id: RunId, task: TaskName, stage: StageName, report: StageReport) -> LateRows:
        """The late rows of the stage including this report of its owner."""
        known = self._late[run_id].get((task, stage), LateRows(run_id))
        metrics = report.metrics
        return known if metrics is None else known.counted(report.generation, metrics.late_rows or 0, metrics.late_rows_at)

    def restore(self, run_id: RunId, task: TaskName, stage: StageName, late_rows: LateRows | None) -> None:
        """Set the late rows of a stage from the database, unless they were reported since the coordinator started."""
        if late_rows is not None and late_rows.run_id == run_id and (task, stage) not in self._late[run_id]:
            self._late[run_id][task, stage] = late_rows

    def give_up(self, run_id: RunId, task: TaskName, stage: StageName) -> None:
        """Count the rows that the stage drops from now on as given up: they may come from a feeder that is no longer waited for."""
        known = self._late[run_id].get((task, stage), LateRows(run_id))
        self._late[run_id][task, stage] = replace(known, gave_up=True)

    def late_rows_of(self, run_id: RunId) -> Mapping[tuple[TaskName, StageName], LateRows]:
        """The late rows of the stages that have dropped any."""
        return {key: each for key, each in self._late.get(run_id, {}).items() if each.rows}

    def failed(self, run_id: RunId, task: TaskName, stage: StageName, failure: StageFailure) -> None:
        """Store an accepted failure report of the task's owner. It is kept, even after its container has ended, until the stage makes
        progress."""
        self._failures[run_id][task, stage] = failure

    def recovered(self, run_id: RunId, task: TaskName, stage: StageName, generation: Generation) -> None:
        """The stage has made progress under this generation."""
        failure = self._failures.get(run_id, {}).get((task, stage))
        if failure is not None and failure.generation <= generation:
            self._failures[run_id][task, stage] = replace(failure, over=True)

    def failures_of(self, run_id: RunId) -> Failures:
        return self._failures.get(run_id, {})

    def latest(self, run_id: RunId, task: TaskName, stage: StageName) -> StageReport | None:
        return self.of_run(run_id).get((task, stage))

    def of_run(self, run_id: RunId) -> Stages:
        return self._reports.get(run_id, {})

    def forget_reports(self) -> None:
        """Clear all reports, so that the next report of each stage is written to the database, which may not have the last one."""
        self._reports.clear()

    def keep_only(self, runs: Collection[RunId]) -> None:
        """Remove the data of all other runs."""
        for ended in self._reports.keys() - set(runs):
            del self._reports[ended]
        for ended in self._failures.keys() - set(runs):
            del self._failures[ended]
        for ended in self._late.keys() - set(runs):
            del self._late[ended]
        self.scripts.keep_only(runs)
