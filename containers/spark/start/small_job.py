"""A small job, for what a session must have done once before it is fast: loading classes, compiling them, starting Python workers.

It has two stages over a log in a temporary directory: routing by a key, and windows under a watermark, in RocksDB. `sluice class-archive`
records the classes that it loads, and a spare container runs it while it waits.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from threading import Event

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.engine import Bound
from containers.spark.query import start_query, stop_between_batches
from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import Grant
from containers.spark.task import StageTask
from containers.state.checkpoint import Checkpoints
from sluice.clock import SystemClock
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, StreamId, TaskName
from sluice.job import Job, Task
from sluice.streams.log import Log, Record, Writer

RECORDS = 600

job = Job("sluice-small-job")
events = job.input("events")
routed = job.intermediate("routed", partitions=1)
counted = job.output("counted")
lineage = Lineage("00000000-0000-4000-8000-000000000000")


@job.stage(reads=events, writes=routed)
def route(task: Task) -> DataStreamWriter:
    parsed = F.from_json(F.col("value").cast("string"), "at long, name string").alias("e")
    rows = task.read(events).select(parsed).where("e.at is not null")
    return task.write(rows.select("e.name", F.to_json("e").alias("v")), routed, key="name", value="v")


@job.stage(reads=routed, writes=counted)
def count(task: Task) -> DataStreamWriter:
    parsed = F.from_json(F.col("value").cast("string"), "at long, name string").alias("e")
    rows = task.read(routed).select(parsed).select("e.name", F.timestamp_seconds("e.at").alias("at")).withWatermark("at", "1 minute")
    windows = rows.groupBy(F.window("at", "1 minute"), "name").agg(F.count("*").alias("n"), F.max("at").alias("last"))
    return task.write(windows.select("name", F.col("window.start").alias("start"), "n", "last"), counted, key="name")


def _feed(log: Log) -> None:
    for stream in ("events", "routed", "counted"):
        log.create(stream, 1)
    records = [Record(f'{{"at": {n}, "name": "name {n % 7}"}}'.encode()) for n in range(RECORDS)]
    log.append("events", records, writer=Writer(lineage, "feeder", Generation(1)), batch=0, now_micros=0)


def run_small_job(spark: SparkSession, root: Path) -> None:
    """Run each stage until it has read all its input. The second stage takes two batches, of which the last closes windows. `root`: an
    empty directory, also for the executors. Blocks. Raises what Spark raises."""
    log = Log(root / "log")
    _feed(log)
    bound = {each.name: Bound(StreamId("log", each.name), intermediate=each is routed) for each in (events, routed, counted)}
    systems = {"log": LogTaskSystem(spark, log.directory, SystemClock(), lambda lost: None)}
    checkpoints = Checkpoints(root / "state", job.name)
    for name, stage, source in (("route", route, "events"), ("count", count, "routed")):
        starts = {Ssp("log", source, 0): 0}
        grant = Grant(job.name, TaskName("Partition 0"), StageName(name), Generation(1), lineage, RunId("small"), starts)
        task = StageTask(spark, grant, bound, systems, {}, RECORDS // 2)
        directory = checkpoints.prepare(grant.task, grant.stage, grant.lineage, None)
        query = start_query(spark, stage(task), f"{job.name}/{name}", directory, timedelta(seconds=0.1))
        query.processAllAvailable()
        stop_between_batches(spark, query, timedelta(minutes=1), Event())
