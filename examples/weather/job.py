"""Departures with the weather at their origin in the hour of their scheduled departure: two streams, joined.

    departures --route_departures--> departures-by-origin --+
                                                            +--join--> departures-with-weather
    weather -----route_weather-----> weather-by-origin -----+

A task can join only rows that it reads. Both inputs are therefore routed by origin first, into streams with equal partition counts: equal
keys are in partitions with the same number, and a task reads the same partitions of both. The coordinator refuses a join of streams with
unequal counts.

`join` is a left outer join. A departure with weather is written as soon as both rows have been read. A departure without weather is written
when none can follow: when the watermark, the older one of the two sides, has passed the time of departure. The join therefore waits for the
slower side. The routing stages name the event time of the records that they write, so it also waits for their slowest task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice import Job
from sluice.job import Task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


job = Job("departures-with-weather")
departures = job.input("departures", event_time="scheduled")
weather = job.input("weather", event_time="hour")
departures_by_origin = job.intermediate("departures-by-origin", partitions=2)
weather_by_origin = job.intermediate("weather-by-origin", partitions=2)
departures_with_weather = job.output("departures-with-weather", partitions=2)

DEPARTURE = """
    id long, scheduled timestamp, carrier string, flight int, tailnum string, origin string, dest string, dep_delay long, arr_delay long
"""
WEATHER = """
    origin string, hour timestamp, temp double, dewp double, humid double, wind_dir double, wind_speed double, wind_gust double,
    precip double, pressure double, visib double
"""


@job.stage(reads=departures, writes=departures_by_origin)
def route_departures(task: Task) -> DataStreamWriter:
    """Write every departure, unchanged, to the partition of its origin."""
    return task.write(parse(task.read(departures), DEPARTURE), departures_by_origin, key="origin", event_time="scheduled")


@job.stage(reads=weather, writes=weather_by_origin)
def route_weather(task: Task) -> DataStreamWriter:
    """Write every hour of weather, unchanged, to the partition of its origin."""
    return task.write(parse(task.read(weather), WEATHER), weather_by_origin, key="origin", event_time="hour")


@job.stage(reads=[departures_by_origin, weather_by_origin], writes=departures_with_weather)
def join(task: Task) -> DataStreamWriter:
    """Write every departure with the weather of its hour, or without weather."""
    delay = task.config.get("watermark", "10 days")
    departing = parse(task.read(departures_by_origin), DEPARTURE).withWatermark("scheduled", delay)
    measured = parse(task.read(weather_by_origin), WEATHER).withWatermark("hour", delay)
    return task.write(with_weather(departing, measured), departures_with_weather, key="origin")


def parse(records: DataFrame, schema: str) -> DataFrame:
    """The rows in the values of records. A value that is not a row fails the batch, because a null row would be a lost row."""
    parsed = F.from_json(F.col("value").cast("string"), schema, {"mode": "FAILFAST"})
    return records.select(parsed.alias("parsed")).select("parsed.*")


def with_weather(departing: DataFrame, measured: DataFrame) -> DataFrame:
    """The columns of a departure and of its weather; `hour` is null if there is no weather.

    Spark derives from the range when it can drop a row. The condition of equal hours is redundant, but Spark finds state by equal keys:
    with the origin alone it would compare each departure with all weather that it keeps of the airport, and each hour of weather with all
    departures.
    """
    there = measured.withColumnRenamed("origin", "place")
    same_hour = F.expr("origin = place AND unix_timestamp(scheduled) DIV 3600 = unix_timestamp(hour) DIV 3600")
    in_range = F.expr("scheduled >= hour AND scheduled < hour + INTERVAL 1 HOUR")
    return departing.join(there, same_hour & in_range, "left_outer").drop("place")
