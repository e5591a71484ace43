"""The stateful query of `bench/checkpoint_latency.py`: a count per key, as a job of one stage and one task."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice import Job
from sluice.job import Task

PARTITIONS = 2

job = Job("bench-checkpoint", max_tasks=1)
readings = job.input("readings")
counts = job.output("counts")


def counted(records: DataFrame) -> DataFrame:
    return records.groupBy(F.col("key").cast("string").alias("sensor")).count()


@job.stage(reads=readings, writes=counts)
def count(task: Task) -> DataStreamWriter:
    return task.write(counted(task.read(readings)), counts, key="sensor").outputMode("update")
