"""Compares the output of the job with the same join made by pandas.

* Every departure and every hour of weather is in its intermediate stream once, unaltered, in the partition of its origin.
* Every departure with weather is in the output once, with the weather of its hour. It is written as soon as both rows have been read, so
  none may be missing.
* Every departure without weather is in the output once, without weather, if its hour is closed; otherwise it is not there.

The watermark of a task is the older one of the newest departure and the newest hour of weather in its partitions, each less the delay.
Spark writes a departure without weather when the watermark is later than it. Later departures still wait: the report names them, and only a
drain writes them. After a restart Spark's watermark does not move until the query has read both sides again. The check therefore assumes
that every container ran for a while after its last restart.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from examples.flights.data import Flight, FlightsMissing, flight_of, time_text
from examples.flights.data import decode as decode_flight
from examples.harness.compare import Differences, Routed, altered, listed, records
from examples.harness.streams import Streams, log_home
from examples.weather.data import (
    DEPARTURES_BY_ORIGIN,
    FIELDS,
    HOUR,
    JOINED,
    PARTITIONS,
    WEATHER_BY_ORIGIN,
    Weather,
    decode,
    load_departures,
    load_weather,
    weather_of,
)
from sluice.core.errors import SluiceError
from sluice.streams.log import Log

WATERMARK = timedelta(days=10)
_OF_WEATHER = FIELDS[1:]
"""What the weather adds to a departure: the measurements, and `hour`, which is None if there is no weather."""

Departed = tuple[Flight, Weather | None]


def _when(flight: Flight) -> str:
    return f"{flight.origin}, {time_text(flight.scheduled)}"


ROUTED_DEPARTURES = Routed(
    stream=DEPARTURES_BY_ORIGIN,
    column="origin",
    read=decode_flight,
    id_of=lambda flight: flight.id,
    named=lambda flight: f"departure {flight.id}",
    detail=_when,
)
ROUTED_WEATHER = Routed(
    stream=WEATHER_BY_ORIGIN,
    column="origin",
    read=decode,
    id_of=lambda weather: (weather.origin, weather.hour),
    named=lambda weather: f"the weather of {time_text(weather.hour)}",
    detail=lambda weather: weather.origin,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The batch join: id of the departure -> its weather. `closed` are the departures without weather that must be in the output,
    `waiting` those that must not be there yet.
    """

    joined: Mapping[int, Departed]
    closed: frozenset[int]
    waiting: frozenset[int]

    @property
    def due(self) -> int:
        """The number of records that the output must have."""
        return len(self.joined) - len(self.waiting)


@dataclass(frozen=True, slots=True)
class Report:
    """`routed` and `routed_weather` count records of the intermediate streams.

    `matched` and `unmatched` count departures in the output with and without weather. `waiting` are the ids of the departures that must not
    be there yet. `different` is the number of differences, and `first_differences` describes the first of them.
    """

    departures: int
    weather: int
    routed: int
    routed_weather: int
    matched: int
    unmatched: int
    waiting: tuple[int, ...]
    different: int
    first_differences: tuple[str, ...]

    @property
    def exact(self) -> bool:
        return self.different == 0


def check(
    log: Streams, departures: Sequence[Flight], weather: Sequence[Weather], *, watermark: timedelta = WATERMARK, kept: int = 10
) -> Report:
    """Compare the three streams with the inputs. Raises UnknownStream if a stream does not exist."""
    found = Differences(kept)
    routed = ROUTED_DEPARTURES.check(log, departures, found)
    routed_weather = ROUTED_WEATHER.check(log, weather, found)
    wanted = batch_join(departures, weather, watermark, log.partitions(DEPARTURES_BY_ORIGIN))
    matched, unmatched = check_joined(log, wanted, found)
    waiting = tuple(sorted(wanted.waiting))
    reported = tuple(found.first)
    return Report(len(departures), len(weather), routed, routed_weather, matched, unmatched, waiting, found.count, reported)


def check_joined(log: Streams, wanted: Wanted, found: Differences) -> tuple[int, int]:
    """Check that every departure that is due is there once, with its own weather. Returns the number of distinct departures with
    weather, and without.
    """
    seen: dict[int, bool] = {}
    partitions = log.partitions(JOINED)
    for place, partition, key, got in records(log, JOINED, decode_joined, found):
        flight, weather = got
        name = f"{place}: departure {flight.id}"
        if flight.id not in wanted.joined:
            found.add(f"{name} is not in the input")
            continue
        if flight.id in seen:
            found.add(f"{name} occurs again")
        seen[flight.id] = weather is not None
        _check_row(name, wanted.joined[flight.id], got, found)
        if flight.id in wanted.waiting:
            found.add(f"{name} ({_when(flight)}) was written without weather although its weather may still arrive")
        if key != flight.origin.encode() or partition != log_home(key, partitions):
            found.add(f"{name} has key {key!r}, but its origin is {flight.origin}")
    for id_, (flight, weather) in wanted.joined.items():
        if id_ not in seen and id_ not in wanted.waiting:
            has = "it has no weather, but its hour is closed" if weather is None else f"its weather is that of {time_text(weather.hour)}"
            found.add(f"{JOINED}: departure {id_} ({_when(flight)}) is missing; {has}")
    matched = sum(seen.values())
    return matched, len(seen) - matched


def _check_row(name: str, expected: Departed, got: Departed, found: Differences) -> None:
    if got[0] != expected[0]:
        found.add(f"{name} is altered: {altered(asdict(expected[0]), asdict(got[0]))}")
    match expected[1], got[1]:
        case None, None:
            pass
        case None, wrong if wrong:
            found.add(f"{name} has the weather of {time_text(wrong.hour)}, but there is no weather for it")
        case right, None if right:
            found.add(f"{name} has no weather, but there is a record for {time_text(right.hour)}")
        case right, wrong if right and wrong and right != wrong:
            found.add(f"{name} has other weather: {altered(asdict(right), asdict(wrong))}")


def batch_join(
    departures: Sequence[Flight], weather: Sequence[Weather], watermark: timedelta = WATERMARK, partitions: int = PARTITIONS
) -> Wanted:
    """The join made by pandas: by origin and by the hour of the departure."""
    left = pd.DataFrame({"origin": [f.origin for f in departures], "hour": [f.scheduled // HOUR * HOUR for f in departures]})
    right = pd.DataFrame({"origin": [w.origin for w in weather], "hour": [w.hour for w in weather], "row": range(len(weather))})
    merged = left.merge(right, on=["origin", "hour"], how="left", validate="many_to_one")
    rows = [None if missing else weather[int(row)] for row, missing in zip(merged["row"], merged["row"].isna(), strict=True)]
    joined = {flight.id: (flight, found) for flight, found in zip(departures, rows, strict=True)}
    marks = watermarks(departures, weather, watermark, partitions)
    without = {flight.id: flight for flight, found in joined.values() if found is None}
    closed = frozenset(id_ for id_, flight in without.items() if flight.scheduled < marks[log_home(flight.origin.encode(), partitions)])
    return Wanted(joined, closed, frozenset(without) - closed)


def watermarks(
    departures: Sequence[Flight], weather: Sequence[Weather], watermark: timedelta, partitions: int = PARTITIONS
) -> Mapping[int, int]:
    """Partition -> the last watermark of the task that joins it, in seconds since 1970; 0 if the task has not read both sides."""
    newest: tuple[defaultdict[int, int], defaultdict[int, int]] = defaultdict(int), defaultdict(int)
    for flight in departures:
        home = log_home(flight.origin.encode(), partitions)
        newest[0][home] = max(newest[0][home], flight.scheduled)
    for each in weather:
        home = log_home(each.origin.encode(), partitions)
        newest[1][home] = max(newest[1][home], each.hour)
    behind = int(watermark.total_seconds())
    return {home: max(0, min(side[home] for side in newest) - behind) for home in range(partitions)}


def decode_joined(value: bytes | None) -> Departed:
    """Decodes a row of the output. Raises ValueError if it is not a departure with weather."""
    try:
        found: dict[str, Any] = json.loads(value or b"null")
        added = {name: found.pop(name) for name in _OF_WEATHER if name in found}
        flight = flight_of(found)
        return flight, weather_of(added | {"origin": flight.origin}) if added else None
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise ValueError(f"not a departure with weather: {value!r:.300} ({error})") from error


def summary(report: Report) -> str:
    """The totals, the departures that wait, and the first differences, one per line."""
    lines = [
        f"{report.routed:,} of {report.departures:,} departures, {report.routed_weather:,} of {report.weather:,} hours of weather routed",
        f"{report.matched:,} departures with weather, {report.unmatched:,} without, {len(report.waiting):,} still waiting, "
        f"{report.different:,} differences",
    ]
    if report.waiting:
        first = ", ".join(map(str, report.waiting[:8]))
        lines.append(f"waiting: {first}{', …' if len(report.waiting) > 8 else ''}")
    return "\n".join([*lines, *listed(report.first_differences, report.different)])


def main(
    log_dir: Annotated[Path, typer.Option(help="Directory of the embedded log.")],
    month_limit: Annotated[int, typer.Option(min=1, max=12, help="The input was the first N months.")] = 3,
    watermark_days: Annotated[float, typer.Option(min=0, help="The job's watermark delay.")] = WATERMARK.days,
) -> None:
    """Compare the routed streams and the join in the log with the input; exit 1 if anything differs."""
    try:
        departures, weather = load_departures(month_limit), load_weather(month_limit)
        report = check(Log(log_dir), departures, weather, watermark=timedelta(days=watermark_days))
    except (FlightsMissing, SluiceError) as error:
        typer.echo(f"check: {error}", err=True)
        raise SystemExit(2) from None
    typer.echo(summary(report))
    raise SystemExit(0 if report.exact else 1)


if __name__ == "__main__":
    typer.run(main)
