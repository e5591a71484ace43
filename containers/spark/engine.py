"""The engine on Spark: starts, pauses, flushes and stops the queries of a container's stages.

It delegates the work: to `session` for the JVM, `replay` for the batches that run again before a query starts, `query` for a running query,
`input_gate` for one that waits for input, `watermark` and `caps` for the limits of its watermark, `gate` for a paused query, and `flush`
for a drain.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.engine import STARTING, Batch, Callbacks, Emptied, JvmUsage, Kept, RunOfJob, StageStart
from containers.errors import CheckpointUnreadable, OperatorsDiffer, StateNotLocal
from containers.secrets import resolve_secrets
from containers.settings import ContainerSettings
from containers.spark.caps import CommittedBatch, StageCaps, natural_watermark
from containers.spark.flush import ENDS_WITHIN, Flusher
from containers.spark.gate import PausedQuery, pause
from containers.spark.input_gate import ASKED_EVERY, InputGates, InputWatcher, Waits, input_gates
from containers.spark.installation import GatedStarts
from containers.spark.listener import BatchDone, Listener, QueryEnded
from containers.spark.masters import is_local
from containers.spark.operators import Empties, LogicalPlan, Operator, check_stateless, stateful, unflushable
from containers.spark.paces import Paces
from containers.spark.query import RowLimit, SourceLimits, await_initialised, start_query, stop_between_batches
from containers.spark.replay import Replay
from containers.spark.session import Session, pickle_by_value
from containers.spark.start.small_job import run_small_job
from containers.spark.systems.port import Grant, TaskSystem
from containers.spark.systems.registry import EndsOfSystems, task_systems
from containers.spark.task import StageTask
from containers.spark.watermark import Capping, WatermarkGate
from containers.start_times import Part, StartTimes
from containers.state.checkpoint import Checkpoints, PlannedBatches, check_not_emptied, inspect, planned_batches
from containers.state.offsets.offsetlog import positions_of
from sluice.clock import Clock
from sluice.core.batchsize import BatchSizes
from sluice.core.drain import operators_differ
from sluice.core.errors import BadJobFile
from sluice.core.ids import Ssp, StreamId
from sluice.core.watermarks import FeederProgress, WatermarkStep
from sluice.job import Job

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

SOURCES_WITHIN = timedelta(seconds=15)
"""Longer than Spark waits for the Python process of a source."""

WATCHER_ENDS_WITHIN = timedelta(seconds=2)


@dataclass(slots=True)
class StageQuery:
    """The query of one stage. `query`: the one that was started last; its token is Spark's id of the run. `task` and `limit`: those of the
    running query; `limit` is None if its batches have a fixed limit of rows. `flushed`: whether a drain has begun to empty its state.
    `steps`: see `Engine.limit_watermark`."""

    reads: Sequence[StreamId] = ()
    query: StreamingQuery | None = None
    token: str = ""
    task: StageTask | None = None
    operators: Sequence[Operator] | None = None
    paused: PausedQuery | None = None
    flushed: bool = False
    limit: RowLimit | None = None
    caps: StageCaps | None = None
    steps: Mapping[StreamId, Sequence[WatermarkStep]] | None = field(default_factory=dict)


class SparkEngine:
    """One session for all tasks of the container."""

    def __init__(
        self,
        job: Job,
        settings: ContainerSettings,
        run: RunOfJob,
        clock: Clock,
        times: StartTimes,
    ) -> None:
        """`times` gets the parts of the start."""
        self._job = job
        self._settings = settings
        self._streams = run.streams
        self._connections = run.systems
        self._config = resolve_secrets(run.config, os.environ, settings.secrets_dir)
        self._clock = clock
        self._times = times
        self._checkpoints = Checkpoints(settings.state_directory, job.name)
        self._starting = threading.Semaphore(STARTING)
        self._session: Session | None = None
        self._callbacks: Callbacks | None = None
        self._systems: Mapping[str, TaskSystem] = {}
        self._input: InputGates | None = None
        self._watcher: InputWatcher | None = None
        self._paces = Paces(self._pace)
        self._functions = {each.stage.name: each.function for each in job.stages}
        self._interrupted = threading.Event()
        self._queries: dict[str, StageQuery] = {}
        self._names: dict[str, str] = {}
        """Names of running queries, by Spark's id of the run."""

    # --- the session -----------------------------------------------------------------------------------------------

    def open(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        session = self._session = Session.start(self._job, self._settings, self._connections, self._config, self._times)
        self._systems = task_systems(session.spark, self._connections, self._settings, self._clock, callbacks.on_lease_lost)
        pickle_by_value(sys.modules["sluice_job"])
        session.check_shared_paths(self._settings, self._connections, self._clock)
        self._input = input_gates(session.spark)
        if self._input is not None:
            ends = EndsOfSystems(self._systems, self._clock)
            self._watcher = InputWatcher(self._input.exchange, ends.latest, ends.close)
            self._watcher.start()
        self._gated = GatedStarts(session.spark)
        session.spark.streams.addListener(Listener(self._on_batch, self._on_end, self._on_idle, self._gated.on_started))
        self._times.ended(Part.CONNECTORS)

    def warm_up(self) -> None:
        spark = self._opened.spark
        if is_local(str(spark.sparkContext.master)):  # other executors may not see the directory
            with TemporaryDirectory(prefix="small-job-", dir=self._settings.scratch_directory) as made:
                run_small_job(spark, Path(made))
        self._times.ended(Part.WARM_UP)

    @property
    def _opened(self) -> Session:
        assert self._session is not None
        return self._session

    def check(self) -> JvmUsage | None:
        return None if self._session is None else self._session.check()

    def close(self) -> None:
        if self._input is not None and self._watcher is not None:
            self._input.close()
            self._watcher.join(WATCHER_ENDS_WITHIN)
        for system in self._systems.values():
            system.close()
        if self._session is not None:
            self._session.close()

    # --- events of Spark -------------------------------------------------------------------------------------------

    def _on_batch(self, done: BatchDone) -> None:
        assert self._callbacks is not None
        if done.query in self._queries:  # and not the small job of a spare
            self._times.ended(Part.BATCH)
        query = self._queries.get(done.query) or StageQuery()
        offsets, latest = positions_of(done.positions, query.reads), positions_of(done.latest, query.reads)
        behind = sum(max(0, end - offsets.get(ssp, end)) for ssp, end in latest.items()) if latest else None
        row_limit = None
        if query.limit is not None:
            row_limit = query.limit.rows
            query.limit.committed(done.rows, behind, timedelta(milliseconds=done.duration_ms))
            self._paces.committed(done.query, behind=query.limit.behind)
        self._callbacks.on_batch(
            Batch(
                query=done.query,
                batch=done.batch,
                rows=done.rows,
                duration_ms=done.duration_ms,
                offsets=offsets,
                event_time_max=done.event_time_max,
                parts_ms=done.parts_ms,
                behind=behind,
                state=done.state,
                watermark=done.watermark,
                unflushable=None if query.operators is None else unflushable(query.operators),
                operators=None if query.operators is None else stateful(query.operators),
                progress=self._progress(query, done),
                delays={} if query.caps is None else query.caps.delays,
                row_limit=row_limit,
                writes={} if query.task is None else query.task.writes(),
            )
        )

    def _pace(self, query: str, shortest: timedelta) -> None:
        if self._input is not None:
            self._input.pace(query, shortest)

    def _progress(self, query: StageQuery, done: BatchDone) -> FeederProgress | None:
        if query.caps is None:
            return None
        try:
            return query.caps.committed(CommittedBatch.of(done, query.reads))
        except CheckpointUnreadable as error:  # the checkpoint was moved away in the meantime
            log.warning("the progress of %s is not known: %s", done.query, error)
            return query.caps.progress

    def _on_idle(self, run_id: str) -> None:
        assert self._callbacks is not None
        if run_id in self._names:
            self._callbacks.on_idle(self._names[run_id])
        for system in self._systems.values():
            system.renew()

    def _on_end(self, ended: QueryEnded) -> None:
        assert self._callbacks is not None
        name = self._names.pop(ended.run_id, "")
        try:
            if (query := self._queries.get(name)) is not None and name not in self._names.values():  # it may have been started again
                query.limit = None
                self._paces.ended(name)
        finally:  # the JVM may be ending
            self._callbacks.on_end(ended.run_id, ended.error)

    # --- running queries -------------------------------------------------------------------------------------------

    def start(self, start: StageStart) -> str:
        self._times.ended(Part.RESTORE)
        stage = start.stage
        task = self._task(start)
        writer = self._writer(start, task)  # before `fence`, which needs the delivery
        appended = task.fence(stage.writes, lambda: self._planned(start))
        directory = self._checkpoint(start)
        check_not_emptied(directory)
        found = inspect(directory)
        if found is not None and max([found.planned, *start.replay]) < appended:
            raise StateNotLocal(
                f"stage {stage.name} of task {start.task} has written batch {appended}, but {directory} ends at batch {found.planned}: "
                "the disk was reset to an older state; start on the disk that has the newer state, or deploy with an explicit start"
            )
        natural = natural_watermark(directory)
        self._replay(start, directory)
        known = self._query(start)
        plan = LogicalPlan.of(writer)
        known.operators = plan.operators
        check_stateless(stage, known.operators)
        _check_kept(start, known.operators)
        caps = known.caps = self._caps(start, task, plan, directory)
        known.task = task

        trigger = (self._settings.trigger or ASKED_EVERY) if self._input is None else timedelta(0)

        def start_it() -> StreamingQuery:
            return start_query(self._opened.spark, writer, start.query, directory, trigger)

        first, last = [], []
        own = {stream.stream for stream in known.reads}.issuperset(plan.sources)  # no sources of the user's
        sizes = BatchSizes(self._settings.max_rows, self._settings.batch_target)
        if (gates := self._input) is not None:
            timed = any(each.empties is Empties.PROCESSING_TIME for each in known.operators)
            waits = Waits(self._settings.trigger, timed=timed or not own)

            def new_gate(execution: Any) -> Any:
                known.limit = RowLimit(sizes, SourceLimits(self._opened.spark, execution).set) if own else None
                gate = gates.new_gate(start.query, known.reads, waits, execution)
                self._paces.started(start.query)
                return gate

            first.append(new_gate)
        if caps.limited:
            capping = Capping(caps.caps_at, natural, caps.planned, caps.stateful)
            last.append(lambda execution: WatermarkGate(self._opened.spark, execution, capping))
        query = self._gated.start(start.query, start_it, first, last) if first or last else start_it()
        self._names[str(query.runId)] = start.query
        known.query, known.token = query, str(query.runId)
        await_initialised(query, SOURCES_WITHIN)
        self._times.ended(Part.QUERY)
        return known.token

    def _caps(self, start: StageStart, task: StageTask, plan: LogicalPlan, directory: Path) -> StageCaps:
        known, bound = self._query(start), [self._streams[name] for name in start.stage.reads]
        return StageCaps(
            directory,
            plan.watermarks,
            reads=[each.stream for each in bound],
            intermediate=[each.stream for each in bound if each.intermediate],
            starts=start.starts,
            timed=task.timed,
            steps=lambda: known.steps,
            writes_event_time=task.writes_event_time,
            clock=self._clock,
        )

    def limit_watermark(self, query: str, steps: Mapping[StreamId, Sequence[WatermarkStep]] | None) -> None:
        known = self._queries.setdefault(query, StageQuery())
        if known.steps != steps:
            known.steps = steps
            if self._input is not None:
                self._input.open(query)

    def progress(self, query: str) -> FeederProgress | None:
        known = self._queries.get(query)
        return None if known is None or known.caps is None else known.caps.progress

    def _of(self, token: str) -> tuple[StreamingQuery, StageQuery]:
        known = next(each for each in list(self._queries.values()) if each.token == token)  # a copy: other queries may be starting
        assert known.query is not None
        return known.query, known

    def interrupt_batches(self) -> None:
        self._interrupted.set()

    def pause(self, token: str, deadline: timedelta) -> bool:
        query, known = self._of(token)
        try:
            known.paused = pause(self._opened.spark, query, deadline, self._interrupted, known.limit)
        except Exception as error:  # the gate uses internals of Spark
            log.warning("%s cannot be paused, and is stopped instead", query.name, exc_info=error)
            return False
        return known.paused is not None

    def resume(self, token: str) -> None:
        _, known = self._of(token)
        paused, known.paused = known.paused, None
        assert paused is not None
        if known.flushed:
            paused.end(ENDS_WITHIN, threading.Event())  # `start` then raises why the query cannot continue
        else:
            paused.resume()

    def stop(self, token: str, deadline: timedelta) -> bool:
        query, known = self._of(token)
        paused, known.paused = known.paused, None
        if paused is not None:
            return paused.end(deadline, self._interrupted)
        return stop_between_batches(self._opened.spark, query, deadline, self._interrupted, known.limit)

    def forget(self, query: str) -> None:
        self._queries.pop(query, None)
        if self._input is not None:
            self._input.forget(query)
        self._paces.ended(query)

    # --- drains ----------------------------------------------------------------------------------------------------

    def finish(self, start: StageStart) -> None:
        if self._query(start).paused is None:  # a paused query has finished its batch
            with self._starting:
                self._flusher(start).finish_interrupted()

    def ends(self, start: StageStart) -> Mapping[Ssp, int]:
        found: dict[Ssp, int] = {}
        for name in start.stage.reads:
            bound = self._streams[name]
            if bound.intermediate:
                now = self._systems[bound.stream.system].ends(bound.stream.stream)
                found |= {ssp: now[ssp.partition] for ssp in start.starts if ssp.stream_id == bound.stream}
        return found

    def empty(self, start: StageStart, ends: Mapping[Ssp, int]) -> Emptied:
        known = self._query(start)
        known.flushed = True
        paused = known.paused
        if paused is None:
            with self._starting:
                return self._flusher(start).empty(start.drain, ends)
        assert known.task is not None
        known.task.draining = start.drain  # what the running query writes from now on is written under the drain
        try:
            return self._flusher_on(start, self._task(start), self._directory(start), paused).empty(start.drain, ends)
        except BaseException:
            known.paused = None
            paused.end(ENDS_WITHIN, threading.Event())
            raise

    def keep(self, start: StageStart, ends: Mapping[Ssp, int]) -> Kept:
        known = self._query(start)
        paused = known.paused
        if paused is None:
            with self._starting:
                flusher = self._flusher(start)
                return _kept(flusher.keep(ends), flusher.operators)
        assert known.operators is not None
        try:
            return _kept(self._flusher_on(start, self._task(start), self._directory(start), paused).keep(ends), known.operators)
        except BaseException:
            known.paused = None
            paused.end(ENDS_WITHIN, threading.Event())
            raise

    def _planned(self, start: StageStart) -> PlannedBatches:
        return planned_batches(self._directory(start), start.lineage, start.replay, start.reported)

    def _flusher(self, start: StageStart) -> Flusher:
        """A flusher for a checkpoint on which no query runs. The batches that must run again are run first."""
        task, writing = self._task(start), self._task(start)
        self._writer(start, writing)  # before `fence`, which needs the delivery
        writing.fence(start.stage.writes, lambda: self._planned(start))
        directory = self._checkpoint(start)
        check_not_emptied(directory, start.drain)
        self._replay(start, directory)
        return self._flusher_on(start, task, directory)

    def _flusher_on(self, start: StageStart, task: StageTask, directory: Path, paused: PausedQuery | None = None) -> Flusher:
        return Flusher(
            self._opened.spark,
            directory,
            start.query,
            lambda: self._writer(start, task),
            start.starts,
            self._settings.max_rows,
            self._clock,
            paused=paused,
            operators=self._query(start).operators if paused is not None else None,
        )

    # --- a stage's parts -------------------------------------------------------------------------------------------

    def _query(self, start: StageStart) -> StageQuery:
        return self._queries.setdefault(start.query, StageQuery())

    def _directory(self, start: StageStart) -> Path:
        return self._checkpoints.directory(start.task, start.stage.name)

    def _checkpoint(self, start: StageStart) -> Path:
        """The stage's checkpoint directory, made ready. Raises StateNotLocal, CheckpointUnreadable, DiskUnwritable."""
        reported = None if start.restored else start.reported
        return self._checkpoints.prepare(start.task, start.stage.name, start.lineage, reported)

    def _task(self, start: StageStart, *, opening: bool = False) -> StageTask:
        stage = start.stage
        grant = Grant(self._job.name, start.task, stage.name, start.generation, start.lineage, start.first_run, start.starts, opening)
        callbacks = self._callbacks
        assert callbacks is not None
        confirm_owner = partial(callbacks.confirm_owner, start.task, start.generation)
        grant = replace(grant, confirm_owner=confirm_owner, earlier_histories=start.earlier_histories)
        self._query(start).reads = [self._streams[name].stream for name in stage.reads]
        return StageTask(
            self._opened.spark,
            grant,
            self._streams,
            self._systems,
            self._config.values,
            self._settings.max_rows,
            callbacks if start.asks else None,
            start.drain,
            start.failed_drains,
        )

    def _writer(self, start: StageStart, task: StageTask) -> DataStreamWriter:
        """Call the stage's function. Raises BadJobFile if it returns something else than a DataStreamWriter."""
        writer = self._functions[start.stage.name](task)
        if not isinstance(writer, DataStreamWriter):
            name = start.stage.name
            raise BadJobFile(f"stage {name} returned {type(writer).__name__}: return a DataStreamWriter that is not started")
        return writer

    def _replay(self, start: StageStart, directory: Path) -> None:
        """Replay entries. Only Kafka's source needs new partitions to be announced to it; the source of the embedded log starts with any
        partition."""
        reads = [stream for stream in self._query(start).reads if self._connections.get(stream.system, {}).get("type") == "kafka"]
        replay = Replay(
            self._opened.spark,
            directory,
            start.query,
            start.starts,
            reads,
            lambda opening: self._writer(start, self._task(start, opening=opening)),
        )
        replay.run(start.replay)
        replay.add_partitions(self._clock.now())


def _kept(batch: int, operators: Sequence[Operator]) -> Kept:
    return Kept(batch, [each.identity for each in operators])


def _check_kept(start: StageStart, operators: Sequence[Operator]) -> None:
    """Check the operators of a query before its first batch on state that a drain has kept. Raises OperatorsDiffer."""
    if start.kept_operators is None:
        return
    differ = operators_differ(start.kept_operators, [each.identity for each in operators])
    if differ:
        raise OperatorsDiffer(
            f"stage {start.stage.name} of task {start.task}: {differ}; deploy the version that was drained, or drain that one "
            "without keeping the state"
        )
