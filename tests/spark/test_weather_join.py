"""The weather example's join on Spark, to the second: when a departure is written without weather, and when not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from containers.engine import Bound
from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import Grant
from containers.spark.task import StageTask
from examples.flights.data import YEAR_STARTS, Flight
from examples.flights.data import encode as encode_flight
from examples.weather import job
from examples.weather.check import batch_join, check
from examples.weather.data import DEPARTURES_BY_ORIGIN, HOUR, JOINED, MEASURES, PARTITIONS, WEATHER_BY_ORIGIN, Weather, encode
from sluice.clock import SystemClock
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, StreamId, TaskName
from sluice.streams.log import Log, Record, Writer
from sluice.wire.body import RUN_RECORD_HEADER
from tests.spark.conftest import Bench

pytestmark = pytest.mark.spark

NOON = YEAR_STARTS + 12 * HOUR
DELAY = timedelta(hours=1)
STREAMS = (DEPARTURES_BY_ORIGIN, WEATHER_BY_ORIGIN, JOINED)


def departing(at: int) -> Flight:
    """A departure from JFK, in partition 1; its id is its time, counted from noon."""
    return Flight(at - NOON, at, "B6", 1, None, "JFK", "BOS", None, 3)


def measured(at: int) -> Weather:
    return Weather("JFK", at, *([None, 0.1, *([2.5] * (len(MEASURES) - 2))]))


def put(log: Log, stream: str, batch: int, rows: Sequence[Flight | Weather]) -> None:
    values = [encode_flight(row) if isinstance(row, Flight) else encode(row) for row in rows]
    writer = Writer(Lineage(f"route to {stream}"), "route", Generation(1))
    headers = {RUN_RECORD_HEADER: "origin"}
    assert log.append(stream, [Record(value, b"JFK") for value in values], writer=writer, batch=batch, headers=headers, now_micros=1)


@pytest.fixture
def task(bench: Bench) -> tuple[Grant, StageTask]:
    """Stage `join` of the task that owns partition 1."""
    for stream in STREAMS:
        bench.log.create(stream, PARTITIONS)
    starts = {Ssp("log", stream, 1): 0 for stream in STREAMS[:2]}
    lineage = Lineage("6f0c9a52-3f5b-4e58-9c53-0d8e7a1f3b02")
    grant = Grant("job", TaskName("Partition 1"), StageName("join"), Generation(1), lineage, RunId("origin"), starts)
    streams = {stream: Bound(StreamId("log", stream), intermediate=stream != JOINED) for stream in STREAMS}
    systems = {"log": LogTaskSystem(bench.spark, bench.log.directory, SystemClock(), bench.lost.append)}
    return grant, StageTask(bench.spark, grant, streams, systems, {"watermark": "1 hour"}, 1000)


def test_a_departure_without_weather_is_written_without_it_when_the_watermark_has_passed_it(
    bench: Bench, task: tuple[Grant, StageTask]
) -> None:
    grant, stage_task = task
    eleven = NOON - HOUR  # the watermark will be here, because the newest weather is that of noon
    departures = [departing(at) for at in (eleven - 1, eleven, eleven + 1, NOON, NOON + HOUR - 1, NOON + HOUR, NOON + 2 * HOUR)]
    weather = [measured(eleven - 2 * HOUR), measured(NOON)]
    put(bench.log, DEPARTURES_BY_ORIGIN, 0, departures)
    put(bench.log, WEATHER_BY_ORIGIN, 0, weather)
    bench.run_until_read(grant, lambda _: job.join(stage_task))

    wanted = batch_join(departures, weather, DELAY)
    assert {id_ for id_, (_, found) in wanted.joined.items() if found} == {0, HOUR - 1}
    assert wanted.closed == {-HOUR - 1}
    report = check(bench.log, departures, weather, watermark=DELAY)
    assert report.exact, report.first_differences
    assert (report.matched, report.unmatched, report.waiting) == (2, 1, (-HOUR, -HOUR + 1, HOUR, 2 * HOUR))


def lagging(hours: int) -> tuple[list[Flight], list[Weather]]:
    """One departure per hour, and the weather of each hour but the middle one."""
    return [departing(NOON + hour * HOUR + 60) for hour in range(hours)], [
        measured(NOON + h * HOUR) for h in range(hours) if h != hours // 2
    ]


@pytest.mark.long
def test_a_join_waits_for_the_input_that_lags(bench: Bench, task: tuple[Grant, StageTask]) -> None:
    grant, stage_task = task
    departures, weather = lagging(100)
    put(bench.log, DEPARTURES_BY_ORIGIN, 0, departures)
    put(bench.log, WEATHER_BY_ORIGIN, 0, weather[:1])
    query = bench.start(grant, lambda _: job.join(stage_task))
    query.processAllAvailable()
    behind = check(bench.log, departures, weather[:1], watermark=DELAY)
    assert behind.exact, behind.first_differences
    assert (behind.matched, behind.unmatched, len(behind.waiting)) == (1, 0, 99)

    put(bench.log, WEATHER_BY_ORIGIN, 1, weather[1:])
    query.processAllAvailable()
    assert bench.stop(query)
    caught_up = check(bench.log, departures, weather, watermark=DELAY)
    assert caught_up.exact, caught_up.first_differences
    assert (caught_up.matched, caught_up.unmatched, caught_up.waiting) == (99, 1, ())


def test_records_that_are_late_by_more_than_the_delay_are_dropped_and_the_check_names_them(
    bench: Bench, task: tuple[Grant, StageTask]
) -> None:
    grant, stage_task = task
    departures = [departing(NOON + hour * HOUR) for hour in range(4)]
    weather = [measured(NOON + hour * HOUR) for hour in range(4)]
    put(bench.log, DEPARTURES_BY_ORIGIN, 0, departures[1:])
    put(bench.log, WEATHER_BY_ORIGIN, 0, weather)
    query = bench.start(grant, lambda _: job.join(stage_task))
    query.processAllAvailable()
    put(bench.log, DEPARTURES_BY_ORIGIN, 1, departures[:1])  # three hours behind the newest; the delay is one hour
    query.processAllAvailable()
    assert bench.stop(query)
    report = check(bench.log, departures, weather, watermark=DELAY)
    assert report.routed == 4
    assert report.first_differences == (
        "departures-with-weather: departure 0 (JFK, 2013-01-01T12:00:00Z) is missing; its weather is that of 2013-01-01T12:00:00Z",
    )


@pytest.mark.long
def test_after_a_restart_the_watermark_does_not_rise_until_both_inputs_were_read(bench: Bench, task: tuple[Grant, StageTask]) -> None:
    grant, stage_task = task
    departures, weather = lagging(100)
    put(bench.log, DEPARTURES_BY_ORIGIN, 0, departures)
    put(bench.log, WEATHER_BY_ORIGIN, 0, weather[:1])
    bench.run_until_read(grant, lambda _: job.join(stage_task))

    put(bench.log, WEATHER_BY_ORIGIN, 1, weather[1:])
    bench.run_until_read(grant, lambda _: job.join(stage_task))
    one_side = check(bench.log, departures, weather, watermark=DELAY)
    assert (one_side.matched, one_side.unmatched, one_side.different) == (99, 0, 1)
    assert "has no weather, but its hour is closed" in one_side.first_differences[0]

    query = bench.start(grant, lambda _: job.join(stage_task))
    departures.append(departing(NOON + 100 * HOUR))
    weather.append(measured(NOON + 100 * HOUR))
    put(bench.log, DEPARTURES_BY_ORIGIN, 1, departures[-1:])
    put(bench.log, WEATHER_BY_ORIGIN, 2, weather[-1:])
    query.processAllAvailable()
    assert bench.stop(query)
    both_sides = check(bench.log, departures, weather, watermark=DELAY)
    assert both_sides.exact, both_sides.first_differences
    assert (both_sides.matched, both_sides.unmatched) == (100, 1)
