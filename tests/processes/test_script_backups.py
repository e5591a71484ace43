"""Checkpoints of scripts whose disk is lost: `app.checkpoint` is backed up while the script runs, and restored where it starts next.

The scripts count the lines of files, and append all counts after each batch to a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from tests.processes.test_attach import BUSY_SECONDS, OPTIONS, descendants
from tests.support.coordinators import Running, running
from tests.support.former_release import TODAY, Release, commit_f0c0f2cc
from tests.support.processes import WAIT_SECONDS, kill_whole, must_run, start, tail, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]
# as test_script_life.py for a lost disk, and tests/integration/agent/test_script_backups.py for each decision about a checkpoint

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ON_ROCKSDB = (
    "--conf",
    f"spark.sql.streaming.stateStore.providerClass={ROCKSDB}",
    "--conf",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled=true",
)
MAINTAINED = (
    "--conf",
    "spark.sql.streaming.stateStore.maintenanceInterval=200ms",
    "--conf",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot=0",
)
"""Spark writes whole states in the background, also of batches that are not committed."""

SCRIPT = """
import json, os, sys, time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

root, job, checkpoint = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = SparkSession.builder.appName(job).getOrCreate()
if checkpoint == "app":
    import sluice

    app = sluice.attach(spark, job=job)
    location = app.checkpoint("counts", adopt=sys.argv[4] if len(sys.argv) > 4 else None)
else:
    location = checkpoint


def write(rows, batch):
    counts = {row["value"]: row["count"] for row in rows.collect()}
    (root / "held").touch()
    while (root / "hold").exists():
        time.sleep(0.05)
    with (root / "out").open("a") as out:
        lineage = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        out.write(json.dumps({"batch": batch, "lineage": lineage, "counts": counts}) + "\\n")


counts = spark.readStream.text(str(root / "in")).groupBy("value").count()
query = counts.writeStream.outputMode("complete").foreachBatch(write).option("checkpointLocation", location).start()
print(f"started on {location}.", flush=True)
query.awaitTermination()
print("the script ends.", flush=True)
"""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("backups") / "home", "--lease-seconds", "15", "--heartbeat-seconds", "1") as found:
        yield found


@dataclass
class Script:
    """Starts of one script, each on a disk of its own."""

    coordinator: Running
    root: Path
    options: Sequence[str] = ()
    interval: str = "0.5"
    executors_python: str = sys.executable
    release: Release = TODAY
    job: str = field(default_factory=lambda: f"orders-{uuid4().hex[:8]}")
    fed: Counter[str] = field(default_factory=Counter)
    files: int = 0
    started: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "in").mkdir(parents=True)
        (self.root / "counts.py").write_text(SCRIPT)

    def disk(self, number: int) -> Path:
        return self.root / f"disk-{number}"

    def environment(self, disk: int) -> dict[str, str]:
        return {
            "SLUICE_COORDINATOR_URL": str(self.coordinator.http.base_url),
            "SLUICE_STATE_DIR": str(self.disk(disk)),
            "SLUICE_COMMIT_INTERVAL_SECONDS": self.interval,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": self.executors_python,
            "PYSPARK_SUBMIT_ARGS": " ".join([*OPTIONS, *self.options, "pyspark-shell"]),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self.release.directory), os.environ.get("PYTHONPATH")))),
        }

    def start(self, disk: int, *arguments: str, under_exec: bool = True) -> tuple[subprocess.Popen[bytes], Path]:
        command = [sys.executable, "counts.py", str(self.root), self.job, *(arguments or ("app",))]
        if under_exec:
            command = [*self.release.command, "exec", "--job", self.job, "--", *command]
        log = self.root / f"start-{len(self.started)}.log"
        self.started.append((start(command, log, cwd=self.root, environment=self.environment(disk), new_session=True), log))
        return self.started[-1]

    def feed(self, *values: str) -> None:
        self.files += 1
        part = self.root / "in" / f".{self.files}"
        part.write_text("".join(f"{value}\n" for value in values))
        part.rename(part.with_name(str(self.files)))
        self.fed.update(values)

    def written(self) -> list[dict[str, Any]]:
        out = self.root / "out"
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    def await_counts(self) -> dict[str, Any]:
        """Wait until everything that was fed is counted. Returns the last batch."""
        process, log = self.started[-1]

        def look() -> dict[str, Any] | None:
            must_run(process, log)
            written = self.written()
            return written[-1] if written and written[-1]["counts"] == self.fed else None

        return wait_for(f"counts {dict(self.fed)}", look, BUSY_SECONDS, details=lambda: f"{self.written()[-1:]} {tail(log)}")

    def snapshots(self) -> list[dict[str, Any]]:
        answer = self.coordinator.http.get(f"/jobs/{self.job}/snapshots")
        return list(answer.json()["snapshots"]) if answer.status_code == 200 else []

    def await_snapshot(self, batch: int) -> None:
        """Wait for a snapshot that ends with that batch."""
        wait_for(f"a snapshot of batch {batch}", lambda: any(each["batchId"] == batch for each in self.snapshots()), BUSY_SECONDS)

    def await_held(self) -> None:
        process, log = self.started[-1]

        def look() -> bool:
            must_run(process, log)
            return (self.root / "held").exists()

        (self.root / "held").unlink(missing_ok=True)
        wait_for("the batch", look, BUSY_SECONDS, details=lambda: tail(log))

    def await_state_above(self, disk: int, batch: int) -> None:
        """Wait until the state after the batch that follows this one is on the disk, as a whole."""
        partition = self.disk(disk) / self.job / "drain-0/counts/state/0/0"
        whole = {f"{batch + 2}.snapshot", f"{batch + 2}.zip"}
        wait_for(f"{whole} in {partition}", lambda: whole & {each.name for each in partition.iterdir()}, BUSY_SECONDS)

    def lose(self, disk: int) -> None:
        """Kill all processes of the last start, and delete its disk."""
        self.kill(*self.started[-1])
        shutil.rmtree(self.disk(disk))

    @staticmethod
    def kill(process: subprocess.Popen[bytes], _: Path) -> None:
        below = descendants(process.pid) if process.poll() is None else []
        kill_whole(process)
        for each, _command in below:
            try:
                each.kill()
                each.wait(WAIT_SECONDS)
            except psutil.NoSuchProcess:
                pass

    def end(self) -> None:
        for process, log in self.started:
            self.kill(process, log)


@pytest.fixture(params=[pytest.param((), id="hdfs"), pytest.param(ON_ROCKSDB, id="rocksdb")])
def orders(request: pytest.FixtureRequest, coordinator: Running, tmp_path: Path) -> Iterator[Script]:
    made = Script(coordinator, tmp_path, (*request.param, *MAINTAINED))
    try:
        yield made
    finally:
        made.end()


def test_after_two_lost_disks_every_line_is_counted_once_although_batches_were_computed_that_are_planned_again(orders: Script) -> None:
    """Each disk is lost while the state of a batch is written, also as a whole by Spark's maintenance, and the batch is not committed. At
    the next start that batch has more lines."""
    lineages = []
    for disk in range(3):
        orders.start(disk)
        orders.feed("book", f"of disk {disk}")
        done = orders.await_counts()
        orders.feed("pen")
        done = orders.await_counts()
        lineages.append(done["lineage"])
        orders.await_snapshot(done["batch"])
        if disk == 2:
            break
        (orders.root / "hold").touch()
        orders.feed("book", "book", f"held on disk {disk}")
        orders.await_held()
        orders.await_state_above(disk, done["batch"])
        orders.lose(disk)
        (orders.root / "hold").unlink()
        orders.feed("book", f"after disk {disk}")
    assert len(set(lineages)) == 3
    batches = [each["batch"] for each in orders.written()]
    assert batches == sorted(batches)
    _, log = orders.started[-1]
    assert "starts a new lineage after batch" in log.read_text()


@pytest.fixture
def moved(coordinator: Running, tmp_path: Path) -> Iterator[Script]:
    made = Script(coordinator, tmp_path)
    try:
        yield made
    finally:
        made.end()


def contents(directory: Path) -> dict[str, str]:
    return {
        str(each.relative_to(directory)): hashlib.sha256(each.read_bytes()).hexdigest() for each in directory.rglob("*") if each.is_file()
    }


def test_a_checkpoint_that_was_used_without_sluice_is_adopted_once_with_its_planned_batch(moved: Script) -> None:
    """It is adopted from a file system of Hadoop that is not the local one."""
    former = moved.root / "former"
    moved.start(0, str(former), under_exec=False)
    moved.feed("book", "pen")
    first = moved.await_counts()
    (moved.root / "hold").touch()
    moved.feed("book")
    moved.await_held()
    moved.kill(*moved.started[-1])
    (moved.root / "hold").unlink()
    moved.options = ("--conf", f"spark.hadoop.fs.viewfs.mounttable.cluster.link./former={former.as_uri()}")
    before = contents(former)
    assert f"offsets/{first['batch'] + 1}" in before
    assert f"commits/{first['batch'] + 1}" not in before

    moved.start(0, "app", "viewfs://cluster/former")
    planned = moved.await_counts()
    assert (planned["batch"], planned["lineage"]) == (first["batch"] + 1, first["lineage"])
    moved.feed("ink")
    last = moved.await_counts()
    moved.await_snapshot(last["batch"])
    assert contents(former) == before
    moved.lose(0)

    moved.start(1, "app", "viewfs://cluster/former")
    moved.feed("ink")
    assert moved.await_counts()["batch"] > last["batch"]
    assert contents(former) == before


def test_a_script_of_f0c0f2cc_is_restored_and_stopped_by_the_present_coordinator(
    moved: Script, tmp_path_factory: pytest.TempPathFactory
) -> None:
    former = commit_f0c0f2cc(tmp_path_factory.mktemp("f0c0f2cc"))
    for disk, moved.release in enumerate((former, former, TODAY, former)):
        process, log = moved.start(disk)
        moved.feed("book", f"of disk {disk}")
        moved.await_snapshot(moved.await_counts()["batch"])
        if disk < 3:
            moved.lose(disk)
    (run,) = moved.coordinator.http.get("/runs", params={"job": moved.job}).json()["runs"]
    assert moved.coordinator.http.post(f"/runs/{run['runId']}/stop", json={}).status_code < 300
    assert process.wait(BUSY_SECONDS) == 0, tail(log)


FILE_SINK = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import sluice

root, job, out = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = SparkSession.builder.appName(job).getOrCreate()
app = sluice.attach(spark, job=job)
rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(root / "in"))
writer = rows.writeStream.format("text").option("path", str(root / out))
writer.option("checkpointLocation", app.checkpoint("lines")).start().awaitTermination()
print("the script ends.", flush=True)
"""


def test_a_query_whose_file_sink_would_skip_batches_after_a_lost_disk_is_stopped(moved: Script) -> None:
    (moved.root / "counts.py").write_text(FILE_SINK)

    def lines(out: str) -> list[str]:
        return sorted(line for part in (moved.root / out).glob("part-*") for line in part.read_text().splitlines())

    moved.interval = "3600"  # one snapshot, after the first batch
    _, log = moved.start(0, "first")
    moved.feed("book")
    wait_for("a snapshot", moved.snapshots, BUSY_SECONDS, details=lambda: tail(log))
    for number in (1, 2):
        moved.feed(f"pen {number}")
        wait_for(f"pen {number}", lambda: moved.fed.keys() == set(lines("first")), BUSY_SECONDS, details=lambda: tail(log))
    moved.lose(0)
    restored = moved.snapshots()[0]["batchId"]

    refused, log = moved.start(1, "first")
    assert refused.wait(BUSY_SECONDS) == 0, tail(log)
    expected = rf"the file sink .* has batch \d+, and the checkpoint, which is new or was restored, ends at batch {restored}"
    assert re.search(expected, log.read_text())
    moved.start(1, "second")
    moved.feed("ink")
    wait_for("the last line", lambda: "ink" in lines("second"), BUSY_SECONDS, details=lambda: tail(moved.started[-1][1]))
    assert set(lines("first")) | set(lines("second")) == set(moved.fed)
