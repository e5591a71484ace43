"""One streaming query: start it, run a planned batch, stop it between batches. The parts that depend on the version of Spark
are tested against the pinned version (`tests/spark`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from containers.spark.input_gate import hurry
from containers.spark.jvm import TERMINATED, each_of, field, runtime_class, scala_object, version
from containers.spark.listener import OperatorState, operator_states
from sluice.core.batchsize import BatchSizes

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


PARTITIONS_OF_STATE = "spark.sql.shuffle.partitions"

OFFSET_METADATA = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata"
"""It was in the package above until Spark 4.0."""


def start_query(spark: SparkSession, writer: DataStreamWriter, name: str, checkpoint: Path, trigger: timedelta) -> StreamingQuery:
    """Start a stage's writer as the query `name`, in its own scheduler pool, so that the queries share the cores evenly."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    try:
        named = writer.queryName(name).option("checkpointLocation", str(checkpoint))
        return named.trigger(processingTime=f"{trigger // timedelta(milliseconds=1)} milliseconds").start()
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def await_initialised(query: StreamingQuery, within: timedelta) -> None:
    """Wait until the query's sources have started, or it has ended. Blocks. Spark reports this only as a text in the query's status."""
    end = monotonic() + within.total_seconds()
    while query.isActive and query.status["message"].startswith("Initializing") and monotonic() < end:
        sleep(0.05)


def run_planned_batch(spark: SparkSession, writer: DataStreamWriter, name: str, checkpoint: str) -> tuple[OperatorState, ...]:
    """Run the one batch that is planned and not committed in the checkpoint, and no newer one. Returns the state after it. Blocks. Raises
    what the batch raises.

    The trigger `availableNow` would also read new input.
    """
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    try:
        query = writer.queryName(name).option("checkpointLocation", checkpoint).trigger(once=True).start()
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
    query.awaitTermination()
    return operator_states(query._jsq.lastProgress())


def offset_metadata(spark: SparkSession, now: datetime) -> str:
    """The metadata line of the offset-log entry that Spark would write for a query's first batch, with the state formats of this
    version."""
    name = OFFSET_METADATA if version(spark) >= (4, 1) else OFFSET_METADATA.replace(".checkpointing", "")
    spoken: Any = getattr(spark._jvm, name)
    metadata = json.loads(spoken.apply(0, int(now.timestamp() * 1000), spark._jsparkSession.conf()).json())
    metadata["conf"][PARTITIONS_OF_STATE] = spark.conf.get(PARTITIONS_OF_STATE)  # Spark sets it only in a running query
    return json.dumps(metadata, separators=(",", ":"))


def stop_between_batches(
    spark: SparkSession, query: StreamingQuery, deadline: timedelta, forced: threading.Event, limit: RowLimit | None = None
) -> bool:
    """Let the running batch finish and commit, then stop, and return True. After `deadline`, or once `forced` is set, interrupt the batch
    and return False; it runs again at the next start. Blocks. `limit`: that of the query; without it a query that waits for a core runs one
    more batch if it has something to read.

    `StreamingQuery.stop()` alone always interrupts. The loop of the query ends by itself between two batches when its state is TERMINATED.
    """
    if limit is not None:
        limit.stop_reading()
    terminate(spark, query)
    waited = step = 0.02
    forced.wait(step)  # a trigger that has just passed the check becomes visible
    while query.status["isTriggerActive"] and waited < deadline.total_seconds() and not forced.wait(step):
        waited += step
    orderly = not query.status["isTriggerActive"]
    query.stop()
    return orderly


def terminate(spark: SparkSession, query: StreamingQuery) -> None:
    """Let the query end after its current trigger, and end its wait for input."""
    if query.isActive:
        query._jsq.streamingQuery().state().set(scala_object(spark, runtime_class(spark, TERMINATED)))
        hurry(query)


READ_MAX_ROWS = "org.apache.spark.sql.connector.read.streaming.ReadMaxRows"
PYTHON_READ_LIMIT = "org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingSourceReadLimit"
"""The limit of a source in Python, as JSON: {"max_rows": number, "_type": "ReadMaxRows"}."""


class RowLimit:
    """The limit of rows that a batch of a running query reads from each source. It changes with each batch (`sluice.core.batchsize`).
    Thread-safe."""

    def __init__(self, sizes: BatchSizes, set_limit: Callable[[int], None]) -> None:
        """`set_limit` sets the limit of all sources of the query (`SourceLimits.set`)."""
        self._sizes = sizes
        self._set_limit = set_limit
        self.rows = sizes.most
        self.behind = False
        """Whether there was more to read than the last batch has read. A batch of less than half of the limit was not limited: what it left
        has arrived since it was planned, so it is no backlog."""
        self._first = True
        self._stopped = False
        self._lock = threading.Lock()
        set_limit(self.rows)

    def stop_reading(self) -> None:
        """Let the query find nothing to read. A query that is to be paused or stopped while it waits for a core asks its sources once more,
        and would run a batch that others wait for."""
        with self._lock:
            self._stopped = True
            self._set_limit(0)

    def continue_reading(self) -> None:
        with self._lock:
            self._stopped = False
            self._set_limit(self.rows)

    def committed(self, rows: int, behind: int | None, took: timedelta) -> None:
        """Record a batch: its rows, the records that it left unread when it was planned, and its duration. Called on one thread."""
        self.behind = bool(behind) and rows >= self.rows // 2
        limit = self._sizes.after(self.rows, took, more=self.behind, first=self._first)
        self._first = False
        with self._lock:
            changed, self.rows = limit != self.rows, limit
            if changed and not self._stopped:
                self._set_limit(limit)


class SourceLimits:
    """The limits of rows of the sources of a running query.

    This uses an internal of Spark: a query keeps one object for the limit of each source, and its fields can be set."""

    def __init__(self, spark: SparkSession, execution: Any) -> None:
        """`execution`: Spark's `MicroBatchExecution`, which has initialised its sources. All of them must be Sluice's."""
        self._fields = {READ_MAX_ROWS: field(spark, READ_MAX_ROWS, "rows"), PYTHON_READ_LIMIT: field(spark, PYTHON_READ_LIMIT, "json")}
        self._limits = [(str(limit.getClass().getName()), limit) for limit in each_of(execution.uniqueSources().valuesIterator())]

    def set(self, rows: int) -> None:
        for kind, limit in self._limits:
            if kind == READ_MAX_ROWS:
                self._fields[kind].setLong(limit, rows)
            elif kind == PYTHON_READ_LIMIT and "max_rows" in (known := json.loads(limit.json())):
                self._fields[kind].set(limit, json.dumps(known | {"max_rows": rows}))
