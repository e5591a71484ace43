"""The latency of a job of two stages: the time from the append of a record to its result in the output stream, while 1,000 records a second
arrive. Also measured: the CPU that is used meanwhile, and while no records arrive.

The job of `bench/latency_job.py` runs with 1, 4 and 8 tasks in one container, on the log and on Kafka. It is compared with two plain Spark
queries (`bench/latency_plain.py`), which have the same stream between them and Spark's default trigger, and poll their sources. Each record
contains the time of its append. A result counts as written when a consumer of the output has read it; the consumer reads committed records
of Kafka, or polls the log every few milliseconds. CPU is that of all processes of the job, or of the plain queries, without the broker
(`bench/cpu.py`).

Each case is measured once, the plain queries first and then the job with each number of tasks, on `local[2]` and not pinned to cores. The
producer, the consumer and the broker use the same cores as the queries.

The job writes each batch exactly once, and its second stage has one query for each task; the plain queries write at least once on Kafka.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
from confluent_kafka import Consumer, TopicPartition

from bench.cpu import measuring
from bench.flights import Streams
from bench.harness import BenchFailed, Result, note, peer
from bench.latency_job import BETWEEN, ORDERS, PARTITIONS, RESULTS
from examples.harness.launch import sluice_run
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, LogEnds, Record, Writer
from tests.support.processes import ROOT, tail, wait_for
from tests.support.servers import kafka

NAME = "latency"
SHARE = float(os.environ.get("BENCH_SHARE", "1"))
"""Scale of the durations: 1 is the real benchmark."""
TASKS = tuple(int(each) for each in os.environ.get("BENCH_LATENCY_TASKS", "1,4,8").split(","))
SYSTEMS = tuple(os.environ.get("BENCH_LATENCY_SYSTEMS", "log,kafka").split(","))
ROWS_A_SECOND = 1000
PORTION_SECONDS = 0.05
CUSTOMERS = 1000
WARM_SECONDS, SECONDS, SETTLE_SECONDS, IDLE_SECONDS = 20 * SHARE, 20 * SHARE, 8 * SHARE, 15 * SHARE
PATIENCE = 180.0
JOB = ROOT / "bench" / "latency_job.py"
WRITER = Writer(Lineage("bench"), "bench", Generation(1))


class Results(Protocol):
    def read(self) -> list[bytes]:
        """The values that have been written since the last call. Blocks for some milliseconds."""
        ...

    def close(self) -> None: ...


class LogResults:
    def __init__(self, log: Log) -> None:
        self._log, self._ends, self._at = log, LogEnds(log), 0

    def read(self) -> list[bytes]:
        time.sleep(0.005)
        end = self._ends.latest(RESULTS)[0]
        found = [row[3] for rows in self._log.read(RESULTS, 0, self._at, end) for row in rows if row[3]] if end > self._at else []
        self._at = end
        return found

    def close(self) -> None:
        self._ends.close()


class KafkaResults:
    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(RESULTS, 0, 0)])

    def read(self) -> list[bytes]:
        return [value for each in self._consumer.consume(1000, 0.01) if each.error() is None and (value := each.value()) is not None]

    def close(self) -> None:
        self._consumer.close()


@dataclass
class Measured:
    """`seconds`: from append to result, of records that were appended while measuring. `cores`, `idle_cores`: used on average."""

    seconds: list[float] = field(default_factory=list)
    cores: float = 0.0
    idle_cores: float = 0.0

    @property
    def p50_ms(self) -> float:
        return round(statistics.median(self.seconds) * 1000)

    @property
    def p99_ms(self) -> float:
        return round(statistics.quantiles(self.seconds, n=100)[98] * 1000)


@dataclass
class Place:
    """A system with empty streams."""

    system: str
    where: str
    directory: Path
    streams: Streams
    results: Results
    fed: int = 0

    def feed(self, seconds: float) -> None:
        """Append `ROWS_A_SECOND` for that long."""
        due, count = time.monotonic(), round(ROWS_A_SECOND * PORTION_SECONDS)
        end = due + seconds
        while due < end:
            now = time.time()
            rows = [{"id": n, "customer": f"c{n % CUSTOMERS}", "sent": now} for n in range(self.fed, self.fed + count)]
            records = [Record(json.dumps(row).encode(), partition=row["id"] % PARTITIONS) for row in rows]  # type: ignore[operator]
            self.streams.append(ORDERS, records, writer=WRITER, batch=self.fed, now_micros=time.time_ns() // 1000)
            self.fed += count
            due += PORTION_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def place(system: str) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        directory = Path(made)
        if system == "log":
            log = Log(directory / "home" / "log")
            create(log)
            with closing(LogResults(log)) as results:
                yield Place(system, str(log.directory), directory, log, results)
            return
        with kafka(directory / "broker") as bootstrap, closing(Topics(bootstrap)) as topics:
            create(topics)
            with closing(KafkaResults(bootstrap)) as results:
                yield Place(system, bootstrap, directory, topics, results)


def create(streams: Streams) -> None:
    streams.create(ORDERS, PARTITIONS)
    streams.create(RESULTS, 1)


def measured(made: Place, process: psutil.Process, must_run: Callable[[], None]) -> Measured:
    """Feed the pipeline in `process` and its children, and measure. Raises BenchFailed, EndedEarly."""
    found, arrived, over = Measured(), list[tuple[float, float]](), threading.Event()

    def read() -> None:
        while not over.is_set():
            values = made.results.read()
            now = time.time()
            arrived.extend((json.loads(value)["sent"], now) for value in values)

    def have(count: int) -> bool:
        must_run()
        return len(arrived) >= count

    reader = threading.Thread(target=read, name="results")
    reader.start()
    try:
        made.feed(1)
        wait_for("the first results", lambda: have(1), PATIENCE, every=0.2)
        with measuring(process) as cpu:
            made.feed(WARM_SECONDS)
            used, began, at = cpu.seconds(), time.time(), time.monotonic()
            made.feed(SECONDS)
            found.cores = (cpu.seconds() - used) / (time.monotonic() - at)
            ended = time.time()
            wait_for("all results", lambda: have(made.fed), PATIENCE, every=0.2)
            time.sleep(SETTLE_SECONDS)
            used, at = cpu.seconds(), time.monotonic()
            time.sleep(IDLE_SECONDS)
            found.idle_cores = (cpu.seconds() - used) / (time.monotonic() - at)
    finally:
        over.set()
        reader.join()
    if len(arrived) != made.fed:
        raise BenchFailed(f"{made.fed} records have {len(arrived)} results")
    found.seconds = [now - sent for sent, now in arrived if began <= sent < ended]
    return found


def plain(system: str) -> Measured:
    with place(system) as made:
        made.streams.create(BETWEEN, PARTITIONS)
        (made.directory / "plain").mkdir()
        arguments = ["bench.latency_plain", made.system, made.where, str(made.directory / "plain")]
        with peer(arguments, made.directory / "plain" / "stderr") as query:
            if next(query.lines(), None) is None:
                raise BenchFailed(f"the plain queries ended\n{tail(query.errors)}")
            return measured(made, psutil.Process(query.process.pid), query.must_run)


def sluice(system: str, tasks: int) -> Measured:
    with place(system) as made:
        home = made.directory / "home"
        home.mkdir(exist_ok=True)
        address = {"SLUICE_KAFKA_BOOTSTRAP": made.where} if system == "kafka" else {}
        environment: Mapping[str, str] = {**os.environ, "BENCH_TASKS": str(tasks), **address}
        with sluice_run(JOB, home, containers=1, port=0, system=system, environment=environment) as run:
            run.where(60)
            container = wait_for("the container", lambda: run.container(0), PATIENCE, every=0.2, details=run.tail)
            found = measured(made, container, run.must_run)
            run.stop()
            return found


def run() -> Result:
    """Raises BenchFailed."""
    figures: dict[str, float] = {}
    missed = list[str]()
    ratios = list[float]()
    for system in SYSTEMS:
        base = plain(system)
        figures |= shown(f"{system}_plain", base)
        note(f"{system}: two plain queries: {described(base)}")
        for tasks in TASKS:
            mine = sluice(system, tasks)
            figures |= shown(f"{system}_{tasks}", mine) | {f"{system}_{tasks}_idle_cores_a_query": round(mine.idle_cores / (2 * tasks), 4)}
            note(f"{system}: {tasks} tasks: {described(mine)}")
            ratios += [mine.p50_ms / base.p50_ms] if tasks == 1 else []
            missed += [f"{system} {tasks}: {text}" for text in misses(tasks, mine, base)]
    for each in missed:
        note(f"missed: {each}")
    return Result(
        name=NAME,
        figures=figures,
        ratio=round(max(ratios, default=0.0), 3),
        target="1 task: p50 at most 0.7 of two polling queries'; 4 tasks: p50 and p99 at most 1.3 times, CPU at most 2.0 times; "
        "idle at most 0.01 cores a query",
        met=not missed,
    )


def misses(tasks: int, mine: Measured, base: Measured) -> Iterator[str]:
    if tasks == 1 and mine.p50_ms > 0.7 * base.p50_ms:
        yield "p50"
    if tasks == 4 and (mine.p50_ms > 1.3 * base.p50_ms or mine.p99_ms > 1.3 * base.p99_ms):
        yield "p50 or p99"
    if tasks == 4 and mine.cores > 2.0 * base.cores:
        yield "CPU"
    if not 0 <= mine.idle_cores <= 0.01 * 2 * tasks:  # below 0, the measurement is wrong
        yield "idle CPU"


def shown(prefix: str, found: Measured) -> dict[str, float]:
    return {
        f"{prefix}_p50_ms": found.p50_ms,
        f"{prefix}_p99_ms": found.p99_ms,
        f"{prefix}_cores": round(found.cores, 2),
        f"{prefix}_idle_cores": round(found.idle_cores, 3),
    }


def described(found: Measured) -> str:
    return f"p50 {found.p50_ms:g} ms, p99 {found.p99_ms:g} ms, {found.cores:.2f} cores, idle {found.idle_cores:.3f}"
