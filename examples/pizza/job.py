"""The rushes of a kitchen: the sales of each station without a pause of more than 20 minutes, as one row.

    sales --route--> sales-by-station --rushes--> rushes

The rows are sessions: each begins with a sale, and grows with each sale of its station within 20 minutes. A session is written when the
watermark has passed its end. `route` names the event time of the records that it writes, so the watermark of `rushes` waits for the slowest
task of `route`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice import Job
from sluice.job import Task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


job = Job("pizza-rushes")
sales = job.input("sales", event_time="at")
by_station = job.intermediate("sales-by-station", partitions=2)
rushes = job.output("rushes", partitions=2)

SALE = "order long, at timestamp, name string, size string, station string, cents long"


@job.stage(reads=sales, writes=by_station)
def route(task: Task) -> DataStreamWriter:
    """Write every sale, unchanged, to the partition of its station."""
    return task.write(parse(task.read(sales)), by_station, key="station", event_time="at")


@job.stage(reads=by_station, writes=rushes, name="rushes")
def find_rushes(task: Task) -> DataStreamWriter:
    """Write each rush when it has ended."""
    rows = parse(task.read(by_station)).withWatermark("at", task.config.get("watermark", "1 hour"))
    return task.write(sessions(rows), rushes, key="station")


def parse(records: DataFrame) -> DataFrame:
    """The sales in the values of records. A value that is not a sale fails the batch, because a null row would be a lost sale."""
    parsed = F.from_json(F.col("value").cast("string"), SALE, {"mode": "FAILFAST"})
    return records.select(parsed.alias("parsed")).select("parsed.*")


def sessions(rows: DataFrame) -> DataFrame:
    """One row per rush. Prices are integers, so that sums compare exactly."""
    found = rows.groupBy(F.session_window("at", "20 minutes").alias("rush"), "station")
    counted = found.agg(F.max("at").alias("ended"), F.count("*").alias("pizzas"), F.sum("cents").alias("cents"))
    return counted.select("station", F.col("rush.start").alias("began"), "ended", "pizzas", "cents")
