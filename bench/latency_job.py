"""A job of two stages over eight partitions, in BENCH_TASKS tasks: the first routes orders by customer to an intermediate stream, and the
second removes duplicates. `bench/latency_plain.py` has the same pipeline as plain queries.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice import Job
from sluice.job import Task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 8
ORDERS, BETWEEN, RESULTS = "orders", "orders-by-customer", "unique-orders"


def parsed(rows: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "id long, customer string, sent double").alias("order")
    return rows.select(order).select("order.*", F.timestamp_seconds("order.sent").alias("at"))


def unique(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(["id"]).drop("at")


job = Job("bench-latency", max_tasks=int(os.environ.get("BENCH_TASKS", "1")))
orders = job.input(ORDERS, event_time="sent")
by_customer = job.intermediate(BETWEEN, partitions=PARTITIONS)
results = job.output(RESULTS)


@job.stage(reads=orders, writes=by_customer)
def route(task: Task) -> DataStreamWriter:
    rows = parsed(task.read(orders))
    value = F.to_json(F.struct("id", "customer", "sent"))
    return task.write(rows, by_customer, key="customer", value=value, event_time="at")


@job.stage(reads=by_customer, writes=results)
def once(task: Task) -> DataStreamWriter:
    return task.write(unique(parsed(task.read(by_customer))), results, key="customer")
