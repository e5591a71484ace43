"""The query of `bench/checkpoint_job.py` as one plain Spark query with its checkpoint in S3, through Hadoop's S3A.

    python -m bench.checkpoint_s3a LOG ADDRESS DIRECTORY

It reads the log LOG from its beginning and appends to it as the job does, and prints one JSON line per batch: its number, its rows and its
milliseconds. It ends when its standard input is closed. Spark has the settings that Sluice uses, except for the checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.checkpoint_job import PARTITIONS, counted
from bench.gateway import BUCKET, REGION
from containers.jars import Artefact, JarSet, ensure_jars
from containers.spark.listener import BatchDone, Listener
from containers.spark.session import start_session
from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import Grant
from sluice.clock import SystemClock
from sluice.core.ids import Generation, Lineage, RunId, StageName, TaskName
from tests.support.s3servers import S3_CREDENTIALS

S3A = JarSet("s3a", (Artefact("org.apache.hadoop", "hadoop-aws", "3.5.0"),), ("org.slf4j", "com.google.code.findbugs"))
"""The Hadoop version of PySpark."""

GRANT = Grant("s3a", TaskName("all"), StageName("count"), Generation(1), Lineage("s3a"), RunId("s3a"), {})
MAX_ROWS = 50_000


def settings(address: str) -> dict[str, str]:
    """The settings with which Spark reaches the bucket and writes checkpoints there, otherwise Spark's defaults."""
    s3a = {
        "endpoint": f"http://{address}",
        "endpoint.region": REGION,
        "access.key": S3_CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "secret.key": S3_CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    return {
        "spark.driver.extraClassPath": os.pathsep.join(map(str, ensure_jars(S3A, os.environ))),
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
        ),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()},
    }


def main(log: Path, address: str, directory: Path) -> None:
    spark = start_session("s3a", "local[2]", directory / "spark", settings(address), directory)
    streams = LogTaskSystem(spark, log, SystemClock(), print)
    spark.streams.addListener(Listener(report, lambda ended: print(ended.error, file=sys.stderr)))
    rows = counted(streams.read(GRANT, "readings", dict.fromkeys(range(PARTITIONS), 0), MAX_ROWS))
    records = rows.select(F.col("sensor").cast("binary").alias("key"), F.to_json(F.struct("*")).cast("binary").alias("value"))

    def append(batch: DataFrame, batch_id: int) -> None:
        streams.append(GRANT, batch, batch_id, "counts", {})

    writer = records.writeStream.foreachBatch(append).outputMode("update").queryName("s3a")
    writer.option("checkpointLocation", f"s3a://{BUCKET}/checkpoint").trigger(processingTime="1 second").start()
    sys.stdin.read()


def report(done: BatchDone) -> None:
    print(json.dumps({"batch": done.batch, "rows": done.rows, "millis": done.duration_ms}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
