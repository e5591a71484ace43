"""The pipeline of `bench/flights_job.py` as plain Spark queries, without tasks and coordinator.

    python -m bench.flights_plain SYSTEM WHERE DIRECTORY one|two

One query reads all partitions of `flights`, counts by hour and carrier after Spark's own shuffle, and writes to `delays`. With `two`, the
first query writes every row to `by-carrier`, and the second one counts the rows of that stream, like the stages of the job. For each batch
it prints a JSON line: the query, the rows, the milliseconds, and when it ended on the monotonic clock. It ends when its standard input is
closed.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.flights_job import PARTITIONS, WATERMARK
from containers.jars import connector_jars
from containers.spark.listener import BatchDone, Listener
from containers.spark.query import start_query
from containers.spark.session import start_session
from containers.spark.systems.kafka import KafkaTaskSystem
from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import Grant, TaskSystem
from examples.flights.job import count_by_hour, parse
from sluice.clock import SystemClock
from sluice.core.ids import Generation, Lineage, RunId, StageName, TaskName
from sluice.streams.kafka_properties import KafkaProperties

MAX_ROWS = 100_000
BETWEEN = "by-carrier"
GRANT = Grant("plain", TaskName("all"), StageName("plain"), Generation(1), Lineage("plain"), RunId("plain"), {})


def main(system: str, where: str, directory: Path, queries: str) -> None:
    jars = {"spark.jars": ",".join(map(str, connector_jars()))} if system == "kafka" else {}
    spark = start_session("plain", "local[2]", directory / "spark", {"spark.sql.shuffle.partitions": "2", **jars}, directory)
    streams: TaskSystem
    if system == "kafka":
        streams = KafkaTaskSystem(spark, where, KafkaProperties({}))
    else:
        streams = LogTaskSystem(spark, Path(where), SystemClock(), print)
    spark.streams.addListener(Listener(report, lambda ended: None))

    def start(name: str, records: DataFrame, to: str) -> None:
        def append(batch: DataFrame, batch_id: int) -> None:
            streams.append(GRANT, batch, batch_id, to, {})

        start_query(spark, records.writeStream.foreachBatch(append), name, directory / name, timedelta(seconds=1))

    def read(stream: str) -> DataFrame:
        return streams.read(GRANT, stream, dict.fromkeys(range(PARTITIONS), 0), MAX_ROWS)

    source = "flights"
    if queries == "two":
        carrier = F.get_json_object(F.col("value").cast("string"), "$.carrier")
        start("route", read(source).select(carrier.cast("binary").alias("key"), "value"), BETWEEN)
        source = BETWEEN
    counted = count_by_hour(parse(read(source)).withWatermark("scheduled", WATERMARK))
    start(
        "count",
        counted.select(F.col("carrier").cast("binary").alias("key"), F.to_json(F.struct("*")).cast("binary").alias("value")),
        "delays",
    )
    sys.stdin.read()


def report(done: BatchDone) -> None:
    print(json.dumps({"query": done.query, "rows": done.rows, "millis": done.duration_ms, "at": time.monotonic()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
