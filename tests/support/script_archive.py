"""`python -m tests.support.script_archive` makes an archive of the classes that Spark loads for a script, as `sluice class-archive` does
for containers. With it the JVMs of scripts in tests start with less CPU time (`tests/conftest.py`). It is valid for this environment's Java
and PySpark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ARCHIVE = Path(sys.prefix) / "scripts.jsa"

SCRIPT = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

named = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = named.config("spark.sql.shuffle.partitions", "1").getOrCreate()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
counts = rows.withWatermark("timestamp", "1 second").groupBy(F.window("timestamp", "1 second")).count()
writer = counts.writeStream.outputMode("update").foreachBatch(lambda batch, _: batch.collect())
query = writer.option("checkpointLocation", sys.argv[1]).start()
while (query.lastProgress or {"batchId": 0})["batchId"] < 3:
    query.awaitTermination(0.2)
query.stop()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
jvm.wait()  # it writes the archive as it ends
"""


def options() -> str:
    """For a JVM that uses the archive, if there is one. A JVM whose classes are others starts without it."""
    return f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds*=off -Xlog:class+path=off" if ARCHIVE.exists() else ""


def main() -> None:
    with TemporaryDirectory() as made:
        dump = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={made}/archive -Xlog:cds*=off"
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": dump, "SPARK_LOCAL_IP": "127.0.0.1"}
        subprocess.run([sys.executable, "-c", SCRIPT, f"{made}/checkpoint"], check=True, env=environment, timeout=300)
        Path(made, "archive").replace(ARCHIVE)


if __name__ == "__main__":
    main()
