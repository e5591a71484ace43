"""The engine on real Spark."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.engine import STARTING, Batch, Callbacks, Emptied, StageStart
from containers.errors import StateElsewhere
from containers.settings import ContainerSettings
from containers.spark.cds import present
from containers.spark.executors import SharedPath, SharedPaths
from containers.spark.flush import ENDS_WITHIN, Flusher
from containers.spark.gate import Held, hold
from containers.spark.listener import BatchDone, Listener, QueryEnded
from containers.spark.operators import unflushable
from containers.spark.query import Triggers, await_initialised, start_query, stop_between_batches
from containers.spark.replay import Opening
from containers.spark.session import check_alive, executors_asked, is_local, pickle_whole, start_session, submitted_conf
from containers.spark.systems.port import Grant, TaskSystem
from containers.spark.systems.registry import jars_for, task_systems
from containers.spark.task import Bound, StageTask
from containers.state.checkpoint import Stores, check_not_emptied, check_writable, inspect, mark_emptied, write_plan
from containers.state.offsetlog import positions_of
from sluice.clock import Clock
from sluice.core.errors import BadJobFile, BadSettings
from sluice.core.ids import Ssp, StreamId
from sluice.job import Job

log = logging.getLogger(__name__)

SOURCES_WITHIN = timedelta(seconds=15)
"""Longer than Spark waits for a source's Python process."""


class SparkEngine:
    """One session for all tasks of the container."""

    def __init__(
        self,
        job: Job,
        settings: ContainerSettings,
        streams: Mapping[str, Bound],
        systems: Mapping[str, Mapping[str, str]],
        config: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._job = job
        self._settings = settings
        self._streams = streams
        self._connections = systems
        self._systems: Mapping[str, TaskSystem] = {}
        self._config = config
        self._clock = clock
        self._stores = Stores(settings.state_directory, job.name)
        self._reads: dict[str, list[StreamId]] = {}
        self._names: dict[str, str] = {}
        self._unflushable: dict[str, Sequence[str]] = {}
        self._tasks: dict[str, StageTask] = {}
        self._held: dict[str, Held] = {}
        self._emptied: set[str] = set()
        self._starting = threading.Semaphore(STARTING)
        self._triggers = Triggers(settings.trigger)
        self._spark: SparkSession | None = None
        self._shared_paths: SharedPaths | None = None
        self._callbacks: Callbacks | None = None

    def open(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        name, scratch = f"{self._job.name} {self._settings.processor_id}", self._settings.scratch_directory
        for directory in (self._settings.state_directory, scratch):
            check_writable(directory)
        archive = present(os.environ) if self._settings.class_archive else None
        sockets, beside = self._settings.sockets_dir, self._job.directory
        self._spark = start_session(name, self._settings.master, scratch, self._spark_conf(), sockets, archive, beside)
        self._systems = task_systems(self._spark, self._connections, self._settings, self._clock, callbacks.on_lease_lost)
        pickle_whole(sys.modules["sluice_job"])
        if not is_local(str(self._spark.sparkContext.master)):
            self._check_shared_paths(self._spark)
        self._spark.streams.addListener(Listener(self._on_batch, self._on_end, self._on_idle))

    def _spark_conf(self) -> dict[str, str]:
        """Settings of the run ("spark.…" in its config), then the container's own."""
        conf = {name: value for name, value in self._config.items() if name.startswith("spark.")} | self._settings.spark_conf
        submitted = submitted_conf()
        jars = jars_for(self._connections, submitted | conf)
        if jars and submitted:
            raise BadSettings(f"spark-submit has started its JVM without the Kafka connector: give it --jars {jars['spark.jars']}")
        return conf | jars

    def _check_shared_paths(self, spark: SparkSession) -> None:
        """What executors elsewhere read or write beside us. Raises PathNotShared, ExecutorsMissing."""
        paths = [SharedPath(self._settings.state_directory, "SLUICE_STATE_DIR")]
        paths += [
            SharedPath(Path(connection["path"]), "the coordinator's SLUICE_LOG_DIR", of_one_machine=True)
            for connection in self._connections.values()
            if connection.get("type") == "log"
        ]
        self._shared_paths = SharedPaths(spark, paths, self._clock, self._settings.executors_timeout)
        conf = spark.sparkContext.getConf()
        self._shared_paths.check(executors_asked(str(spark.sparkContext.master), dict(conf.getAll())))

    def _on_batch(self, done: BatchDone) -> None:
        assert self._callbacks is not None
        reads = self._reads.get(done.query, [])
        offsets, latest = positions_of(done.positions, reads), positions_of(done.latest, reads)
        self._callbacks.on_batch(
            Batch(
                query=done.query,
                batch=done.batch,
                rows=done.rows,
                duration_ms=done.duration_ms,
                offsets=offsets,
                event_time_max=done.event_time_max,
                parts_ms=done.parts_ms,
                behind=sum(max(0, end - offsets.get(ssp, end)) for ssp, end in latest.items()) if latest else None,
                state=done.state,
                watermark=done.watermark,
                unflushable=self._unflushable.get(done.query),
            )
        )

    def _on_idle(self, run_id: str) -> None:
        assert self._callbacks is not None
        if run_id in self._names:
            self._callbacks.on_idle(self._names[run_id])

    def _on_end(self, ended: QueryEnded) -> None:
        assert self._callbacks is not None
        self._names.pop(ended.run_id, None)
        self._callbacks.on_end(ended.run_id, ended.error)

    def _task(self, start: StageStart, *, opening: bool = False) -> StageTask:
        assert self._spark is not None
        stage = start.declared.stage
        grant = Grant(self._job.name, start.task, stage.name, start.generation, start.lineage, start.origin, start.starts, opening)
        self._reads[start.query] = [self._streams[name].stream for name in stage.reads]
        max_rows = self._settings.max_rows
        return StageTask(
            self._spark, grant, self._streams, self._systems, self._config, max_rows, start.around, start.drain, start.failed_drains
        )

    def start(self, start: StageStart) -> tuple[str, Any]:
        assert self._spark is not None
        assert self._callbacks is not None
        stage = start.declared.stage
        task = self._task(start)
        appended = task.fence(stage.writes)
        directory = self._stores.prepare(start.task, stage.name, start.lineage, None if start.restored else start.reported)
        check_not_emptied(directory)
        found = inspect(directory)
        if found is not None and max([found.planned, *start.replay]) < appended:
            raise StateElsewhere(
                f"stage {stage.name} of task {start.task} has written batch {appended}, but {directory} ends at batch {found.planned}: "
                "its disk was set back; start on the disk that has the newer state, or deploy with an explicit start"
            )
        self._replay(start, directory)
        writer = self._writer(start, task)
        self._unflushable[start.query] = unflushable(writer)
        query = start_query(self._spark, writer, start.query, directory, self._triggers.of(start.query))
        self._names[str(query.runId)] = start.query
        self._tasks[start.query] = task
        await_initialised(query, SOURCES_WITHIN)
        return str(query.runId), query

    def hold(self, query: Any, deadline: timedelta, forced: threading.Event) -> bool:
        assert self._spark is not None
        try:
            held = hold(self._spark, query, deadline, forced)
        except Exception as error:  # it is spoken to where there is no interface
            log.warning("%s cannot be held, and is stopped instead", query.name, exc_info=error)
            return False
        if held is not None:
            self._held[query.name] = held
        return held is not None

    def release(self, query: Any) -> None:
        held = self._held.pop(query.name)
        if query.name in self._emptied:
            held.end(ENDS_WITHIN, threading.Event())  # `start` then says why it cannot go on
        else:
            held.release()

    def finish(self, start: StageStart) -> None:
        if start.query not in self._held:  # which has none
            with self._starting:
                self._flusher(start).finish_interrupted()

    def ends(self, start: StageStart) -> Mapping[Ssp, int]:
        found: dict[Ssp, int] = {}
        for name in start.declared.stage.reads:
            bound = self._streams[name]
            if bound.intermediate:
                now = self._systems[bound.stream.system].ends(bound.stream.stream)
                found |= {ssp: now[ssp.partition] for ssp in start.starts if ssp.stream_id == bound.stream}
        return found

    def empty(self, start: StageStart, ends: Mapping[Ssp, int]) -> Emptied:
        self._emptied.add(start.query)
        held = self._held.get(start.query)
        if held is None:
            with self._starting:
                return _emptied(self._flusher(start), start.drain, ends)
        try:
            return _emptied(self._flusher_of(start, held), start.drain, ends)
        except BaseException:
            self._held.pop(start.query, None)
            held.end(ENDS_WITHIN, threading.Event())
            raise

    def _flusher(self, start: StageStart) -> Flusher:
        """Of a store on which no query runs, with the plans that it must run again run."""
        task = self._task(start)
        task.fence(start.declared.stage.writes)
        directory = self._stores.prepare(start.task, start.declared.stage.name, start.lineage, None if start.restored else start.reported)
        check_not_emptied(directory, start.drain)
        self._replay(start, directory)
        return self._flusher_on(start, task, directory)

    def _flusher_of(self, start: StageStart, held: Held) -> Flusher:
        """Of the store of a running query, which from now on writes under the drain."""
        self._tasks[start.query].draining = start.drain
        return self._flusher_on(start, self._task(start), self._stores.directory(start.task, start.declared.stage.name), held)

    def _flusher_on(self, start: StageStart, task: StageTask, directory: Path, held: Held | None = None) -> Flusher:
        assert self._spark is not None
        return Flusher(
            self._spark,
            directory,
            start.query,
            lambda: self._writer(start, task),
            start.starts,
            self._settings.max_rows,
            self._clock,
            held=held,
        )

    def _writer(self, start: StageStart, task: StageTask) -> DataStreamWriter:
        """What the stage's function returns."""
        writer = start.declared.function(task)
        if not isinstance(writer, DataStreamWriter):
            name = start.declared.stage.name
            raise BadJobFile(f"stage {name} returned {type(writer).__name__}: return a DataStreamWriter that is not started")
        return writer

    def _replay(self, start: StageStart, directory: Path) -> None:
        """Run the plans that the store has not committed, one at a time; the last of them is left to the query itself, which begins with
        it. Then make new partitions known that the query itself could not begin with. May be interrupted anywhere and run again."""
        assert self._spark is not None
        opening = self._opening(start, directory)
        for batch, plan in sorted(start.replay.items()):
            found = inspect(directory)
            if found is not None and batch <= found.committed:
                continue
            write_plan(directory, batch, plan)
            if batch < max(start.replay):
                log.info("%s runs batch %d again", start.query, batch)
                opening.run(batch)
        opening.open(self._clock.now())

    def _opening(self, start: StageStart, directory: Path) -> Opening:
        """The log's source begins with any partition."""
        assert self._spark is not None
        reads = [stream for stream in self._reads[start.query] if self._connections.get(stream.system, {}).get("type") == "kafka"]
        return Opening(
            *(self._spark, directory, start.query, start.starts, reads),
            lambda opening: self._writer(start, self._task(start, opening=opening)),
        )

    def stop(self, query: Any, deadline: timedelta, forced: threading.Event) -> bool:
        assert self._spark is not None
        held = self._held.pop(query.name, None)
        return stop_between_batches(self._spark, query, deadline, forced) if held is None else held.end(deadline, forced)

    def check(self) -> None:
        assert self._spark is not None
        check_alive(self._spark)
        if self._shared_paths is not None:
            self._shared_paths.look_at_newcomers()

    def close(self) -> None:
        if self._shared_paths is not None:
            self._shared_paths.close()
        if self._spark is not None:
            self._spark.stop()


def _emptied(flusher: Flusher, drain: str, ends: Mapping[Ssp, int]) -> Emptied:
    found = inspect(flusher.directory)
    mark_emptied(flusher.directory, drain, -1 if found is None else found.committed)
    flusher.finish_interrupted()
    flusher.advance(ends)
    flushed = flusher.flush()
    return Emptied(flushed.batch, flushed.rows_left, flushed.operators_left)
