"""The streaming queries of all sessions of a JVM, including those that were started by code without Sluice.

Spark keeps them in `SharedState.activeStreamingQueries`. A listener gets only the events of the queries of its own session, and each batch
costs a call to Python. So the queries are listed instead, and their progress is read from the list of recent progress, which Spark keeps in
any case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Event
from time import monotonic
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from containers.engine import Batch, StatefulOperator
from containers.spark.gate import RAN, PausedQuery, pause
from containers.spark.jvm import MICRO_BATCH, TRIGGER, WRAPPER, each_of, java, runtime_class, version
from containers.spark.listener import WHOLE_BATCH, count, state_size, watermark_of
from containers.spark.operators import LogicalPlan, Operator, stateful, unflushable
from containers.spark.query import stop_between_batches, terminate
from containers.state.offsets.offsetlog import from_millis, lowest
from sluice.core.ids import Ssp

T = TypeVar("T")

SPARK_ERRORS = (Py4JError, PySparkException, OSError)
"""Raised by calls to a JVM that ends."""


def process_of_jvm(spark: SparkSession) -> int:
    """The pid of the JVM."""
    return int(java(spark, "java.lang.ProcessHandle").current().pid())


def session_of(spark: SparkSession) -> SparkSession:
    """The session of this process: a script may stop its session, and start another one."""
    return SparkSession._instantiatedSession or spark


TEMPORARY = re.compile(r"temporary-[0-9a-f-]{36}")
"""Spark's directory for a query without a checkpoint location. The query cannot be continued."""

WRITE = "WriteToMicroBatchDataSource"
WRITE_OF_FUNCTION = "WriteToMicroBatchDataSourceV1"

FOREACH_BATCH = "ForeachBatchSink"

OFFSET_LOG_VERSION = "spark.sql.streaming.offsetLog.formatVersion"

TOPIC_OPTION = "sluice.topic"
"""The option of a query whose function of `foreachBatch` writes a topic of Kafka. Spark keeps it with the query's plan, so that the topic
is known before the first batch."""

_FILE_SINK = re.compile(r"FileSink\[(.*)\]")


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A source of a query. `kind`: Spark's name of its format. `topics`: those of Kafka that it names; `pattern`: Kafka's topics whose name
    matches this regular expression of Java. `partitions`: those of each topic, if it names them. `name`: the one that the script has given
    to the source, "" for none."""

    kind: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: Mapping[str, Collection[int]] = field(default_factory=dict)
    name: str = ""

    @property
    def is_kafka(self) -> bool:
        return bool(self.topics or self.pattern)

    def reads(self, topic: str) -> bool:
        return topic in self.topics or (bool(self.pattern) and re.fullmatch(self.pattern, topic) is not None)

    def reads_partition(self, topic: str, partition: int) -> bool:
        return self.reads(topic) and partition in self.partitions.get(topic, (partition,))


NAMED_SOURCES = (4, 2)
"""The first version of Spark in which a source can have a name."""


def _source(leaf: Any, spark: tuple[int, int]) -> StreamSource:
    """`leaf`: Spark's relation of a source. `spark`: Spark's version."""
    kind = str(leaf.sourceName())
    if kind != "kafka" or leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return StreamSource(kind)
    found = _kafka_source(leaf.extraOptions())
    name = leaf.sourceIdentifyingName().nameOpt() if spark >= NAMED_SOURCES else None
    return found if name is None or name.isEmpty() else replace(found, name=str(name.get()))


def _kafka_source(options: Any) -> StreamSource:
    if subscribed := options.get("subscribe"):
        return StreamSource("kafka", tuple(name.strip() for name in subscribed.split(",") if name.strip()))
    if assigned := options.get("assign"):
        partitions: dict[str, list[int]] = json.loads(assigned)
        return StreamSource("kafka", tuple(partitions), partitions=partitions)
    return StreamSource("kafka", pattern=str(options.get("subscribePattern") or ""))


class ActiveQuery:
    """One start of a query. Every method needs one or more round trips to the JVM."""

    def __init__(self, spark: SparkSession, execution: Any, run_id: str) -> None:
        """`execution`: Spark's StreamExecution."""
        self._spark = spark
        self._execution = execution
        self.run_id = run_id
        """Spark's id of this start."""
        self.id = str(execution.id().toString())
        """Spark's id of the query, which is in its checkpoint."""
        self.name = str(execution.name() or "")
        self.checkpoint = str(execution.resolvedCheckpointRoot())
        self.is_micro_batch = str(execution.getClass().getSimpleName()) == MICRO_BATCH
        self.query = StreamingQuery(java(spark, runtime_class(spark, WRAPPER))(execution))
        self._last: tuple[str, int] | None = None
        self._operators: tuple[Operator, ...] | None = None
        self._leaves: tuple[Any, ...] | None = None
        self._sources: tuple[StreamSource, ...] | None = None

    def planned_at(self, batch: int) -> datetime:
        """When the batch was planned first, from its entry in the offset log. The checkpoint may be in any file system of Hadoop."""
        path = java(self._spark, "org.apache.hadoop.fs.Path")(f"{self.checkpoint}/offsets/{batch}")
        entry = path.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf()).open(path)
        try:
            text = str(java(self._spark, "org.apache.commons.io.IOUtils").toString(entry, "UTF-8"))
        finally:
            entry.close()
        return from_millis(int(json.loads(text.splitlines()[1])["batchTimestampMs"]))

    def new_progress(self) -> Sequence[Batch | None]:
        """The batches since the last call, oldest first; None for a trigger that found nothing to read."""
        last = self._execution.lastProgress()
        if last is None or _trigger(last) == self._last:
            return ()
        recent = self._execution.recentProgress()
        found: list[Mapping[str, Any]] = []
        for place in range(len(recent) - 1, -1, -1):
            if _trigger(recent[place]) == self._last:
                break
            found.append(json.loads(recent[place].json()))
        self._last = _trigger(last)
        operators = self.operators() if found else ()
        return [batch_of(each, stateful(operators), unflushable(operators)) for each in reversed(found)]

    def operators(self) -> tuple[Operator, ...]:
        """The stateful operators, from the sink to the sources."""
        if self._operators is None:
            mode = str(self._execution.outputMode().toString())
            self._operators = LogicalPlan(self._execution.analyzedPlan(), mode).operators if self.is_micro_batch else ()
        return self._operators

    def sources(self) -> tuple[StreamSource, ...]:
        """The sources, in the order of Spark's offset log. Spark makes one source of equal leaves of a plan."""
        if self._sources is None:
            spark = version(self._spark)
            self._sources = tuple(_source(leaf, spark) for leaf in self._source_leaves())
        return self._sources

    def kafka_options(self, place: int) -> Mapping[str, str]:
        """The options of a source, if it is one of Kafka, for Kafka's clients: those with the prefix `kafka.`, in lower case. `place`: in
        `sources`."""
        options = self._source_leaves()[place].extraOptions()
        found = {str(each.getKey()).lower(): str(each.getValue()) for each in options.asCaseSensitiveMap().entrySet()}
        return {name: value for name, value in found.items() if name.startswith("kafka.")}

    def _source_leaves(self) -> tuple[Any, ...]:
        """Spark's relations of the sources."""
        if self._leaves is None:
            leaves: list[Any] = []
            for leaf in each_of(self._execution.analyzedPlan().collectLeaves().iterator()):
                if leaf.isStreaming() and not any(leaf.equals(other) for other in leaves):
                    leaves.append(leaf)
            self._leaves = tuple(leaves)
        return self._leaves

    def reads(self, topic: str) -> bool:
        """Whether it reads that topic of Kafka."""
        return any(each.reads(topic) for each in self.sources())

    def writes(self) -> Sequence[str]:
        """The topic of a Kafka sink, or of a function with `TOPIC_OPTION`. Known when the query has made its plan; empty for other sinks,
        and if a column names the topic."""
        if "kafka" in str(self._execution.sink().getClass().getName()).lower():
            write, option = WRITE, "topic"
        elif self.calls_function:
            write, option = WRITE_OF_FUNCTION, TOPIC_OPTION
        else:
            return ()
        plan = self._execution.logicalPlan()
        if str(plan.getClass().getSimpleName()) != write:
            return ()
        return [str(each._2()) for each in each_of(plan.writeOptions().iterator()) if str(each._1()).lower() == option]

    @property
    def file_sink(self) -> str | None:
        """The directory that it writes with Spark's own sink of files; None for another sink."""
        match = _FILE_SINK.fullmatch(str(self._execution.sink().toString()))
        return None if match is None else match[1]

    @property
    def calls_function(self) -> bool:
        """Whether its sink is a function of `foreachBatch`."""
        return str(self._execution.sink().toString()) == FOREACH_BATCH

    def end_at_start(self) -> None:
        """End a query that has not initialised yet, before it runs a batch. Call it when the query starts, on its thread."""
        terminate(self._spark, self.query)

    def make_plan(self) -> None:
        """Make the query's plan and its sources. Only the query's own thread may do this first."""
        self._execution.logicalPlan()

    @property
    def offset_log_version(self) -> str:
        """The version of the format in which the query writes its offset log, in a new checkpoint."""
        return f"v{self._execution.sparkSessionForStream().conf().get(OFFSET_LOG_VERSION, '1')}"

    @property
    def is_temporary(self) -> bool:
        """Whether the script has set no checkpoint location, so that Spark has made a directory."""
        return TEMPORARY.search(self.checkpoint) is not None

    @property
    def error(self) -> str | None:
        """Why it has ended; None while it runs and after a stop."""
        found = self.query.exception()
        return None if found is None else str(found)

    @property
    def can_be_paused(self) -> bool:
        """Whether it runs batches at intervals. One with the trigger `availableNow` or `once` ends by itself."""
        return self.is_micro_batch and str(self._execution.trigger().getClass().getSimpleName()) == TRIGGER

    def pause(self, deadline: timedelta, forced: Event) -> PausedQuery | None:
        """None if it cannot be paused; see `containers.spark.gate.pause`."""
        return pause(self._spark, self.query, deadline, forced) if self.can_be_paused else None

    def stop(self, deadline: timedelta, forced: Event) -> bool:
        """Stop it between two batches; False if a batch had to be interrupted."""
        return stop_between_batches(self._spark, self.query, deadline, forced)


class ActiveQueries:
    """The active queries of the JVM of a session. An object is kept for each start of a query, so that its progress is read once."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: dict[str, ActiveQuery] = {}

    def find(self) -> Sequence[ActiveQuery]:
        """The queries that are active now. Raises SPARK_ERRORS if the JVM has ended."""
        spark = session_of(self._spark)
        listed = spark._jsparkSession.sharedState().activeStreamingQueries().elements()
        active: dict[str, Any] = {}
        while listed.hasMoreElements():
            execution = listed.nextElement()
            active[str(execution.runId().toString())] = execution
        self._known = {run_id: self._known.get(run_id) or ActiveQuery(spark, each, run_id) for run_id, each in active.items()}
        return list(self._known.values())


def _pause(query: ActiveQuery, deadline: timedelta, forced: Event) -> PausedQuery | None:
    return query.pause(deadline, forced)


def stop_all(
    queries: Sequence[ActiveQuery],
    deadline: timedelta,
    forced: Event,
    pause: Callable[[ActiveQuery, timedelta, Event], PausedQuery | None] = _pause,
) -> Sequence[ActiveQuery]:
    """Pause all queries between two batches before any of them ends, then end them. Otherwise a script that waits for the end of any query
    could end after the first one, and interrupt a batch of another one. Blocks. Returns the queries whose batch had to be interrupted, at
    the deadline or when `forced` was set. `pause`: as `ActiveQuery.pause`, for queries that may have a gate already.
    """
    if not queries:
        return ()
    until = monotonic() + deadline.total_seconds()

    def left() -> timedelta:
        return timedelta(seconds=max(0.0, until - monotonic()))

    with ThreadPoolExecutor(len(queries), "sluice-stop") as threads:
        held = list(threads.map(lambda each: _quietly(lambda: pause(each, left(), forced), None), queries))

        def end(query: ActiveQuery, paused: PausedQuery | None) -> bool:
            return _quietly(lambda: query.stop(left(), forced) if paused is None else paused.end(left(), forced), True)

        ended = list(threads.map(end, queries, held))
    return [query for query, orderly in zip(queries, ended, strict=True) if not orderly]


def _quietly(work: Callable[[], T], otherwise: T) -> T:
    """The result of `work`; `otherwise` if the query fails meanwhile, or the JVM ends."""
    try:
        return work()
    except SPARK_ERRORS:
        return otherwise


def _trigger(progress: Any) -> tuple[str, int]:
    return str(progress.timestamp()), int(progress.batchId())


# --- Spark's progress ------------------------------------------------------------------------------------------------


def batch_of(progress: Mapping[str, Any], operators: Sequence[StatefulOperator] = (), left: Sequence[str] = ()) -> Batch | None:
    """Spark's progress of a trigger, which was read from JSON, as a batch; None if the trigger ran no batch. `operators`: what a drain does
    to the query's operators; `left`: those that it would not empty."""
    durations = progress.get("durationMs", {})
    if RAN not in durations:
        return None
    event_time, states, sources = progress.get("eventTime", {}), progress.get("stateOperators", ()), progress.get("sources", ())
    positions: list[Mapping[Ssp, int]] = []
    behind: int | None = 0
    for source in sources:
        ends, latest = dict(offsets_of(source, "endOffset")), dict(offsets_of(source, "latestOffset"))
        positions.append(ends)
        behind = None if behind is None or not latest else behind + sum(max(0, end - ends.get(ssp, end)) for ssp, end in latest.items())
    return Batch(
        query=str(progress.get("name") or ""),
        batch=int(progress["batchId"]),
        rows=count(progress.get("numInputRows", 0)),
        duration_ms=count(progress.get("batchDuration", durations.get(WHOLE_BATCH, 0))),
        offsets=lowest(positions),
        event_time_max=watermark_of(event_time.get("max")),
        parts_ms={part: count(millis) for part, millis in durations.items() if part != WHOLE_BATCH},
        behind=behind if sources else None,
        state=state_size(states),
        watermark=watermark_of(event_time.get("watermark")),
        unflushable=left,
        operators=operators,
    )


def offsets_of(source: Mapping[str, Any], which: str) -> Iterator[tuple[Ssp, int]]:
    """The offsets of a source that are kept by stream and partition, as those of Kafka are: {"orders": {"0": 7}}. Other sources have
    none."""
    description = str(source.get("description", ""))
    system = "kafka" if description.startswith("Kafka") else "log" if "log" in description.lower() else "source"
    found = source.get(which)
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return
    if not isinstance(found, Mapping):
        return
    for stream, partitions in found.items():
        if isinstance(partitions, Mapping):
            for partition, offset in partitions.items():
                if str(partition).isdecimal() and isinstance(offset, int) and offset >= 0:
                    yield Ssp(system, str(stream), int(partition)), offset
