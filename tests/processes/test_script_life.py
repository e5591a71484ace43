"""The life of a script with windows, a dedup and a join between Kafka topics: its agent is killed, its disk lost, and it
is moved, upgraded and drained. Its results are those of an uninterrupted run."""

from __future__ import annotations

import json
import os
import shutil
import signal
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
from tests.processes.test_attach import BUSY_SECONDS, OPTIONS, descendants, is_gone
from tests.support.coordinators import Running, running
from tests.support.deployed import ROOT
from tests.support.processes import SLUICE, await_line, completed, kill_whole, must_run, start, tail, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

IN, OUT = ("orders", "payments"), ("windows", "unique", "joined")
ORDERS = 20
"""Orders that are fed at once, two for each second of event time: a multiple of a window, so that no window is open over a drain."""

STATE = (
    "--conf",
    "spark.sql.streaming.stateStore.providerClass=org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "--conf",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled=true",
    "--conf",
    "spark.sql.streaming.stateStore.checkpointFormatVersion=2",
)
"""The newest format of state; other tests have the older one."""

SCRIPT = """
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sluice

job, brokers = sys.argv[1:]
spark = SparkSession.builder.appName(job).getOrCreate()
app = sluice.attach(spark, job=job)


def read(topic, prefix):
    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", f"{job}.{topic}")
    rows = records.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 15).load()
    fields = F.from_json(F.col("value").cast("string"), "id bigint, at timestamp, copy int").alias("v")
    named = rows.select(fields).select(*(F.col(f"v.{name}").alias(f"{prefix}{name}") for name in ("id", "at", "copy")))
    return named.withWatermark(f"{prefix}at", "3 seconds")


def write(values, name):
    writer = app.kafka_writer(values, f"{job}.{name}", {"kafka.bootstrap.servers": brokers})
    writer.outputMode("append").option("checkpointLocation", app.checkpoint(name)).start()


windows = read("orders", "").groupBy(F.window("at", "5 seconds")).count()
write(windows.select(F.concat_ws(" ", F.unix_timestamp("window.start"), "count").alias("value")), "windows")
write(read("orders", "").dropDuplicates(["id", "at"]).select(F.col("id").cast("string").alias("value")), "unique")
pairs = F.expr("id = paid_id AND paid_at BETWEEN at AND at + INTERVAL 2 SECONDS")
joined = read("orders", "").filter("copy = 0").join(read("payments", "paid_"), pairs)
write(joined.select(F.col("id").cast("string").alias("value")), "joined")
spark.streams.awaitAnyTermination()
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
        for version in (1, 2):
            (self.root / f"orders_v{version}.py").write_text(f"{SCRIPT}# version {version}\n")
        for name in (*IN, *OUT):
            self.topics.create(f"{self.job}.{name}", 2 if name in IN else 1)

    def command(self, version: int = 1) -> list[str]:
        return [sys.executable, f"orders_v{version}.py", self.job, self.topics.bootstrap]

    def exec(self, disk: str) -> tuple[subprocess.Popen[bytes], Path]:
        return self.run(disk, *SLUICE, "exec", "--job", self.job, "--", *self.command())

    def run(self, disk: str, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        jars = ["--jars", ",".join(map(str, connector_jars()))]
        environment = {
            **self.environment,
            "SLUICE_STATE_DIR": str(self.root / disk),
            "SLUICE_COMMIT_INTERVAL_SECONDS": "2",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": " ".join([*OPTIONS, *jars, *STATE, "pyspark-shell"]),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        log = self.root / f"start-{len(self.started)}.log"
        self.started.append((start(command, log, cwd=self.root, environment=environment, new_session=True), log))
        return self.started[-1]

    @property
    def environment(self) -> dict[str, str]:
        return {"SLUICE_COORDINATOR_URL": str(self.coordinator.http.base_url)}

    def sluice(self, *arguments: str) -> str:
        done = completed([*SLUICE, *arguments], environment={**os.environ, **self.environment})
        done.check_returncode()
        return done.stdout

    def feed(self) -> None:
        """Orders, each twice, and their payments."""
        first = self.fed
        self.fed += ORDERS
        for name, copies in (("orders", (0, 1)), ("payments", (0,))):
            found = [
                Record(json.dumps({"id": number, "at": at(number), "copy": copy}).encode(), partition=number % 2)
                for number in range(first, self.fed)
                for copy in copies
            ]
            self.topics.append(f"{self.job}.{name}", found, writer=Writer(Lineage(name), "t", Generation(1)), batch=first, now_micros=0)

    def written(self, name: str) -> Counter[str]:
        stream = f"{self.job}.{name}"
        end = sum(self.topics.latest(stream).values())
        return Counter((row[3] or b"").decode() for rows in self.topics.read(stream, 0, 0, end) for row in rows)

    def await_written(self, least: int) -> None:
        """Until so many orders are deduplicated and joined."""
        process, log = self.started[-1]

        def look() -> bool:
            must_run(process, log)
            return all(len(self.written(name)) >= least for name in ("unique", "joined"))

        wait_for(f"{least} orders", look, BUSY_SECONDS, details=lambda: tail(log))

    def check_exported(self, disk: str) -> None:
        """What `sluice export` writes for another program is what the disk has."""
        exported = json.loads(self.sluice("export", self.job, str(self.root / "exported"), "--json"))["checkpoints"]
        assert {each["stage"] for each in exported} == set(OUT)
        for each in exported:
            directory = Path(each["directory"])
            for found in (file for file in directory.rglob("*") if file.is_file()):
                assert (
                    found.read_bytes()
                    == (self.root / disk / self.job / "drain-0" / each["stage"] / found.relative_to(directory)).read_bytes()
                )
            assert (directory / "commits" / str(each["batchId"])).exists()
            assert not (directory / "offsets" / str(each["batchId"] + 1)).exists()


def at(order: int) -> str:
    return f"2024-01-01T00:{order // 120:02d}:{order // 2 % 60:02d}Z"


@pytest.fixture
def orders(kafka_server: str, tmp_path: Path) -> Iterator[Script]:
    topics = Topics(kafka_server)
    with running(tmp_path / "home", "--lease-seconds", "15", "--heartbeat-seconds", "1") as coordinator:
        made = Script(coordinator, topics, tmp_path)
        try:
            yield made
        finally:
            for process, _ in made.started:
                kill_whole(process)
            topics.close()


def test_a_script_gives_the_same_results_when_its_agent_is_killed_its_disk_lost_and_it_is_moved_upgraded_and_drained(
    orders: Script,
) -> None:
    first, log = orders.run("one", *orders.command())
    orders.feed()
    orders.await_written(ORDERS // 2)
    below = descendants(first.pid)
    (agent,) = (each for each, command in below if "containers.attached.agent_process" in command)
    (jvm,) = (each for each, command in below if Path(command[0]).name == "java")
    agent.kill()
    assert first.wait(BUSY_SECONDS) in (3, -signal.SIGKILL), tail(log)
    wait_for("the end of the JVM", lambda: is_gone(jvm))
    shutil.rmtree(orders.root / "one")

    moved, log = orders.exec("two")
    orders.feed()
    orders.await_written(orders.fed)
    moved.send_signal(signal.SIGTERM)
    assert moved.wait(BUSY_SECONDS) == 0, tail(log)
    orders.check_exported("two")

    replaced, log = orders.exec("three")
    orders.feed()
    orders.await_written(orders.fed)
    upgraded, said = orders.run("three", *SLUICE, "upgrade", orders.job, "--batches", "1", "--", *orders.command(version=2))
    assert replaced.wait(BUSY_SECONDS) == 0, tail(log)
    orders.feed()
    await_line(upgraded, said, "(upgraded: run .* is healthy)")
    orders.await_written(orders.fed)
    orders.sluice("drain", orders.job, "--wait")
    assert upgraded.wait(BUSY_SECONDS) == 0, tail(said)

    each = Counter(map(str, range(orders.fed)))
    assert orders.written("unique") == each
    assert orders.written("joined") == each
    begin = 1_704_067_200
    assert orders.written("windows") == Counter(f"{begin + second} 20" for second in range(0, orders.fed // 2, 5))
