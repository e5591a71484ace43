"""A script between two topics whose disk is lost: with `app.kafka_writer` and `app.checkpoint` each row is in the topic once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from containers.jars import connector_jars
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.test_attach import BUSY_SECONDS, OPTIONS
from tests.processes.test_script_backups import Script as Started
from tests.support.coordinators import Running, running
from tests.support.deployed import ROOT
from tests.support.processes import SLUICE, WAIT_SECONDS, must_run, start, tail, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 60

SCRIPT = """
import sys

from pyspark.sql import SparkSession

import sluice

job, brokers = sys.argv[1:]
spark = SparkSession.builder.appName(job).getOrCreate()
app = sluice.attach(spark, job=job)
read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", f"{job}.in")
rows = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 5).load()
values = rows.selectExpr("CAST(value AS STRING) AS value").dropDuplicates()
writer = app.kafka_writer(values, f"{job}.out", {"kafka.bootstrap.servers": brokers})
writer.option("checkpointLocation", app.checkpoint("orders")).start().awaitTermination()
"""


@dataclass
class Script:
    coordinator: Running
    topics: Topics
    root: Path
    job: str = field(default_factory=lambda: f"orders-{uuid4().hex[:8]}")
    fed: int = 0
    started: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "orders.py").write_text(SCRIPT)
        for name in ("in", "out"):
            self.topics.create(f"{self.job}.{name}", 1)

    def start(self, disk: str) -> None:
        jars = ["--jars", ",".join(map(str, connector_jars()))]
        environment = {
            "SLUICE_COORDINATOR_URL": str(self.coordinator.http.base_url),
            "SLUICE_STATE_DIR": str(self.root / disk),
            "SLUICE_COMMIT_INTERVAL_SECONDS": "3600",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": " ".join([*OPTIONS, *jars, "pyspark-shell"]),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        log = self.root / f"start-{len(self.started)}.log"
        command = [*SLUICE, "exec", "--job", self.job, "--", sys.executable, "orders.py", self.job, self.topics.bootstrap]
        self.started.append((start(command, log, cwd=self.root, environment=environment, new_session=True), log))

    def feed(self) -> None:
        records = [Record(str(n).encode(), partition=0) for n in range(self.fed, self.fed + ROWS)]
        writer = Writer(Lineage("test"), "test", Generation(1))
        self.topics.append(f"{self.job}.in", records, writer=writer, batch=self.fed, now_micros=0)
        self.fed += ROWS

    def written(self) -> Counter[int]:
        stream = f"{self.job}.out"
        end = sum(self.topics.latest(stream).values())
        return Counter(int(row[3] or b"") for rows in self.topics.read(stream, 0, 0, end) for row in rows)

    def await_rows(self, at_least: int) -> None:
        process, log = self.started[-1]

        def look() -> bool:
            must_run(process, log)
            return len(self.written()) >= at_least

        wait_for(f"{at_least} rows", look, BUSY_SECONDS, details=lambda: tail(log))

    def repeated(self, disk: str) -> list[int]:
        """The batches that ran in the gate: their offsets have a blank more."""
        entries = (self.root / disk / self.job / "drain-0/orders/offsets").glob("[0-9]*")
        return sorted(int(each.name) for each in entries if each.read_text().splitlines()[2].startswith(" "))

    def lose(self, disk: str) -> None:
        Started.kill(*self.started[-1])
        shutil.rmtree(self.root / disk)


@pytest.fixture
def orders(kafka_server: str, tmp_path: Path) -> Iterator[Script]:
    topics = Topics(kafka_server)
    with running(tmp_path / "home", "--lease-seconds", "15", "--heartbeat-seconds", "1") as coordinator:
        made = Script(coordinator, topics, tmp_path)
        try:
            yield made
        finally:
            for process, log in made.started:
                Started.kill(process, log)
            topics.close()


@pytest.mark.long  # as test_script_life.py, which also loses a disk in the middle of batches on Kafka
def test_after_a_lost_disk_batches_run_again_as_they_were_planned_and_each_row_is_in_the_topic_once(orders: Script) -> None:
    """There is one snapshot, of the first batches. Many batches have been written since."""
    orders.start("one")
    orders.feed()
    orders.await_rows(ROWS)
    orders.feed()
    orders.await_rows(ROWS + 25)
    orders.lose("one")
    (snapshot, *_) = orders.coordinator.http.get(f"/jobs/{orders.job}/snapshots").json()["snapshots"]

    orders.start("two")
    orders.feed()
    orders.await_rows(orders.fed)
    again = orders.repeated("two")
    assert again == list(range(snapshot["batchId"] + 2, again[-1] + 1))  # the first one is in the checkpoint
    assert len(again) > 8
    assert orders.written() == Counter(range(orders.fed))

    orders.lose("two")  # in the middle of nothing: everything is written
    orders.start("three")
    orders.feed()
    orders.await_rows(orders.fed)
    assert orders.written() == Counter(range(orders.fed))


@pytest.mark.long  # tests/attached/test_repeated_batches.py has the same without processes
def test_a_drain_of_a_script_whose_disk_was_lost_writes_each_row_once(orders: Script) -> None:
    """The script starts again under the drain, and after it on the drained offsets."""
    http = orders.coordinator.http
    (orders.root / "orders.py").write_text(SCRIPT.replace(".dropDuplicates()", ""))  # a flush of state would not be a batch of the input
    orders.start("one")
    orders.feed()
    orders.await_rows(ROWS)
    orders.lose("one")
    run = http.get("/runs", params={"job": orders.job, "limit": 1}).json()["runs"][0]["runId"]
    http.post("/drain", json={"runId": run}).raise_for_status()  # or the machine was lost while the drain waited for another query
    orders.start("two")
    process, log = orders.started[-1]
    wait_for("the end of the drain", lambda: http.get(f"/runs/{run}").json()["state"] == "DRAINED", BUSY_SECONDS, details=lambda: tail(log))
    process.wait(WAIT_SECONDS)
    environment = {**os.environ, "SLUICE_COORDINATOR_URL": str(http.base_url)}
    subprocess.run([*SLUICE, "start", orders.job], env=environment, check=True, timeout=WAIT_SECONDS)
    orders.start("two")
    orders.feed()
    orders.await_rows(orders.fed)
    assert orders.written() == Counter(range(orders.fed))
