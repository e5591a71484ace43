"""The duration of an upgrade, from the request of the drain to the first output of the new version (see `bench/drain.py`)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
"""The header of records that were written by the flush of a drain."""
WRITER = Writer(Lineage("bench-upgrade"), "bench-upgrade", Generation(1))


def first_output_after(url: str, home: Path, log: Log) -> float:
    """Upgrade the running job. Returns the seconds until the first output of the new version. The old version writes output only when it
    is drained.
    """
    upgrade_log, container_log = home / "upgrade.log", home / "upgraded-container.log"
    with producing(log), ExitStack() as stack:
        upgrading = start([*SLUICE, "upgrade", str(NEXT), "--coordinator", url], upgrade_log)
        stack.enter_context(ending(upgrading))

        def deployed() -> str | None:
            must_run(upgrading, upgrade_log)
            return deployed_run(upgrade_log.read_text())

        run_id = wait_for("the new version's run", deployed, PATIENCE, details=lambda: tail(upgrade_log))
        environment = {"SLUICE_COORDINATOR_URL": url, "SLUICE_RUN_ID": run_id, "SLUICE_PROCESSOR_ID": "0", "SLUICE_HOME": str(home)}
        container = start([*SLUICE, "container", str(NEXT)], container_log, environment=environment)
        stack.enter_context(ending(container))

        def found() -> datetime | None:
            must_run(container, container_log)
            return first_output(log)

        at = wait_for("the new version's first output", found, PATIENCE, every=0.2, details=lambda: tail(container_log))
        return (at - requested_at(url)).total_seconds()


def deployed_run(printed: str) -> str | None:
    """The run that `sluice upgrade` has deployed, of its output so far."""
    found = re.search(r"^run (\S+)$", printed, re.M)
    return found[1] if found else None


@contextmanager
def producing(log: Log) -> Iterator[None]:
    """Append a row to each partition twice a second. Rows that arrive after the drain has stopped the old version are read by the new
    one.
    """
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
    """The time of the first record that was not written by the flush of a drain."""
    headers = log.headers("counts")
    for rows in log.read("counts", 0, 0, 1 << 40):
        for _, micros, _, _, header in rows:
            if DRAINED_BY not in headers[header]:
                return datetime.fromtimestamp(micros / 1e6, UTC)
    return None


def requested_at(url: str) -> datetime:
    """The time at which the newest drain was requested."""
    drains = httpx.get(f"{url}/drains", params={"job": "bench-drain"}, trust_env=False).raise_for_status().json()["drains"]
    return max(datetime.fromisoformat(each["requestedAt"]) for each in drains)
