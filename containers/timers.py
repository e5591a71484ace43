"""What a store still waits for when its windows are closed: timers of user code, and state that expires.

A flush moves the time of day on, which both timers of processing time and the time to live of state go by. A timer must find the state
that it was set for, so time moves only as far as no state expires first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


TRANSFORM = "transformWithState"
GROUPS = ("applyInPandasWithState", "flatMapGroupsWithState")
"""How Spark's names of the operators begin that run user code."""

_EXPIRES = "ttlExpirationMs"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(milliseconds=1)
"""Spark fires the timers that are before the time of the batch, not at it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Of all timers the first and the last; of all state with a time to live when the first and the last of it expires. `before` is the
    last timer before anything expires. None for none."""

    first: datetime | None = None
    last: datetime | None = None
    before: datetime | None = None
    expires_first: datetime | None = None
    expires_last: datetime | None = None


def next_moment(waiting: Waiting) -> datetime | None:
    """The time of the next batch that fires timers, or lets the rest expire; None if nothing waits."""
    if waiting.first is not None and waiting.last is not None:
        all_at_once = waiting.expires_first is None or waiting.last < waiting.expires_first
        return (waiting.last if all_at_once else waiting.before or waiting.first) + _TICK
    return None if waiting.expires_last is None else waiting.expires_last + _TICK


def waits_for(spark: SparkSession, directory: Path) -> Waiting:
    """Read it from the last committed batch of the store."""
    timers = [_Ends.of(times) for times in _timers(spark, directory)]
    expiries = [_Ends.of(times) for times in _expiries(spark, directory)]
    first, last = _first(timers), _last(timers)
    expires_first, expires_last = _first(expiries), _last(expiries)
    before = None
    if expires_first is not None and last is not None and last >= expires_first:
        limit = (expires_first - _EPOCH) // _TICK
        before = _last([_Ends.of(times.filter(F.col("at") < limit - 1)) for times in _timers(spark, directory)])
    return Waiting(first, last, before, expires_first, expires_last)


@dataclass(frozen=True, slots=True)
class _Ends:
    first: datetime | None
    last: datetime | None

    @classmethod
    def of(cls, times: DataFrame) -> _Ends:
        (row,) = times.agg(F.min("at"), F.max("at")).collect()
        return cls(*(None if millis is None else _EPOCH + millis * _TICK for millis in row))


def _first(ends: list[_Ends]) -> datetime | None:
    return min((each.first for each in ends if each.first is not None), default=None)


def _last(ends: list[_Ends]) -> datetime | None:
    return max((each.last for each in ends if each.last is not None), default=None)


def _operators(spark: SparkSession, directory: Path) -> dict[int, tuple[str, str | None]]:
    rows = spark.read.format("state-metadata").load(str(directory)).select("operatorId", "operatorName", "operatorProperties").collect()
    return {id_: (name, properties) for id_, name, properties in rows}


def _timers(spark: SparkSession, directory: Path) -> Iterator[DataFrame]:
    """A DataFrame with the column "at", milliseconds, for each operator with timers."""
    for id_, (name, _) in _operators(spark, directory).items():
        store = spark.read.format("statestore").option("operatorId", str(id_))
        if name.startswith(TRANSFORM):
            yield store.option("readRegisteredTimers", "true").load(str(directory)).select(F.col("expiration_timestamp_ms").alias("at"))
        elif name.startswith(GROUPS):
            yield store.load(str(directory)).select(F.col("value.timeoutTimestamp").alias("at")).filter("at >= 0")


def _expiries(spark: SparkSession, directory: Path) -> Iterator[DataFrame]:
    """The same for each variable with a time to live."""
    for id_, (name, properties) in _operators(spark, directory).items():
        variables: list[Any] = json.loads(properties or "{}").get("stateVariables", []) if name.startswith(TRANSFORM) else []
        for variable in variables:
            if variable.get("ttlEnabled"):
                store = spark.read.format("statestore").option("operatorId", str(id_)).option("stateVarName", variable["stateName"])
                found = store.load(str(directory))
                yield found.select(_expiry(found).alias("at"))


def _expiry(variable: DataFrame) -> Column:
    """Values, lists and maps spell it in columns of other names."""
    columns = [field.name for field in variable.schema.fields if _EXPIRES in getattr(field.dataType, "names", ())]
    return reduce(F.coalesce, [F.col(f"{column}.{_EXPIRES}") for column in columns])
