"""A backlog on Kafka, and a container that starts when the other one has read its part: no order is dropped as late."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.kafkastage import stage_on_kafka
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PARTITIONS = 6
ORDERS = 60_000
CUSTOMERS = 60
FIRST = datetime(2026, 11, 23, 8, tzinfo=UTC)
SPAN, MINUTE = timedelta(hours=2), timedelta(minutes=1)
DISORDER = timedelta(minutes=2)
LATE_SECONDS = 5

JOB = """
from pyspark.sql import functions as F

from sluice import Job

job = Job("orders")
orders = job.input("numbers")
by_customer, untimed = job.intermediate("middle", partitions=6), job.intermediate("untimed", partitions=6)
totals, untimed_totals = job.output("out"), job.output("untimed-out")


def parsed(records):
    order = F.from_json(F.col("value").cast("string"), "ts timestamp, customer string")
    return records.select("value", order.alias("o")).select("value", "o.*")


def counted(task, stream, out):
    rows = parsed(task.read(stream)).withWatermark("ts", "3 minutes")
    minutes = rows.groupBy(F.window("ts", "1 minute").alias("w"), "customer").count()
    return task.write(minutes.select(F.unix_timestamp("w.start").alias("minute"), "customer", "count"), out)


@job.stage(reads=orders, writes=by_customer)
def route(task):
    return task.write(parsed(task.read(orders)), by_customer, key="customer", value="value", event_time="ts")


@job.stage(reads=by_customer, writes=totals)
def count(task):
    return counted(task, by_customer, totals)


@job.stage(reads=orders, writes=untimed)
def route_untimed(task):
    return task.write(parsed(task.read(orders)), untimed, key="customer", value="value")


@job.stage(reads=untimed, writes=untimed_totals)
def count_untimed(task):
    return counted(task, untimed, untimed_totals)
"""
"""The same twice, with `event_time=` and without."""

BETWEEN, OUTPUTS = ("middle", "untimed"), ("out", "untimed-out")


def feed_orders(topics: Topics) -> Counter[tuple[int, str]]:
    """Append orders of two hours, up to two minutes out of order, and then one order of each customer an hour later, which closes the
    windows of the others. Returns the number of orders by minute and customer, without the later ones."""
    generator = random.Random(18)
    backlog: list[tuple[datetime, datetime, str, int]] = []
    for n in range(ORDERS):
        at = FIRST + n * SPAN / ORDERS
        arrives = at + DISORDER * generator.random()
        backlog.append((arrives, at, f"c{generator.randrange(CUSTOMERS)}", n % PARTITIONS))
    expected = Counter((int(at.timestamp()) // 60 * 60, customer) for _, at, customer, _ in backlog)
    later = FIRST + SPAN + timedelta(hours=1)
    backlog += [(later, later, f"c{customer}", partition) for customer in range(CUSTOMERS) for partition in range(PARTITIONS)]
    records = [
        Record(json.dumps({"ts": at.isoformat(), "customer": customer}).encode(), partition=partition)
        for _, at, customer, partition in sorted(backlog)
    ]
    topics.append("numbers", records, writer=Writer(Lineage("feeder"), "feeder", Generation(1)), batch=0, now_micros=int(time.time() * 1e6))
    return expected


def counted(topics: Topics, output: str) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for rows in topics.read(output, 0, 0, topics.latest(output)[0]):
        for row in rows:
            window = json.loads(row[3] or b"")
            found[window["minute"], window["customer"]] += window["count"]
    return found


@pytest.mark.long  # as test_weather.py and test_watermark_faults.py
def test_a_container_that_starts_late_loses_no_order_whether_the_event_time_is_named_or_not(tmp_path: Path) -> None:
    with stage_on_kafka(tmp_path, JOB, numbers=PARTITIONS) as (scene, topics):
        topics.create("untimed-out", 1)
        scene.start_coordinator()
        scene.deploy(containers=2, start="earliest")
        expected = feed_orders(topics)
        assert expected.total() == ORDERS
        half = (ORDERS + CUSTOMERS * PARTITIONS) // 2
        scene.start_container(0)
        wait_for("the first container's half", lambda: all(sum(topics.latest(stream).values()) >= half for stream in BETWEEN), 600)
        time.sleep(LATE_SECONDS)  # meanwhile the readers of the first container advance as far as they may
        scene.start_container(1)
        for output in OUTPUTS:
            with_all = lambda output=output: (found := counted(topics, output)).total() >= ORDERS and found  # noqa: E731
            assert wait_for(f"all orders in {output}", with_all, 240) == expected
