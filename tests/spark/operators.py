"""Stages with each kind of stateful operator, for tests of flushes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from containers.spark.task import StageTask
from tests.spark.drainworld import OUT, Stage, events

EVENTS = [{"t": 1000 + second, "k": "ab"[second % 2]} for second in range(25)]
"""13 of "a", 12 of "b"."""


def joined(how: str) -> Stage:
    def stage(task: StageTask) -> DataStreamWriter:
        left = events(task).filter("k = 'a'").select(F.col("t").alias("left"), F.lit(1).alias("site"))
        right = events(task).filter("k = 'b' and t < timestamp_seconds(1010)").select(F.col("t").alias("right"), F.lit(1).alias("there"))
        rows = left.join(right, F.expr("site = there and right between left and left + interval 1 second"), how)
        return task.write(rows.select(F.unix_timestamp("left").alias("left"), F.unix_timestamp("right").alias("right")), OUT)

    return stage


def grouped(timeout: str) -> Stage:
    """Counts keys, and emits a count when its state times out."""

    def count(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            if timeout == GroupStateTimeout.EventTimeTimeout:
                pd.Series([pd.Timestamp(state.getCurrentWatermarkMs(), unit="ms")]).astype("datetime64[ns]")
            (n,) = state.get
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "n": [n]})
            return
        state.update(((state.get[0] if state.exists else 0) + sum(map(len, frames)),))
        if timeout == GroupStateTimeout.EventTimeTimeout:
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 3_600_000)
        elif timeout == GroupStateTimeout.ProcessingTimeTimeout:
            state.setTimeoutDuration(3_600_000)

    def stage(task: StageTask) -> DataStreamWriter:
        rows = events(task).groupBy("k").applyInPandasWithState(count, "k string, n long", "n long", "append", timeout)
        return task.write(rows, OUT).outputMode("append")

    return stage


BY_KEY = [("a", 13), ("b", 12)]


class Counting(StatefulProcessor):
    """Counts the events of a key and emits the count when its timer fires, `every` seconds after the first event. A timer without state
    emits -1. It sets `again` further timers.
    """

    def __init__(self, every: int, to_live: int | None = None, again: int = 0) -> None:
        self._every = every
        self._to_live = to_live
        self._again = again

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        to_live = None if self._to_live is None else self._to_live * 1000
        self._count = handle.getValueState("count", "n long, again long", to_live)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        n, again = (self._count.get() if self._count.exists() else None) or (0, self._again)
        if n == 0:
            self._set(timerValues)
        self._count.update((n + sum(1 for _ in rows), again))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n, again = (self._count.get() if self._count.exists() else None) or (-1, 0)
        if again:
            self._count.update((n, again - 1))
            self._set(timerValues)
            return
        self._count.clear()
        yield Row(k=key[0], n=n)

    def _set(self, times: Any) -> None:
        now = max(times.getCurrentWatermarkInMs(), times.getCurrentProcessingTimeInMs())
        self._handle.registerTimer(now + self._every * 1000)

    def close(self) -> None:
        pass


def transformed(processor: StatefulProcessor, time: str) -> Stage:
    def stage(task: StageTask) -> DataStreamWriter:
        rows = events(task).groupBy("k").transformWithState(processor, "k string, n long", "Update", time)
        return task.write(rows, OUT).outputMode("update")

    return stage
