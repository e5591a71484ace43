"""Departures with the weather at their origin in the hour of their scheduled departure: two streams, joined.

    departures --route_departures--> departures-by-origin --+
                                                            +--join--> departures-with-weather
    weather -----route_weather-----> weather-by-origin -----+

Rows to be joined must be read by the same task. So both inputs are routed by the origin first, into streams with equally many partitions:
equal keys are in equal partitions, and a task reads the same partitions of both. The coordinator refuses a join of streams with unequal
counts.

`join` is a left outer join. A departure leaves with its weather as soon as both are there, and without any once no such weather can come
any more: when the watermark, the older of the two sides', has passed the time of departure. A side that lags behind the other is waited
for, and so is the slowest of the tasks that route: they name the event time of what they write.
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
    """Every departure, unchanged, to the partition of its origin."""
    return task.write(parse(task.read(departures), DEPARTURE), departures_by_origin, key="origin", event_time="scheduled")


@job.stage(reads=weather, writes=weather_by_origin)
def route_weather(task: Task) -> DataStreamWriter:
    """Every hour of weather, unchanged, to the partition of its origin."""
    return task.write(parse(task.read(weather), WEATHER), weather_by_origin, key="origin", event_time="hour")


@job.stage(reads=[departures_by_origin, weather_by_origin], writes=departures_with_weather)
def join(task: Task) -> DataStreamWriter:
    """Every departure with the weather of its hour, or without any."""
    delay = task.config.get("watermark", "10 days")
    departing = parse(task.read(departures_by_origin), DEPARTURE).withWatermark("scheduled", delay)
    measured = parse(task.read(weather_by_origin), WEATHER).withWatermark("hour", delay)
    return task.write(with_weather(departing, measured), departures_with_weather, key="origin")


def parse(records: DataFrame, schema: str) -> DataFrame:
    """The rows in records' values. A value that is none fails the batch: a null row would be a row lost."""
    parsed = F.from_json(F.col("value").cast("string"), schema, {"mode": "FAILFAST"})
    return records.select(parsed.alias("parsed")).select("parsed.*")


def with_weather(departing: DataFrame, measured: DataFrame) -> DataFrame:
    """The columns of a departure and those of its weather; `hour` is null where there is none.

    The range tells Spark when a row can be forgotten. The equal hours add nothing to it, but are what Spark can look up: by the origin
    alone it would compare a departure with all weather that it keeps of the airport, and an hour of weather with all departures.
    """
    there = measured.withColumnRenamed("origin", "place")
    same_hour = F.expr("origin = place AND unix_timestamp(scheduled) DIV 3600 = unix_timestamp(hour) DIV 3600")
    in_range = F.expr("scheduled >= hour AND scheduled < hour + INTERVAL 1 HOUR")
    return departing.join(there, same_hour & in_range, "left_outer").drop("place")
