"""The job of `bench/drain.py` over eight tasks: a count per name and hour, in windows that only a drain closes.

With BENCH_STAGES=2 a first stage counts by minute and writes its rows to an intermediate stream.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice import Job
from sluice.job import Task

PARTITIONS = 8
STAGES = int(os.environ.get("BENCH_STAGES", "1"))

job = Job("bench-drain", max_tasks=PARTITIONS)
seen = job.input("seen")
counts = job.output("counts")


def counted(records: DataFrame, width: str) -> DataFrame:
    """Records with a name as key and a second as value: rows of name, start of the window in seconds, and count."""
    at = F.timestamp_seconds(F.col("value").cast("string").cast("long")).alias("at")
    rows = records.select(at, F.col("key").cast("string").alias("name")).withWatermark("at", "100 days")
    windows = rows.groupBy(F.window("at", width), "name").count()
    return windows.select("name", F.unix_seconds("window.start").alias("second"), "count")


def by_minute(records: DataFrame) -> DataFrame:
    return counted(records, "1 minute").withColumn("value", F.col("second").cast("string"))


def by_hour(records: DataFrame) -> DataFrame:
    return counted(records, "1 hour")


if STAGES == 1:
    job.stage(reads=seen, writes=counts, name="hours")(lambda task: task.write(by_hour(task.read(seen)), counts, key="name"))
else:
    between = job.intermediate("minutes", partitions=PARTITIONS)

    @job.stage(reads=seen, writes=between)
    def minutes(task: Task) -> DataStreamWriter:
        return task.write(by_minute(task.read(seen)), between, key="name", value="value")

    @job.stage(reads=between, writes=counts)
    def hours(task: Task) -> DataStreamWriter:
        return task.write(by_hour(task.read(between)), counts, key="name")
