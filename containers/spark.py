"""Everything that Sluice does to Spark itself: the session, a query's start, and its stop between batches.

What depends on the version of Spark is here and is tested against the pinned one (`tests/spark`).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from signal import Signals
from subprocess import TimeoutExpired
from time import monotonic, sleep
from types import ModuleType
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import readwriter
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StateOperatorProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.utils import ForeachBatchFunction

from containers.classarchive import ClassArchive
from containers.engine import StateSize
from containers.masters import is_local
from containers.sparksettings import session_settings
from containers.workerpython import plain_environment, worker_python
from sluice.core.errors import SparkGone, SparkNotStarted

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


log = logging.getLogger(__name__)

LAUNCHED_BY_JVM = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit's JVM tells the Python that it starts how to reach it."""


class BatchFunction(ForeachBatchFunction):
    """A user's foreachBatch function, as the JVM calls it. Py4J answers for an Exception; anything else that is raised (sys.exit) would end
    its thread without an answer, for which the query would wait for ever. That thread is Py4J's: what is logged on it is about what the
    stage's function, which made this, was about."""

    def __init__(self, session: SparkSession, func: Callable[[DataFrame, int], None]) -> None:
        super().__init__(session, func)
        self._about = copy_context()

    def call(self, jdf: Any, batch_id: int) -> None:
        try:
            self._about.copy().run(super().call, jdf, batch_id)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the batch function raised {type(error).__name__}: {error}") from error


LAST_BREATH = timedelta(seconds=5)
"""How long a JVM that hung up is waited for, to know its exit code."""

OUT_OF_MEMORY = 3
"""How a JVM with ExitOnOutOfMemoryError exits."""

WHOLE_BATCH = "triggerExecution"
"""Among the parts of a batch's duration, the sum of the others."""

INDEXED = "rocksdbNumInternalColFamiliesKeys"
"""Among the measures of a state store, the entries of the indexes that Spark itself keeps in it."""

PARTITIONS_OF_STATE = "spark.sql.shuffle.partitions"

PLAN_METADATA = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata"

TERMINATED = "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$"


def submitted_conf() -> dict[str, str]:
    """What spark-submit was told, if it started this process: its master is the one to use, and its settings win over Sluice's own."""
    if LAUNCHED_BY_JVM not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    told = dict(SparkConf().getAll())
    if told.get("spark.app.name") == Path(sys.argv[0]).name:  # nobody gave a name
        del told["spark.app.name"]
    return told


def start_session(
    app_name: str,
    master: str,
    local_dir: Path,
    settings: Mapping[str, str],
    sockets: Path | None = None,
    archive: ClassArchive | None = None,
    beside: Path | None = None,
) -> SparkSession:
    """The driver's one session; see `session_settings`. `beside`: the directory of the job file, whose helper modules the Python processes
    of a local master find. Blocks for some seconds while the JVM starts, a minute where no master answers. Raises SparkNotStarted."""
    submitted = submitted_conf()
    master = submitted.get("spark.master", master)
    local_dir.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_DRIVER_PYTHON"] = here = worker_python(local_dir.absolute(), beside)
    if is_local(master):
        os.environ["PYSPARK_PYTHON"] = here
        of_jvm = plain_environment(beside) if here == sys.executable else {}
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        of_jvm = plain_environment(None)
    readwriter.ForeachBatchFunction = BatchFunction  # type: ignore[attr-defined]
    builder = SparkSession.builder.appName(app_name).master(master).config("spark.local.dir", str(local_dir))
    builder = builder.config("spark.sql.warehouse.dir", str(local_dir / "warehouse"))
    for name, value in session_settings(master, submitted, settings, sockets, archive).items():
        builder = builder.config(name, value)
    try:
        with _environment(of_jvm):
            spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("WARN")
        _write_no_checksums(spark)
    except (Py4JError, PySparkException) as error:
        log.warning("Spark did not start", exc_info=error)
        why = f"{_why_not(error)}; Spark's own words are in the container's log"
        raise SparkNotStarted(f"there is no session under the master {master}: {why}") from error
    return spark


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add it for the JVM that is started meanwhile. Processes that user code starts later do not inherit it from this one."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _write_no_checksums(spark: SparkSession) -> None:
    """Hadoop writes a hidden checksum file beside every file on a local disk, and starts a process (chmod) for each: without them a small
    batch takes a fifth less. Spark's own checksums of its state stay, and a backup hashes everything."""
    jvm: Any = spark._jvm
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark.sparkContext._jsc.hadoopConfiguration()).setWriteChecksum(False)


STOPPED_CONTEXT = "on a stopped SparkContext"


def _why_not(error: Exception) -> str:
    if STOPPED_CONTEXT in str(error):
        return "it did not answer, or has turned us away (SLUICE_SPARK_MASTER)"
    lines = str(error).splitlines()
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0] if lines else type(error).__name__)


def check_alive(spark: SparkSession) -> None:
    """Ask the JVM something. Blocks while it hangs. Raises SparkGone when it has ended, or the session was stopped."""
    try:
        context = spark.sparkContext._jsc
        stopped = context is None or bool(context.sc().isStopped())
    except (Py4JError, OSError) as error:
        raise SparkGone(_last_of(spark, error)) from error
    if stopped:
        raise SparkGone("the Spark session was stopped: by user code, or by Spark after a failure that its log tells of")


def _last_of(spark: SparkSession, error: Exception) -> str:
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is None:  # the JVM is not our child: spark-submit started it, and us
        return f"Spark's JVM does not answer any more: {error}"
    try:
        code = process.wait(LAST_BREATH.total_seconds())
    except TimeoutExpired:
        return f"Spark's JVM does not answer any more: {error}"
    if code < 0:
        return f"Spark's JVM was ended by {Signals(-code).name}"
    if code == OUT_OF_MEMORY:
        return "Spark's JVM ended with exit code 3: it was out of memory (spark.driver.memory is its heap)"
    return f"Spark's JVM ended with exit code {code}"


def pickle_whole(module: ModuleType) -> None:
    """Send the job file's functions to the workers by value: they cannot import a file that was loaded by path."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class BatchDone:
    """One committed batch of a query. `positions` is by source, {"stream": {"partition": next offset}}; `latest` the same of what there
    was to read when the batch was planned."""

    query: str
    batch: int
    rows: int
    duration_ms: int
    positions: tuple[str, ...]
    latest: tuple[str, ...]
    event_time_max: datetime | None
    watermark: datetime | None
    parts_ms: Mapping[str, int]
    state: StateSize | None


def _event_time(told: str | None) -> datetime | None:
    """As Spark spells it, "2013-01-01T05:15:00.000Z"; one outside the years 1 to 9999 is none."""
    try:
        return datetime.fromisoformat(told) if told else None
    except ValueError:
        return None


def _count(told: int) -> int:
    """Durations are differences of the time of day, which may be set back, and what Spark does not know of a store is -1."""
    return max(0, int(told))


def _watermark(told: str | None) -> datetime | None:
    """1970 is Spark's word for none yet."""
    found = _event_time(told)
    return None if found is None or found.timestamp() == 0 else found


def _state(operators: Sequence[StateOperatorProgress]) -> StateSize | None:
    """Of all stateful operators of a query together."""
    if not operators:
        return None
    return StateSize(
        rows=sum(_count(each.numRowsTotal) for each in operators),
        memory_bytes=sum(_count(each.memoryUsedBytes) for each in operators),
        disk_bytes=sum(_count(each.customMetrics.get("rocksdbSstFileSize", 0)) for each in operators),
        dropped_late=sum(_count(each.numRowsDroppedByWatermark) for each in operators),
    )


@dataclass(frozen=True, slots=True)
class QueryEnded:
    run_id: str
    error: str | None


class EventProxy:
    """What the JVM calls in the place of PySpark's own proxy, which reads a batch's progress member by member. Each list or map read so
    ends in an exception of the JVM, for which PySpark has a score of classes looked up, by each prefix of their names, in all jars: 0.1 s
    of CPU a batch. Here the progress comes whole, as JSON."""

    def __init__(self, listener: StreamingQueryListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:
        """Nothing: the one who started it knows."""

    def onQueryProgress(self, event: Any) -> None:
        progress = StreamingQueryProgress.fromJson(json.loads(event.progress().json()))
        self._listener.onQueryProgress(QueryProgressEvent(progress))

    def onQueryIdle(self, event: Any) -> None:
        self._listener.onQueryIdle(QueryIdleEvent.fromJObject(event))

    def onQueryTerminated(self, event: Any) -> None:
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJObject(event))

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


class Listener(StreamingQueryListener):
    """Passes on what the JVM tells of queries. It is called on a thread of Py4J, so the callbacks must only hand over."""

    def __init__(
        self,
        on_batch: Callable[[BatchDone], None],
        on_end: Callable[[QueryEnded], None],
        on_idle: Callable[[str], None] = lambda run_id: None,
    ) -> None:
        """`on_idle` gets the id of a query's run."""
        self._on_batch = on_batch
        self._on_end = on_end
        self._on_idle = on_idle

    @cached_property
    def _jlistener(self) -> Any:
        """What PySpark registers in the JVM for this listener."""
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(EventProxy(self))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing: the one who started it knows."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        self._on_batch(
            BatchDone(
                query=str(progress.name),
                batch=int(progress.batchId),
                rows=_count(progress.numInputRows),
                duration_ms=_count(progress.batchDuration),
                positions=tuple(str(source.endOffset) for source in progress.sources),
                latest=tuple(str(source.latestOffset) for source in progress.sources),
                event_time_max=_event_time(progress.eventTime.get("max")),
                watermark=_watermark(progress.eventTime.get("watermark")),
                parts_ms={part: _count(millis) for part, millis in progress.durationMs.items() if part != WHOLE_BATCH},
                state=_state(progress.stateOperators),
            )
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._on_idle(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._on_end(QueryEnded(str(event.runId), event.exception))


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


@dataclass(frozen=True, slots=True)
class Kept:
    """How many rows a stateful operator keeps after a batch, and how many entries in its indexes of timers and of what expires; `operator`
    is Spark's name of its kind."""

    operator: str
    rows: int
    indexed: int


def run_planned_batch(spark: SparkSession, writer: DataStreamWriter, name: str, checkpoint: Path) -> tuple[Kept, ...]:
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


def kept_in(progress: Any) -> tuple[Kept, ...]:
    """What the JVM's progress of a batch says of its operators."""
    operators = json.loads(progress.json()).get("stateOperators", ()) if progress is not None else ()
    return tuple(
        Kept(str(each["operatorName"]), _count(each["numRowsTotal"]), _count(each.get("customMetrics", {}).get(INDEXED, 0)))
        for each in operators
    )


def plan_metadata(spark: SparkSession, now: datetime) -> str:
    """The line of a plan that Spark would write for a query's first batch: it has the formats of state of this version."""
    spoken: Any = getattr(spark._jvm, PLAN_METADATA)
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
