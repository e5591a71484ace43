"""Drains of a script under `sluice exec`, over Kafka: `sluice drain`, the checkpoint after it, and the next start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyspark
import pytest

from containers.jars import connector_jars
from containers.spark.scripts.drain import OLDEST_SPARK
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.installed_spark import release_of
from sluice.streams.log import Record, Writer
from tests.support.coordinators import Running, running
from tests.support.deployed import ROOT
from tests.support.processes import SLUICE, WAIT_SECONDS, await_line, kill_whole, must_run, start, tail, wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(release_of(pyspark.__version__) < OLDEST_SPARK, reason="a running query cannot be flushed before Spark 4.0"),
]

BUSY_SECONDS = WAIT_SECONDS

SCRIPT = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
import sluice

job, brokers, topic, out = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
app = sluice.attach(spark, job=job)
records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
rows = records.option("startingOffsets", "earliest").load().select(F.col("value").cast("string").cast("timestamp").alias("at"))
counts = rows.withWatermark("at", "5 seconds").groupBy(F.window("at", "10 seconds")).count()
values = counts.select(F.col("count").cast("string").alias("value"))
writer = values.writeStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("topic", out)
writer.option("checkpointLocation", app.checkpoint("counts")).start().awaitTermination()
print("the script ends.", flush=True)
"""


HELD = """
import time
from pathlib import Path


def write(rows, batch):
    while Path("hold").exists():
        time.sleep(0.05)
    rows.write.format("kafka").option("kafka.bootstrap.servers", brokers).option("topic", out).save()


"""
"""A sink that waits in a batch while a file exists."""


class Script:
    """A script that counts the records of a topic by ten seconds, as a job of its own."""

    def __init__(self, coordinator: Running, topics: Topics, root: Path) -> None:
        self.coordinator = coordinator
        self.topics = topics
        self.root = root
        self.job = f"orders-{uuid4().hex[:8]}"
        self.fed = 0
        (root / "counts.py").write_text(SCRIPT)
        for name in ("orders", "counts"):
            topics.create(f"{self.job}.{name}", 1)
        jars = ",".join(str(each) for each in connector_jars())
        options = f"--master local[1] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=1 --jars {jars} pyspark-shell"
        self.environment = {
            "SLUICE_COORDINATOR_URL": str(coordinator.http.base_url),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": options,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def feed(self, seconds: range) -> None:
        records = [Record(f"2024-01-01 00:00:{second:02d}".encode(), partition=0) for second in seconds]
        self.topics.append(f"{self.job}.orders", records, writer=Writer(Lineage("t"), "t", Generation(1)), batch=self.fed, now_micros=0)
        self.fed += 1

    def command(self, version: int = 1) -> list[str]:
        options = [] if version == 1 else ["-X", "dev=0"]
        return [sys.executable, *options, "counts.py", self.job, self.topics.bootstrap, f"{self.job}.orders", f"{self.job}.counts"]

    def start(self) -> tuple[subprocess.Popen[bytes], Path]:
        return self.run("exec", "--job", self.job, "--", *self.command())

    def run(self, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.root / f"start-{len(self.started)}.log"
        self.started.append(start([*SLUICE, *arguments], log, cwd=self.root, environment=self.environment, new_session=True))
        return self.started[-1], log

    def await_read(self, process: subprocess.Popen[bytes], log: Path, offset: int) -> None:
        def look() -> bool:
            must_run(process, log)
            runs = self.coordinator.http.get("/runs", params={"job": self.job, "limit": 1})
            if runs.status_code != 200:  # the job does not exist yet
                return False
            detail = self.coordinator.http.get(f"/runs/{runs.json()['runs'][0]['runId']}").json()
            return any(each["offset"] == offset for task in detail["tasks"] for stage in task["stages"] for each in stage["offsets"])

        wait_for(f"offset {offset}", look, BUSY_SECONDS, details=lambda: tail(log))

    def sluice(self, *arguments: str) -> str:
        environment = {**os.environ, **self.environment}
        command = [*SLUICE, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=BUSY_SECONDS).stdout

    def counts(self) -> list[int]:
        stream = f"{self.job}.counts"
        return sorted(
            int(value or b"") for rows in self.topics.read(stream, 0, 0, self.topics.latest(stream)[0]) for _, _, _, value, _ in rows
        )


@pytest.fixture
def orders(kafka_server: str, tmp_path: Path) -> Iterator[Script]:
    topics = Topics(kafka_server)
    with running(tmp_path / "home") as coordinator:
        made = Script(coordinator, topics, tmp_path)
        try:
            yield made
        finally:
            for each in made.started:
                kill_whole(each)
            topics.close()


@pytest.mark.long  # the next test and that of the life of a script drain, too
def test_a_drained_script_ends_and_its_next_start_continues_at_the_drained_offsets(orders: Script) -> None:
    orders.feed(range(12))
    first, log = orders.start()
    orders.await_read(first, log, 12)
    assert orders.counts() == []
    plan = json.loads(orders.sluice("drain", orders.job, "--dry-run", "--json"))
    assert [(each["stage"], each["operators"]) for each in plan["stages"]] == [("counts", [])]
    drained = json.loads(orders.sluice("drain", orders.job, "--wait", "--json"))
    assert (drained["phase"], drained["leftoverRows"], drained["drained"][0]["offset"]) == ("DRAINED", 0, 12)
    assert first.wait(BUSY_SECONDS) == 0, tail(log)
    assert "the script ends." in log.read_text()
    assert orders.counts() == [2, 10]

    orders.feed(range(12, 17))
    second, log = orders.start()
    await_line(second, log, f"(`sluice start {orders.job}` starts it)")
    orders.sluice("start", orders.job)
    orders.await_read(second, log, 17)
    orders.sluice("drain", orders.job, "--wait")
    assert second.wait(BUSY_SECONDS) == 0, tail(log)
    assert orders.counts() == [2, 5, 10]  # records that come after a drain make another row of their window


@pytest.mark.long  # as test_script_life.py and tests/integration/cli/test_script_upgrade_command.py
def test_an_upgrade_replaces_the_command_or_gives_the_job_back_to_the_former_one(orders: Script) -> None:
    orders.feed(range(12))
    first, log = orders.start()
    orders.await_read(first, log, 12)

    failing, said = orders.run("upgrade", orders.job, "--", sys.executable, "-c", "import sys; sys.exit(7)")
    assert first.wait(BUSY_SECONDS) == 0, tail(log)
    second, log = orders.start()  # as its supervisor would
    assert failing.wait(BUSY_SECONDS) == 4, tail(said)
    assert "exit code 7" in said.read_text()
    assert orders.counts() == [2, 10]
    orders.feed(range(12, 17))
    orders.await_read(second, log, 17)

    third, said = orders.run("upgrade", orders.job, "--batches", "1", "--", *orders.command(version=2))
    assert second.wait(BUSY_SECONDS) == 0, tail(log)
    former, log = orders.start()
    await_line(former, log, "(is for another command)")
    await_line(third, said, "(upgraded: run .* is healthy)")
    orders.sluice("drain", orders.job, "--wait")
    assert third.wait(BUSY_SECONDS) == 0, tail(said)
    assert orders.counts() == [2, 5, 10]


@pytest.mark.long
def test_after_a_drain_that_fails_in_its_flush_the_script_continues_with_the_state_from_before(orders: Script) -> None:
    sink = SCRIPT[SCRIPT.index("writer = values") : SCRIPT.index("writer.option(")]
    held = SCRIPT.replace(sink, f"{HELD}writer = values.writeStream.foreachBatch(write)\n")
    (orders.root / "counts.py").write_text(held)
    orders.feed(range(12))
    first, log = orders.start()
    orders.await_read(first, log, 12)
    commits = orders.root / ".sluice/state" / orders.job / "drain-0/counts/commits"
    wait_for("the batch without data", (commits / "1").exists, BUSY_SECONDS)
    (orders.root / "hold").touch()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        orders.sluice("drain", orders.job, "--hard-seconds", "15", "--wait", "--json")
    assert json.loads(failed.value.stdout)["phase"] == "FAILED"
    (orders.root / "hold").unlink()
    assert first.wait(BUSY_SECONDS) == 0, tail(log)
    written = orders.counts()
    assert written in ([], [2, 10])

    orders.feed(range(12, 17))
    orders.sluice("start", orders.job)
    second, log = orders.start()
    orders.await_read(second, log, 17)
    orders.sluice("drain", orders.job, "--wait")
    assert second.wait(BUSY_SECONDS) == 0, tail(log)
    assert orders.counts() == sorted([*written, 7, 10])
