"""Pausing a running query between two batches.

At each trigger, a query requests the latest offsets of its sources. To pause it, all sources are replaced by a gate. The request then
blocks the query's thread between two batches, until the gate is opened: for a batch that was planned here, for the sources again, or for
the end of the query. So a drain runs its batches without a restart of the query, which takes longer than the batches. While the query is
paused it reads nothing, and its checkpoint does not change.

This uses internals of Spark's `MicroBatchExecution`: `uniqueSources`, the sources that it requests offsets from;
`getLatestExecutionContext` with the `endOffsets` of the next batch; `watermarkTracker` and `watermarkPropagator`; `previousContext`, which
decides on a batch without data; and `intervalMs` of its `triggerExecutor`, the time between triggers. The query's thread cannot be
interrupted while it waits in the gate. So a paused query is stopped by `PausedQuery.end`: `StreamingQuery.stop` alone would not return.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

from containers.spark.input_gate import hurry_gate
from containers.spark.jvm import (
    EVERY_BATCH,
    READ_LIMIT,
    SERIALIZED_OFFSET,
    STREAM_PROGRESS,
    each_of,
    field,
    java,
    runtime_class,
    scala_object,
    set_member,
    version,
    watermark_propagator,
)
from containers.spark.listener import OperatorState, operator_states
from containers.spark.query import RowLimit, await_initialised, stop_between_batches, terminate
from containers.state.offsets.offsetlog import NOTHING_YET, OffsetSeq, millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


NO_ENTRIES = "scala.collection.immutable.Map$"
NONE = "scala.None$"

RAN = "addBatch"
"""The key of the batch in the durations of a trigger."""

STEP = timedelta(milliseconds=10)
POLL = timedelta(milliseconds=200)
"""How often to check whether a query has failed while waiting for it."""

SOON_MILLIS = 1
"""The interval between triggers of a paused query, so that its batches start immediately."""


class Gate:
    """Replaces the sources of a query, a Scala map; Spark stops them through it. The methods have Spark's names."""

    def __init__(self, sources: Any) -> None:
        self._sources = sources
        self._answers = threading.Semaphore(0)
        self.reached = threading.Event()

    def answer(self) -> None:
        """Answer the query's present request, or its next one."""
        self.reached.clear()
        self._answers.release()

    def latestOffset(self) -> Any:
        """Called on the query's thread, between batches. Returns None, which is no offset, because `PausedQuery` sets what to read."""
        self.reached.set()
        self._answers.acquire()

    def stop(self) -> None:
        for source in each_of(self._sources.keysIterator()):
            source.stop()

    def toString(self) -> str:
        return "a drain's gate"

    class Java:
        implements = ("org.apache.spark.sql.connector.read.streaming.MicroBatchStream",)


class PausedQuery:
    """A query between two batches. `run` runs one and pauses the query again, `resume` resumes the query, `end` stops it."""

    def __init__(self, spark: SparkSession, query: StreamingQuery, limit: RowLimit | None = None) -> None:
        """Call `pause` instead of this."""
        self._spark = spark
        self._limit = limit
        self._query = query
        self._execution = query._jsq.streamingQuery()
        self._sources = self._execution.uniqueSources()
        self._trigger_millis = self._interval(None)
        self.gate = Gate(self._sources)

    def sources(self) -> Sequence[Any]:
        """The sources of the query, in the order of its offsets."""
        return list(each_of(self._execution.sources().iterator()))

    @property
    def next_batch(self) -> int:
        """The number of the batch that the query would run next. Call it when the query has reached its gate."""
        return int(self._execution.getLatestExecutionContext().batchId())

    def close(self) -> None:
        """Replace the sources by the gate. A query that waits for input or for a core asks its sources once more, and finds nothing to read
        if its limit is known."""
        if self._limit is not None:
            self._limit.stop_reading()
        ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
        limit = java(self._spark, READ_LIMIT).allAvailable()
        set_member(self._execution, "uniqueSources", scala_object(self._spark, NO_ENTRIES).empty().updated(self.gate, limit))
        self._interval(SOON_MILLIS)
        for source in each_of(self._sources.keysIterator()):
            hurry_gate(source)

    @property
    def waits(self) -> bool:
        """Whether the query runs no batch. If it waits for its next trigger, it reaches the gate then."""
        return self.gate.reached.is_set() or not self._query.status["isTriggerActive"]

    def resume(self) -> None:
        """Put the sources back, and let the query continue."""
        self._interval(self._trigger_millis)
        if self._limit is not None:
            self._limit.continue_reading()
        set_member(self._execution, "uniqueSources", self._sources)
        self.gate.answer()

    def run(self, batch: int, entry: OffsetSeq) -> tuple[OperatorState, ...]:
        """Run the batch with the offsets and the watermark of `entry`, at the present time, and pause the query again. Raises what the
        batch raises."""
        self._await_gate()
        context = self._execution.getLatestExecutionContext()
        assert context.batchId() == batch, f"the query is at batch {context.batchId()}, not at {batch}"
        watermark_propagator(self._spark, self._execution).purge(EVERY_BATCH)
        set_member(context, "endOffsets", self._ends(context.endOffsets(), entry))
        self._execution.watermarkTracker().setWatermark(millis(entry.watermark))
        self.gate.answer()
        self._await_gate()  # of the next batch
        while not _is_of(progress := self._query._jsq.lastProgress(), batch):
            self._check_active()
            sleep(STEP.total_seconds())
        return operator_states(progress)

    def end(self, deadline: timedelta, forced: threading.Event) -> bool:
        """Stop the query, without another batch; False if one had to be interrupted. Blocks."""
        terminate(self._spark, self._query)
        over = monotonic() + deadline.total_seconds()
        while self._query.isActive and not self.gate.reached.wait(STEP.total_seconds()) and self._query.status["isTriggerActive"]:
            if forced.is_set() or monotonic() > over:
                break
        if self.gate.reached.is_set():
            self._forget_last_batch()
        self.gate.answer()
        return stop_between_batches(self._spark, self._query, deadline, forced)

    def _forget_last_batch(self) -> None:
        """Otherwise Spark could run a batch without data after it."""
        if version(self._spark) >= (4, 0):
            set_member(self._execution.getLatestExecutionContext(), "previousContext", scala_object(self._spark, NONE))
        else:
            set_member(self._execution, "lastExecution", None)

    def _await_gate(self) -> None:
        while not self.gate.reached.wait(POLL.total_seconds()):
            self._check_active()

    def _check_active(self) -> None:
        if not self._query.isActive:
            raise self._query.exception() or RuntimeError("the query was stopped")

    def _interval(self, millis: int | None) -> int:
        """Set the time between triggers, unless it is 0. Returns the former time."""
        executor = self._execution.triggerExecutor()
        interval = field(self._spark, str(executor.getClass().getName()), "intervalMs")
        before = int(interval.getLong(executor))
        if before and millis is not None:
            interval.setLong(executor, millis)
        return before

    def _ends(self, ends: Any, entry: OffsetSeq) -> Any:
        """The end offsets of the entry, as Spark's object. Spark runs a batch that reads nothing only if the text of an offset differs from
        before, so a blank is added to one."""
        sources, offset_of = self.sources(), java(self._spark, runtime_class(self._spark, SERIALIZED_OFFSET))
        respelled = next((place for place, line in enumerate(entry.sources) if line.lstrip().startswith("{")), None)
        for place, (source, line) in enumerate(zip(sources, entry.sources, strict=True)):
            if line != NOTHING_YET:
                ends = ends.updated(source, offset_of(" " + line if place == respelled else line))
        return java(self._spark, runtime_class(self._spark, STREAM_PROGRESS))(ends)


def pause(
    spark: SparkSession, query: StreamingQuery, deadline: timedelta, forced: threading.Event, limit: RowLimit | None = None
) -> PausedQuery | None:
    """Let the running batch finish, and pause the query before the next one. None if the query has ended, or if the batch did not finish
    by `deadline` or before `forced` was set: the query then continues. Blocks while a batch runs. `limit`: that of the query; without it a
    query that waits for a core runs one more batch if it has something to read."""
    over = monotonic() + deadline.total_seconds()
    await_initialised(query, deadline)  # which sets the sources
    paused = PausedQuery(spark, query, limit)
    try:
        paused.close()
        while query.isActive and not forced.is_set() and monotonic() <= over:
            if paused.waits:
                return paused
            paused.gate.reached.wait(STEP.total_seconds())
    except BaseException:
        paused.resume()
        raise
    paused.resume()
    return None


def _is_of(progress: Any, batch: int) -> bool:
    """Whether it is the progress of the batch. Triggers without a batch report progress with the number of the next batch."""
    return progress is not None and progress.batchId() == batch and progress.durationMs().containsKey(RAN)
