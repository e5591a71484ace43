"""The cost for a stateful query of keeping its state through the loss of the machine, with S3 at a distance of 20 ms.

The same query reads the same log, 1,000 rows per second in batches of one second, on `local[2]`, in three ways:

* s3a: a plain Spark query with its checkpoint in S3, through Hadoop's S3A. Every batch waits for each of its files.
* interval: a Sluice job that backs up its state every 10 s while batches continue.
* each: the same with a commit after every batch, for which the next batch waits.

Measured are the durations of the batches, as Spark reports them, and the requests that the S3 server answered meanwhile; for Sluice those
of the agent and of the coordinator. The JVMs are warmed up first.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from bench.checkpoint_job import PARTITIONS
from bench.gateway import Gateway, distant, gateway
from bench.harness import BenchFailed, Result, note, peer
from containers.errors import JarsUnavailable
from containers.jars import ensure_jars
from examples.harness.launch import sluice_run
from examples.harness.watch import RunWatch
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from tests.support.processes import ROOT
from tests.support.s3servers import S3_CREDENTIALS

NAME = "checkpoint-latency"
AWAY = timedelta(milliseconds=20)
SECONDS = float(os.environ.get("BENCH_SECONDS", "45"))
WARM_BATCHES = 8
WARM_SECONDS = 60.0
"""Minimum number of batches before measuring: the JVM must have compiled the code of a batch, since such a query runs for days."""
PATIENCE = 240.0
"""Time limit in seconds for the first batches of a query."""
LOOK_SECONDS = 0.4
"""Interval of progress reports; batches are one second apart. Each report and each poll takes CPU from the job."""
FEED_SECONDS = 0.25
ROWS_A_SECOND = 1000
KEYS = 10_000
JOB = ROOT / "bench" / "checkpoint_job.py"
WRITER = Writer(Lineage("bench"), "bench", Generation(1))
LEAST_WITH_INTERVAL, LEAST_WITH_EACH = 8.0, 4.0
INTERVALS: Mapping[str, str] = {"interval": "10", "each": "0"}

Batches = dict[int, int]
"""The milliseconds of every batch that had rows."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Durations of the batches in milliseconds, and the number of requests, while measuring."""

    millis: list[int]
    requests: int

    @property
    def p50(self) -> float:
        return statistics.median(self.millis)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.millis, n=100, method="inclusive")[98]

    @property
    def requests_a_batch(self) -> float:
        return self.requests / len(self.millis)


@dataclass
class Feed:
    """Appends to the stream `readings` until it is stopped."""

    log: Log
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        due, fed, batch = time.monotonic(), 0, 0
        while not self.stopped.wait(max(0.0, due - time.monotonic())):
            numbers = range(fed, fed + round(ROWS_A_SECOND * FEED_SECONDS))
            records = [Record(b"1", key=f"sensor-{n * 7919 % KEYS}".encode(), partition=n % PARTITIONS) for n in numbers]
            self.log.append("readings", records, writer=WRITER, batch=batch, now_micros=time.time_ns() // 1000)
            fed, batch, due = numbers.stop, batch + 1, due + FEED_SECONDS


@contextmanager
def fed(directory: Path) -> Iterator[Path]:
    """A log under `directory` to which rows are appended; yields its directory."""
    log = Log(directory / "log")
    log.create("readings", PARTITIONS)
    log.create("counts", 1)
    feed = Feed(log)
    thread = threading.Thread(target=feed.run, name="feed")
    thread.start()
    try:
        yield log.directory
    finally:
        feed.stopped.set()
        thread.join()


def run() -> Result:
    """Raises BenchFailed."""
    found = {}
    for name in ("s3a", *INTERVALS):
        with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made, gateway() as server, distant(server.address, AWAY) as address:
            place = Path(made)
            measured = through_s3a(place, server, address) if name == "s3a" else through_sluice(place, server, address, INTERVALS[name])
        note(f"{name}: {len(measured.millis)} batches, p50 {measured.p50:g} ms, {measured.requests_a_batch:.1f} requests each")
        found[name] = measured
    return judged(found)


def judged(found: Mapping[str, Measured]) -> Result:
    peer = found["s3a"]
    interval, each = peer.p50 / found["interval"].p50, peer.p50 / found["each"].p50
    figures: dict[str, float] = {"away_ms": AWAY.total_seconds() * 1000}
    for name, measured in found.items():
        figures |= {
            f"{name}_batches": len(measured.millis),
            f"{name}_p50_ms": round(measured.p50),
            f"{name}_p99_ms": round(measured.p99),
            f"{name}_requests_per_batch": round(measured.requests_a_batch, 2),
        }
    return Result(
        name=NAME,
        figures={**figures, "each_speedup": round(each, 2)},
        ratio=round(interval, 2),
        target=f"batch p50 {LEAST_WITH_INTERVAL:g} times shorter than through S3A with an interval of 10 s, {LEAST_WITH_EACH:g} times with "
        "a commit for each batch",
        met=interval >= LEAST_WITH_INTERVAL and each >= LEAST_WITH_EACH,
    )


def through_s3a(place: Path, server: Gateway, address: str) -> Measured:
    """The plain query. Its jars are downloaded first if necessary."""
    from bench.checkpoint_s3a import S3A

    try:
        ensure_jars(S3A, os.environ)
    except JarsUnavailable as error:
        raise BenchFailed(str(error)) from error
    done: Batches = {}

    def on_line(batch: Mapping[str, int]) -> None:
        if batch["rows"]:
            done[batch["batch"]] = batch["millis"]

    with fed(place / "home") as log:
        arguments = ["bench.checkpoint_s3a", str(log), address, str(place)]
        with peer(arguments, place / "stderr", on_line=on_line) as query:

            def batches() -> Batches:
                query.must_run()
                return dict(done)

            return measure(batches, server)


def through_sluice(place: Path, server: Gateway, address: str, interval: str) -> Measured:
    """The job. Only `interval` decides when it commits."""
    home = place / "home"
    environment = {
        **S3_CREDENTIALS,
        "SLUICE_BLOB_STORES": json.dumps({"s3": server.blobs("sluice", address)}),
        "SLUICE_COMMIT_INTERVAL_SECONDS": interval,
        "SLUICE_MAX_REPLAY": "1000",
        "SLUICE_REPORT_SECONDS": str(LOOK_SECONDS),
        "SLUICE_TRIGGER_SECONDS": "1",
    }
    with fed(home), sluice_run(JOB, home, containers=1, port=0, environment=environment) as run:
        try:
            watch = RunWatch(*run.where(60))
            done: Batches = {}

            def batches() -> Batches:
                run.must_run()
                detail = watch.detail()
                for stage in detail.tasks[0].stages if detail is not None and detail.tasks else ():
                    if stage.metrics is not None and stage.metrics.rows and stage.batch_id is not None:
                        done[stage.batch_id] = stage.metrics.batch_millis
                return dict(done)

            return measure(batches, server)
        except BenchFailed as error:
            raise BenchFailed(f"{error}\n{run.tail()}") from error


def measure(batches: Callable[[], Batches], server: Gateway) -> Measured:
    """Measure after the warm-up. `batches` returns the batches so far, and raises if no more will come."""
    warm, deadline = time.monotonic() + WARM_SECONDS, time.monotonic() + PATIENCE
    while (done := len(batches())) < WARM_BATCHES or time.monotonic() < warm:
        if done < WARM_BATCHES and time.monotonic() > deadline:
            raise BenchFailed(f"{WARM_BATCHES} batches were not done within {PATIENCE:g} s")
        time.sleep(LOOK_SECONDS)
    before, requests, end = batches(), server.requests().total(), time.monotonic() + SECONDS
    while time.monotonic() < end:
        batches()
        time.sleep(LOOK_SECONDS)
    requests = server.requests().total() - requests
    found = batches()
    millis = [found[batch] for batch in found.keys() - before.keys()]
    if len(millis) < 2:
        raise BenchFailed(f"{len(millis)} batches were done within {SECONDS:g} s: too few to measure")
    return Measured(millis, requests)
