"""What a flush makes of each kind of stateful operator, and what is known of it beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from containers.spark.operators import unflushable
from containers.spark.task import StageTask
from tests.spark.conftest import Bench
from tests.spark.drainworld import OUT, Drained, Stage, events

pytestmark = pytest.mark.spark

EVENTS = [{"t": 1000 + second, "k": "ab"[second % 2]} for second in range(25)]
"""13 of "a", 12 of "b"."""


def starts(counts: DataFrame, task: StageTask) -> DataStreamWriter:
    return task.write(counts.select(F.unix_timestamp("window.start").alias("start"), "count"), OUT).outputMode("append")


def sliding(task: StageTask) -> DataStreamWriter:
    return starts(events(task).groupBy(F.window("t", "10 seconds", "5 seconds")).count(), task)


def sessions(task: StageTask) -> DataStreamWriter:
    rows = events(task).groupBy(F.session_window("t", "5 seconds").alias("window"), "k").count()
    return starts(rows, task)


def chained(task: StageTask) -> DataStreamWriter:
    """Of windows of 10 seconds how many there are in 20."""
    small = events(task).groupBy(F.window("t", "10 seconds"), "k").count()
    return starts(small.groupBy(F.window(F.window_time("window"), "20 seconds")).count(), task)


def joined(how: str) -> Stage:
    def stage(task: StageTask) -> DataStreamWriter:
        left = events(task).filter("k = 'a'").select(F.col("t").alias("left"), F.lit(1).alias("site"))
        right = events(task).filter("k = 'b' and t < timestamp_seconds(1010)").select(F.col("t").alias("right"), F.lit(1).alias("there"))
        rows = left.join(right, F.expr("site = there and right between left and left + interval 1 second"), how)
        return task.write(rows.select(F.unix_timestamp("left").alias("left"), F.unix_timestamp("right").alias("right")), OUT)

    return stage


def distinct_keys(task: StageTask) -> DataStreamWriter:
    return task.write(events(task).dropDuplicatesWithinWatermark(["k"]).select("k"), OUT)


def distinct_events(task: StageTask) -> DataStreamWriter:
    return task.write(events(task).dropDuplicates(["k", "t"]).select("k"), OUT)


def counted_by_key(task: StageTask) -> DataStreamWriter:
    return task.write(events(task).groupBy("k").count(), OUT).outputMode("update")


def counted_in_full(task: StageTask) -> DataStreamWriter:
    return task.write(events(task).groupBy(F.window("t", "10 seconds")).count().select("count"), OUT).outputMode("complete")


def grouped(timeout: str) -> Stage:
    """Counts of keys, given out when their state times out."""

    def count(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
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


@dataclass(frozen=True)
class Case:
    stage: Stage
    output: Counter[tuple[Any, ...]]
    rows_left: int = 0
    unflushable: tuple[str, ...] = ()


def counts_of(rows: Iterable[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    return Counter(rows)


PAIRS = [(1000 + second, 1001 + second) for second in range(0, 10, 2)]
ALONE = [(1000 + second, None) for second in range(10, 26, 2)]
BY_KEY = [("a", 13), ("b", 12)]

CASES = {
    "sliding": Case(sliding, counts_of([(995, 5), (1000, 10), (1005, 10), (1010, 10), (1015, 10), (1020, 5)])),
    "sessions": Case(sessions, counts_of([(1000, 13), (1001, 12)])),
    "chained": Case(chained, counts_of([(1000, 4), (1020, 2)])),
    "inner join": Case(joined("inner"), counts_of(PAIRS)),
    "left outer join": Case(joined("left_outer"), counts_of([*PAIRS, *ALONE])),
    "dropDuplicatesWithinWatermark": Case(distinct_keys, counts_of([("a",), ("b",)])),
    "dropDuplicates": Case(distinct_events, counts_of([("a",)] * 13 + [("b",)] * 12)),
    "event-time timeouts": Case(grouped(GroupStateTimeout.EventTimeTimeout), counts_of(BY_KEY)),
    "no timeouts": Case(
        grouped(GroupStateTimeout.NoTimeout), counts_of([]), rows_left=2, unflushable=("applyInPandasWithState: it sets no timeouts",)
    ),
    "update without a watermark": Case(
        counted_by_key, counts_of(BY_KEY), rows_left=2, unflushable=("aggregation: no column of its key has a watermark",)
    ),
    "complete": Case(
        counted_in_full, counts_of([(10,), (10,), (5,)]), rows_left=3, unflushable=("aggregation: its output mode is complete",)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_flush_of_a_kind_of_operator(either: Bench, name: str) -> None:
    case = CASES[name]
    either.feed(EVENTS, batch=0)
    drained = Drained(either, case.stage).runs()
    flushed = drained.flusher().flush()
    output = {tuple(None if pd.isna(value) else value for value in row.values()) for row in full(drained.output())}
    assert output == set(case.output)
    if case.rows_left == 0:
        assert counts_of(tuple(row.values()) for row in full(drained.output())) == case.output
    assert flushed.rows_left == case.rows_left
    assert bool(flushed.operators_left) == bool(case.unflushable)
    assert unflushable(case.stage(either.task(drained.grant))) == case.unflushable


def full(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """JSON leaves out what is null."""
    names = max(rows, key=len, default={})
    return [{name: row.get(name) for name in names} for row in rows]


def test_timeouts_of_processing_time_fire_without_waiting_for_them(either: Bench) -> None:
    either.feed(EVENTS, batch=0)
    drained = Drained(either, grouped(GroupStateTimeout.ProcessingTimeTimeout)).runs_once()
    flushed = drained.flusher().flush()
    assert (flushed.rounds, flushed.rows_left) == (2, 0)
    assert {(row["k"], row["n"]) for row in drained.output()} == set(BY_KEY)


class Counting(StatefulProcessor):
    """Counts a key's events and gives the count out when its timer fires, `every` seconds after the first event. A timer that finds no
    state gives out -1. It sets `again` further timers."""

    def __init__(self, every: int, to_live: int | None = None, again: int = 0) -> None:
        self._every = every
        self._to_live = to_live
        self._again = again

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        to_live = None if self._to_live is None else self._to_live * 1000
        self._count = handle.getValueState("count", "n long, again long", to_live)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[Row]:
        n, again = self._count.get() if self._count.exists() else (0, self._again)
        if n == 0:
            self._set(timerValues)
        self._count.update((n + sum(1 for _ in rows), again))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n, again = self._count.get() if self._count.exists() else (-1, 0)
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


TIMERS = {
    "processing time": (Counting(every=600), "ProcessingTime", 2),
    "state that expires after its timer": (Counting(every=600, to_live=3600), "ProcessingTime", 2),
    "timers that set others": (Counting(every=600, again=2), "ProcessingTime", 4),
    "event time": (Counting(every=600), "EventTime", 1),
}


@pytest.mark.parametrize("name", TIMERS)
def test_timers_of_transform_with_state_fire_and_find_their_state(either: Bench, name: str) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    processor, time, rounds = TIMERS[name]
    either.feed(EVENTS, batch=0)
    drained = Drained(either, transformed(processor, time)).runs_once()
    flushed = drained.flusher().flush()
    assert {(row["k"], row["n"]) for row in drained.output()} == set(BY_KEY)
    assert (flushed.rows_left, flushed.operators_left) == (0, ())
    assert flushed.rounds == rounds


def test_a_timer_fires_before_the_state_of_another_key_expires(either: Bench) -> None:
    """Time moves on to the timer of "a", and not at once to that of "b", by which the state of "a" has expired."""
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    drained = Drained(either, transformed(Counting(every=600, to_live=700), "ProcessingTime"))
    either.feed([{"t": 1000, "k": "a"}], batch=0)
    drained.runs_once()
    either.feed([{"t": 1000, "k": "b"}], batch=1)
    drained.flusher(after=timedelta(seconds=500)).advance(drained.ends())
    flushed = drained.flusher().flush()
    assert {(row["k"], row["n"]) for row in drained.output()} == {("a", 1), ("b", 1)}
    assert (flushed.rounds, flushed.rows_left) == (3, 0)


def test_timers_that_never_end_are_given_up_and_told(either: Bench) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    either.feed(EVENTS, batch=0)
    drained = Drained(either, transformed(Counting(every=600, again=1_000_000), "ProcessingTime")).runs_once()
    flushed = drained.flusher(rounds=3).flush()
    assert (flushed.rounds, flushed.rows_left) == (3, 2)
    assert flushed.operators_left == ("transformWithState (2 rows)",)


def test_state_that_only_expires_is_let_expire(either: Bench) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    either.feed(EVENTS, batch=0)
    processor = Counting(every=7200, to_live=3600)  # its timers find nothing, in the flush as ever
    drained = Drained(either, transformed(processor, "ProcessingTime")).runs_once()
    flushed = drained.flusher().flush()
    assert flushed.rows_left == 0
    assert {row["n"] for row in drained.output()} == {-1}
    assert drained.plan(flushed.batch).timestamp < datetime.now(UTC) + timedelta(hours=3)
