"""The flushes of a drain of `bench/drain_job.py` in plain Spark: no tasks, no coordinator, no backups, no reports.

    python -m bench.drain_bare LOG DIRECTORY

It runs the queries of the job until they have read the stream `seen` of the log, and stops them. Then it empties their state stage by
stage, with as many queries at a time as there are cores, and prints the seconds that this takes as a JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.drain_job import PARTITIONS, STAGES, by_hour, by_minute
from containers.spark.flush import Flusher
from containers.spark.query import await_initialised, start_query, stop_between_batches
from containers.spark.session import start_session
from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import Grant
from sluice.clock import SystemClock
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, TaskName

MAX_ROWS = 50_000
LONG = timedelta(minutes=5)
IDLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Query:
    """One stage of one task."""

    system: LogTaskSystem
    reads: str
    writes: str
    partition: int
    directory: Path

    @property
    def name(self) -> str:
        return f"{self.reads}-{self.partition}"

    @property
    def grant(self) -> Grant:
        starts = {Ssp("log", self.reads, self.partition): 0}
        return Grant("bare", TaskName(self.name), StageName(self.reads), Generation(1), Lineage(self.name), RunId("bare"), starts)

    def writer(self) -> DataStreamWriter:
        records = self.system.read(self.grant, self.reads, {self.partition: 0}, MAX_ROWS)
        rows = by_hour(records) if self.writes == "counts" else by_minute(records)
        value = F.to_json(F.struct("*")) if self.writes == "counts" else F.col("value")
        keyed = rows.select(F.col("name").cast("binary").alias("key"), value.cast("binary").alias("value"))

        def append(batch: DataFrame, batch_id: int) -> None:
            self.system.append(self.grant, batch, batch_id, self.writes, {})

        return keyed.writeStream.foreachBatch(append)

    def start(self, spark: SparkSession) -> StreamingQuery:
        query = start_query(spark, self.writer(), self.name, self.directory, timedelta(seconds=1))
        await_initialised(query, LONG)
        return query

    def empty(self, spark: SparkSession) -> None:
        flusher = Flusher(spark, self.directory, self.name, self.writer, self.grant.starts, MAX_ROWS, SystemClock())
        flusher.advance({ssp: self.system.ends(self.reads)[ssp.partition] for ssp in self.grant.starts})
        flusher.flush()


def main(log: Path, directory: Path) -> None:
    spark = start_session("bare", "local[2]", directory / "spark", {}, directory)
    system = LogTaskSystem(spark, log, SystemClock(), print)
    chain = [("seen", "counts")] if STAGES == 1 else [("seen", "minutes"), ("minutes", "counts")]
    stages = [[Query(system, reads, writes, p, directory / f"{reads}-{p}") for p in range(PARTITIONS)] for reads, writes in chain]
    running = [query.start(spark) for stage in stages for query in stage]
    for query in running:
        query.processAllAvailable()
    time.sleep(IDLE_SECONDS)
    for query in running:
        stop_between_batches(spark, query, LONG, Event())
    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for stage in stages:
            list(pool.map(lambda query: query.empty(spark), stage))
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
