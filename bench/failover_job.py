"""The job of `bench/failover.py`: the greatest block of each key, so that the state is as large as the blocks are."""

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
    reported = kept.select("name", "blocks", F.crc32("block").alias("checksum"))  # what nobody reads is not kept
    return task.write(reported, seen, key="name").outputMode("update")
