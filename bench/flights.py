"""The flights job with 4 and 8 tasks, on the log and on Kafka, compared with the same pipeline as two plain Spark queries with the stream
between them, and as one.

Each case is measured once, the plain queries first and then the job with each number of tasks, on `local[2]` and not pinned to cores. The
producer and the broker use the same cores as the queries. Two figures each:

* rows/s: over the second half of a backlog of four years of flights; the first half is for the JVM to warm up.
* batch p50: the median duration of a batch, as Spark reports it, while 1,000 rows per second arrive.

All queries have the same limit of rows per batch. A row of the job counts half when it is routed and half when it is counted, so that at
half of the backlog a lead of the first stage does not count as speed of the second.

The two plain queries run in one JVM and without tasks. The job has one query and one checkpoint for each task and stage. On Kafka it writes
exactly once, and the plain queries at least once. The target limits what that costs: rows/s at least 0.8 of theirs. The job also parses the
event time of each row in the first stage. One of 4 tasks has 48 % of the rows, because of the names of the carriers, and works alone at the
end. One plain query, which needs no stream in between, is the long-term goal. The whole run is to end within ten minutes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.flights_job import PARTITIONS
from bench.flights_plain import BETWEEN, MAX_ROWS
from bench.harness import BenchFailed, Peer, Result, note, peer
from examples.flights.data import Flight, encode, load_flights
from examples.harness.launch import sluice_run
from examples.harness.topics import Topics
from examples.harness.watch import RunWatch, offsets_read
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from tests.support.processes import ROOT, tail
from tests.support.servers import kafka

TASKS = (4, 8)
SYSTEMS = ("log", "kafka")
YEARS = 4
TRICKLE_SECONDS = 20
ROWS_A_SECOND = 1000
PATIENCE = 600.0
MOST_RUN_SECONDS = 600.0
REPORT_SECONDS = 0.5
"""Interval of progress reports. Each report and each poll takes CPU from the job."""
JOB = ROOT / "bench" / "flights_job.py"
WRITER = Writer(Lineage("bench"), "bench", Generation(1))


class Streams(Protocol):
    """The methods of the log and of `Topics` that are used here."""

    def create(self, stream: str, partitions: int) -> None: ...

    def append(self, stream: str, records: list[Record], *, writer: Writer, batch: int, now_micros: int) -> bool: ...


@dataclass
class Measured:
    """`reached`: rows done, by time of the monotonic clock. `millis`: durations of the batches that had rows."""

    reached: list[tuple[float, int]] = field(default_factory=list)
    millis: list[int] = field(default_factory=list)

    def rows_a_second(self, rows: int) -> float:
        """Rows per second in the second half of the backlog of `rows`."""
        half = next(reached for reached in self.reached if reached[1] >= rows / 2)
        end = next(at for at, done in self.reached if done >= rows)
        if end == half[0]:
            raise BenchFailed("half of the backlog was one batch: too few batches to measure")
        return (rows - half[1]) / (end - half[0])


@dataclass
class Place:
    """A system with the flights in it, and a producer that continues after them."""

    system: str
    where: str
    directory: Path
    streams: Streams
    flights: list[Flight]
    fed: int = 0

    def feed(self, count: int) -> None:
        rows = [self.flights[n % len(self.flights)] for n in range(self.fed, self.fed + count)]
        records = [Record(encode(row), partition=(self.fed + n) % PARTITIONS) for n, row in enumerate(rows)]
        self.streams.append("flights", records, writer=WRITER, batch=self.fed, now_micros=time.time_ns() // 1000)
        self.fed += count

    def trickle(self) -> None:
        due = time.monotonic()
        for _ in range(TRICKLE_SECONDS):
            self.feed(ROWS_A_SECOND)
            due += 1
            time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def place(system: str, flights: list[Flight]) -> Iterator[Place]:
    """A new system with the flights in it."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        directory = Path(made)
        if system == "log":
            home = directory / "home" / "log"
            yield filled(Place("log", str(home), directory, Log(home), flights))
            return
        with kafka(directory / "broker") as bootstrap, closing(Topics(bootstrap)) as topics:
            yield filled(Place("kafka", bootstrap, directory, topics, flights))


def filled(made: Place) -> Place:
    made.streams.create("flights", PARTITIONS)
    made.streams.create("delays", 1)
    while made.fed < len(made.flights):
        made.feed(min(50_000, len(made.flights) - made.fed))
    return made


def plain(made: Place, queries: str) -> Measured:
    """The plain query, or the two plain queries, of which each counts for half of a row."""
    found, counted = Measured(), Counter[str]()
    parts = {"one": 1, "two": 2}[queries]
    if parts > 1:
        made.streams.create(BETWEEN, PARTITIONS)
    (made.directory / "plain").mkdir()
    arguments = ["bench.flights_plain", made.system, made.where, str(made.directory / "plain"), queries]
    with peer(arguments, made.directory / "plain" / "stderr", environment(1)) as query, guarded(query):
        backlog, trickle = made.fed, threading.Thread(target=made.trickle)
        for batch in query.lines():
            counted[batch["query"]] += batch["rows"]
            rows = counted.total() // parts
            found.reached.append((batch["at"], rows))
            if trickle.ident and batch["rows"]:
                found.millis.append(batch["millis"])
            if rows >= backlog and not trickle.ident:
                trickle.start()
            if rows >= backlog + TRICKLE_SECONDS * ROWS_A_SECOND:  # no line follows the last batch
                break
        else:
            raise BenchFailed(f"the plain query ended\n{tail(query.errors)}")
    trickle.join()
    return found


@contextmanager
def guarded(query: Peer) -> Iterator[None]:
    """The query is killed if the block takes too long."""
    guard = threading.Timer(PATIENCE, query.process.kill)
    guard.start()
    try:
        yield
    finally:
        guard.cancel()


def sluice(made: Place, tasks: int) -> Measured:
    """The job with that many tasks."""
    found = Measured()
    batches: dict[tuple[str, str, int], int] = {}
    home = made.directory / "home"
    home.mkdir(exist_ok=True)
    with sluice_run(JOB, home, containers=1, port=0, system=made.system, environment=environment(tasks, made)) as run:
        watch = RunWatch(*run.where(60))
        backlog, trickle, deadline = made.fed, threading.Thread(target=made.trickle), time.monotonic() + PATIENCE
        while not (trickle.ident and not trickle.is_alive() and found.reached[-1][1] >= made.fed):
            run.must_run()
            if time.monotonic() > deadline:
                raise BenchFailed(f"the job with {tasks} tasks did not read all within {PATIENCE:g} s")
            detail = watch.detail()
            if detail is not None:
                counted = sum(offsets_read(detail, "hourly", "flights-by-carrier").values())
                done = (sum(offsets_read(detail, "route", "flights").values()) + counted) // 2
                found.reached.append((time.monotonic(), done))
                for task in detail.tasks:
                    for stage in task.stages:
                        if trickle.ident and stage.metrics is not None and stage.metrics.rows and stage.batch_id is not None:
                            batches[task.task, stage.stage, stage.batch_id] = stage.metrics.batch_millis
                if done >= backlog and not trickle.ident:
                    trickle.start()
            time.sleep(REPORT_SECONDS / 2)
        run.stop()
    found.millis = list(batches.values())
    return found


def environment(tasks: int, made: Place | None = None) -> Mapping[str, str]:
    """The environment of `sluice run`, or of the plain query."""
    kafka = {"SLUICE_KAFKA_BOOTSTRAP": made.where} if made is not None and made.system == "kafka" else {}
    limits = {"SLUICE_MAX_ROWS": str(MAX_ROWS), "SLUICE_REPORT_SECONDS": str(REPORT_SECONDS)}
    return {**os.environ, "BENCH_TASKS": str(tasks), **limits, **kafka}


def run() -> Result:
    """Raises BenchFailed."""
    began = time.monotonic()
    flights = load_flights() * YEARS
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for system in SYSTEMS:
        for queries in ("one", "two"):
            with place(system, flights) as made:
                found = plain(made, queries)
            plain_speed, p50 = found.rows_a_second(len(flights)), statistics.median(found.millis)
            note(f"{system}: {queries} plain: {plain_speed:,.0f} rows/s, batch p50 {p50:g} ms")
            figures |= {f"{system}_{queries}_plain_rows_s": plain_speed, f"{system}_{queries}_plain_batch_p50_ms": p50}
        for tasks in TASKS:
            with place(system, flights) as made:
                found = sluice(made, tasks)
            speed, p50 = found.rows_a_second(len(flights)), statistics.median(found.millis)
            ratios[f"{system}_{tasks}_ratio"] = speed / plain_speed  # of the two queries, which were measured last
            note(f"{system}: {tasks} tasks: {speed:,.0f} rows/s, batch p50 {p50:g} ms")
            figures |= {f"{system}_{tasks}_rows_s": speed, f"{system}_{tasks}_batch_p50_ms": p50}
    return judged(figures, ratios, time.monotonic() - began)


def judged(figures: Mapping[str, float], ratios: Mapping[str, float], run_seconds: float) -> Result:
    """`ratios`: rows/s of the job as a fraction of two plain queries', for each system and number of tasks. `run_seconds`: the duration of
    the whole run."""
    return Result(
        name="flights",
        figures={**figures, **ratios, "run_s": round(run_seconds)},
        ratio=min(ratios.values()),
        target=f"with 4 and 8 tasks rows/s at least 0.8 of two plain queries'; the whole run within {MOST_RUN_SECONDS:g} s",
        met=min(ratios.values()) >= 0.8 and run_seconds <= MOST_RUN_SECONDS,
    )
