"""The job of `bench/failover.py`: it keeps the greatest block of each key, so the size of the state is the size of the blocks."""

from __future__ import annotations

from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice import Job
from sluice.job import Task

job = Job("bench-failover", max_tasks=2)
blocks = job.input("blocks")
seen = job.output("seen")


@job.stage(reads=blocks, writes=seen)
def keep(task: Task) -> DataStreamWriter:
    rows = task.read(blocks).select(F.col("key").cast("string").alias("name"), "value")
    kept = rows.groupBy("name").agg(F.max("value").alias("block"), F.count("*").alias("blocks"))
    reported = kept.select("name", "blocks", F.crc32("block").alias("checksum"))  # columns that are not read are not kept in the state
    return task.write(reported, seen, key="name").outputMode("update")
