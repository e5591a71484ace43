"""A backlog on Kafka, and a container that starts when the other one has read its part: no order is dropped as late."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from examples.playing.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.kafkastage import stage_on_kafka
from tests.processes.stage import Stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

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
by_customer = job.intermediate("middle", partitions=6)
totals = job.output("out")


def parsed(records):
    order = F.from_json(F.col("value").cast("string"), "ts timestamp, customer string")
    return records.select("value", order.alias("o")).select("value", "o.*")


@job.stage(reads=orders, writes=by_customer)
def route(task):
    return task.write(parsed(task.read(orders)), by_customer, key="customer", value="value"EVENT_TIME)


@job.stage(reads=by_customer, writes=totals)
def count(task):
    rows = parsed(task.read(by_customer)).withWatermark("ts", "3 minutes")
    minutes = rows.groupBy(F.window("ts", "1 minute").alias("w"), "customer").count()
    return task.write(minutes.select(F.unix_timestamp("w.start").alias("minute"), "customer", "count"), totals)
"""


@contextmanager
def orders_scene(root: Path, event_time: str) -> Iterator[tuple[Stage, Topics]]:
    with stage_on_kafka(root, JOB.replace("EVENT_TIME", event_time), numbers=PARTITIONS) as made:
        yield made


def feed_orders(topics: Topics) -> Counter[tuple[int, str]]:
    """Orders of two hours, in the order of their times but for two minutes, and then one of each customer an hour later, which closes the
    windows of the others. How many there are of a minute and a customer, without the last."""
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


def counted(topics: Topics) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for rows in topics.read("out", 0, 0, topics.latest("out")[0]):
        for row in rows:
            window = json.loads(row[3] or b"")
            found[window["minute"], window["customer"]] += window["count"]
    return found


@pytest.mark.parametrize("event_time", [', event_time="ts"', ""], ids=["with event_time", "without event_time"])
def test_a_container_that_starts_late_loses_no_order(tmp_path: Path, event_time: str) -> None:
    with orders_scene(tmp_path, event_time) as (scene, topics):
        scene.start_coordinator()
        scene.deploy(containers=2, start="earliest")
        expected = feed_orders(topics)
        assert expected.total() == ORDERS
        half = (ORDERS + CUSTOMERS * PARTITIONS) // 2
        scene.start_container(0)
        wait_for("the first container's half", lambda: sum(topics.latest("middle").values()) >= half, 120)
        time.sleep(LATE_SECONDS)  # the lateness itself: the first container's readers advance as far as they may
        scene.start_container(1)
        with_all = lambda: (found := counted(topics)).total() >= ORDERS and found  # noqa: E731
        assert wait_for("all orders counted", with_all, 120) == expected
