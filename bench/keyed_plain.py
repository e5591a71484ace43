"""The stage of `bench/keyed_job.py` as one plain Spark query, which reads all partitions and shuffles.

    python -m bench.keyed_plain SYSTEM WHERE DIRECTORY

For each batch it prints a JSON line as `bench/flights_plain.py` does. It ends when its standard input is closed.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bench.flights_plain import GRANT, MAX_ROWS, report
from bench.keyed_job import INPUT, OUTPUT, PARTITIONS, counted
from containers.jars import connector_jars
from containers.spark.listener import Listener
from containers.spark.query import start_query
from containers.spark.session import start_session
from containers.spark.systems.kafka import KafkaTaskSystem
from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import TaskSystem
from sluice.clock import SystemClock
from sluice.streams.kafka_properties import KafkaProperties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(system: str, where: str, directory: Path) -> None:
    jars = {"spark.jars": ",".join(map(str, connector_jars()))} if system == "kafka" else {}
    spark = start_session("plain", "local[2]", directory / "spark", {"spark.sql.shuffle.partitions": "2", **jars}, directory)
    streams: TaskSystem = LogTaskSystem(spark, Path(where), SystemClock(), print)
    if system == "kafka":
        streams = KafkaTaskSystem(spark, where, KafkaProperties({}))
    spark.streams.addListener(Listener(report, lambda ended: None))

    def append(batch: DataFrame, number: int) -> None:
        streams.append(GRANT, batch, number, OUTPUT, {})

    rows = counted(streams.read(GRANT, INPUT, dict.fromkeys(range(PARTITIONS), 0), MAX_ROWS))
    records = rows.select(F.col("dest").cast("binary").alias("key"), F.to_json(F.struct("*")).cast("binary").alias("value"))
    start_query(spark, records.writeStream.foreachBatch(append), "hourly", directory / "hourly", timedelta(0))
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
