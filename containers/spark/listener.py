"""Spark's events of a query: progress after each batch, idleness and the end. The parts that depend on the version of Spark are tested
against the pinned version (`tests/spark`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from containers.engine import StateSize
from containers.state.offsets.offsetlog import NOTHING_YET

WHOLE_BATCH = "triggerExecution"
"""The key of the whole batch in the durations of its parts."""

INDEXED = "rocksdbNumInternalColFamiliesKeys"
"""The key of the entries of Spark's internal indexes in the metrics of a state store."""


@dataclass(frozen=True, slots=True)
class BatchDone:
    """One committed batch of a query. `positions`: for each source, the text {"stream": {"partition": next offset}}; `latest`: in the same
    format, the ends of the streams when the batch was planned."""

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
    observed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The metrics that `DataFrame.observe` named, by the name of the observation and of the metric. Only whole numbers."""


def event_time(text: str | None) -> datetime | None:
    """Parse "2013-01-01T05:15:00.000Z". None outside the years 1 to 9999."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def count(reported: int) -> int:
    """A count, at least 0: Spark computes durations from a clock that may be set back, and reports -1 for a metric that it does not
    know."""
    return max(0, int(reported))


def watermark_of(text: str | None) -> datetime | None:
    """None for 1970, which Spark reports before there is a watermark."""
    found = event_time(text)
    return None if found is None or found.timestamp() == 0 else found


def state_size(operators: Sequence[Mapping[str, Any]]) -> StateSize | None:
    """The sums over all stateful operators of a query."""
    if not operators:
        return None

    def total(name: str) -> int:
        return sum(count(each.get(name, 0)) for each in operators)

    disk = sum(count(each.get("customMetrics", {}).get("rocksdbSstFileSize", 0)) for each in operators)
    return StateSize(total("numRowsTotal"), total("memoryUsedBytes"), disk, total("numRowsDroppedByWatermark"))


def _numbers(row: Mapping[str, Any]) -> Mapping[str, int]:
    return {name: value for name, value in row.items() if isinstance(value, int) and not isinstance(value, bool)}


@dataclass(frozen=True, slots=True)
class QueryEnded:
    run_id: str
    error: str | None


class EventProxy:
    """Replaces PySpark's own proxy, which reads the progress of a batch member by member. Reading a list or a map that way ends in an
    exception in the JVM, for which PySpark looks up some twenty classes, by each prefix of their names, in all jars: 0.1 s of CPU per
    batch. This proxy reads the whole progress as JSON."""

    def __init__(self, listener: StreamingQueryListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:
        self._listener.onQueryStarted(QueryStartedEvent.fromJObject(event))

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
    """Calls back for each event of a query. Runs on a thread of Py4J, so only `on_started` may block."""

    def __init__(
        self,
        on_batch: Callable[[BatchDone], None],
        on_end: Callable[[QueryEnded], None],
        on_idle: Callable[[str], None] = lambda run_id: None,
        on_started: Callable[[str | None, str], None] = lambda name, id_: None,
    ) -> None:
        """`on_idle` gets Spark's id of the query's run. `on_started` gets a query's name and Spark's id of the query. It is called on the
        thread of the query, before the query initialises its sources, and may block."""
        self._on_batch = on_batch
        self._on_end = on_end
        self._on_idle = on_idle
        self._on_started = on_started

    @cached_property
    def _jlistener(self) -> Any:
        """The object that PySpark registers in the JVM for this listener."""
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(EventProxy(self))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._on_started(event.name, str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        self._on_batch(
            BatchDone(
                query=str(progress.name),
                batch=int(progress.batchId),
                rows=count(progress.numInputRows),
                duration_ms=count(progress.batchDuration),
                positions=tuple(str(source.endOffset or NOTHING_YET) for source in progress.sources),
                latest=tuple(str(source.latestOffset or NOTHING_YET) for source in progress.sources),
                event_time_max=event_time(progress.eventTime.get("max")),
                watermark=watermark_of(progress.eventTime.get("watermark")),
                parts_ms={part: count(millis) for part, millis in progress.durationMs.items() if part != WHOLE_BATCH},
                state=state_size(progress.stateOperators),
                observed={name: _numbers(row.asDict()) for name, row in progress.observedMetrics.items()},
            )
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._on_idle(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._on_end(QueryEnded(str(event.runId), event.exception))


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The rows of a stateful operator after a batch, and the entries in its indexes of timers and expiry times. `operator` is Spark's name
    of its kind."""

    operator: str
    rows: int
    indexed: int


def operator_states(progress: Any) -> tuple[OperatorState, ...]:
    """The operators in the JVM's progress object of a batch."""
    operators = json.loads(progress.json()).get("stateOperators", ()) if progress is not None else ()
    return tuple(
        OperatorState(str(each["operatorName"]), count(each["numRowsTotal"]), count(each.get("customMetrics", {}).get(INDEXED, 0)))
        for each in operators
    )
