"""One streaming query: start it, run a planned batch, stop it between batches. Queries of a container begin their batches at different
instants. What depends on the version of Spark is tested against the pinned one (`tests/spark`).
"""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from containers.spark.listener import OperatorState, kept_in

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


PARTITIONS_OF_STATE = "spark.sql.shuffle.partitions"

OFFSET_METADATA = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata"

TERMINATED = "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$"


def start_query(spark: SparkSession, writer: DataStreamWriter, name: str, checkpoint: Path, trigger: timedelta) -> StreamingQuery:
    """Start a stage's writer as the query `name`, in a scheduler pool of its own so that the queries share the cores evenly."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    try:
        named = writer.queryName(name).option("checkpointLocation", str(checkpoint))
        return named.trigger(processingTime=f"{trigger // timedelta(milliseconds=1)} milliseconds").start()
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def await_initialised(query: StreamingQuery, within: timedelta) -> None:
    """Wait until the query's sources have started, or it has ended. Blocks; Spark tells it by a text alone."""
    end = monotonic() + within.total_seconds()
    while query.isActive and query.status["message"].startswith("Initializing") and monotonic() < end:
        sleep(0.05)


def run_planned_batch(spark: SparkSession, writer: DataStreamWriter, name: str, checkpoint: Path) -> tuple[OperatorState, ...]:
    """Run the one batch that the checkpoint has planned and not committed, and nothing newer; what it left in state. Blocks. Raises what
    the batch raises.

    `availableNow` would read new input besides.
    """
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    try:
        query = writer.queryName(name).option("checkpointLocation", str(checkpoint)).trigger(once=True).start()
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
    query.awaitTermination()
    return kept_in(query._jsq.lastProgress())


def offset_metadata(spark: SparkSession, now: datetime) -> str:
    """The line of a plan that Spark would write for a query's first batch: it has the formats of state of this version."""
    spoken: Any = getattr(spark._jvm, OFFSET_METADATA)
    metadata = json.loads(spoken.apply(0, int(now.timestamp() * 1000), spark._jsparkSession.conf()).json())
    metadata["conf"][PARTITIONS_OF_STATE] = spark.conf.get(PARTITIONS_OF_STATE)  # Spark takes it from what only a running query sets
    return json.dumps(metadata, separators=(",", ":"))


def stop_between_batches(spark: SparkSession, query: StreamingQuery, deadline: timedelta, forced: threading.Event) -> bool:
    """Let the running batch finish and commit, then stop; True if so. After `deadline`, or once `forced` is set, interrupt the batch: it
    runs again at the next start. Blocks.

    `StreamingQuery.stop()` alone always interrupts. The query's loop ends by itself, between two batches, once its state says TERMINATED.
    """
    terminate(spark, query)
    waited = step = 0.02
    forced.wait(step)  # a trigger that was just passing the check becomes visible
    while query.status["isTriggerActive"] and waited < deadline.total_seconds() and not forced.wait(step):
        waited += step
    orderly = not query.status["isTriggerActive"]
    query.stop()
    return orderly


def terminate(spark: SparkSession, query: StreamingQuery) -> None:
    """Tell the query to end once its trigger is over."""
    if query.isActive:
        query._jsq.streamingQuery().state().set(getattr(getattr(spark._jvm, TERMINATED), "MODULE$"))


LONGEST = 0.05
"""How much longer than asked for an interval is at most, as a part of it."""

MILLISECOND = timedelta(milliseconds=1)


def spread(interval: timedelta, index: int) -> timedelta:
    """The interval of the `index`-th query (>= 0), in whole milliseconds: the first has the one that was asked for, and every further one
    the middle of the widest gap that is left (van der Corput's sequence), until there are no milliseconds between."""
    longer, part = 0.0, 0.5
    while index:
        longer += part * (index & 1)
        index, part = index >> 1, part / 2
    return round(interval * (1 + LONGEST * longer) / MILLISECOND) * MILLISECOND


class Triggers:
    """Intervals by query, which keep theirs. Any thread's."""

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._indexes: dict[str, int] = {}
        self._lock = threading.Lock()

    def of(self, query: str) -> timedelta:
        with self._lock:
            return spread(self._interval, self._indexes.setdefault(query, len(self._indexes)))
