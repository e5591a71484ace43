"""The next version of the job of `bench/drain.py`: its stage has another name and other state, and writes output with its first batch."""

from __future__ import annotations

from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice import Job
from sluice.job import Task

job = Job("bench-drain", max_tasks=8)
seen = job.input("seen")
counts = job.output("counts")


@job.stage(reads=seen, writes=counts)
def totals(task: Task) -> DataStreamWriter:
    rows = task.read(seen).select(F.col("key").cast("string").alias("name"))
    return task.write(rows.groupBy("name").count(), counts, key="name").outputMode("update")
