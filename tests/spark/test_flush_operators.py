"""The effect of a flush on each kind of stateful operator, and how it is predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupStateTimeout

from containers.spark.operators import LogicalPlan, unflushable
from containers.spark.task import StageTask
from tests.spark.conftest import Bench
from tests.spark.drainworld import OUT, Drained, Stage, events
from tests.spark.operators import BY_KEY, EVENTS, Counting, grouped, joined, transformed

pytestmark = pytest.mark.spark


def starts(counts: DataFrame, task: StageTask) -> DataStreamWriter:
    return task.write(counts.select(F.unix_timestamp("window.start").alias("start"), "count"), OUT).outputMode("append")


def sliding(task: StageTask) -> DataStreamWriter:
    return starts(events(task).groupBy(F.window("t", "10 seconds", "5 seconds")).count(), task)


def sessions(task: StageTask) -> DataStreamWriter:
    rows = events(task).groupBy(F.session_window("t", "5 seconds").alias("window"), "k").count()
    return starts(rows, task)


def chained(task: StageTask) -> DataStreamWriter:
    """The number of windows of 10 seconds in each window of 20."""
    small = events(task).groupBy(F.window("t", "10 seconds"), "k").count()
    return starts(small.groupBy(F.window(F.window_time("window"), "20 seconds")).count(), task)


def distinct_keys(task: StageTask) -> DataStreamWriter:
    return task.write(events(task).dropDuplicatesWithinWatermark(["k"]).select("k"), OUT)


def distinct_events(task: StageTask) -> DataStreamWriter:
    return task.write(events(task).dropDuplicates(["k", "t"]).select("k"), OUT)


def counted_by_key(task: StageTask) -> DataStreamWriter:
    return task.write(events(task).groupBy("k").count(), OUT).outputMode("update")


def counted_in_full(task: StageTask) -> DataStreamWriter:
    return task.write(events(task).groupBy(F.window("t", "10 seconds")).count().select("count"), OUT).outputMode("complete")


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

REPEATED = ("sliding", "inner join", "dropDuplicates", "no timeouts", "update without a watermark")
"""Only in `make test-long`. The others show as much: windows that close, rows of a join that have no pair, keys that are forgotten, and
state that a flush leaves. test_keep.py has what is predicted for them."""


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.long if each in REPEATED else ()) for each in CASES])
def test_a_flush_of_a_kind_of_operator(log_first: Bench, name: str) -> None:
    case = CASES[name]
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, case.stage).runs()
    flushed = drained.flusher().flush()
    output = {tuple(None if pd.isna(value) else value for value in row.values()) for row in full(drained.output())}
    assert output == set(case.output)
    if case.rows_left == 0:
        assert counts_of(tuple(row.values()) for row in full(drained.output())) == case.output
    assert flushed.rows_left == case.rows_left
    assert bool(flushed.operators_left) == bool(case.unflushable)
    assert unflushable(LogicalPlan.of(case.stage(log_first.task(drained.grant))).operators) == case.unflushable


def full(rows: list[dict[str, object]]) -> list[dict[str, Any]]:
    """Adds the nulls, which JSON omits."""
    names = max(rows, key=len, default={})
    return [{name: row.get(name) for name in names} for row in rows]


def test_timeouts_of_processing_time_fire_without_waiting_for_them(log_first: Bench) -> None:
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, grouped(GroupStateTimeout.ProcessingTimeTimeout)).runs_once()
    before = drained.committed
    flushed = drained.flusher().flush()
    assert (flushed.batch - before, flushed.rows_left) == (2, 0)
    assert {(row["k"], row["n"]) for row in drained.output()} == set(BY_KEY)


# Timers of processing time are also in the two tests that follow it, and take much longer.
TIMERS = {
    "state that expires after its timer": (Counting(every=600, to_live=3600), "ProcessingTime", 2),
    "timers that set others": (Counting(every=600, again=2), "ProcessingTime", 4),
    "event time": (Counting(every=600), "EventTime", 1),
}


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.long if each != "event time" else ()) for each in TIMERS])
def test_timers_of_transform_with_state_fire_and_find_their_state(log_first: Bench, name: str) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    processor, time, rounds = TIMERS[name]
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, transformed(processor, time)).runs_once()
    before = drained.committed
    flushed = drained.flusher().flush()
    assert {(row["k"], row["n"]) for row in drained.output()} == set(BY_KEY)
    assert (flushed.rows_left, flushed.operators_left) == (0, ())
    assert flushed.batch - before == rounds


@pytest.mark.long
def test_a_timer_fires_before_the_state_of_another_key_expires(log_first: Bench) -> None:
    """Time advances to the timer of "a" first, not directly to that of "b", at which the state of "a" would have expired."""
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    drained = Drained(log_first, transformed(Counting(every=600, to_live=700), "ProcessingTime"))
    log_first.feed([{"t": 1000, "k": "a"}], batch=0)
    drained.runs_once()
    log_first.feed([{"t": 1000, "k": "b"}], batch=1)
    drained.flusher(after=timedelta(seconds=500)).advance(drained.ends())
    before = drained.committed
    flushed = drained.flusher().flush()
    assert {(row["k"], row["n"]) for row in drained.output()} == {("a", 1), ("b", 1)}
    assert (flushed.batch - before, flushed.rows_left) == (3, 0)


@pytest.mark.long
def test_timers_that_are_set_again_without_end_are_given_up_and_reported(log_first: Bench) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    log_first.feed(EVENTS, batch=0)
    drained = Drained(log_first, transformed(Counting(every=600, again=1_000_000), "ProcessingTime")).runs_once()
    before = drained.committed
    flushed = drained.flusher(rounds=2).flush()
    assert (flushed.batch - before, flushed.rows_left) == (2, 2)
    assert flushed.operators_left == ("transformWithState (2 rows)",)


@pytest.mark.long  # test_a_timer_fires_before_the_state_of_another_key_expires has state that expires
def test_state_without_output_expires_in_a_flush(log_first: Bench) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    log_first.feed(EVENTS, batch=0)
    processor = Counting(every=7200, to_live=3600)  # its timers find no state, as also without a flush
    drained = Drained(log_first, transformed(processor, "ProcessingTime")).runs_once()
    flushed = drained.flusher().flush()
    assert flushed.rows_left == 0
    assert {row["n"] for row in drained.output()} == {-1}
    assert drained.plan(flushed.batch).timestamp < datetime.now(UTC) + timedelta(hours=3)
