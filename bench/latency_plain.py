"""The pipeline of `bench/latency_job.py` as two plain Spark queries with the stream between them, and with Spark's default trigger and
settings. Only the number of shuffle partitions is set, to the number of cores: Spark's default of 200 is for clusters.

    python -m bench.latency_plain SYSTEM WHERE DIRECTORY

Kafka is read and written with Spark's own source and sink, the log with Sluice's. It prints a JSON line when the queries have started, and
ends when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.latency_job import BETWEEN, ORDERS, PARTITIONS, RESULTS, parsed, unique
from containers.jars import connector_jars
from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import Grant
from sluice.clock import SystemClock
from sluice.core.ids import Generation, Lineage, RunId, StageName, TaskName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_ROWS = 100_000


def main(system: str, where: str, directory: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    builder = builder.appName("plain").master("local[2]").config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
    if system == "kafka":
        builder = builder.config("spark.jars", ",".join(map(str, connector_jars())))
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def read(stream: str) -> DataFrame:
        if system == "kafka":
            source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", where)
            return source.option("subscribe", stream).option("startingOffsets", "earliest").load()
        return log.read(grant(stream), stream, dict.fromkeys(range(PARTITIONS), 0), MAX_ROWS)

    def write(rows: DataFrame, stream: str) -> None:
        records = rows.select(
            F.col("customer").cast("binary").alias("key"), F.to_json(F.struct("id", "customer", "sent")).cast("binary").alias("value")
        )
        if system == "kafka":
            writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", where).option("topic", stream)
        else:
            writer = records.writeStream.foreachBatch(lambda batch, number: log.append(grant(stream), batch, number, stream, {}))
        writer.option("checkpointLocation", str(directory / stream)).start()

    log = LogTaskSystem(spark, Path(where), SystemClock(), print)
    write(parsed(read(ORDERS)), BETWEEN)
    write(unique(parsed(read(BETWEEN))), RESULTS)
    print(json.dumps({"started": True}), flush=True)
    sys.stdin.read()


def grant(name: str) -> Grant:
    return Grant("plain", TaskName("all"), StageName(name), Generation(1), Lineage(name), RunId("plain"), {})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
