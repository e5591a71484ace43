"""The check finds every kind of error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.flights.check import Report, Totals, Window, check, closed_windows, plain_totals, summary
from examples.flights.data import BY_CARRIER, DELAYS, PARTITIONS, YEAR_STARTS, Flight, encode, time_text
from sluice.core.errors import UnknownStream
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer, partition_of
from sluice.wire.body import CONTROL_RECORD_HEADER

DAY = timedelta(days=1)
WRITER = Writer(Lineage("test"), "test", Generation(1))
CARRIERS = ["UA", "AA", "EV", "WN", "US"]  # in partitions 0, 1, 2, 3 and 0


def flight(row: int) -> Flight:
    delay = None if row % 7 == 0 else row % 50 - 20
    return Flight(row, YEAR_STARTS + row * 600, CARRIERS[row % 5], row, None if row % 9 == 0 else "N1", "EWR", "IAH", delay, delay)


@pytest.fixture
def flights() -> list[Flight]:
    """Three days, with a flight every ten minutes."""
    return [flight(row) for row in range(3 * 144)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "log")
    log.create(BY_CARRIER, PARTITIONS)
    log.create(DELAYS, 1)
    return log


def record(each: Flight, partition: int | None = None) -> Record:
    return Record(encode(each), each.carrier.encode(), partition)


def window_record(window: Window, totals: Totals) -> Record:
    fields = {"carrier": window[0], "hour": time_text(window[1])} | asdict(totals)
    return Record(json.dumps({name: value for name, value in fields.items() if value is not None}).encode(), window[0].encode())


def windows_of(flights: list[Flight]) -> list[tuple[Window, Totals]]:
    closed = closed_windows(flights, watermark=DAY)
    return sorted((window, totals) for window, totals in plain_totals(flights).items() if window in closed)


def checked(log: Log, flights: list[Flight], routed: list[Record], windows: list[tuple[Window, Totals]]) -> Report:
    log.append(BY_CARRIER, routed, writer=WRITER, batch=0, now_micros=1)
    log.append(DELAYS, [window_record(*each) for each in windows], writer=WRITER, batch=0, now_micros=1)
    return check(log, flights, watermark=DAY)


def test_a_job_with_correct_output_is_exact(log: Log, flights: list[Flight]) -> None:
    windows = windows_of(flights)
    report = checked(log, flights, [record(each) for each in flights], windows)
    assert report.exact, report.first_differences
    assert (report.flights, report.routed, report.emitted, report.closed) == (432, 432, len(windows), len(windows))
    assert 0 < report.closed < report.windows
    assert summary(report) == (
        f"432 of 432 flights routed, {len(windows)} windows closed, {report.windows - len(windows)} still open, 0 differences"
    )


def test_control_records_are_not_flights(log: Log, flights: list[Flight]) -> None:
    log.append(BY_CARRIER, [Record(b"{}")], writer=WRITER, batch=-1, headers={CONTROL_RECORD_HEADER: "drain"}, now_micros=1)
    assert checked(log, flights, [record(each) for each in flights], windows_of(flights)).exact


Spoil = Callable[[list[Flight]], list[Record]]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(lambda rows: [record(each) for each in rows[1:]], "flight 0 (UA, 2013-01-01T00:00:00Z) is missing", id="lost"),
        pytest.param(lambda rows: [record(each) for each in [*rows, rows[5]]], "flight 5 occurs again", id="doubled"),
        pytest.param(
            lambda rows: [record(replace(each, dep_delay=99) if each.id == 3 else each) for each in rows],
            "flight 3 is altered: dep_delay is 99, not -17",
            id="altered",
        ),
        pytest.param(
            lambda rows: [record(each, 2 if each.id == 3 else None) for each in rows],
            "flight 3 of carrier WN has key b'WN' and belongs in partition 3",
            id="misplaced",
        ),
        pytest.param(lambda rows: [record(each) for each in [*rows, flight(999)]], "flight 999 is not in the input", id="invented"),
        pytest.param(lambda rows: [*(record(each) for each in rows), Record(b"junk")], "not a flight: b'junk'", id="unreadable"),
    ],
)
def test_one_wrong_record_is_found(log: Log, flights: list[Flight], spoil: Spoil, says: str) -> None:
    report = checked(log, flights, spoil(flights), windows_of(flights))
    assert report.different == 1
    assert says in report.first_differences[0]


def test_a_missing_window_is_named(log: Log, flights: list[Flight]) -> None:
    first, *rest = windows_of(flights)
    report = checked(log, flights, [record(each) for each in flights], rest)
    assert report.first_differences == (f"delays: window {first[0][0]} {time_text(first[0][1])} is closed but missing",)


def test_a_duplicate_window_is_found(log: Log, flights: list[Flight]) -> None:
    windows = windows_of(flights)
    report = checked(log, flights, [record(each) for each in flights], [*windows, windows[4]])
    assert report.different == 1
    assert "occurs again" in report.first_differences[0]
    assert report.emitted == len(windows)


@pytest.mark.parametrize("change", [{"flights": 9}, {"dep_delay_sum": 1000}, {"arr_delay_avg": 0.125}, {"departed": 0}])
def test_a_window_that_differs_is_found(log: Log, flights: list[Flight], change: dict[str, Any]) -> None:
    (window, totals), *rest = windows_of(flights)
    report = checked(log, flights, [record(each) for each in flights], [(window, replace(totals, **change)), *rest])
    assert report.different == 1
    assert f"{next(iter(change))} is {next(iter(change.values()))!r}, not " in report.first_differences[0]


def test_a_window_without_any_flight_is_found(log: Log, flights: list[Flight]) -> None:
    windows = windows_of(flights)
    report = checked(log, flights, [record(each) for each in flights], [*windows, (("ZZ", YEAR_STARTS), windows[0][1])])
    assert report.different == 1
    assert "no flight in window ZZ" in report.first_differences[0]


def test_an_open_window_may_be_in_the_output_and_must_be_equal(log: Log, flights: list[Flight]) -> None:
    totals, closed = plain_totals(flights), closed_windows(flights, watermark=DAY)
    still_open = max(window for window in totals if window not in closed)
    windows = windows_of(flights)
    routed = [record(each) for each in flights]
    assert checked(log, flights, routed, [*windows, (still_open, totals[still_open])]).exact
    log.create("other", 1)
    altered = window_record(still_open, replace(totals[still_open], flights=77))
    log.append(DELAYS, [altered], writer=WRITER, batch=1, now_micros=1)
    assert check(log, flights, watermark=DAY).different == 2  # again, with another value


def test_a_window_closes_when_the_watermark_of_its_partition_reaches_its_end() -> None:
    ends = YEAR_STARTS + 86_400 + 3600
    first, last = flight(0), replace(flight(5), scheduled=ends)  # both UA
    other = replace(flight(1), scheduled=YEAR_STARTS)  # AA, in another partition, whose watermark does not move
    assert partition_of(b"AA", PARTITIONS, 0) != partition_of(b"UA", PARTITIONS, 0)
    assert closed_windows([first, other, last], watermark=DAY) == {("UA", YEAR_STARTS)}
    assert closed_windows([first, other, replace(last, scheduled=ends - 1)], watermark=DAY) == set()


def test_only_the_first_differences_are_shown_and_all_are_counted(log: Log, flights: list[Flight]) -> None:
    report = checked(log, flights, [], windows_of(flights))
    assert (report.different, len(report.first_differences)) == (432, 10)
    assert summary(report).endswith("and 422 more")


def test_trimmed_records_are_reported_as_trimmed(log: Log, flights: list[Flight]) -> None:
    checked(log, flights, [record(each) for each in flights], windows_of(flights))
    log.trim(BY_CARRIER, {0: 5})
    report = check(log, flights, watermark=DAY)
    assert "below 5 were trimmed" in report.first_differences[0]
    assert report.different == 6


def test_a_log_without_the_streams_is_an_error(tmp_path: Path, flights: list[Flight]) -> None:
    with pytest.raises(UnknownStream):
        check(Log(tmp_path), flights)
