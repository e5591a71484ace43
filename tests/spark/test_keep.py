"""A drain that keeps the state of a running query, and how its operators are compared with those of the next version."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupStateTimeout

from containers.spark.operators import LogicalPlan, Operator
from containers.spark.task import StageTask
from sluice.core.drain import Effect
from tests.spark.conftest import SOON, Bench
from tests.spark.drainworld import OUT, Drained, Stage, events
from tests.spark.operators import EVENTS, Counting, grouped, joined, transformed

pytestmark = pytest.mark.spark


def once(task: StageTask) -> DataStreamWriter:
    return task.write(events(task, "1 hour").dropDuplicatesWithinWatermark(["t"]).select(F.unix_timestamp("t").alias("t")), OUT)


def test_a_held_query_reads_the_rest_keeps_its_state_and_continues_with_it(bench: Bench) -> None:
    bench.feed(EVENTS, batch=0)
    drained = Drained(bench, once, max_rows=10)
    held, (query,) = drained.pauses(), bench.queries
    before = drained.committed
    bench.feed([*EVENTS, *({"t": 2000 + second, "k": "a"} for second in range(5))], batch=1)
    ends = drained.ends()
    bench.feed([{"t": 3000, "k": "a"}], batch=2)
    flusher = drained.flusher(paused=held)
    assert flusher.keep(ends) == before + 3
    assert flusher.keep(ends) == before + 3
    assert len(drained.output()) == 30
    held.resume()
    bench.feed([*EVENTS, {"t": 4000, "k": "b"}], batch=3)
    query.processAllAvailable()
    assert len(drained.output()) == 32
    assert held.end(SOON, Event()) or bench.stop(query)
    again = Drained(bench, once).runs()
    assert again.flusher().keep(again.ends()) == again.committed
    bench.feed(EVENTS, batch=4)
    again.runs()
    assert len(again.output()) == 32


# --- comparing --------------------------------------------------------------------------------------------------------


def counted(change: Callable[[DataFrame], DataFrame], window: str = "10 seconds", slide: str | None = None, mode: str = "append") -> Stage:
    def stage(task: StageTask) -> DataStreamWriter:
        counts = change(events(task)).groupBy(F.window("t", window, slide), "k")
        return task.write(counts.agg(F.count("*").alias("n")).select("n"), OUT).outputMode(mode)

    return stage


def distinct(*keys: str, watermark: str = "10 seconds") -> Stage:
    def stage(task: StageTask) -> DataStreamWriter:
        return task.write(events(task, watermark).dropDuplicatesWithinWatermark([*keys]).select("k"), OUT)

    return stage


def summed(function: str) -> Stage:
    def stage(task: StageTask) -> DataStreamWriter:
        rows = events(task).withColumn("n", F.lit(1)).groupBy(F.window("t", "10 seconds")).agg(F.expr(function).alias("n"))
        return task.write(rows.select("n"), OUT).outputMode("append")

    return stage


def same(rows: DataFrame) -> DataFrame:
    return rows


class Plans:
    """A source with the columns of Sluice's sources, for plans of queries that never run: no real source has to start for them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read(self, stream: object) -> DataFrame:
        return self._spark.readStream.format("rate").load().select(F.lit("{}").cast("binary").alias("value"))

    def write(self, rows: DataFrame, stream: object) -> DataStreamWriter:
        return rows.writeStream

    def of(self, stage: Stage) -> tuple[Operator, ...]:
        return LogicalPlan.of(stage(cast(StageTask, self))).operators


def identities(spark: SparkSession, stage: Stage) -> list[str]:
    return [each.identity for each in Plans(spark).of(stage)]


SAME = {
    "a filter before it": (counted(same), counted(lambda rows: rows.filter("k <> 'z'"))),
    "a projection before it": (counted(same), counted(lambda rows: rows.select("k", "t", F.lit(7).alias("more")))),
    "a watermark": (distinct("k"), distinct("k", watermark="1 hour")),
    "the function of a user": (grouped(GroupStateTimeout.EventTimeTimeout), grouped(GroupStateTimeout.EventTimeTimeout)),
    "a processor": (transformed(Counting(1), "EventTime"), transformed(Counting(60), "EventTime")),
}

DIFFERENT = {
    "the length of a window": (counted(same), counted(same, "20 seconds")),
    "the slide of a window": (counted(same), counted(same, slide="5 seconds")),
    "the output mode": (counted(same), counted(same, mode="update")),
    "an aggregate": (summed("sum(n)"), summed("max(n)")),
    "a key": (distinct("k"), distinct("k", "t")),
    "the order of keys": (distinct("t", "k"), distinct("k", "t")),
    "the operator": (distinct("k"), counted(same)),
    "the type of a join": (joined("inner"), joined("left_outer")),
    "a timeout": (grouped(GroupStateTimeout.EventTimeTimeout), grouped(GroupStateTimeout.ProcessingTimeTimeout)),
    "a time mode": (transformed(Counting(1), "EventTime"), transformed(Counting(1), "ProcessingTime")),
}


@pytest.mark.parametrize("name", SAME)
def test_state_can_still_be_used_after_a_change_of(spark: SparkSession, name: str) -> None:
    before, after = (identities(spark, stage) for stage in SAME[name])
    assert before == after
    assert before


@pytest.mark.parametrize("name", DIFFERENT)
def test_state_cannot_be_used_after_a_change_of(spark: SparkSession, name: str) -> None:
    before, after = (identities(spark, stage) for stage in DIFFERENT[name])
    assert before != after


def test_operators_are_named_as_in_the_code_of_users(spark: SparkSession) -> None:
    assert identities(spark, distinct("k", "t")) == ["dropDuplicatesWithinWatermark by k string, t timestamp"]
    assert identities(spark, lambda task: task.write(events(task), OUT)) == []


EFFECTS = {
    "windows": (counted(same), [Effect.EMITS]),
    "windows in update mode": (counted(same, mode="update"), [Effect.DROPS]),
    "deduplication": (distinct("k"), [Effect.FORGETS]),
    "inner join": (joined("inner"), [Effect.DROPS]),
    "outer join": (joined("left_outer"), [Effect.UNMATCHED]),
    "timers": (grouped(GroupStateTimeout.EventTimeTimeout), [Effect.FIRES]),
    "no timeouts": (grouped(GroupStateTimeout.NoTimeout), [Effect.LEAVES]),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_the_effect_of_a_flush_is_predicted_for_the_state_of(spark: SparkSession, name: str) -> None:
    stage, effects = EFFECTS[name]
    assert [each.effect for each in Plans(spark).of(stage)] == effects
