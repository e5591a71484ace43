"""The lag and the state of every job, updated every few seconds, for `/metrics` and `GET /runs/{runId}`.

Counts come from the database, the ends of streams from their systems. The offsets of tasks are read once per run; after that the reports in
memory are used. Numbers older than a minute are omitted, because a missing number is better than a wrong one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from coordinator.fleet.script_queries import ScriptQuery
from coordinator.fleet.stage_metrics import StageMetrics, Stages
from coordinator.store.fleet import LateRows, RunCounts, StageStateRow
from coordinator.store.runs import JobRow, RunRow
from coordinator.store.sql import ReadTransaction, Store
from sluice.clock import Clock
from sluice.core.errors import SluiceError
from sluice.core.ids import Instant, JobName, RunId, Ssp, StageName, StreamId, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.jobmodels.spec import JobKind
from sluice.core.lag import records_in
from sluice.core.lifecycle import RunState
from sluice.streams.port import Offsets, StreamSystem

MAX_AGE = timedelta(minutes=1)

PER_TURN = 500
"""Stages that are processed before other requests get their turn on the event loop: about a millisecond."""

Lag = Mapping[tuple[TaskName, StageName], int]
"""About how many records each stage of each task has not read yet. See `sluice.core.lag`."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job with its current run. If the run has ended, only `job` and `state` are set. `slots`: the number of slots that need a container:
    none while a script is idle, otherwise all. `unowned`: the number of tasks without an owner, see `_unowned`. `lag`: by stage, the sum
    over its tasks. `reassigned_slots`: the number of slots without tasks since a fail-over. `failing`: by stage, the number of tasks in
    which it fails. `late`: by stage, the rows dropped as late, and apart from these the rows of feeders that were given up. `unconfirmed`:
    the number of reported offsets beyond the ends of their partitions."""

    job: JobName
    state: RunState
    slots: int = 0
    unowned: int = 0
    counts: RunCounts = field(default_factory=lambda: RunCounts({}, 0))
    lag: Mapping[StageName, int] = field(default_factory=dict)
    version: int = 0
    reassigned_slots: int = 0
    failing: Mapping[StageName, int] = field(default_factory=dict)
    late: Mapping[StageName, tuple[int, int]] = field(default_factory=dict)
    unconfirmed: int = 0


@dataclass(frozen=True, slots=True)
class _Reading:
    """A stage of a task: the partitions that it reads with their start offsets, and its offsets as stored."""

    of: tuple[TaskName, StageName]
    starts: Sequence[tuple[StreamId, Ssp, int]]
    stored: Mapping[Ssp, int]


@dataclass(frozen=True, slots=True)
class _Positions:
    """The offsets of a run, cached as long as its `model` is current. A large fleet has a hundred thousand of them, and creating these
    objects every time would cost a tenth of a core in garbage collection. `alone`: the job has no other active run that could commit
    batches."""

    model: JobModel
    alone: bool
    streams: frozenset[StreamId]
    readings: Sequence[_Reading]


@dataclass(frozen=True, slots=True)
class _Computed:
    """The lag of a run and the number of offsets beyond the ends, and what they were computed from. They are reused while nothing
    has changed: a comparison takes a twentieth of the time of the computation, and both delay heartbeats."""

    positions: _Positions
    reports: Stages
    ends: Mapping[StreamId, Offsets]
    lag: Lag
    by_stage: Mapping[StageName, int]
    beyond: int

    def is_of(self, positions: _Positions, reports: Stages, ends: Mapping[StreamId, Offsets]) -> bool:
        return self.positions is positions and self.reports == reports and self.ends == ends


class LagMonitor:
    """Chore: compute the lag of every job. `model_of` returns a run's job model."""

    name = "survey"
    every = timedelta(seconds=5)

    def __init__(
        self,
        store: Store,
        systems: Mapping[str, StreamSystem],
        stage_metrics: StageMetrics,
        clock: Clock,
        model_of: Callable[[ReadTransaction, RunRow], Awaitable[JobModel]],
    ) -> None:
        self._store = store
        self._systems = systems
        self._stage_metrics = stage_metrics
        self._clock = clock
        self._model_of = model_of
        self._positions: dict[RunId, _Positions] = {}
        self._forgotten: set[RunId] = set()
        self._all_forgotten = False
        """Runs whose stored offsets have changed since the chore began to read them."""
        self._computed: Mapping[RunId, _Computed] = {}
        self._jobs: Sequence[JobStatus] = ()
        self._ends: Mapping[StreamId, Offsets] = {}
        self._looked_at: datetime | None = None
        self._lag: Mapping[RunId, Lag] = {}
        self._made_at: Instant | None = None

    # --- results --------------------------------------------------------------------------------------------

    @property
    def _fresh(self) -> bool:
        return self._made_at is not None and self._clock.elapsed() - self._made_at <= MAX_AGE.total_seconds()

    @property
    def jobs(self) -> Sequence[JobStatus]:
        return self._jobs if self._fresh else ()

    def of_run(self, run_id: RunId) -> Lag:
        """The lag of each stage of a run, without stages that read a stream whose end is unknown."""
        return self._lag.get(run_id, {}) if self._fresh else {}

    def ends_after(self, moment: datetime | None) -> Mapping[StreamId, Offsets]:
        """The last lookup of the ends of streams, if it was after this moment."""
        return self._ends if moment is not None and self._looked_at is not None and self._looked_at > moment else {}

    def forget(self, run_id: RunId) -> None:
        """Drop the cached offsets of a run whose stored offsets have changed without reports."""
        self._positions.pop(run_id, None)
        self._forgotten.add(run_id)

    def forget_all(self) -> None:
        """Drop all cached offsets, because those of any run may have changed."""
        self._positions.clear()
        self._all_forgotten = True

    # --- the chore -------------------------------------------------------------------------------------------------

    async def run_once(self) -> Mapping[str, int]:
        self._forgotten.clear()
        self._all_forgotten = False
        async with self._store.read() as tx:
            jobs = await tx.runs.jobs()
            runs = {run.run_id: run for run in await tx.runs.active()}
            models = {run_id: await self._model_of(tx, run) for run_id, run in runs.items()}
            counts = {run_id: await tx.fleet.counts(run_id, run.job) for run_id, run in runs.items()}
            idle = {run_id for run_id, run in runs.items() if await _is_idle(tx, run)}
            unowned = {
                run_id: await _unowned(tx, run, models[run_id], counts[run_id]) for run_id, run in runs.items() if run_id not in idle
            }
            positions = await self._find_positions(tx, runs, models)
        kept = {} if self._all_forgotten else {run_id: found for run_id, found in positions.items() if run_id not in self._forgotten}
        self._positions = kept
        self._stage_metrics.keep_only(runs.keys())
        reports = {run_id: dict(self._stage_metrics.of_run(run_id)) for run_id in runs}
        looked_at = self._clock.now()
        ends = await self._look_up_ends({stream for each in positions.values() for stream in each.streams})
        self._ends, self._looked_at = ends, looked_at
        self._computed = {run_id: await self._lag_of(run_id, positions[run_id], reports[run_id], ends) for run_id in runs}
        found = self._computed
        lag = {run_id: each.lag for run_id, each in found.items()}

        def status(job: JobRow) -> JobStatus:
            run = runs.get(job.current_run)
            if run is None:
                return JobStatus(job.job, job.state)
            of_run, slots = counts[run.run_id], run.spec.containers
            away = max(0, slots - len(models[run.run_id].containers))
            failures = self._stage_metrics.failures_of(run.run_id)
            failing = Counter(stage for (_, stage), failure in failures.items() if not failure.over)
            queries = self._stage_metrics.scripts.of_run(run.run_id).values()
            return JobStatus(
                job=job.job,
                state=job.state,
                slots=0 if run.run_id in idle else slots,
                unowned=unowned.get(run.run_id, 0),
                counts=of_run,
                lag={**found[run.run_id].by_stage, **_lag_of_queries(queries)},
                version=run.model_version,
                reassigned_slots=away,
                failing={stage: failing[stage] for stage in run.spec.stage_names}
                | {each.stage: int(each.failures > 0 and not each.active) for each in queries},
                late=_late_by_stage(run.spec.stage_names, self._stage_metrics.late_rows_of(run.run_id))
                | {each.stage: (each.metrics.late_rows or 0, 0) for each in queries if each.metrics is not None},
                unconfirmed=found[run.run_id].beyond,
            )

        self._jobs, self._lag, self._made_at = [status(job) for job in jobs], lag, self._clock.elapsed()
        return {}

    async def _find_positions(
        self, tx: ReadTransaction, runs: Mapping[RunId, RunRow], models: Mapping[RunId, JobModel]
    ) -> Mapping[RunId, _Positions]:
        of_job = Counter(run.job for run in runs.values())
        known = {run_id: found for run_id, found in self._positions.items() if run_id in runs}
        for run_id, run in runs.items():
            if run_id not in known or not known[run_id].alone or known[run_id].model is not models[run_id]:
                rows = {(row.task, row.stage): row for row in await tx.fleet.stage_states(run.job)}
                for (task, stage), row in rows.items():
                    self._stage_metrics.restore(run_id, task, stage, row.late_rows)
                known[run_id] = await _positions(tx, run, models[run_id], rows, alone=of_job[run.job] == 1)
        return known

    async def _look_up_ends(self, streams: Iterable[StreamId]) -> Mapping[StreamId, Offsets]:
        """The ends of the streams, without those whose system does not answer."""
        known = [stream for stream in streams if stream.system in self._systems]
        found = await asyncio.gather(*(self._systems[each.system].readable(each.stream) for each in known), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, SluiceError):
                raise each
        return {stream: ends for stream, ends in zip(known, found, strict=True) if not isinstance(ends, BaseException)}

    async def _lag_of(self, run_id: RunId, positions: _Positions, reports: Stages, all_ends: Mapping[StreamId, Offsets]) -> _Computed:
        """The lag according to the reports, which are older than the ends."""
        ends = {stream: all_ends[stream] for stream in positions.streams if stream in all_ends}
        last = self._computed.get(run_id)
        if last is not None and last.is_of(positions, reports, ends):
            return last
        found: dict[tuple[TaskName, StageName], int] = {}
        by_stage: defaultdict[StageName, int] = defaultdict(int)
        beyond = 0
        for number, reading in enumerate(positions.readings, 1):
            reported = reports.get(reading.of)
            at = reading.stored if reported is None else reported.offsets
            left = _left(ends, reading.starts, at)
            if left is not None:
                metrics = None if reported is None else reported.metrics
                found[reading.of] = records_in(left[0], None if metrics is None else metrics.records_per_offset)
                by_stage[reading.of[1]] += found[reading.of]
                beyond += left[1]
            if number % PER_TURN == 0:
                await asyncio.sleep(0)
        return _Computed(positions, reports, ends, found, dict(by_stage), beyond)


async def _is_idle(tx: ReadTransaction, run: RunRow) -> bool:
    """Whether the run's command has ended with exit code 0, as a script does that is started from time to time."""
    if run.spec.kind is not JobKind.ATTACHED:
        return False
    slots = await tx.fleet.slots(run.run_id)
    return bool(slots) and all(not each.live and each.exit_code == 0 for each in slots)


async def _unowned(tx: ReadTransaction, run: RunRow, model: JobModel, counts: RunCounts) -> int:
    """The number of tasks without an owner. 0 while the run is stopping. Tasks of a slot with a bare container do not count: it runs them
    without acquiring them."""
    if run.stop_requested_at is not None:
        return 0
    if not counts.bare_slots:
        return max(0, model.task_count - counts.owned)
    owned = {each.task for each in await tx.fleet.owners(run.job) if each.run_id == run.run_id and not each.owner.released}
    return sum(len(each.tasks.keys() - owned) for slot, each in model.containers.items() if slot not in counts.bare_slots)


def _left(ends: Mapping[StreamId, Offsets], starts: Sequence[tuple[StreamId, Ssp, int]], at: Mapping[Ssp, int]) -> tuple[int, int] | None:
    """The number of offsets between these and the ends, and the number of these beyond the ends. None if an end is unknown."""
    left = beyond = 0
    for stream_id, ssp, start in starts:
        end = ends.get(stream_id)
        if end is None:
            return None
        ahead = at.get(ssp, start) - end.get(ssp.partition, 0)
        left -= min(0, ahead)
        beyond += ahead > 0
    return left, beyond


def _lag_of_queries(queries: Iterable[ScriptQuery]) -> dict[StageName, int]:
    """As their driver measured it: the coordinator does not know their sources."""
    return {each.stage: each.metrics.lag for each in queries if each.metrics is not None and each.metrics.lag is not None}


def _late_by_stage(stages: Iterable[StageName], late: Mapping[tuple[TaskName, StageName], LateRows]) -> dict[StageName, tuple[int, int]]:
    found = {stage: [each for (_, of), each in late.items() if of == stage] for stage in stages}
    given_up = {stage: sum(each.given_up for each in rows) for stage, rows in found.items()}
    return {stage: (sum(each.rows for each in rows) - given_up[stage], given_up[stage]) for stage, rows in found.items()}


async def _positions(
    tx: ReadTransaction, run: RunRow, model: JobModel, rows: Mapping[tuple[TaskName, StageName], StageStateRow], *, alone: bool
) -> _Positions:
    starts = await tx.runs.start_offsets(run.run_id)
    readings, by_stage = [], run.spec.stage_division()
    for number, task in enumerate(model.tasks.values(), 1):
        for stage, ssps in by_stage(task.ssps).items():
            row = rows.get((task.name, stage))
            begins = {**starts, **row.starts} if row and row.starts else starts
            found = [(ssp.stream_id, ssp, begins.get(ssp, 0)) for ssp in ssps]
            readings.append(_Reading((task.name, stage), found, dict(row.offsets) if row else {}))
        if number % PER_TURN == 0:
            await asyncio.sleep(0)
    return _Positions(model, alone, frozenset(each.id for each in run.spec.streams_read), readings)
