"""Writing to Kafka exactly once, compared with Spark's own sink, which is at-least-once.

Measured: one task that writes batches of 400,000 rows of about 100 bytes with a header to a topic of four partitions, on a broker on this
machine, and batches of 1,000 rows. Both ways write the same DataFrame through `KafkaTaskSystem.append`, alternately. At the end a consumer
that reads only committed records must find each row of the transactions once.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.harness import Result, note
from containers.jars import connector_jars
from containers.spark.session import start_session
from containers.spark.start.cds import find_archive
from containers.spark.systems.kafka import KafkaTaskSystem
from containers.spark.systems.port import Grant
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage, RunId, StageName, TaskName
from sluice.job import Delivery
from sluice.streams.kafka_properties import KafkaProperties
from tests.support.servers import kafka

NAME = "kafka-exactly-once"
BULK, BULK_ROUNDS = 400_000, 3
SMALL, SMALL_ROUNDS = 1_000, 40
LEAST_RATIO, MOST_P50_RATIO = 0.75, 1.2
HEADERS: Mapping[str, str] = {"sluice-run": "00000000-bench"}


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home = Path(made)
        with kafka(home / "kafka") as bootstrap, session(home) as spark, closing(Topics(bootstrap)) as topics:
            return _measure(spark, topics)


@contextmanager
def session(home: Path) -> Iterator[SparkSession]:
    jars = {"spark.jars": ",".join(map(str, connector_jars()))}
    with tempfile.TemporaryDirectory(prefix="sluice-") as sockets:
        session = start_session("bench", "local[2]", home / "spark", jars, Path(sockets), find_archive(os.environ))
        yield session
        session.stop()


def _measure(spark: SparkSession, topics: Topics) -> Result:
    grant = Grant("bench", TaskName("Partition 0"), StageName("stage"), Generation(1), Lineage("bench"), RunId("bench"), {})
    system = KafkaTaskSystem(spark, topics.bootstrap, KafkaProperties({}))
    for delivery in Delivery:
        topics.create(delivery.value, 4)
    batches = dict.fromkeys(Delivery, 0)
    seconds: dict[tuple[Delivery, int], list[float]] = {(delivery, rows): [] for delivery in Delivery for rows in (BULK, SMALL)}

    def write(delivery: Delivery, rows: int) -> float:
        began = time.perf_counter()
        system.append(grant, records(spark, rows), batches[delivery], delivery.value, HEADERS, delivery=delivery)
        batches[delivery] += 1
        return time.perf_counter() - began

    try:
        for rows, rounds in ((BULK, BULK_ROUNDS), (SMALL, SMALL_ROUNDS)):
            for delivery in Delivery:
                write(delivery, rows)  # the first batch compiles and connects
            for number in range(rounds):
                for delivery in Delivery if number % 2 else reversed(Delivery):
                    seconds[delivery, rows].append(write(delivery, rows))
    finally:
        system.close()
    rates = {delivery: BULK / median(seconds[delivery, BULK]) for delivery in Delivery}
    p50s = {delivery: median(seconds[delivery, SMALL]) for delivery in Delivery}
    for delivery in Delivery:
        note(f"{delivery}: {rates[delivery]:,.0f} rows/s, a batch of {SMALL:,} rows in {p50s[delivery] * 1000:.0f} ms (p50)")
    due = (BULK_ROUNDS + 1) * BULK + (SMALL_ROUNDS + 1) * SMALL
    written = topics.confirmed(Delivery.EXACTLY_ONCE.value)
    ratio = rates[Delivery.EXACTLY_ONCE] / rates[Delivery.AT_LEAST_ONCE]
    p50_ratio = p50s[Delivery.EXACTLY_ONCE] / p50s[Delivery.AT_LEAST_ONCE]
    return Result(
        name=NAME,
        target=f"rows/s at least {LEAST_RATIO} of Spark's sink, p50 of {SMALL:,} rows at most {MOST_P50_RATIO} times, each row once",
        figures={
            "rows/s": round(rates[Delivery.EXACTLY_ONCE]),
            "rows/s of Spark's sink": round(rates[Delivery.AT_LEAST_ONCE]),
            "p50 ms": round(p50s[Delivery.EXACTLY_ONCE] * 1000),
            "p50 ms of Spark's sink": round(p50s[Delivery.AT_LEAST_ONCE] * 1000),
            "rows missing or repeated": abs(written - due),
        },
        ratio=ratio,
        met=ratio >= LEAST_RATIO and p50_ratio <= MOST_P50_RATIO and written == due,
    )


def records(spark: SparkSession, rows: int) -> DataFrame:
    number = F.col("id").cast("string")
    value = F.concat(F.lit("x" * 84), number).cast("binary").alias("value")
    return spark.range(0, rows, 1, 2).select(number.cast("binary").alias("key"), value)
