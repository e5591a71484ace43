"""A stateful stage over a topic that is already partitioned by its key, with 1, 4 and 8 tasks, compared with one plain Spark query, which
shuffles the rows although they are partitioned already.

Measured as in `bench/flights.py`, on `local[2]`: each case once, the plain query first and then the job with each number of tasks, not
pinned to cores. The figures are rows/s over the second half of a backlog of two years of flights, and the median time of a batch while
1,000 rows a second arrive. The job has no intermediate stream here. So the comparison shows what tasks cost, because each has its own query
and checkpoint, and what they save.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.flights import PATIENCE, REPORT_SECONDS, ROWS_A_SECOND, TRICKLE_SECONDS, WRITER, Measured, Streams, guarded
from bench.flights_plain import MAX_ROWS
from bench.harness import BenchFailed, Result, note, peer
from bench.keyed_job import INPUT, OUTPUT, PARTITIONS
from examples.flights.data import Flight, encode, load_flights
from examples.harness.launch import sluice_run
from examples.harness.topics import Topics
from examples.harness.watch import RunWatch, offsets_read
from sluice.streams.log import Log, Record
from tests.support.processes import ROOT, tail
from tests.support.servers import kafka

NAME = "keyed"
TASKS = tuple(int(each) for each in os.environ.get("BENCH_KEYED_TASKS", "1,4,8").split(","))
SYSTEMS = tuple(os.environ.get("BENCH_KEYED_SYSTEMS", "log,kafka").split(","))
YEARS = 2
JOB = ROOT / "bench" / "keyed_job.py"


@dataclass
class Place:
    """A system with the flights in it, partitioned by destination, and a producer that continues after them."""

    system: str
    where: str
    directory: Path
    streams: Streams
    flights: list[Flight]
    fed: int = 0

    def feed(self, count: int) -> None:
        rows = [self.flights[n % len(self.flights)] for n in range(self.fed, self.fed + count)]
        records = [Record(encode(row), row.dest.encode(), zlib.crc32(row.dest.encode()) % PARTITIONS) for row in rows]
        self.streams.append(INPUT, records, writer=WRITER, batch=self.fed, now_micros=time.time_ns() // 1000)
        self.fed += count

    def trickle(self) -> None:
        due = time.monotonic()
        for _ in range(TRICKLE_SECONDS * 10):
            self.feed(ROWS_A_SECOND // 10)
            due += 0.1
            time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def place(system: str, flights: list[Flight]) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        directory = Path(made)
        if system == "log":
            home = directory / "home" / "log"
            yield filled(Place("log", str(home), directory, Log(home), flights))
            return
        with kafka(directory / "broker") as bootstrap, closing(Topics(bootstrap)) as topics:
            yield filled(Place("kafka", bootstrap, directory, topics, flights))


def filled(made: Place) -> Place:
    made.streams.create(INPUT, PARTITIONS)
    made.streams.create(OUTPUT, 1)
    while made.fed < len(made.flights):
        made.feed(min(50_000, len(made.flights) - made.fed))
    return made


def plain(made: Place) -> Measured:
    """The plain query."""
    found, rows = Measured(), 0
    (made.directory / "plain").mkdir()
    arguments = ["bench.keyed_plain", made.system, made.where, str(made.directory / "plain")]
    with peer(arguments, made.directory / "plain" / "stderr") as query, guarded(query):
        backlog, trickle = made.fed, threading.Thread(target=made.trickle)
        for batch in query.lines():
            rows += batch["rows"]
            found.reached.append((batch["at"], rows))
            if trickle.ident and batch["rows"]:
                found.millis.append(batch["millis"])
            if rows >= backlog and not trickle.ident:
                trickle.start()
            if rows >= backlog + TRICKLE_SECONDS * ROWS_A_SECOND:
                break
        else:
            raise BenchFailed(f"the plain query ended\n{tail(query.errors)}")
    trickle.join()
    return found


def sluice(made: Place, tasks: int) -> Measured:
    """The job with that many tasks."""
    found = Measured()
    batches: dict[tuple[str, int], int] = {}
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
                done = sum(offsets_read(detail, "hourly", INPUT).values())
                found.reached.append((time.monotonic(), done))
                for task in detail.tasks:
                    for stage in task.stages:
                        if trickle.ident and stage.metrics is not None and stage.metrics.rows and stage.batch_id is not None:
                            batches[task.task, stage.batch_id] = stage.metrics.batch_millis
                if done >= backlog and not trickle.ident:
                    trickle.start()
            time.sleep(REPORT_SECONDS / 2)
        run.stop()
    found.millis = list(batches.values())
    return found


def environment(tasks: int, made: Place) -> Mapping[str, str]:
    kafka = {"SLUICE_KAFKA_BOOTSTRAP": made.where} if made.system == "kafka" else {}
    limits = {"SLUICE_MAX_ROWS": str(MAX_ROWS), "SLUICE_REPORT_SECONDS": str(REPORT_SECONDS)}
    return {**os.environ, "BENCH_TASKS": str(tasks), **limits, **kafka}


def run() -> Result:
    """Raises BenchFailed."""
    flights = load_flights() * YEARS
    figures: dict[str, float] = {}
    speeds, waits = list[float](), list[float]()
    for system in SYSTEMS:
        with place(system, flights) as made:
            found = plain(made)
        speed, p50 = found.rows_a_second(len(flights)), statistics.median(found.millis)
        figures |= {f"{system}_plain_rows_s": speed, f"{system}_plain_batch_p50_ms": p50}
        note(f"{system}: the plain query: {speed:,.0f} rows/s, batch p50 {p50:g} ms")
        for tasks in TASKS:
            with place(system, flights) as made:
                found = sluice(made, tasks)
            mine, mine_p50 = found.rows_a_second(len(flights)), statistics.median(found.millis)
            figures |= {f"{system}_{tasks}_rows_s": mine, f"{system}_{tasks}_batch_p50_ms": mine_p50}
            note(f"{system}: {tasks} tasks: {mine:,.0f} rows/s, batch p50 {mine_p50:g} ms")
            if tasks == 4:
                speeds.append(mine / speed)
                waits.append(mine_p50 / p50)
    return judged(figures, speeds, waits)


def judged(figures: Mapping[str, float], speeds: Sequence[float], waits: Sequence[float]) -> Result:
    """`speeds`, `waits`: rows/s and the time of a batch with 4 tasks, as a fraction of the plain query's, on each system."""
    worst_speed, worst_wait = min(speeds, default=0.0), max(waits, default=0.0)
    return Result(
        name=NAME,
        figures={**figures, "worst_batch_p50_ratio": round(worst_wait, 3)},
        ratio=round(worst_speed, 3),
        target="with 4 tasks rows/s at least 1.0 of a plain query that shuffles, batch p50 at most 1.3 times",
        met=worst_speed >= 1.0 and worst_wait <= 1.3,
    )
