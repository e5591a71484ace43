"""How long an upgrade takes, from the request of the drain to the first output of the new version (see `bench/drain.py`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx

from bench.drain_job import PARTITIONS
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from tests.support.processes import ROOT, SLUICE, ending, must_run, start, tail, wait_for

NEXT = ROOT / "bench" / "drain_next_job.py"
PATIENCE = 300.0
DRAINED_BY = "sluice-drain"
"""The header of records that a drain's flush has written."""
WRITER = Writer(Lineage("bench-upgrade"), "bench-upgrade", Generation(1))


def first_output_after(url: str, home: Path, log: Log) -> float:
    """Upgrade the job that runs, and seconds until the new version's first output. The old one has written nothing but under drains."""
    command = [*SLUICE, "upgrade", str(NEXT), "--local", "--home", str(home), "--coordinator", url]
    said = home / "upgrade.log"
    with coming(log):
        upgrading = start(command, said)

        def found() -> datetime | None:
            must_run(upgrading, said)
            return first_output(log)

        with ending(upgrading):
            at = wait_for("the new version's first output", found, PATIENCE, every=0.2, told=lambda: tail(said))
            return (at - requested_at(url)).total_seconds()


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
