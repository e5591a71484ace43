"""The demo's job: flights are routed by carrier, then counted by hour of scheduled departure and carrier, with their delays in minutes.

    flights --route--> flights-by-carrier --hourly--> delays

`route` names the event time of what it writes. So `hourly` waits for the slowest of the tasks that route, and no flight is late because
another container was faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice import Job
from sluice.job import Task

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


job = Job("flight-delays")
flights = job.input("flights", event_time="scheduled")
by_carrier = job.intermediate("flights-by-carrier", partitions=4)
delays = job.output("delays")

FLIGHT = """
    id long, scheduled timestamp, carrier string, flight int, tailnum string, origin string, dest string, dep_delay long, arr_delay long
"""


@job.stage(reads=flights, writes=by_carrier)
def route(task: Task) -> DataStreamWriter:
    """Every flight, unchanged, to the partition of its carrier."""
    return task.write(task.read(flights), by_carrier, key=carrier(), value="value", event_time=scheduled())


@job.stage(reads=by_carrier, writes=delays)
def hourly(task: Task) -> DataStreamWriter:
    """One row for every hour and carrier, once the hour is closed."""
    rows = parse(task.read(by_carrier)).withWatermark("scheduled", task.config.get("watermark", "30 days"))
    return task.write(count_by_hour(rows), delays, key="carrier")


def carrier() -> Column:
    """The carrier in a record's value, which is passed on as it is: to parse all of it and to write it again takes three times as long."""
    return F.get_json_object(F.col("value").cast("string"), "$.carrier")


def scheduled() -> Column:
    """The scheduled departure in a record's value."""
    return F.get_json_object(F.col("value").cast("string"), "$.scheduled").cast("timestamp")


def parse(records: DataFrame) -> DataFrame:
    """The flights in records' values. A value that is no flight fails the batch: a null row would be a flight lost."""
    parsed = F.from_json(F.col("value").cast("string"), FLIGHT, {"mode": "FAILFAST"})
    return records.select(parsed.alias("parsed")).select("parsed.*")


def count_by_hour(rows: DataFrame) -> DataFrame:
    """Flights by hour and carrier. Sums are whole minutes, so that they compare exactly; an average over no flights is null."""
    hours = rows.groupBy(F.window("scheduled", "1 hour").alias("window"), "carrier").agg(
        F.count("*").alias("flights"), *delay_totals("dep_delay", "departed"), *delay_totals("arr_delay", "arrived")
    )
    return hours.withColumn("hour", F.col("window.start")).drop("window")


def delay_totals(delay: str, counted: str) -> list[Column]:
    return [
        F.count(delay).alias(counted),
        F.coalesce(F.sum(delay), F.lit(0)).alias(f"{delay}_sum"),
        F.avg(delay).alias(f"{delay}_avg"),
    ]
