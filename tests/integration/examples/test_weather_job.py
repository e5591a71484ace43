"""The shape of the joining job."""

from __future__ import annotations

import re
import sys
from dataclasses import fields

from examples.flights.data import Flight
from examples.weather import data
from examples.weather.demo import JOB_FILE, READERS
from examples.weather.replay import feeds_of
from sluice.job import load_job


def test_the_job_file_holds_two_routes_and_a_join_of_equally_partitioned_streams() -> None:
    job = load_job(JOB_FILE)
    assert [(each.stage.name, each.stage.reads, each.stage.writes) for each in job.chain()] == [
        ("route_departures", (data.DEPARTURES,), (data.DEPARTURES_BY_ORIGIN,)),
        ("route_weather", (data.WEATHER,), (data.WEATHER_BY_ORIGIN,)),
        ("join", (data.DEPARTURES_BY_ORIGIN, data.WEATHER_BY_ORIGIN), (data.JOINED,)),
    ]
    assert {each.partitions for each in job.intermediates} == {each.partitions for each in job.outputs} == {data.PARTITIONS}


def test_the_demo_watches_every_stream_that_a_stage_reads_and_feeds_every_input() -> None:
    job = load_job(JOB_FILE)
    assert {stream: str(each.stage.name) for each in job.chain() for stream in each.stage.reads} == READERS
    assert {(feed.stream, feed.partitions) for feed in feeds_of([], [])} == {(each.name, data.PARTITIONS) for each in job.inputs}


def test_the_schemas_are_those_of_the_records() -> None:
    load_job(JOB_FILE)
    job_file = sys.modules["sluice_job"]
    for schema, row in ((job_file.DEPARTURE, Flight), (job_file.WEATHER, data.Weather)):
        assert re.findall(r"(\w+) \w+", schema) == [field.name for field in fields(row)]
