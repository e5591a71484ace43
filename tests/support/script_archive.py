"""`python -m tests.support.script_archive` makes an archive of the classes that Spark loads for a script, as `sluice class-archive` does
for containers. With it the JVMs of scripts in tests start with less CPU time (`tests/conftest.py`). It is valid for one Java and one set of
PySpark's jars, which its name says as that of the other does, and it is kept beside the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from containers.spark.start.cds import installation

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


def archive() -> Path | None:
    """Its file, whether it was made or not; None without Java or PySpark."""
    found = installation(os.environ)
    return None if found is None else found.directory / f"scripts-{found.where}-{found.what}.jsa"


def options() -> str:
    """For a JVM that uses the archive, if there is one. A JVM whose classes are others starts without it."""
    file = archive()
    return f"-XX:SharedArchiveFile={file} -Xlog:cds*=off -Xlog:class+path=off" if file is not None and file.exists() else ""


def main() -> None:
    file = archive()
    if file is None or file.exists():
        return
    with TemporaryDirectory(prefix="scripts-", dir=file.parent) as made:
        dump = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={made}/archive -Xlog:cds*=off"
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": dump, "SPARK_LOCAL_IP": "127.0.0.1"}
        subprocess.run([sys.executable, "-c", SCRIPT, f"{made}/checkpoint"], check=True, env=environment, timeout=300)
        for former in file.parent.glob(f"{file.stem.rsplit('-', 1)[0]}-*"):
            former.unlink(missing_ok=True)
        Path(made, "archive").replace(file)


if __name__ == "__main__":
    main()
