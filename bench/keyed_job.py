"""A job of one stateful stage over a stream that is partitioned by the key of the stage, in BENCH_TASKS tasks: it counts flights by
destination and hour. Its windows stay open.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bench.flights_job import WATERMARK
from examples.flights.job import delay_totals, parse
from sluice import Job
from sluice.job import Task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 8
INPUT, OUTPUT = "flights-by-destination", "delays"

job = Job("bench-keyed", max_tasks=int(os.environ.get("BENCH_TASKS", "1")))
flights = job.input(INPUT)
delays = job.output(OUTPUT)


def counted(records: DataFrame) -> DataFrame:
    rows = parse(records).withWatermark("scheduled", WATERMARK)
    hours = rows.groupBy(F.window("scheduled", "1 hour").alias("window"), "dest")
    return hours.agg(F.count("*").alias("flights"), *delay_totals("dep_delay", "departed"), *delay_totals("arr_delay", "arrived"))


@job.stage(reads=flights, writes=delays)
def hourly(task: Task) -> DataStreamWriter:
    return task.write(counted(task.read(flights)), delays, key="dest")
