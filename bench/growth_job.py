"""The job of `bench/growth.py`: a count per key."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice import Job
from sluice.job import Task

FIRST = 2
"""The initial number of partitions."""

job = Job("bench-growth")
events = job.input("events")
counts = job.output("counts")


def counted(records: DataFrame) -> DataFrame:
    return records.groupBy(F.col("key").cast("string").alias("name")).count()


@job.stage(reads=events, writes=counts)
def count(task: Task) -> DataStreamWriter:
    return task.write(counted(task.read(events)), counts, key="name").outputMode("update")
