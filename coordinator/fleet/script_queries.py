"""The streaming queries of attached jobs, as their drivers last reported them.

Kept in memory, as the metrics of stages are: no lease and no fencing decision depends on them. After a restart of the coordinator a script
has no queries here until it reports again, about ten seconds later. The last report is kept when the driver ends, until the run ends.

A checkpoint belongs to the job that reported it first, as long as the task of that job is owned under the same generation. A query of
another job on that checkpoint is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sluice.core.ids import Generation, JobName, Lineage, RunId, Ssp, StageName
from sluice.wire.agents import StageMetricsBody, TopicWrites


@dataclass(frozen=True, slots=True)
class ScriptQuery:
    """See `sluice.wire.agents.QueryBody`. `reported_at`: when the coordinator received the last report of it; `failed_at`: when it received
    the first report with the last failure."""

    stage: StageName
    checkpoint: str
    name: str
    lineage: Lineage
    batch: int | None
    offsets: Mapping[Ssp, int]
    metrics: StageMetricsBody | None
    active: bool
    error: str
    failures: int
    reported_at: datetime
    failed_at: datetime
    undrainable: Sequence[str] = ()
    writes: Sequence[TopicWrites] = ()


@dataclass(frozen=True, slots=True)
class ScriptReport:
    """The queries of a run of an attached job, by stage, under a generation of its task."""

    job: JobName
    generation: Generation
    queries: Mapping[StageName, ScriptQuery]


class ScriptQueries:
    """The last report of each run."""

    def __init__(self) -> None:
        self._reports: dict[RunId, ScriptReport] = {}
        self._places: dict[RunId, dict[Lineage, str]] = {}
        """Where the checkpoint of each lineage was last, also of those that the last report lacks."""

    def put(self, run_id: RunId, job: JobName, generation: Generation, queries: Sequence[ScriptQuery]) -> None:
        """Replace the report of the run, unless it has one of a later generation."""
        known = self._reports.get(run_id)
        if known is not None and known.generation > generation:
            return
        self._reports[run_id] = ScriptReport(job, generation, {each.stage: each for each in queries})
        self._places.setdefault(run_id, {}).update({each.lineage: each.checkpoint for each in queries})

    def place(self, run_id: RunId, lineage: Lineage) -> str:
        """The location of the checkpoint of that lineage; "" if it was not reported since the coordinator's start."""
        return self._places.get(run_id, {}).get(lineage, "")

    def of_run(self, run_id: RunId) -> Mapping[StageName, ScriptQuery]:
        found = self._reports.get(run_id)
        return {} if found is None else found.queries

    def all(self) -> Iterator[tuple[JobName, ScriptQuery]]:
        """The queries of all runs."""
        for report in self._reports.values():
            for query in report.queries.values():
                yield report.job, query

    def users(self, checkpoint: str, *, but: JobName) -> Iterator[tuple[RunId, ScriptReport]]:
        """The reports of other jobs that have a running query on the checkpoint."""
        for run_id, report in self._reports.items():
            if report.job != but and any(each.checkpoint == checkpoint and each.active for each in report.queries.values()):
                yield run_id, report

    def keep_only(self, runs: Collection[RunId]) -> None:
        """Remove the reports of all other runs."""
        for ended in self._reports.keys() - set(runs):
            del self._reports[ended]
            self._places.pop(ended, None)
