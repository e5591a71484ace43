"""Watermark caps: steps that limit the watermarks of readers of intermediate streams, computed from the progress of the streams' feeders.
The rules are in `sluice.core.watermarks`.

Containers report the stages that write or read an intermediate stream. The answers contain the steps. After a report, but at most once a
second, a round computes the next step of each stream. The order matters: first the reports, owners and committed offsets are read, then the
ends of the streams. Therefore the records that a feeder appends beyond these ends are not older than the progress in its report.

Kept in memory, because no lease and no fencing decision depends on it. After a restart of the coordinator there is no step until all
feeders have reported again. Readers keep their last steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.store.fleet import StageStateRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store
from coordinator.transitions import get_run
from sluice.clock import Clock
from sluice.core.errors import SluiceError, StreamUnavailable
from sluice.core.ids import ExecutionContainerId, Generation, Instant, JobName, RunId, Ssp, StageName, StreamId, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.watermarks import (
    Bound,
    Feeder,
    FeederProgress,
    FeederState,
    NoCap,
    ProgressSource,
    StepDecision,
    WatermarkStep,
    decide_step,
    event_time_missing,
    own,
    thinned,
    with_step,
)
from sluice.streams.port import Offsets, StreamSystem

log = logging.getLogger(__name__)

ROUND_EVERY = timedelta(seconds=1)

ROUND_SHARE = 20
"""The next round starts at the earliest after this many times the duration of the last one."""

WAIT_FOR_ROUND = timedelta(milliseconds=500)
"""Maximum time that the answer to a report waits for the round."""

READ_EVERY = timedelta(seconds=0.5)
"""Minimum interval between two reads of the owners of a run's tasks, when containers report newer generations. A large run has thousands
of containers, which start at the same time."""

MOST_STEPS = 64

Key = tuple[TaskName, StageName]


@dataclass(frozen=True, slots=True)
class StageReport:
    """A container's report about a stage. `progress`: None before its first batch. `partitions`: the number that its query reads; None if
    it was not reported."""

    generation: Generation
    progress: FeederProgress | None = None
    watermark: datetime | None = None
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class WatermarkHolder:
    """A feeder that limits a watermark, and why, as part of a sentence."""

    feeder: Feeder
    why: str


@dataclass(frozen=True, slots=True)
class StreamWatermark:
    """How far the readers of an intermediate stream may go. `event_time`: the limit of the newest step, without delays. `newest`: the
    newest event time that a feeder has reached. `held_by`: the feeders that the readers wait for. `held_for`: for how long their progress
    has not risen. `error`: why the ends of streams are unknown; "" if they are known."""

    stream: StreamId
    event_time: datetime | None
    newest: datetime | None
    held_by: Sequence[WatermarkHolder]
    held_for: timedelta
    error: str

    @property
    def lag(self) -> timedelta | None:
        """The difference in event time between the newest feeder and the limit of the readers; None if unknown."""
        if self.event_time is None or self.newest is None:
            return None
        return max(timedelta(0), self.newest - self.event_time)


@dataclass(slots=True)
class _Stage:
    """A stage of a task, over all its owners. `progress`: the last one that an owner has reported. `progressed_at`: the last time at which
    its event time rose."""

    report: StageReport
    progressed_at: Instant
    newest: datetime | None = None
    progress: FeederProgress | None = None


@dataclass(slots=True)
class _Stream:
    """An intermediate stream. `rose_at`: the last time at which the lowest progress of its feeders rose, or no feeder limited it.
    `gave_up`: whether a step was ever made without waiting for a feeder."""

    steps: Sequence[WatermarkStep] = ()
    decision: StepDecision = field(default_factory=lambda: StepDecision(NoCap.HOLD))
    rose_at: Instant | None = None
    gave_up: bool = False
    held_by: Sequence[WatermarkHolder] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class _View:
    """A run at one moment. `owners`: task -> generation of its owner, only tasks with an owner. `positions`: the next offset of every
    partition that the stage reads. `started`: stages that have committed a batch, with the generation that reported it."""

    run: RunRow
    owners: Mapping[TaskName, Generation]
    holders: Mapping[TaskName, ExecutionContainerId]
    positions: Mapping[Key, Mapping[Ssp, int]]
    started: Mapping[Key, Generation | None]
    at: Instant

    def feeders(self, stream: StreamId) -> Sequence[Key]:
        ids = self.run.spec.stream_ids
        writers = {stage.name for stage in self.run.spec.stages if any(ids[name] == stream for name in stage.writes)}
        return [key for key in self.positions if key[1] in writers]

    def readers(self, stream: StreamId) -> Sequence[Mapping[Ssp, int]]:
        """The positions of each reader in its partitions of the stream."""
        found = [{ssp: at for ssp, at in each.items() if ssp.stream_id == stream} for each in self.positions.values()]
        return [each for each in found if each]

    def behind(self, streams: Collection[StreamId]) -> Sequence[Key]:
        """The stages that read the streams, directly or through streams that such stages write."""
        ids, reached, stages = self.run.spec.stream_ids, set(streams), set[StageName]()
        while reached:
            found = [stage for stage in self.run.spec.stages if any(ids[name] in reached for name in stage.reads)]
            reached = {ids[name] for stage in found if stage.name not in stages for name in stage.writes}
            stages |= {stage.name for stage in found}
        return [key for key in self.positions if key[1] in stages]


@dataclass(slots=True)
class _Run:
    stages: dict[Key, _Stage] = field(default_factory=dict)
    streams: defaultdict[StreamId, _Stream] = field(default_factory=lambda: defaultdict(_Stream))
    ends: defaultdict[StreamId, deque[tuple[Instant, Offsets]]] = field(default_factory=lambda: defaultdict(deque))
    """The ends of the feeders' inputs in the last rounds."""
    view: _View | None = None
    round: asyncio.Task[None] | None = None
    next_round_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class StreamCap:
    """The steps of a stream, oldest first, and the feeders that prevent a further step."""

    stream: StreamId
    steps: Sequence[WatermarkStep]
    held_by: Sequence[Feeder]


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """`caps`: for each reported stage that reads intermediate streams. `refused`: the stages that the reporting container does not own."""

    caps: Mapping[Key, Sequence[StreamCap]]
    refused: Sequence[tuple[Key, Generation]]


class WatermarkCoordinator:
    """`model_of` returns a run's job model. `stage_metrics` counts rows that were dropped as late. `old_after`: an unread record counts as
    old after this time. `give_up_after`: how long readers wait for a feeder without progress; None: without limit."""

    def __init__(
        self,
        store: Store,
        systems: Mapping[str, StreamSystem],
        clock: Clock,
        model_of: Callable[[ReadTransaction, RunRow], Awaitable[JobModel]],
        stage_metrics: StageMetrics,
        old_after: timedelta,
        give_up_after: timedelta | None = None,
    ) -> None:
        self._store = store
        self._systems = systems
        self._clock = clock
        self._model_of = model_of
        self._stage_metrics = stage_metrics
        self._old_after = old_after
        self._give_up_after = give_up_after
        self._runs: dict[RunId, _Run] = {}

    # --- results -----------------------------------------------------------------------------------------------------

    def streams(self, run_id: RunId) -> Sequence[StreamWatermark]:
        """The intermediate streams of a run, as of the last round."""
        run = self._runs.get(run_id)
        found = []
        for stream_id, stream in sorted(run.streams.items()) if run is not None else ():
            last = stream.steps[-1].event_time if stream.steps else None
            held_for = self._clock.elapsed() - stream.rose_at if stream.held_by and stream.rose_at is not None else 0.0
            newest = stream.decision.newest
            found.append(StreamWatermark(stream_id, last, newest, stream.held_by, timedelta(seconds=held_for), stream.error))
        return found

    def missing_event_times(self, run_id: RunId) -> Sequence[str]:
        """A sentence for each stage that has reported neither a watermark nor an event-time column."""
        run = self._runs.get(run_id)
        if run is None or run.view is None:
            return []
        spec, written = run.view.run.spec, dict[StageName, Sequence[str]]()
        for stage in spec.stages:
            written[stage.name] = [name for name in stage.writes if spec.stream_ids[name] in spec.intermediates]
        found = {
            stage
            for (_, stage), each in run.stages.items()
            if each.progress is not None and each.progress.source is ProgressSource.NONE and written.get(stage)
        }
        return [event_time_missing(stage, written[stage]) for stage in sorted(found)]

    def newest_runs(self) -> Mapping[JobName, RunId]:
        """The run of each job whose first report came last."""
        return {run.view.run.job: run_id for run_id, run in self._runs.items() if run.view is not None}

    # --- reports -----------------------------------------------------------------------------------------------------

    async def report(self, run_id: RunId, reports: Mapping[Key, StageReport], sender: ExecutionContainerId | None = None) -> ReportOutcome:
        """Record a container's report about its stages. Returns how far their watermarks may rise. `sender`: the container, if it has
        authenticated itself; what it reports about tasks of others is refused. Raises UnknownRun."""
        known = self._runs.get(run_id)
        if known is None:
            async with self._store.read() as tx:
                run = await get_run(tx, run_id)
                await self._forget_ended(tx)
            if run.state.ended:
                return ReportOutcome({}, [(key, each.generation) for key, each in reports.items()])
            known = self._runs.setdefault(run_id, _Run())
        view = known.view
        if view is None or (
            self._clock.elapsed() - view.at >= READ_EVERY.total_seconds()
            and any(each.generation > view.owners.get(task, 0) for (task, _), each in reports.items())
        ):
            view = known.view = await self._look(run_id)
        accepted = {
            key
            for key, each in reports.items()
            if key in view.positions and view.owners.get(key[0]) == each.generation and sender in (None, view.holders.get(key[0]))
        }
        for key in accepted:
            self._record(known, key, reports[key])
        if accepted:
            await self._begin_round(run_id, known)
        view = known.view or view
        caps = {key: self._caps(known, view, key) for key in sorted(accepted) if key in view.positions}
        return ReportOutcome(
            {key: each for key, each in caps.items() if each},
            [(key, each.generation) for key, each in reports.items() if key not in accepted],
        )

    async def _forget_ended(self, tx: ReadTransaction) -> None:
        """Drop the runs that have ended. Called with the first report of a run, so that memory is bounded."""
        active = {run.run_id for run in await tx.runs.active()}
        for run_id in self._runs.keys() - active:
            del self._runs[run_id]

    def _record(self, run: _Run, key: Key, report: StageReport) -> None:
        now = self._clock.elapsed()
        stage = run.stages.get(key)
        if stage is None:
            stage = run.stages[key] = _Stage(report, now)
        event_time = report.progress.event_time if report.progress else None
        if event_time is not None and (stage.newest is None or event_time > stage.newest):
            stage.newest, stage.progressed_at = event_time, now
        stage.progress = report.progress or stage.progress
        stage.report = report

    def _read_by(self, view: _View, key: Key) -> Sequence[StreamId]:
        """The intermediate streams that the stage reads."""
        intermediates = view.run.spec.intermediates
        return sorted({ssp.stream_id for ssp in view.positions.get(key, ()) if ssp.stream_id in intermediates})

    def _caps(self, run: _Run, view: _View, key: Key) -> Sequence[StreamCap]:
        ssps = view.positions[key]
        found = []
        for stream_id in self._read_by(view, key):
            stream = run.streams[stream_id]
            held_by = stream.decision.held_by if stream.decision.step is NoCap.HOLD else ()
            found.append(StreamCap(stream_id, [own(step, ssps) for step in stream.steps], held_by))
        return found

    # --- rounds ------------------------------------------------------------------------------------------------------

    async def _begin_round(self, run_id: RunId, run: _Run) -> None:
        """Begin a round if one is due, and wait for it, at most WAIT_FOR_ROUND, because a stream system may not answer."""
        if run.round is None or run.round.done():
            if run.next_round_at is not None and self._clock.elapsed() < run.next_round_at:
                return
            run.round = asyncio.create_task(self._round(run_id, run), name=f"watermarks of {run_id}")
        await asyncio.wait({run.round}, timeout=WAIT_FOR_ROUND.total_seconds())

    async def _round(self, run_id: RunId, run: _Run) -> None:
        began = self._clock.elapsed()
        try:
            run.view = view = await self._look(run_id)
            reports = {key: stage.report for key, stage in run.stages.items()}
            intermediates = {stream for key in view.positions for stream in self._read_by(view, key)}
            feeders = {stream: view.feeders(stream) for stream in sorted(intermediates)}
            inputs = {ssp.stream_id for keys in feeders.values() for key in keys for ssp in view.positions[key]}
            ends, errors = await self._latest(inputs | intermediates)
            for stream in inputs - intermediates:
                if stream in ends:
                    self._remember(run.ends[stream], ends[stream])
            for stream, keys in feeders.items():
                missing = [errors[each] for each in [stream, *sorted(inputs)] if each in errors]
                run.streams[stream].error = "; ".join(missing)
                if not missing:
                    states = {Feeder(*key): self._state(run, view, key, reports.get(key), ends) for key in keys}
                    self._step(run, view, stream, states, ends[stream])
            for key in view.behind({stream for stream, each in run.streams.items() if each.gave_up}):
                self._stage_metrics.give_up(run_id, *key)
        except SluiceError as error:
            log.warning("cannot compute the watermarks of run %s: %s", run_id, error)
        except Exception:
            log.exception("cannot compute the watermarks of run %s", run_id)
        now = self._clock.elapsed()
        run.next_round_at = Instant(now + max(ROUND_EVERY.total_seconds(), ROUND_SHARE * (now - began)))

    async def _look(self, run_id: RunId) -> _View:
        began = self._clock.elapsed()
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            model = await self._model_of(tx, run)
            rows: Mapping[Key, StageStateRow] = {(row.task, row.stage): row for row in await tx.fleet.stage_states(run.job)}
            starts = await tx.runs.start_offsets(run_id)
            held = [
                row for row in await tx.fleet.owners(run.job) if row.run_id == run_id and not row.owner.released and not run.state.ended
            ]
            owners, holders = {row.task: row.owner.generation for row in held}, {row.task: row.owner.holder for row in held}
        positions, by_stage = {}, run.spec.stage_division()
        for task in model.tasks.values():
            for stage, ssps in by_stage(task.ssps).items():
                row = rows.get((task.name, stage))
                read = {} if row is None else row.position
                positions[task.name, stage] = {ssp: read.get(ssp, starts.get(ssp, 0)) for ssp in ssps}
        started = {key: row.generation for key, row in rows.items() if row.batch_id is not None}
        return _View(run, owners, holders, positions, started, began)

    async def _latest(self, streams: set[StreamId]) -> tuple[Mapping[StreamId, Offsets], Mapping[StreamId, str]]:
        """The ends of the streams, and the errors for streams whose ends are unknown."""

        async def latest(stream: StreamId) -> Offsets:
            if stream.system not in self._systems:
                raise StreamUnavailable(f"the system {stream.system!r} is no longer configured: configure it again")
            return await self._systems[stream.system].latest(stream.stream)

        order = sorted(streams)
        found = await asyncio.gather(*(latest(stream) for stream in order), return_exceptions=True)
        ends, errors = {}, {}
        for stream, each in zip(order, found, strict=True):
            if isinstance(each, SluiceError):
                errors[stream] = f"the ends of {stream} are unknown: {each}"
            elif isinstance(each, BaseException):
                raise each
            else:
                ends[stream] = each
        return ends, errors

    def _remember(self, seen: deque[tuple[Instant, Offsets]], ends: Offsets) -> None:
        """Store these ends. Earlier ones are kept, back to the newest that is at least `old_after` old."""
        now = self._clock.elapsed()
        seen.append((now, ends))
        while len(seen) > 1 and seen[1][0] <= now - self._old_after.total_seconds():
            seen.popleft()

    def _old_ends(self, run: _Run, stream: StreamId) -> Offsets | None:
        """The ends of an input as they were `old_after` ago; None if unknown."""
        seen = run.ends[stream]
        if seen and seen[0][0] <= self._clock.elapsed() - self._old_after.total_seconds():
            return seen[0][1]
        return None

    def _state(self, run: _Run, view: _View, key: Key, report: StageReport | None, ends: Mapping[StreamId, Offsets]) -> FeederState:
        positions = view.positions[key]
        # A broker's metadata may not list a new partition yet. Its end is then unknown, and it counts as unread.
        unread = {ssp for ssp, at in positions.items() if at < ends[ssp.stream_id].get(ssp.partition, at + 1)}
        upstream = self._read_by(view, key)
        old = False
        for ssp in unread:
            if ssp.stream_id not in upstream:
                old_ends = self._old_ends(run, ssp.stream_id)
                old = old or old_ends is None or positions[ssp] < old_ends.get(ssp.partition, 0)
        owner = view.owners.get(key[0])
        stage = run.stages.get(key)
        reported, grown, progress = False, False, None
        if owner is not None and report is not None and report.generation == owner:
            reported, progress = True, report.progress
            grown = report.partitions is not None and report.partitions < len(positions)
        if reported and progress is None and not unread and stage is not None:
            progress = stage.progress  # that of the former owner, which has appended nothing since
        if grown and unread:
            progress = None  # its query does not read all partitions yet, and its progress does not cover the others
        pending = progress is not None and progress.pending
        return FeederState(
            reported=reported,
            progress=progress,
            unread=bool(unread),
            old_unread=old,
            started=key in view.started,
            upstream=tuple(self._passed(run, stream, positions) for stream in upstream),
            given_up=reported and (bool(unread) or pending) and stage is not None and self._is_given_up(stage),
        )

    def _is_given_up(self, stage: _Stage) -> bool:
        if self._give_up_after is None:
            return False
        return self._clock.elapsed() - stage.progressed_at >= self._give_up_after.total_seconds()

    def _passed(self, run: _Run, stream: StreamId, positions: Mapping[Ssp, int]) -> WatermarkStep | None:
        steps = [own(step, positions) for step in run.streams[stream].steps]
        return next((step for step in reversed(steps) if step.passed(positions)), None)

    def _step(self, run: _Run, view: _View, stream_id: StreamId, states: Mapping[Feeder, FeederState], latest: Offsets) -> None:
        now = self._clock.elapsed()
        stream = run.streams[stream_id]
        decision = decide_step(states)
        ends = {Ssp(stream_id.system, stream_id.stream, partition): end for partition, end in latest.items()}
        steps = with_step(stream.steps, decision, ends)
        before = stream.steps[-1].bound if stream.steps else None
        after = steps[-1].bound if steps else None
        risen = isinstance(decision.step, Bound) and (before is None or (after is not None and after.oldest > before.oldest))
        if risen or not decision.held_by or stream.rose_at is None:
            stream.rose_at = now
        if any(state.given_up and state.reported for state in states.values()):
            stream.gave_up = True
        if isinstance(decision.step, Bound) and decision.newest is not None and decision.step.event_time >= decision.newest:
            held_by: Sequence[Feeder] = ()  # all feeders have reached the same event time
        else:
            held_by = decision.held_by
        stream.held_by = [WatermarkHolder(feeder, _why(states[feeder], owned=feeder.task in view.owners)) for feeder in held_by]
        stream.decision = decision
        stream.steps = thinned(steps, view.readers(stream_id), MOST_STEPS)


def _why(state: FeederState, *, owned: bool) -> str:
    if not owned:
        return "no container owns it"
    if not state.reported:
        return "its container has not reported it yet"
    if None in state.upstream:
        return "the stages before it may not have come that far"
    if state.progress is None or (state.event_time is None and state.progress.source is not ProgressSource.NONE):
        return "it has records to read, and has committed no batch since it started"
    if state.progress.source is ProgressSource.NONE:
        return "it has old records to read, and neither a watermark nor an event-time column"
    if state.idle:
        return "the stages before it are behind"
    return f"it is at {state.event_time:%Y-%m-%d %H:%M:%S}" + ("" if state.unread else ", and its windows are still open")
