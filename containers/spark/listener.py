"""What Spark tells of a query: its progress after each batch, and its end. What depends on the version of Spark is tested against the
pinned one (`tests/spark`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StateOperatorProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from containers.engine import StateSize

WHOLE_BATCH = "triggerExecution"
"""Among the parts of a batch's duration, the sum of the others."""

INDEXED = "rocksdbNumInternalColFamiliesKeys"
"""Among the measures of a state store, the entries of the indexes that Spark itself keeps in it."""


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


@dataclass(frozen=True, slots=True)
class OperatorState:
    """How many rows a stateful operator keeps after a batch, and how many entries in its indexes of timers and of what expires; `operator`
    is Spark's name of its kind."""

    operator: str
    rows: int
    indexed: int


def kept_in(progress: Any) -> tuple[OperatorState, ...]:
    """What the JVM's progress of a batch says of its operators."""
    operators = json.loads(progress.json()).get("stateOperators", ()) if progress is not None else ()
    return tuple(
        OperatorState(str(each["operatorName"]), _count(each["numRowsTotal"]), _count(each.get("customMetrics", {}).get(INDEXED, 0)))
        for each in operators
    )
