"""How long an upgrade takes, from the request of the drain to the first output of the new version (see `bench/drain.py`)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx

from bench.drain_job import PARTITIONS
from bench.harness import ROOT, BenchFailed, end
from coordinator.core.ids import Generation, Lineage
from coordinator.streams.log import Log, Record, Writer

NEXT = ROOT / "bench" / "drain_next_job.py"
PATIENCE = 300.0
DRAINED_BY = "sluice-drain"
"""The header of records that a drain's flush has written."""
WRITER = Writer(Lineage("bench-upgrade"), "bench-upgrade", Generation(1))


def first_output_after(url: str, home: Path, log: Log) -> float:
    """Upgrade the job that runs, and seconds until the new version's first output. The old one has written nothing but under drains."""
    command = [sys.executable, "-m", "coordinator.cli", "upgrade", str(NEXT), "--local", "--home", str(home), "--coordinator", url]
    with coming(log), (home / "upgrade.log").open("w") as said:
        upgrading = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            deadline = time.monotonic() + PATIENCE
            while (at := first_output(log)) is None:
                if upgrading.poll() is not None or time.monotonic() > deadline:
                    raise BenchFailed(f"the upgrade brought nothing: {(home / 'upgrade.log').read_text()[-1000:]}")
                time.sleep(0.2)
            return (at - requested_at(url)).total_seconds()
        finally:
            end(upgrading)


@contextmanager
def coming(log: Log) -> Iterator[None]:
    """A row for each partition comes twice a second: what comes after the drain's stop is the new version's."""
    over = threading.Event()

    def feed() -> None:
        batch = 0
        while not over.wait(0.5):
            records = [Record(b"0", key=f"late-{partition}".encode(), partition=partition) for partition in range(PARTITIONS)]
            log.append("seen", records, writer=WRITER, batch=batch, now_micros=time.time_ns() // 1000)
            batch += 1

    thread = threading.Thread(target=feed, name="feed")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def first_output(log: Log) -> datetime | None:
    """When the first record was written that no drain has flushed."""
    headers = log.headers("counts")
    for rows in log.read("counts", 0, 0, 1 << 40):
        for _, micros, _, _, header in rows:
            if DRAINED_BY not in headers[header]:
                return datetime.fromtimestamp(micros / 1e6, UTC)
    return None


def requested_at(url: str) -> datetime:
    """When the newest drain was asked for."""
    drains = httpx.get(f"{url}/drains", params={"job": "bench-drain"}, trust_env=False).raise_for_status().json()["drains"]
    return max(datetime.fromisoformat(each["requestedAt"]) for each in drains)
