"""Caps the watermark of a query.

Spark computes the watermark of a query from the rows that the query has read (its *natural* watermark). That is too high while a feeder of
the query is behind: another task, or another partition. So a gate sets the watermark of each batch to the minimum of the natural one and
the caps (`sluice.core.watermarks`), but never below that of the last planned batch. The watermark of a batch is in its offset log, so a
batch that runs again has the same one.

The gate is an additional source of the query, and has no offsets. It is the last source from which Spark requests offsets before each
batch, also before one without data. On that request it sets the watermark, on the query's thread and after the other sources have answered.

Spark may plan its first batch immediately, with the watermark of the commit log, which is the natural one. So a query must not plan before
its gate is installed. Spark reports the start of a query synchronously (`QueryStartedEvent`), before the query initialises its sources. At
that moment a thread of this process takes the lock under which the query plans a batch and commits one (`awaitProgressLock`); it installs
the gate when the query waits for the lock, and releases it.

After a batch, Spark's tracker computes the watermark from the greatest value of each `withWatermark`, which it forgets at a restart. The
gate puts the natural watermark there at the start. So the commit log always has the natural watermark, independently of the gate.

This uses internals of Spark's `MicroBatchExecution`: those of `containers.spark.gate`, and `awaitProgressLock`, `queryExecutionThread`,
`startOffsets` of the next batch, and `operatorToWatermarkMap` of its `watermarkTracker`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import sleep
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

from containers.spark.jvm import (
    EVERY_BATCH,
    READ_LIMIT,
    SERIALIZED_OFFSET,
    STREAM_PROGRESS,
    each_of,
    java,
    private,
    scala_object,
    set_member,
    watermark_propagator,
)
from containers.state.offsets.offsetlog import from_millis, millis
from sluice.core.watermarks import Cap, NoCap, capped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIST_MAP = "scala.collection.immutable.ListMap$"
"""Unlike Scala's other maps it keeps the order of its entries."""

TRACKER = "org.apache.spark.sql.execution.streaming.runtime.WatermarkTracker"
REPORTING = "org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl"
OPTIONAL_LONG = "java.util.OptionalLong"
OPTIONS = "scala.jdk.javaapi.OptionConverters"

MICROSECOND = timedelta(microseconds=1)

FIRST_POLL, LAST_POLL = 0.005, 0.05
"""The shortest and the longest interval, in seconds, at which a query that starts is polled."""


@dataclass(frozen=True, slots=True)
class Capping:
    """How the watermark of a query is capped. `caps`: those of its next batch; it is called before each, with the offset texts of the ends
    that the sources report now. `natural`: the natural watermark according to the newest entry of the commit log, in milliseconds since
    1970 (0 for none); `planned`: the watermark of the newest entry of the offset log, likewise. `stateful`: whether a watermark that rises
    without new rows must run a batch."""

    caps: Callable[[Callable[[], Sequence[str]]], Iterable[Cap]]
    natural: int
    planned: Callable[[], int]
    stateful: bool = True


class WatermarkGate:
    """The gate of one query. The methods of Spark's interface have Spark's names."""

    def __init__(self, spark: SparkSession, execution: Any, capping: Capping) -> None:
        """The query must have a tracker of its watermark, and must wait for `awaitProgressLock`."""
        self._spark = spark
        self._execution = execution
        self._capping = capping
        self._tracker = execution.watermarkTracker()
        self._reporting = java(spark, "java.lang.Class").forName(REPORTING)
        self._propagator = watermark_propagator(spark, execution)
        self._set = int(execution.getLatestExecutionContext().offsetSeqMetadata().batchWatermarkMs())
        self._first = self._set
        self._natural = max(capping.natural, int(self._tracker.currentWatermark()))
        self._ran = False

    def install(self) -> None:
        """Add the gate to the sources of the query."""
        ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
        self._restore_natural()
        limit = java(self._spark, READ_LIMIT).allAvailable()
        sources = scala_object(self._spark, LIST_MAP).empty()
        for entry in each_of(self._execution.uniqueSources().iterator()):
            sources = sources.updated(entry._1(), entry._2())
        set_member(self._execution, "uniqueSources", sources.updated(self, limit))

    def _restore_natural(self) -> None:
        """Give the tracker the natural watermark as the greatest value of each `withWatermark`. It is not above the real one of any of
        them with the policy "min", and equal to the least effective one with "max"."""
        if self._natural > 0:
            values = private(self._spark, TRACKER, "operatorToWatermarkMap", self._tracker)
            value = java(self._spark, OPTIONS).toScala(java(self._spark, OPTIONAL_LONG).of(self._natural))  # a Long
            for operator in list(each_of(values.keysIterator())):
                values.put(operator, value)

    def latestOffset(self) -> Any:
        """Set the watermark of the next batch. Called on the query's thread, between batches. Returns None: there is nothing to read."""
        current = int(self._tracker.currentWatermark())
        self._natural = max(self._natural, current)
        wanted = self._wanted()
        if wanted != self._set:
            self._propagator.purge(EVERY_BATCH)
        if wanted != current:
            self._tracker.setWatermark(wanted)
        self._set = wanted
        if self._capping.stateful and not self._ran and wanted > self._first:
            self._run_even_without_rows()

    def _wanted(self) -> int:
        caps = list(self._capping.caps(self._latest))
        if all(cap is NoCap.FREE for cap in caps):
            return self._natural
        below = [cap if isinstance(cap, NoCap) else cap - MICROSECOND for cap in caps]  # Spark drops what is not newer than the watermark
        found = capped(from_millis(self._natural) if self._natural else None, below, None)
        wanted = 0 if found is None else millis(found)
        return wanted if wanted >= self._set else max(wanted, self._capping.planned())

    def _latest(self) -> Sequence[str]:
        """The ends that the sources report. Some sources do not report any."""
        found = []
        for source in each_of(self._execution.sources().iterator()):
            if self._reporting.isInstance(source) and (offset := source.reportLatestOffset()) is not None:
                found.append(str(offset.json()))
        return found

    def _run_even_without_rows(self) -> None:
        """Before the first batch after a start, Spark does not know whether a higher watermark would change the state, and waits for rows.
        It runs a batch if the text of an offset has changed: a blank is added to where the batch starts."""
        context = self._execution.getLatestExecutionContext()
        self._ran = bool(context.previousContext().isDefined())
        starts = context.startOffsets()
        for entry in () if self._ran else each_of(starts.iterator()):
            if (text := str(entry._2().json())).startswith("{"):
                respelled = starts.updated(entry._1(), java(self._spark, SERIALIZED_OFFSET)(" " + text))
                set_member(context, "startOffsets", java(self._spark, STREAM_PROGRESS)(respelled))
                return

    def stop(self) -> None:
        """Spark calls this; there is nothing to release."""

    def equals(self, other: object) -> bool:
        return other is self

    def hashCode(self) -> int:
        return id(self) % 2**31

    def toString(self) -> str:
        return "the cap of the watermark"

    class Java:
        implements = ("org.apache.spark.sql.connector.read.streaming.MicroBatchStream",)


class GatedStarts:
    """Installs the gates of queries that start. One for a session, whose listener calls `on_started`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._expected: dict[str, _Installation] = {}

    def start(self, name: str, capping: Capping, start: Callable[[], Any]) -> Any:
        """Start the query of that name, and return it once its gate is installed or it has ended. Raises what `start` raises, and
        RuntimeError if the gate cannot be installed; the query is then stopped."""
        installation = self._expected[name] = _Installation(self._spark, capping)
        try:
            query = start()
        finally:
            del self._expected[name]
        try:
            installation.join()
        except BaseException:
            query.stop()
            raise
        return query

    def on_started(self, name: str | None, id_: str) -> None:
        """The query `name` starts. Called on its thread, which waits."""
        if name is not None and (installation := self._expected.get(name)) is not None:
            installation.begin(id_)


class _Installation:
    """The installation of the gate of one query that starts. A lock of Java belongs to a thread, so one thread does it all."""

    def __init__(self, spark: SparkSession, capping: Capping) -> None:
        self._spark = spark
        self._capping = capping
        self._locked = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, id_: str) -> None:
        """Return once the query cannot plan a batch."""
        self._thread = threading.Thread(target=self._run, args=(id_,), name="sluice-cap", daemon=True)
        self._thread.start()
        self._locked.wait()

    def join(self) -> None:
        if self._thread is None:
            raise RuntimeError("Spark has not reported the start of the query, so that its watermark cannot be capped")
        self._thread.join()
        if self._error is not None:
            raise RuntimeError(f"the watermark of the query cannot be capped: {self._error}") from self._error

    def _run(self, id_: str) -> None:
        try:
            execution = self._spark._jsparkSession.streams().get(id_).streamingQuery()
            lock = execution.awaitProgressLock()
            lock.lock()
            try:
                self._locked.set()
                if self._await_query(execution, lock):
                    WatermarkGate(self._spark, execution, self._capping).install()
            finally:
                lock.unlock()
        except BaseException as error:
            self._error = error
        finally:
            self._locked.set()

    def _await_query(self, execution: Any, lock: Any) -> bool:
        """Wait until the query waits for the lock; False if it has ended."""
        thread, pause = execution.queryExecutionThread(), FIRST_POLL
        while not lock.hasQueuedThread(thread):
            if not execution.isActive():
                return False
            sleep(pause)
            pause = min(LAST_POLL, pause * 1.2)
        return bool(execution.isActive())
