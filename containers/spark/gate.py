"""A running query, held between two batches.

At each trigger a query asks its sources what there is to read. Here a gate stands in for all of them: it is asked on the query's own
thread, between two batches, and answers once it is known how to go on: with a batch that was planned, with the sources again, or with the
end. So a drain needs no further start of the query, which costs more than its batches; meanwhile nothing is read, and nothing changes in
the store.

Spoken to are members of Spark's `MicroBatchExecution` that are no interface: `uniqueSources`, which it asks; `getLatestExecutionContext`
with the `endOffsets` of the next batch; `watermarkTracker` and `watermarkPropagator`; `previousContext`, by which it decides on a batch
without data; and `intervalMs` of its `triggerExecutor`, how long it waits between triggers. The query's thread waits in the gate where
nothing interrupts it: `StreamingQuery.stop` alone would wait in vain, so a held query is ended by `PausedQuery.end`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

from containers.spark.listener import OperatorState, kept_in
from containers.spark.operators import Operator, operators_in
from containers.spark.query import await_initialised, stop_between_batches, terminate
from containers.state.offsetlog import NOTHING_YET, OffsetSeq, millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


SERIALIZED_OFFSET = "org.apache.spark.sql.execution.streaming.runtime.SerializedOffset"
EXECUTION = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
TRIGGERS = "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor"
STREAM_PROGRESS = "org.apache.spark.sql.execution.streaming.runtime.StreamProgress"
READ_LIMIT = "org.apache.spark.sql.connector.read.streaming.ReadLimit"
NO_ENTRIES = "scala.collection.immutable.Map$"
NONE = "scala.None$"

RAN = "addBatch"
"""Among the durations of a trigger, that of its batch."""

STEP = timedelta(milliseconds=10)
LOOK = timedelta(milliseconds=200)
"""How often it is looked whether a query that is waited for has failed."""

SOON_MILLIS = 1
"""Between the triggers of a held query, whose batches need not wait for the next second."""


class Gate:
    """What the query asks in the place of its sources, a Scala map, which it stops with itself. The methods have the names of Spark's."""

    def __init__(self, sources: Any) -> None:
        self._sources = sources
        self._answers = threading.Semaphore(0)
        self.asked = threading.Event()

    def answer(self) -> None:
        """Let the query go on that asks, or will ask."""
        self.asked.clear()
        self._answers.release()

    def latestOffset(self) -> Any:
        """On the query's thread, which has nothing under way. None is no offset: what to read was set meanwhile."""
        self.asked.set()
        self._answers.acquire()

    def stop(self) -> None:
        for source in _each(self._sources.keysIterator()):
            source.stop()

    def toString(self) -> str:
        return "a drain's gate"

    class Java:
        implements = ("org.apache.spark.sql.connector.read.streaming.MicroBatchStream",)


class PausedQuery:
    """A query between two batches. `run` runs one and holds the query again, `release` lets it go on as ever, `end` ends it."""

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        """`pause` makes them."""
        self._spark = spark
        self._query = query
        self._execution = query._jsq.streamingQuery()
        self._sources = self._execution.uniqueSources()
        self._pace = self._interval(None)
        self.gate = Gate(self._sources)

    def operators(self) -> tuple[Operator, ...]:
        """Those of the query that keep state."""
        return operators_in(self._execution.logicalPlan(), str(self._execution.outputMode().toString()))

    def close(self) -> None:
        """Have the query ask the gate from now on."""
        ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
        limit = self._java(READ_LIMIT).allAvailable()
        _set(self._execution, "uniqueSources", self._object(NO_ENTRIES).empty().updated(self.gate, limit))
        self._interval(SOON_MILLIS)

    @property
    def waits(self) -> bool:
        """Whether the query is in no batch. One whose next trigger is still to come will ask the gate then."""
        return self.gate.asked.is_set() or not self._query.status["isTriggerActive"]

    def release(self) -> None:
        """Let the query ask its sources again."""
        self._interval(self._pace)
        _set(self._execution, "uniqueSources", self._sources)
        self.gate.answer()

    def run(self, batch: int, plan: OffsetSeq) -> tuple[OperatorState, ...]:
        """Run the batch, under the watermark of the plan and at the time of day, and hold the query before the next. Raises what the batch
        raises."""
        self._await_gate()
        context = self._execution.getLatestExecutionContext()
        assert context.batchId() == batch, f"the query is at batch {context.batchId()}, not at {batch}"
        self._forget_watermarks(batch)
        _set(context, "endOffsets", self._ends(context.endOffsets(), plan))
        self._execution.watermarkTracker().setWatermark(millis(plan.watermark))
        self.gate.answer()
        self._await_gate()  # of the next batch
        while not _is_of(progress := self._query._jsq.lastProgress(), batch):
            self._check_active()
            sleep(STEP.total_seconds())
        return kept_in(progress)

    def end(self, deadline: timedelta, forced: threading.Event) -> bool:
        """Stop the query, without another batch; False if one had to be interrupted. Blocks."""
        terminate(self._spark, self._query)
        over = monotonic() + deadline.total_seconds()
        while self._query.isActive and not self.gate.asked.wait(STEP.total_seconds()) and self._query.status["isTriggerActive"]:
            if forced.is_set() or monotonic() > over:
                break
        if self.gate.asked.is_set():
            _set(self._execution.getLatestExecutionContext(), "previousContext", self._object(NONE))
        self.gate.answer()
        return stop_between_batches(self._spark, self._query, deadline, forced)

    def _forget_watermarks(self, batch: int) -> None:
        """When there was nothing to read, Spark asked whether to run this batch without data, remembers under which watermark, and fails
        if that changes. What it forgets it computes again, as after a restart."""
        field = self._java("java.lang.Class").forName(EXECUTION).getDeclaredField("watermarkPropagator")
        field.setAccessible(True)
        field.get(self._execution).purge(batch)

    def _await_gate(self) -> None:
        while not self.gate.asked.wait(LOOK.total_seconds()):
            self._check_active()

    def _check_active(self) -> None:
        if not self._query.isActive:
            raise self._query.exception() or RuntimeError("the query was stopped")

    def _interval(self, millis: int | None) -> int:
        """Set how long the query waits between triggers, unless it does not; how long it did."""
        field = self._java("java.lang.Class").forName(TRIGGERS).getDeclaredField("intervalMs")
        field.setAccessible(True)
        executor = self._execution.triggerExecutor()
        before = int(field.getLong(executor))
        if before and millis is not None:
            field.setLong(executor, millis)
        return before

    def _ends(self, ends: Any, plan: OffsetSeq) -> Any:
        """Where the plan ends, as Spark has it. A batch that reads nothing is run only if an offset is another text than before."""
        sources = list(_each(self._execution.sources().iterator()))
        respelled = next((place for place, line in enumerate(plan.sources) if line.lstrip().startswith("{")), None)
        for place, (source, line) in enumerate(zip(sources, plan.sources, strict=True)):
            if line != NOTHING_YET:
                ends = ends.updated(source, self._java(SERIALIZED_OFFSET)(" " + line if place == respelled else line))
        return self._java(STREAM_PROGRESS)(ends)

    def _java(self, name: str) -> Any:
        return getattr(self._spark._jvm, name)  # whole: each part of a dotted path is a call of its own

    def _object(self, name: str) -> Any:
        return getattr(self._java(name), "MODULE$")


def pause(spark: SparkSession, query: StreamingQuery, deadline: timedelta, forced: threading.Event) -> PausedQuery | None:
    """Let the running batch finish, and hold the query before the next one. None if it has ended, or was not there by `deadline` or when
    `forced` was set; then it goes on as ever. Blocks while a batch runs."""
    over = monotonic() + deadline.total_seconds()
    await_initialised(query, deadline)  # which sets the sources
    held = PausedQuery(spark, query)
    try:
        held.close()
        while query.isActive and not forced.is_set() and monotonic() <= over:
            if held.waits:
                return held
            held.gate.asked.wait(STEP.total_seconds())
    except BaseException:
        held.release()
        raise
    held.release()
    return None


def _is_of(progress: Any, batch: int) -> bool:
    """Not what a query tells of triggers without a batch, by the number of the next."""
    return progress is not None and progress.batchId() == batch and progress.durationMs().containsKey(RAN)


def _set(thing: Any, member: str, value: Any) -> None:
    getattr(thing, f"{member}_$eq")(value)


def _each(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()
