"""Kafka as a task's system, through Spark's connector.

The sink is at-least-once: after a crash a topic may contain a batch's records twice, and a container whose lease has ended can write until
it exits. Leases bound that time. docs/decisions/0007-kafka.md describes what is exact and what is not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from containers.spark.systems.port import Grant
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_HEADERS = "array<struct<key:string,value:binary>>"

SOURCE_OPTIONS: Mapping[str, str] = {
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    "kafka.fetch.max.wait.ms": "10",
    "kafka.allow.auto.create.topics": "false",
}
"""By default, a fetch waits 500 ms for records, once per batch. Without that wait, the median batch takes 240 ms instead of 729."""


class KafkaTaskSystem:
    """`properties` override Sluice's own options: a broker may have limits."""

    def __init__(self, spark: SparkSession, bootstrap: str, properties: KafkaProperties) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._properties = properties
        self._options = {"kafka.bootstrap.servers": bootstrap, **properties.connector_options()}

    def read(self, grant: Grant, stream: str, starts: Mapping[int, int], max_rows: int) -> DataFrame:
        rows = (
            self._spark.readStream.format("kafka")
            .options(**{**SOURCE_OPTIONS, **self._options, **({"failOnDataLoss": "false"} if grant.opening else {})})
            .option("assign", json.dumps({stream: sorted(starts)}))
            .option("startingOffsets", json.dumps({stream: {str(p): offset for p, offset in sorted(starts.items())}}))
            .option("maxOffsetsPerTrigger", str(max_rows))
            .load()
        )
        headers = F.coalesce("headers", F.array().cast(_HEADERS)).alias("headers")  # null where a record has none
        return rows.select("key", "value", F.col("topic").alias("stream"), "partition", "offset", "timestamp", headers)

    def append(
        self,
        grant: Grant,
        records: DataFrame,
        batch: int,
        stream: str,
        headers: Mapping[str, str],
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        if headers:
            entries = [F.struct(F.lit(name).alias("key"), F.lit(value.encode()).alias("value")) for name, value in headers.items()]
            records = records.withColumn("headers", F.array(*entries))
        ready()  # executors write as they compute
        records.write.format("kafka").options(**self._options).option("topic", stream).save()

    def ends(self, stream: str) -> Mapping[int, int]:
        async def ask() -> Mapping[int, int]:
            system = KafkaSystem(self._bootstrap, self._properties)
            try:
                return await system.latest(stream)
            finally:
                await system.close()

        return asyncio.run(ask())

    def fence(self, grant: Grant, stream: str) -> int:
        return -1
