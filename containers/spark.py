"""Everything that Sluice does to Spark itself: the session, a query's start, and its stop between batches. Imports pyspark.

What depends on the version of Spark is here and is tested against the pinned one (`tests/spark`).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)

SETTINGS: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Tried settings (docs/design.md, section 8); a job's own come after them and win."""

LOCAL_CHECKPOINTS: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Checkpoints are on a local disk, where Spark's default starts processes (chmod, readlink) for each file that it writes, and this one only
the chmod: 34 ms against 8 ms a file on two cores. Its rename is not exclusive; a store has one writer, the holder of its task."""

LOCAL_SETTINGS: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Without remote executors nobody else needs to reach the driver."""

TERMINATED = "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$"


def start_session(app_name: str, master: str, local_dir: Path, settings: Mapping[str, str]) -> SparkSession:
    """The driver's one session. Blocks for some seconds while the JVM starts."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    local_dir.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.appName(app_name).master(master).config("spark.local.dir", str(local_dir))
    builder = builder.config("spark.sql.warehouse.dir", str(local_dir / "warehouse"))
    local = LOCAL_SETTINGS if master.startswith("local") else {}
    for name, value in {**SETTINGS, **LOCAL_CHECKPOINTS, **local, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def pickle_whole(module: ModuleType) -> None:
    """Send the job file's functions to the workers by value: they cannot import a file that was loaded by path."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class BatchDone:
    """One committed batch of a query. `positions` is by source, {"stream": {"partition": next offset}}."""

    query: str
    batch: int
    rows: int
    duration_ms: int
    positions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueryEnded:
    run_id: str
    error: str | None


class Listener(StreamingQueryListener):
    """Passes on what the JVM tells of queries. It is called on a thread of Py4J, so the callbacks must only hand over."""

    def __init__(self, on_batch: Callable[[BatchDone], None], on_end: Callable[[QueryEnded], None]) -> None:
        self._on_batch = on_batch
        self._on_end = on_end

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing: the one who started it knows."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        self._on_batch(
            BatchDone(
                query=str(progress.name),
                batch=int(progress.batchId),
                rows=int(progress.numInputRows),
                duration_ms=int(progress.batchDuration),
                positions=tuple(str(source.endOffset) for source in progress.sources),
            )
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing: no batch was run."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._on_end(QueryEnded(str(event.runId), event.exception))


def start_query(spark: SparkSession, writer: DataStreamWriter, name: str, checkpoint: Path, trigger: timedelta) -> StreamingQuery:
    """Start a stage's writer as the query `name`, in a scheduler pool of its own so that the queries share the cores evenly."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    try:
        named = writer.queryName(name).option("checkpointLocation", str(checkpoint))
        return named.trigger(processingTime=f"{int(trigger.total_seconds() * 1000)} milliseconds").start()
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def stop_between_batches(spark: SparkSession, query: StreamingQuery, deadline: timedelta, forced: threading.Event) -> bool:
    """Let the running batch finish and commit, then stop; True if so. After `deadline`, or once `forced` is set, interrupt the batch: it
    runs again at the next start. Blocks.

    `StreamingQuery.stop()` alone always interrupts. The query's loop ends by itself, between two batches, once its state says TERMINATED.
    """
    if query.isActive:
        terminated = getattr(spark._jvm, TERMINATED).__getattr__("MODULE$")
        query._jsq.streamingQuery().state().set(terminated)
    waited = step = 0.02
    forced.wait(step)  # a trigger that was just passing the check becomes visible
    while query.status["isTriggerActive"] and waited < deadline.total_seconds() and not forced.wait(step):
        waited += step
    orderly = not query.status["isTriggerActive"]
    query.stop()
    return orderly
