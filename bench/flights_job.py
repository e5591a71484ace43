"""The job of examples/flights over eight partitions, in BENCH_TASKS tasks. Its windows stay open: the tasks read a backlog as fast as
they can, without waiting for each other.
"""

from __future__ import annotations

import os

from pyspark.sql.streaming.readwriter import DataStreamWriter

from examples.flights.job import count_by_hour, keyed, parse
from sluice import Job
from sluice.job import Task

PARTITIONS = 8
WATERMARK = "4000 days"

job = Job("bench-flights", max_tasks=int(os.environ.get("BENCH_TASKS", "1")))
flights = job.input("flights")
by_carrier = job.intermediate("flights-by-carrier", partitions=PARTITIONS)
delays = job.output("delays")


@job.stage(reads=flights, writes=by_carrier)
def route(task: Task) -> DataStreamWriter:
    return task.write(keyed(task.read(flights)), by_carrier, key="carrier", value="value", event_time="scheduled")


@job.stage(reads=by_carrier, writes=delays)
def hourly(task: Task) -> DataStreamWriter:
    return task.write(count_by_hour(parse(task.read(by_carrier)).withWatermark("scheduled", WATERMARK)), delays, key="carrier")
