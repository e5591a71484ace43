"""Compares the output of the job with the same counts made without Spark.

* Every flight is in `flights-by-carrier` once, unaltered, in the partition of its carrier.
* Every window in `delays` is there once and equals the plain count. No window is missing that must have closed.

The watermark of a task is the newest scheduled time in its partition of `flights-by-carrier`, less the delay. Spark closes a window when
its end is at or below the watermark. Later windows are still open; only a drain closes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from examples.flights.data import BY_CARRIER, DELAYS, PARTITIONS, Flight, FlightsMissing, decode, load_flights, seconds_of, time_text
from examples.harness.compare import Differences, Routed, altered, listed, records
from examples.harness.streams import Home, Streams, log_home
from sluice.core.errors import SluiceError
from sluice.streams.log import Log

WATERMARK = timedelta(days=30)
_HOUR = 3600

Window = tuple[str, int]
"""Carrier, and start of the hour in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of one window. Delays are in minutes; the average over no flights is None."""

    flights: int
    departed: int
    dep_delay_sum: int
    dep_delay_avg: float | None
    arrived: int
    arr_delay_sum: int
    arr_delay_avg: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """`emitted` is the number of windows in `delays`, `closed` the number that must be there, `different` the number of differences.
    `first_differences` describes the first of them.
    """

    flights: int
    routed: int
    windows: int
    closed: int
    emitted: int
    different: int
    first_differences: tuple[str, ...]

    @property
    def exact(self) -> bool:
        return self.different == 0


ROUTED = Routed(
    stream=BY_CARRIER,
    column="carrier",
    read=decode,
    id_of=lambda flight: flight.id,
    named=lambda flight: f"flight {flight.id}",
    detail=lambda flight: f"{flight.carrier}, {time_text(flight.scheduled)}",
)


def check(log: Streams, flights: Sequence[Flight], *, watermark: timedelta = WATERMARK, kept: int = 10, home_of: Home = log_home) -> Report:
    """Compare both streams with the flights. Raises UnknownStream if a stream does not exist."""
    found = Differences(kept)
    routed = ROUTED.check(log, flights, found, home_of)
    windows = plain_totals(flights)
    closed = closed_windows(flights, log.partitions(BY_CARRIER), watermark, home_of)
    emitted = check_windows(log, windows, closed, found)
    return Report(len(flights), routed, len(windows), len(closed), emitted, found.count, tuple(found.first))


def check_windows(log: Streams, wanted: Mapping[Window, Totals], closed: set[Window], found: Differences) -> int:
    """Every window once and equal, every closed one there; the number of different windows that are there."""
    seen = set[Window]()
    for place, _, key, (window, totals) in records(log, DELAYS, decode_window, found):
        if window not in wanted:
            found.add(f"{place}: the input has no flight in window {_named(window)}")
            continue
        if window in seen:
            found.add(f"{place}: window {_named(window)} occurs again")
        seen.add(window)
        if totals != wanted[window]:
            found.add(f"{place}: window {_named(window)} differs: {altered(asdict(wanted[window]), asdict(totals))}")
        if key != window[0].encode():
            found.add(f"{place}: window {_named(window)} has key {key!r}")
    for window in sorted(closed - seen, key=lambda each: (each[1], each[0])):
        found.add(f"{DELAYS}: window {_named(window)} is closed but missing")
    return len(seen)


def plain_totals(flights: Iterable[Flight]) -> dict[Window, Totals]:
    """Counts the windows of the flights in plain Python."""
    members: dict[Window, list[Flight]] = {}
    for flight in flights:
        members.setdefault((flight.carrier, flight.scheduled // _HOUR * _HOUR), []).append(flight)
    return {window: _totals(rows) for window, rows in members.items()}


def _totals(rows: Sequence[Flight]) -> Totals:
    departures = [row.dep_delay for row in rows if row.dep_delay is not None]
    arrivals = [row.arr_delay for row in rows if row.arr_delay is not None]
    return Totals(len(rows), *_summed(departures), *_summed(arrivals))


def _summed(delays: Sequence[int]) -> tuple[int, int, float | None]:
    return len(delays), sum(delays), sum(delays) / len(delays) if delays else None


def closed_windows(
    flights: Iterable[Flight], partitions: int = PARTITIONS, watermark: timedelta = WATERMARK, home_of: Home = log_home
) -> set[Window]:
    """The windows whose end is at or below the last watermark of their task."""
    windows, newest = set[Window](), dict[int, int]()
    homes: dict[str, int] = {}
    for flight in flights:
        home = homes.setdefault(flight.carrier, home_of(flight.carrier.encode(), partitions))
        newest[home] = max(flight.scheduled, newest.get(home, 0))
        windows.add((flight.carrier, flight.scheduled // _HOUR * _HOUR))
    behind = int(watermark.total_seconds())
    return {(carrier, start) for carrier, start in windows if start + _HOUR <= newest[homes[carrier]] - behind}


def decode_window(value: bytes | None) -> tuple[Window, Totals]:
    """Decodes a row of `delays`. An absent average is None. Raises ValueError if it is not a window."""
    try:
        fields = {"dep_delay_avg": None, "arr_delay_avg": None} | json.loads(value or b"null")
        window = fields.pop("carrier"), seconds_of(fields.pop("hour"))
        return window, Totals(**fields)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a window: {value!r:.300} ({error})") from error


def _named(window: Window) -> str:
    return f"{window[0]} {time_text(window[1])}"


def summary(report: Report) -> str:
    """The totals and the first differences, one per line."""
    lines = [
        f"{report.routed:,} of {report.flights:,} flights routed, {report.emitted:,} windows closed, "
        f"{report.windows - report.emitted:,} still open, {report.different:,} differences"
    ]
    return "\n".join([*lines, *listed(report.first_differences, report.different)])


def main(
    log_dir: Annotated[Path, typer.Option(help="Directory of the embedded log.")],
    month_limit: Annotated[int, typer.Option(min=1, max=12, help="The input was the first N months.")] = 12,
    watermark_days: Annotated[float, typer.Option(min=0, help="The job's watermark delay.")] = WATERMARK.days,
) -> None:
    """Compare the routed flights and the windows in the log with the input; exit 1 if anything differs."""
    try:
        report = check(Log(log_dir), load_flights(month_limit), watermark=timedelta(days=watermark_days))
    except (FlightsMissing, SluiceError) as error:
        typer.echo(f"check: {error}", err=True)
        raise SystemExit(2) from None
    typer.echo(summary(report))
    raise SystemExit(0 if report.exact else 1)


if __name__ == "__main__":
    typer.run(main)
