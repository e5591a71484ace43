"""The departures and the weather of 2013 as records."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from examples.flights.data import ALL_FLIGHTS, Flight, FlightsMissing, load_flights
from examples.weather.data import (
    ALL_HOURS,
    HOUR,
    PARTITIONS,
    Weather,
    decode,
    encode,
    load_departures,
    load_weather,
    partition_of_departure,
    partition_of_weather,
)
from sluice.streams.log import partition_of

CALM = Weather("EWR", 1357020000, 39.02, None, 59.37, None, 10.35702, None, 0.0, None, 10.0)


@pytest.fixture(scope="module")
def departures() -> list[Flight]:
    return load_departures()


@pytest.fixture(scope="module")
def weather() -> list[Weather]:
    return load_weather()


def at(month: int, day: int, hour: int) -> int:
    return int(datetime(2013, month, day, hour, tzinfo=UTC).timestamp())


@pytest.mark.long
def test_all_departures_have_the_instants_of_their_local_time_in_new_york(departures: list[Flight]) -> None:
    local = {flight.id: flight.scheduled for flight in load_flights()}
    assert len(departures) == ALL_FLIGHTS
    assert all(before.scheduled <= after.scheduled for before, after in pairwise(departures))
    hours_behind = {flight.id: (flight.scheduled - local[flight.id]) / HOUR for flight in departures}
    assert Counter(hours_behind.values()) == {4: 222_819, 5: 113_957}
    summer = [flight for flight in departures if at(3, 10, 7) <= flight.scheduled < at(11, 3, 6)]
    assert {hours_behind[flight.id] for flight in summer} == {4}


def test_every_hour_of_weather_is_in_the_data_once_in_order(weather: list[Weather]) -> None:
    assert len(weather) == ALL_HOURS == len({(each.origin, each.hour) for each in weather})
    assert all((a.hour, a.origin) < (b.hour, b.origin) for a, b in pairwise(weather))
    assert all(each.hour % HOUR == 0 for each in weather)


def test_the_local_hour_that_is_repeated_in_november_is_two_hours(weather: list[Weather]) -> None:
    found = {(each.origin, each.hour): each.temp for each in weather}
    assert (found["EWR", at(11, 3, 5)], found["EWR", at(11, 3, 6)]) == (51.98, 50.0)


def test_the_local_hour_that_is_missing_in_march_leaves_no_gap(weather: list[Weather]) -> None:
    night = [each.hour for each in weather if each.origin == "JFK" and at(3, 10, 5) <= each.hour <= at(3, 10, 9)]
    assert night == [at(3, 10, hour) for hour in range(5, 10)]


def test_hours_without_a_measurement_are_missing(weather: list[Weather]) -> None:
    missing = {}
    for origin in ("EWR", "JFK", "LGA"):
        hours = [each.hour for each in weather if each.origin == origin]
        missing[origin] = (hours[-1] - hours[0]) // HOUR + 1 - len(hours)
    assert missing == {"EWR": 27, "JFK": 24, "LGA": 24}


def test_one_hour_of_the_year_has_weather_without_a_temperature(weather: list[Weather]) -> None:
    assert [(each.origin, each.hour) for each in weather if each.temp is None] == [("EWR", at(8, 22, 13))]


def test_every_partition_of_the_inputs_has_rows_of_every_origin(departures: list[Flight], weather: list[Weather]) -> None:
    everywhere = {(origin, p) for origin in ("EWR", "JFK", "LGA") for p in range(PARTITIONS)}
    assert {(each.origin, partition_of_departure(each)) for each in departures} == everywhere
    assert {(each.origin, partition_of_weather(each)) for each in weather} == everywhere


def test_every_task_joins_at_least_one_origin(weather: list[Weather]) -> None:
    assert {partition_of(each.origin.encode(), PARTITIONS, 0) for each in weather} == set(range(PARTITIONS))


def test_the_first_months_are_the_first_records_of_both_inputs(departures: list[Flight], weather: list[Weather]) -> None:
    january = load_departures(1)
    assert january == departures[: len(january)]
    measured = load_weather(1)
    assert measured == weather[: len(measured)]


def test_the_weather_is_read_from_its_record_as_it_was_written(weather: list[Weather]) -> None:
    assert all(decode(encode(each)) == each for each in weather)


def test_absent_measures_are_null_as_spark_writes_them() -> None:
    spelled = {name: value for name, value in json.loads(encode(CALM)).items() if value is not None}
    spelled["hour"] = "2013-01-01T06:00:00.000Z"
    assert decode(json.dumps(spelled).encode()) == CALM


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"[]", b"no", encode(CALM)[:-1] + b',"more":1}', encode(CALM).replace(b"00Z", b"00"), b'{"hour": 5}']
)
def test_a_record_that_is_not_weather_is_refused(value: bytes | None) -> None:
    with pytest.raises(ValueError, match="not weather"):
        decode(value)


HEAD = "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour\n"


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(("2013-01-01T06:00:00Z", "2013-01-01T06:00:00Z"), id="twice"),
        pytest.param(("2013-01-01T05:00:00Z", "2013-01-01T06:30:00Z"), id="half an hour"),
    ],
)
def test_weather_that_would_double_a_departure_or_miss_its_hour_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: tuple[str, str]
) -> None:
    (tmp_path / "data").mkdir()
    rows = (f"EWR,2013,1,1,1,39,26,59,270,10,,0,1012,10,{time}\n" for time in times)
    (tmp_path / "data" / "weather.csv").write_text(HEAD + "".join(rows))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    with pytest.raises(ValueError, match=f"EWR at {times[1]}"):
        load_weather()


def test_without_the_package_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(FlightsMissing, match=r"pip install 'sluice-spark\[demo\]'"):
        load_weather()
