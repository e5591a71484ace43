"""The pipeline of `bench/growth_job.py` as one plain Spark query that subscribes to the topic and therefore reads new partitions by itself.

    python -m bench.growth_plain BOOTSTRAP DIRECTORY

It prints the end offsets of each batch as a JSON line, and ends when its standard input is closed.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame

from bench.growth_job import counted
from containers.jars import connector_jars
from containers.spark.listener import BatchDone, Listener
from containers.spark.query import start_query
from containers.spark.session import start_session
from containers.spark.systems.kafka import SOURCE_OPTIONS


def main(bootstrap: str, directory: Path) -> None:
    spark = start_session("plain", "local[1]", directory / "spark", {"spark.jars": ",".join(map(str, connector_jars()))}, directory)
    spark.streams.addListener(Listener(report, lambda ended: None))
    source = spark.readStream.format("kafka").options(**SOURCE_OPTIONS)
    records = source.option("kafka.bootstrap.servers", bootstrap).option("subscribe", "events").option("startingOffsets", "earliest").load()

    def collect(batch: DataFrame, batch_id: int) -> None:
        batch.collect()

    start_query(
        spark,
        counted(records).writeStream.outputMode("update").foreachBatch(collect),
        "plain",
        directory / "checkpoint",
        timedelta(seconds=1),
    )
    sys.stdin.read()


def report(done: BatchDone) -> None:
    print(json.dumps(done.positions), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
