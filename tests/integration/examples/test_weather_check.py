"""The check of the join finds every kind of error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from examples.flights.data import YEAR_STARTS, Flight
from examples.flights.data import encode as encode_flight
from examples.weather.check import Departed, Report, batch_join, check, decode_joined, summary, watermarks
from examples.weather.data import DEPARTURES_BY_ORIGIN, HOUR, JOINED, MEASURES, PARTITIONS, WEATHER_BY_ORIGIN, Weather, encode
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from sluice.wire.body import CONTROL_RECORD_HEADER

DAY = timedelta(days=1)
WRITER = Writer(Lineage("test"), "test", Generation(1))
ORIGINS = ["EWR", "JFK"]  # in partitions 0 and 1
HOURS = 72
MISSED = {("EWR", 5), ("JFK", 30), ("EWR", 60)}
"""Hours without a measurement. With a delay of a day the first two are closed at the end of the third day, the last is not."""


def flight(row: int) -> Flight:
    """A departure every ten minutes, alternately from both airports."""
    return Flight(row, YEAR_STARTS + row * 600, "UA", row, None, ORIGINS[row % 2], "IAH", row % 50 - 20, None)


@pytest.fixture
def departures() -> list[Flight]:
    return [flight(row) for row in range(HOURS * 6)]


@pytest.fixture
def weather() -> list[Weather]:
    found = []
    for hour in range(HOURS):
        for origin in ORIGINS:
            if (origin, hour) not in MISSED:
                measured = 30.5 + hour, None, 60.25, 270.0, 8.05546, None, 0.0, 1012.3, 10.0
                found.append(Weather(origin, YEAR_STARTS + hour * HOUR, *measured))
    return found


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "log")
    for stream in (DEPARTURES_BY_ORIGIN, WEATHER_BY_ORIGIN, JOINED):
        log.create(stream, PARTITIONS)
    return log


def departure_record(each: Flight) -> Record:
    return Record(encode_flight(each), each.origin.encode())


def joined_record(each: Departed, key: str | None = None) -> Record:
    flight, weather = each
    fields = json.loads(encode_flight(flight))
    if weather is not None:
        fields |= {name: value for name, value in json.loads(encode(weather)).items() if name != "origin"}
    value = json.dumps({name: value for name, value in fields.items() if value is not None})
    return Record(value.encode(), (key or flight.origin).encode())


def joined(departures: list[Flight], weather: list[Weather]) -> list[Departed]:
    wanted = batch_join(departures, weather, DAY)
    return [each for id_, each in wanted.joined.items() if id_ not in wanted.waiting]


def checked(log: Log, departures: list[Flight], weather: list[Weather], out: list[Record]) -> Report:
    log.append(DEPARTURES_BY_ORIGIN, [departure_record(each) for each in departures], writer=WRITER, batch=0, now_micros=1)
    routed = [Record(encode(each), each.origin.encode()) for each in weather]
    log.append(WEATHER_BY_ORIGIN, routed, writer=WRITER, batch=0, now_micros=1)
    log.append(JOINED, out, writer=WRITER, batch=0, now_micros=1)
    return check(log, departures, weather, watermark=DAY)


def test_a_job_with_correct_output_is_exact_and_waiting_departures_are_named(
    log: Log, departures: list[Flight], weather: list[Weather]
) -> None:
    report = checked(log, departures, weather, [joined_record(each) for each in joined(departures, weather)])
    assert report.exact, report.first_differences
    assert (report.departures, report.routed, report.weather, report.routed_weather) == (432, 432, 141, 141)
    assert (report.matched, report.unmatched, report.waiting) == (432 - 9, 6, (360, 362, 364))
    assert summary(report).splitlines() == [
        "432 of 432 departures, 141 of 141 hours of weather routed",
        "423 departures with weather, 6 without, 3 still waiting, 0 differences",
        "waiting: 360, 362, 364",
    ]


def test_the_batch_join_gives_each_departure_the_weather_of_its_origin_and_hour(departures: list[Flight], weather: list[Weather]) -> None:
    wanted = batch_join(departures, weather, DAY)
    assert list(wanted.joined) == [each.id for each in departures]
    for each, found in wanted.joined.values():
        hour = (each.scheduled - YEAR_STARTS) // HOUR
        if (each.origin, hour) in MISSED:
            assert found is None
        else:
            assert found is not None
            assert (found.origin, found.hour, found.temp) == (each.origin, YEAR_STARTS + hour * HOUR, 30.5 + hour)
    assert sorted(wanted.closed) == [30, 32, 34, 181, 183, 185]
    assert wanted.due == 432 - 3


def test_a_departure_on_the_hour_belongs_to_the_hour_that_begins() -> None:
    before, after = (Weather("EWR", YEAR_STARTS + hour * HOUR, *([1.0] * len(MEASURES))) for hour in (0, 1))
    on_it, just_before = (replace(flight(0), id=n, scheduled=YEAR_STARTS + HOUR - n) for n in (0, 1))
    wanted = batch_join([just_before, on_it], [before, after], DAY)
    assert (wanted.joined[0][1], wanted.joined[1][1]) == (after, before)


def test_the_watermark_of_a_task_is_the_lower_one_of_its_two_inputs() -> None:
    newest = YEAR_STARTS + 10 * 86_400
    departures = [replace(flight(0), scheduled=newest), replace(flight(1), scheduled=newest)]
    measured = [Weather("EWR", newest - 7 * HOUR, *([None] * len(MEASURES)))]
    assert watermarks(departures, measured, DAY) == {0: newest - 7 * HOUR - 86_400, 1: 0}  # JFK has no weather at all


def test_weather_without_any_measurement_is_joined(log: Log) -> None:
    departures = [flight(0)]
    bare = [Weather("EWR", YEAR_STARTS, *([None] * len(MEASURES)))]
    report = checked(log, departures, bare, [joined_record((departures[0], bare[0]))])
    assert report.exact, report.first_differences
    assert (report.matched, report.unmatched) == (1, 0)
    assert decode_joined(joined_record((departures[0], None)).value) == (departures[0], None)


def test_control_records_are_not_departures(log: Log, departures: list[Flight], weather: list[Weather]) -> None:
    log.append(JOINED, [Record(b"{}")], writer=WRITER, batch=-1, headers={CONTROL_RECORD_HEADER: "drain"}, now_micros=1)
    assert checked(log, departures, weather, [joined_record(each) for each in joined(departures, weather)]).exact


Spoil = Callable[[list[Departed]], list[Record]]


def spoilt(id_: int, change: Callable[[Departed], Departed]) -> Spoil:
    """The correct output, except for one departure."""
    return lambda rows: [joined_record(change(each) if each[0].id == id_ else each) for each in rows]


def other_hour(each: Departed) -> Departed:
    assert each[1] is not None
    return each[0], replace(each[1], hour=each[1].hour + HOUR)


def warmer(each: Departed) -> Departed:
    assert each[1] is not None
    return each[0], replace(each[1], temp=99.0)


def guessed(each: Departed) -> Departed:
    return each[0], Weather(each[0].origin, each[0].scheduled // HOUR * HOUR, *([1.0] * len(MEASURES)))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(
            lambda rows: [joined_record(each) for each in rows if each[0].id != 8],
            "departure 8 (EWR, 2013-01-01T01:20:00Z) is missing; its weather is that of 2013-01-01T01:00:00Z",
            id="lost",
        ),
        pytest.param(
            lambda rows: [joined_record(each) for each in rows if each[0].id != 32],
            "departure 32 (EWR, 2013-01-01T05:20:00Z) is missing; it has no weather, but its hour is closed",
            id="never given up",
        ),
        pytest.param(lambda rows: [joined_record(each) for each in [*rows, rows[5]]], "departure 5 occurs again", id="doubled"),
        pytest.param(
            lambda rows: [joined_record(each) for each in [*rows, (flight(362), None)]],
            "departure 362 (EWR, 2013-01-03T12:20:00Z) was written without weather although its weather may still arrive",
            id="given up too early",
        ),
        pytest.param(
            spoilt(8, lambda each: (each[0], None)), "departure 8 has no weather, but there is a record for 2013-01-01T01", id="late"
        ),
        pytest.param(
            spoilt(32, guessed), "departure 32 has the weather of 2013-01-01T05:00:00Z, but there is no weather", id="weather invented"
        ),
        pytest.param(spoilt(8, other_hour), f"other weather: hour is {YEAR_STARTS + 2 * HOUR}, not {YEAR_STARTS + HOUR}", id="other hour"),
        pytest.param(spoilt(8, warmer), "other weather: temp is 99.0, not 31.5", id="weather altered"),
        pytest.param(
            spoilt(8, lambda each: (replace(each[0], dep_delay=77), each[1])), "8 is altered: dep_delay is 77, not -12", id="altered"
        ),
        pytest.param(
            lambda rows: [joined_record(each, "JFK" if each[0].id == 8 else None) for each in rows],
            "departure 8 has key b'JFK', but its origin is EWR",
            id="misplaced",
        ),
        pytest.param(lambda rows: [joined_record(each) for each in [*rows, (flight(999), None)]], "999 is not in the input", id="invented"),
        pytest.param(
            lambda rows: [*(joined_record(each) for each in rows), Record(b"junk", b"EWR")], "not a departure with weather", id="unreadable"
        ),
        pytest.param(
            lambda rows: [*(joined_record(each) for each in rows), Record(b"[]", b"EWR")], "not a departure with weather", id="no object"
        ),
    ],
)
def test_one_wrong_record_of_the_output_is_found(
    log: Log, departures: list[Flight], weather: list[Weather], spoil: Spoil, says: str
) -> None:
    report = checked(log, departures, weather, spoil(joined(departures, weather)))
    assert report.different == 1
    assert says in report.first_differences[0]
    assert not report.exact


def test_a_record_that_the_routing_lost_is_found_in_either_stream(log: Log, departures: list[Flight], weather: list[Weather]) -> None:
    out = [joined_record(each) for each in joined(departures, weather)]
    log.append(DEPARTURES_BY_ORIGIN, [departure_record(each) for each in departures[1:]], writer=WRITER, batch=0, now_micros=1)
    routed = [Record(encode(each), b"LGA" if each == weather[3] else each.origin.encode()) for each in weather[1:]]
    log.append(WEATHER_BY_ORIGIN, routed, writer=WRITER, batch=0, now_micros=1)
    log.append(JOINED, out, writer=WRITER, batch=0, now_micros=1)
    report = check(log, departures, weather, watermark=DAY)
    assert report.different == 3
    assert report.first_differences[0] == "departures-by-origin: departure 0 (EWR, 2013-01-01T00:00:00Z) is missing"
    assert "the weather of 2013-01-01T01:00:00Z of origin JFK has key b'LGA' and belongs in partition 1" in report.first_differences[1]
    assert report.first_differences[2] == "weather-by-origin: the weather of 2013-01-01T00:00:00Z (EWR) is missing"
