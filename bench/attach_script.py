"""A streaming script with one stateful query over 200 partitions of state, as somebody may have written it, for `bench/attach.py`.

    python -m bench.attach_script DIRECTORY WARM BATCHES [JOB]

With JOB it calls `sluice.attach`, and its checkpoint is backed up. When WARM batches have ended it prints a JSON line: when the first one
ended, in seconds since 1970. After BATCHES more it prints the milliseconds of each of them. It ends when its standard input is closed.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import sluice

PARTITIONS = 200
ROWS_A_BATCH = 20_000
KEYS = 10_000
POLL_SECONDS = 0.2


def main(directory: str, warm: int, batches: int, job: str = "") -> None:
    named = SparkSession.builder.appName("attach").master("local[2]").config("spark.ui.enabled", "false")
    spark = named.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", str(PARTITIONS)).getOrCreate()
    location = sluice.attach(spark, job=job).checkpoint("counts") if job else f"{directory}/counts"
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_A_BATCH).load()
    counts = rows.groupBy((F.col("value") % KEYS).alias("key")).agg(F.count("*").alias("rows"), F.max("timestamp").alias("last"))
    writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", location)
    query = writer.start()
    first = progress(query, warm)[0]
    began = datetime.fromisoformat(first["timestamp"]).timestamp()
    print(json.dumps({"first": began + first["durationMs"]["triggerExecution"] / 1000}), flush=True)
    done = [each["durationMs"]["triggerExecution"] for each in progress(query, warm + batches)]
    print(json.dumps({"millis": done[warm:]}), flush=True)
    sys.stdin.read()
    query.stop()


def progress(query: StreamingQuery, batches: int) -> list[dict[str, Any]]:
    """The progress of the first batches of the query, which Spark keeps for the last hundred. Blocks until they have ended."""
    while (last := query.lastProgress) is None or last["batchId"] < batches - 1:
        if not query.isActive:
            query.awaitTermination()  # raises its error
        time.sleep(POLL_SECONDS)
    found = [json.loads(each.json) if hasattr(each, "json") else dict(each) for each in query.recentProgress]
    return sorted((each for each in found if each["batchId"] < batches), key=lambda each: each["batchId"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
