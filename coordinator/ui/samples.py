"""Recent rates and lags of jobs, for sparklines. They are in memory only, and are empty after a restart of the coordinator."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.runs.lag import LagMonitor
from coordinator.runs.runs import Runs
from sluice.clock import Clock
from sluice.core.ids import JobName
from sluice.core.lifecycle import RunState

EVERY = timedelta(seconds=10)
KEPT = 180
"""Number of samples of a job: half an hour."""
MAX_JOBS = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """`rate`: rows per second, summed over all stages. `lag`: unread records, summed over all stages. None: unknown."""

    at: datetime
    rate: float | None
    lag: int | None


class Samples:
    """Chore: take a sample of each job. `since`: when the first sample was taken."""

    name = "sample_jobs"
    every = EVERY

    def __init__(self, runs: Runs, lag: LagMonitor, stage_metrics: StageMetrics, clock: Clock) -> None:
        self._runs = runs
        self._lag = lag
        self._stage_metrics = stage_metrics
        self._clock = clock
        self._samples: dict[JobName, deque[Sample]] = {}
        self.since: datetime | None = None

    async def run_once(self) -> Mapping[str, int]:
        now = self._clock.now()
        self.since = self.since or now
        lags = {status.job: sum(status.lag.values()) if status.lag else None for status in self._lag.jobs}
        rows = [row for row in await self._runs.jobs(limit=MAX_JOBS) if row.state in (RunState.RUNNING, RunState.DRAINING)]
        for row in rows:
            reports = self._stage_metrics.of_run(row.current_run).values()
            queries = self._stage_metrics.scripts.of_run(row.current_run).values()
            metrics = [*(each.metrics for each in reports), *(each.metrics for each in queries if each.active)]
            rates = [each.rows_per_second for each in metrics if each is not None]
            kept = self._samples.setdefault(row.job, deque(maxlen=KEPT))
            kept.append(Sample(now, sum(rates) if rates else None, lags.get(row.job)))
        for gone in self._samples.keys() - {row.job for row in rows}:
            del self._samples[gone]
        return {}

    def of_job(self, job: JobName) -> Sequence[Sample]:
        """The samples of a job, oldest first."""
        return tuple(self._samples.get(job, ()))


def sparkline(values: Sequence[float | None], width: int = 120, height: int = 24) -> str:
    """The points of SVG polylines as a path: `M` begins a line, and another one after each gap. The newest value is at the right edge; 0 is
    at the bottom."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    top, step = max(*known, 1e-9) if len(known) > 1 else max(known[0], 1e-9), width / max(1, KEPT - 1)
    path, pen_down = [], False
    for place, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        x, y = width - (len(values) - 1 - place) * step, height - 1 - value / top * (height - 2)
        path.append(f"{'L' if pen_down else 'M'}{x:.1f} {y:.1f}")
        pen_down = True
    return "".join(path)
