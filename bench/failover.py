"""The time from the kill of a container with 1 GiB of state to the first batch of its task on another container.

There are two containers with one task each, on `local[1]`. The task of the second one has the state, and rows keep arriving for it. All
its processes get SIGKILL at once, as if the machine were lost. The coordinator gets no report; it waits for the end of the
lease and the grace period before it reassigns the task. Measured is the time from the kill to the task's next batch, and the part of it
after the reassignment:

* local: both containers share a disk, and the first one resumes the local state.
* cold: each has a disk of its own, and the first one restores the newest snapshot from an S3 server on loopback.
* standby: the same with `standby.replicas=1`: the first one has a copy of a snapshot.

The ratio is standby to local, after the reassignment: a standby copy should be as fast as local state.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.crew import Crew, crew
from bench.gateway import gateway
from bench.harness import Result, note
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from sluice.wire import runs as wire_runs
from tests.support.processes import ROOT, kill_whole
from tests.support.s3servers import S3_CREDENTIALS

NAME = "failover"
SHARE = float(os.environ.get("BENCH_SHARE", "1"))
"""Size of the state: 1 GiB is the real benchmark; less is for a quick test."""
BLOCK = 4096
BLOCKS = round((1 << 30) / BLOCK * SHARE)
APPENDED = 8_192
TASK = "Partition 1"
JOB = ROOT / "bench" / "failover_job.py"
WRITER = Writer(Lineage("bench"), "bench", Generation(1))
MOST = 1.5
CASES = ("local", "cold", "standby")
TERMS = {"SLUICE_LEASE_SECONDS": "6", "SLUICE_HEARTBEAT_SECONDS": "1", "SLUICE_MARGIN_SECONDS": "1", "SLUICE_GRACE_SECONDS": "1"}


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds from the kill to the reassignment of the task, and from there to the first batch."""

    reassigned: float
    first_batch: float


def run() -> Result:
    """Raises BenchFailed."""
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made, gateway() as server:
            environment = {
                **TERMS,
                **S3_CREDENTIALS,
                "SLUICE_BLOB_STORES": json.dumps({"s3": server.blobs("sluice")}),
                "SLUICE_FAILOVER_AFTER_SECONDS": "1",
                "SLUICE_STANDBY_SECONDS": "1",
                "SLUICE_MAX_ROWS": str(APPENDED),
            }
            with crew(Path(made), JOB, environment) as here:
                found[case] = measure_case(here, case)
        note(f"{case}: reassigned after {found[case].reassigned:.1f} s, the first batch {found[case].first_batch:.1f} s later")
    return judged(found)


def judged(found: Mapping[str, Durations]) -> Result:
    figures: dict[str, float] = {"state_mib": round(BLOCKS * BLOCK / (1 << 20))}
    for case, each in found.items():
        figures |= {f"{case}_s": round(each.reassigned + each.first_batch, 2), f"{case}_after_given_away_s": round(each.first_batch, 2)}
    ratio = found["standby"].first_batch / found["local"].first_batch
    return Result(
        name=NAME,
        figures={**figures, "given_away_s": round(max(each.reassigned for each in found.values()), 2)},
        ratio=round(ratio, 3),
        target=f"with warm standby the first batch comes within {MOST:g} times the time with local state, and sooner than without standby",
        met=ratio <= MOST and found["standby"].first_batch < found["cold"].first_batch,
    )


def measure_case(here: Crew, case: str) -> Durations:
    log = Log(here.home / "log")
    log.create("blocks", 2)
    log.create("seen", 1)
    fill(log)
    here.deploy(2, "earliest", {"standby.replicas": "1"} if case == "standby" else {})
    disks = [here.root / "disk", here.root / "disk"] if case == "local" else [here.root / "disk0", here.root / "disk1"]
    for slot, disk in enumerate(disks):
        last = here.start_container(slot, SLUICE_STATE_DIR=str(disk), SLUICE_CONTAINER_HOST=disk.name)
    read = BLOCKS
    here.until("the state", lambda detail: done(detail, read))
    with producing(log):
        here.until("a snapshot", lambda detail: backed_up(here, case, disks[0]))
        batch, version = batch_of(here.detail()), here.detail().job_model_version
        killed = time.monotonic()
        kill_whole(last.process)
        here.until("the task's move", lambda detail: detail.job_model_version > version or None, may_end=last)
        away = time.monotonic()
        here.until("a batch", lambda detail: moved_on(detail, last.execution_id, batch), may_end=last)
        return Durations(away - killed, time.monotonic() - away)


def fill(log: Log) -> None:
    for first in range(0, BLOCKS, APPENDED):
        names = range(first, min(first + APPENDED, BLOCKS))
        records = [Record(os.urandom(BLOCK), key=f"block-{n}".encode(), partition=1) for n in names]
        log.append("blocks", records, writer=WRITER, batch=first, now_micros=time.time_ns() // 1000)
    log.append("blocks", [Record(b"", key=b"small", partition=0)], writer=WRITER, batch=BLOCKS, now_micros=time.time_ns() // 1000)


@contextmanager
def producing(log: Log) -> Iterator[None]:
    """Append a row per second to each partition."""
    over = threading.Event()

    def feed() -> None:
        batch = BLOCKS
        while not over.wait(1.0):
            batch += 1
            records = [Record(b"", key=b"small", partition=partition) for partition in (0, 1)]
            log.append("blocks", records, writer=WRITER, batch=batch, now_micros=time.time_ns() // 1000)

    thread = threading.Thread(target=feed, name="feed")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def stage_of(detail: wire_runs.RunDetail) -> wire_runs.StageProgress | None:
    return next((stage for task in detail.tasks if task.task == TASK for stage in task.stages), None)


def done(detail: wire_runs.RunDetail, offset: int) -> bool | None:
    stage = stage_of(detail)
    return True if stage is not None and any(each.offset >= offset for each in stage.offsets) else None


def batch_of(detail: wire_runs.RunDetail) -> int:
    stage = stage_of(detail)
    return -1 if stage is None or stage.batch_id is None else stage.batch_id


def backed_up(here: Crew, case: str, disk: Path) -> bool | None:
    """The whole state is in a snapshot; with standby, the other container has a copy of it."""
    stage = stage_of(here.detail())
    if stage is None or stage.snapshot_at is None or stage.reported_at is None:
        return None
    whole = copied(disk) if case == "standby" else BLOCKS * BLOCK
    late = (stage.reported_at - stage.snapshot_at).total_seconds()
    return True if whole >= BLOCKS * BLOCK and late < 15 else None


def copied(disk: Path) -> int:
    """The size in bytes of the standby copies of a container. Files may be created and deleted meanwhile."""
    found = 0
    for copies in disk.glob("*/.standby"):
        for where, _, names in os.walk(copies):
            for name in names:
                with suppress(FileNotFoundError):
                    found += (Path(where) / name).stat().st_size
    return found


def moved_on(detail: wire_runs.RunDetail, former: str, batch: int) -> bool | None:
    holder = next((task.holder for task in detail.tasks if task.task == TASK), None)
    return True if holder not in (None, former) and batch_of(detail) > batch else None
