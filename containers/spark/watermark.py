"""Caps the watermark of a query.

Spark computes the watermark of a query from the rows that the query has read (its *natural* watermark). That is too high while a feeder of
the query is behind: another task, or another partition. So a gate sets the watermark of each batch to the minimum of the natural one and
the caps (`sluice.core.watermarks`), but never below that of the last planned batch. The watermark of a batch is in its offset log, so a
batch that runs again has the same one.

The gate is an additional source of the query, and has no offsets. It is the last source from which Spark requests offsets before each
batch, also before one without data. On that request it sets the watermark, on the query's thread and after the other sources have answered.

Spark may plan its first batch immediately, with the watermark of the commit log, which is the natural one. So a query must not plan before
its gate is installed (`containers.spark.installation`).

After a batch, Spark's tracker computes the watermark from the greatest value of each `withWatermark`. These values are lost at a restart,
so the gate sets them to the natural watermark at the start. Thus the commit log always has the natural watermark, independently of the
gate.

This uses internals of Spark's `MicroBatchExecution`: those of `containers.spark.gate`, `startOffsets` of the next batch, and
`operatorToWatermarkMap` of its `watermarkTracker`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from containers.spark.caps import next_watermark_of
from containers.spark.jvm import (
    EVERY_BATCH,
    SERIALIZED_OFFSET,
    STREAM_PROGRESS,
    each_of,
    java,
    private,
    runtime_class,
    set_member,
    watermark_propagator,
)
from sluice.core.watermarks import Cap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACKER = "org.apache.spark.sql.execution.streaming.runtime.WatermarkTracker"
REPORTING = "org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl"
OPTIONAL_LONG = "java.util.OptionalLong"
OPTIONS = "scala.jdk.javaapi.OptionConverters"


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
        """Restores the natural watermark in the query's tracker. The query must have one, and must wait for `awaitProgressLock`."""
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
        self._restore_natural()

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
        wanted = next_watermark_of(self._natural, self._capping.caps(self._latest))
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
        It runs a batch if the text of an offset has changed, so a blank is added to the text of a start offset."""
        context = self._execution.getLatestExecutionContext()
        self._ran = bool(context.previousContext().isDefined())
        starts = context.startOffsets()
        for entry in () if self._ran else each_of(starts.iterator()):
            if (text := str(entry._2().json())).startswith("{"):
                respelled = starts.updated(entry._1(), java(self._spark, runtime_class(self._spark, SERIALIZED_OFFSET))(" " + text))
                set_member(context, "startOffsets", java(self._spark, runtime_class(self._spark, STREAM_PROGRESS))(respelled))
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
