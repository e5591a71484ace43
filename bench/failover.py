"""From the kill of a container with 1 GiB of state to the first batch of its task on another one.

Two containers, a task each, on `local[1]`; the second one's task has the state, and rows keep coming to it. Its watchdog and all that it
started get a SIGKILL at once, as when a machine is gone: nobody tells the coordinator, which waits for the end of the lease and the grace
before it gives the task away. What is measured is the time from the kill to the task's next batch, and the part of it after the task was
given away:

* local: both share a disk, and the first goes on with what is there;
* cold: each has a disk of its own, and the first fetches the newest snapshot from an S3 server on loopback;
* standby: likewise, with `standby.replicas=1`: the first has a copy of a snapshot.

The ratio is standby to local, of the part after the task was given away: to have the state at hand should be as good as to have had it.
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
"""Of the state: less than all of it only to try the benchmark."""
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
class Took:
    """Seconds from the kill until the task was given away, and from then to the first batch."""

    given_away: float
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
                found[case] = took(here, case)
        note(f"{case}: given away after {found[case].given_away:.1f} s, the first batch {found[case].first_batch:.1f} s later")
    return judged(found)


def judged(found: Mapping[str, Took]) -> Result:
    figures: dict[str, float] = {"state_mib": round(BLOCKS * BLOCK / (1 << 20))}
    for case, each in found.items():
        figures |= {f"{case}_s": round(each.given_away + each.first_batch, 2), f"{case}_after_given_away_s": round(each.first_batch, 2)}
    ratio = found["standby"].first_batch / found["local"].first_batch
    return Result(
        name=NAME,
        figures={**figures, "given_away_s": round(max(each.given_away for each in found.values()), 2)},
        ratio=round(ratio, 3),
        target=f"with warm standby the first batch comes within {MOST:g} times as long as with local state, and sooner than from cold",
        met=ratio <= MOST and found["standby"].first_batch < found["cold"].first_batch,
    )


def took(here: Crew, case: str) -> Took:
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
    with coming(log):
        here.until("a snapshot", lambda detail: backed_up(here, case, disks[0]))
        batch, version = batch_of(here.detail()), here.detail().job_model_version
        killed = time.monotonic()
        kill_whole(last.process)
        here.until("the task's move", lambda detail: detail.job_model_version > version or None, may_end=last)
        away = time.monotonic()
        here.until("a batch", lambda detail: moved_on(detail, last.execution_id, batch), may_end=last)
        return Took(away - killed, time.monotonic() - away)


def fill(log: Log) -> None:
    for first in range(0, BLOCKS, APPENDED):
        names = range(first, min(first + APPENDED, BLOCKS))
        records = [Record(os.urandom(BLOCK), key=f"block-{n}".encode(), partition=1) for n in names]
        log.append("blocks", records, writer=WRITER, batch=first, now_micros=time.time_ns() // 1000)
    log.append("blocks", [Record(b"", key=b"small", partition=0)], writer=WRITER, batch=BLOCKS, now_micros=time.time_ns() // 1000)


@contextmanager
def coming(log: Log) -> Iterator[None]:
    """A row a second comes to each partition."""
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
    """The whole state is in a snapshot, which the other container has a copy of if it is to have one."""
    stage = stage_of(here.detail())
    if stage is None or stage.snapshot_at is None or stage.reported_at is None:
        return None
    whole = copied(disk) if case == "standby" else BLOCKS * BLOCK
    late = (stage.reported_at - stage.snapshot_at).total_seconds()
    return True if whole >= BLOCKS * BLOCK and late < 15 else None


def copied(disk: Path) -> int:
    """Bytes in the copies that a container keeps of others' state, which come and go."""
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
