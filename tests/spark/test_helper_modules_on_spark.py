"""A job's own helper modules in every kind of Python process that Spark starts, from a working directory full of traps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.traps import set_traps

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = """
from sluice import Job
import helper

job = Job("helped")
numbers = job.input("numbers")

@job.stage(reads=numbers)
def unused(task): ...

def times(n):
    import random
    from imported_late import FACTOR
    return random.choice([n * FACTOR])
"""

HELPERS = {
    "imported_late.py": "FACTOR = 3\n",
    "helper.py": """
import pandas as pd
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StatefulProcessor


def twice(frames):
    for frame in frames:
        yield frame.assign(id=frame.id * 2)


class Reader(DataSourceReader):
    def read(self, partition):
        from imported_late import FACTOR
        yield FACTOR,


class StreamReader(DataSourceStreamReader):
    def initialOffset(self):
        return {"n": 0}

    def latestOffset(self):
        from imported_late import FACTOR
        return {"n": FACTOR}

    def partitions(self, start, end):
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition):
        return ((n,) for n in range(*partition.value))


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return Reader()

    def streamReader(self, schema):
        return StreamReader()


class Remembers(StatefulProcessor):
    def init(self, handle):
        from imported_late import FACTOR
        self.factor = FACTOR

    def handleInputRows(self, key, rows, timers):
        yield pd.DataFrame({"n": [key[0] * self.factor]})

    def close(self):
        pass
""",
}

SESSION = """
import json
import os
import sys
from pathlib import Path
from containers.spark.start.cds import find_archive
from sluice.job import load_job
from containers.spark.session import pickle_by_value, start_session

root, job_file = map(Path, sys.argv[1:])
job = load_job(job_file)
pickle_by_value(sys.modules["sluice_job"])
options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
spark = start_session("helped", "local[1]", root / "spark", options, None, find_archive(os.environ), job.directory)

from pyspark.sql.functions import udf
from sluice_job import helper, times

def streamed(rows, name):
    query = rows.writeStream.format("memory").queryName(name).option("checkpointLocation", str(root / name)).outputMode("append").start()
    query.processAllAvailable()
    query.stop()
    return sorted(row.n for row in spark.table(name).collect())

spark.dataSource.register(helper.Numbers)
stream = spark.readStream.format("numbers").load()
states = stream.groupBy("n").transformWithStateInPandas(helper.Remembers(), "n int", "append", "none")
print(json.dumps({
    "a user function": spark.range(2).select(udf(times, "int")("id").alias("n")).collect()[1].n,
    "mapInPandas": spark.range(2).mapInPandas(helper.twice, "id long").collect()[1].id,
    "a data source": spark.read.format("numbers").load().collect()[0].n,
    "a streaming data source": streamed(stream, "plain"),
    "transformWithState": streamed(states, "states"),
}))
spark.stop()
"""


@pytest.mark.long
def test_every_kind_of_python_process_of_spark_imports_the_helper_modules_and_none_of_the_traps(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf.descriptor", reason="Spark's transformWithState needs protobuf")
    job, elsewhere = tmp_path / "a job's", tmp_path / "elsewhere"
    set_traps(job)
    set_traps(elsewhere, "helper", "imported_late")
    for name, text in {**HELPERS, "job.py": JOB}.items():
        (job / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", "-c", SESSION, str(tmp_path), str(job / "job.py")],
        cwd=elsewhere,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "a user function": 3,
        "mapInPandas": 2,
        "a data source": 3,
        "a streaming data source": [0, 1, 2],
        "transformWithState": [0, 3, 6],
    }
