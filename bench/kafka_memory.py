"""The memory that is needed to write a batch of ten million rows to Kafka exactly once.

Measured: the resident memory of this process, which is the driver's Python, and of Spark's JVM, twenty times a second, while one batch of
10,000,000 rows of about 100 bytes is written in one transaction. The growth is measured from the memory of both after a batch of 400,000
rows. At the end a consumer that reads only committed records must find each row once.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from bench.harness import Result, note
from bench.kafka_exactly_once import HEADERS, records, session
from containers.spark.systems.kafka import KafkaTaskSystem
from containers.spark.systems.port import Grant
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage, RunId, StageName, TaskName
from sluice.streams.kafka_properties import KafkaProperties
from tests.support.servers import kafka

NAME = "kafka-memory"
FIRST, ROWS = 400_000, 10_000_000
MOST_MIB = 512
EVERY_SECONDS = 0.05
TOPIC = "bulk"
PROPERTIES = {"transaction.timeout.ms": "900000"}
"""The longest timeout that brokers allow by default: on a loaded machine the rows take more than TRANSACTION_TIMEOUT."""


class Memory:
    """The resident memory of this process and of its JVM, in bytes. `peak`: the maximum since `watch` began."""

    def __init__(self) -> None:
        here = psutil.Process(os.getpid())
        self._processes = [here, *(each for each in here.children(recursive=True) if "java" in each.name())]
        self.peak = self.now

    @property
    def now(self) -> int:
        return sum(each.memory_info().rss for each in self._processes)

    @contextmanager
    def watch(self) -> Iterator[None]:
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(EVERY_SECONDS):
                self.peak = max(self.peak, self.now)

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            yield
        finally:
            ended.set()
            sampler.join()


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home = Path(made)
        with kafka(home / "kafka") as bootstrap, session(home) as spark, closing(Topics(bootstrap)) as topics:
            topics.create(TOPIC, 4)
            grant = Grant("bench", TaskName("Partition 0"), StageName("stage"), Generation(1), Lineage("bench"), RunId("bench"), {})
            system = KafkaTaskSystem(spark, bootstrap, KafkaProperties(PROPERTIES))
            try:
                system.append(grant, records(spark, FIRST), 0, TOPIC, HEADERS)
                memory = Memory()
                before, began = memory.now, time.perf_counter()
                with memory.watch():
                    system.append(grant, records(spark, ROWS), 1, TOPIC, HEADERS)
                took = time.perf_counter() - began
            finally:
                system.close()
            growth = (memory.peak - before) / 2**20
            note(f"{ROWS:,} rows in {took:.0f} s: from {before / 2**20:.0f} MiB by {growth:.0f} MiB")
            written = topics.confirmed(TOPIC)
    return Result(
        name=NAME,
        target=f"a batch of {ROWS:,} rows makes the driver's Python and JVM grow by less than {MOST_MIB} MiB, each row once",
        figures={
            "rows": ROWS,
            "before MiB": round(before / 2**20),
            "growth MiB": round(growth),
            "rows/s": round(ROWS / took),
            "rows missing or repeated": abs(written - FIRST - ROWS),
        },
        ratio=growth / MOST_MIB,
        met=growth < MOST_MIB and written == FIRST + ROWS,
    )
