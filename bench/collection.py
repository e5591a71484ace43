"""Garbage collection of 1,000,000 blobs in a directory; a retained snapshot refers to one in ten.

Measured: the pass that finds and condemns 900,000 blobs, the pass that deletes them after the grace period, and the peak memory. It is the
real `GarbageCollector` over the filesystem store and SQLite, in a process of its own. Exactly the blobs that snapshots refer to must
remain. The peer lists and unlinks a tree of the same kind, a tenth of its size, in this process, without any decision, record or fsync.
The grace period is zero, and the limit on deletions per second is off.

    python -m bench.collection HOME    collects the garbage there, and prints the figures as a JSON object
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from bench.harness import BenchFailed, Result, note
from coordinator.app import prepare, stores_of_blobs
from coordinator.blobpool import BlobStores
from coordinator.settings import read_settings
from coordinator.snapshots.gc import CollectionResult, GarbageCollector
from coordinator.snapshots.inventory import owns_blob_store
from coordinator.snapshots.operations import Progress
from coordinator.store.snapshots import MarkerRow, SnapshotRow
from coordinator.store.sql import Store, open_store
from coordinator.waits import DeletionHold
from sluice.blobs.port import Purpose, RequestContext
from sluice.clock import SystemClock
from sluice.core.ids import Generation, JobName, Lineage, RunId, StageKey, StageName, TaskName
from sluice.core.snapshots.indexjson import encoded
from sluice.core.snapshots.snapshot import (
    BlobId,
    BlobStoreName,
    CommitId,
    DirIndex,
    FileBlob,
    FileIndex,
    FileMetadata,
    Kind,
    SnapshotIndex,
    SnapshotMetadata,
    fresh_blob_id,
)

NAME = "collection"
BLOBS = int(os.environ.get("BENCH_BLOBS", "1000000"))
STORES = 10
KEPT = 10
"""One blob in this many is referred to."""
SAMPLE = max(1, BLOBS // 10)
JOB, STAGE, LOCAL = JobName("bench"), StageName("stage"), BlobStoreName("local")
ABOUT = RequestContext(Purpose.DATA)
MOST_MEMORY = 300
MOST_RATIO = 6.0
PATIENCE = 280.0


def run() -> Result:
    """Raises BenchFailed."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home = Path(made)
        began = time.perf_counter()
        asyncio.run(fill(home))
        note(f"{BLOBS} blobs made in {time.perf_counter() - began:.1f} s")
        bare = peer_seconds(home / "bare") * BLOBS / SAMPLE
        found = _collected(home)
        left = sum(1 for _ in _files(home / "blobs" / "blobs" / "jobs"))
    if left != BLOBS // KEPT + STORES:
        raise BenchFailed(f"{left} blobs are left of the {BLOBS // KEPT + STORES} that are referred to")
    ratio = (found["condemn_s"] + found["delete_s"]) / bare
    return Result(
        name=NAME,
        figures={"blobs": BLOBS, **found, "bare_list_and_unlink_s": round(bare, 2)},
        ratio=round(ratio, 3),
        target=f"less than {MOST_MEMORY} MB of memory; at most {MOST_RATIO:g} times as long as a bare listing and unlink",
        met=found["peak_mb"] < MOST_MEMORY and ratio <= MOST_RATIO,
    )


def _collected(home: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.collection", str(home)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchFailed(f"the collection did not end within {PATIENCE:g} s") from error
    if done.returncode != 0:
        raise BenchFailed(f"the collection failed: {done.stderr[-1000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


# --- what is collected -------------------------------------------------------------------------------------------------


def ids(task: TaskName, count: int) -> Iterator[BlobId]:
    """Blob ids of one store, one second apart."""
    return (
        fresh_blob_id(StageKey(JOB, task, STAGE), Kind.DATA, 1_700_000_000_000 + number * 1000, f"{number:016x}") for number in range(count)
    )


async def fill(home: Path) -> None:
    """A catalog with one snapshot per store, and the blobs as files of the blob store."""
    settings = read_settings(home=home)
    store = open_store(settings.database)
    try:
        await prepare(settings, store)
        blob_stores = stores_of_blobs(settings, SystemClock(), {}, partial(owns_blob_store, store))
        await blob_stores.opened(LOCAL)
        for number in range(STORES):
            task = TaskName(f"Partition {number}")
            blobs = list(ids(task, BLOBS // STORES))
            await asyncio.to_thread(make_files, home / "blobs" / "blobs", blobs)
            await _register(store, blob_stores, number, task, blobs[::KEPT])
        await blob_stores.close()
    finally:
        await store.close()


def make_files(top: Path, blobs: list[BlobId]) -> None:
    """Empty files: they are never read."""
    (top / blobs[0]).parent.mkdir(parents=True)
    for blob in blobs:
        os.mknod(f"{top}/{blob}")


async def _register(store: Store, blob_stores: BlobStores, number: int, task: TaskName, blobs: list[BlobId]) -> None:
    now, checkpoint = SystemClock().now(), CommitId(f"{1_700_000_000_000 + number}-000000")
    metadata = FileMetadata(0, 0, 0, "bench", "bench", 0o644)
    files = tuple(FileIndex(f"{n:08}", (FileBlob(blob, 0),), metadata, 0, "0" * 64) for n, blob in enumerate(blobs))
    index = SnapshotIndex(0, SnapshotMetadata(checkpoint, JOB, task, STAGE), DirIndex("", files))
    blob = fresh_blob_id(StageKey(JOB, task, STAGE), Kind.SNAPSHOTS, 1_800_000_000_000, "0" * 16)
    await (await blob_stores.opened(LOCAL)).put(blob, encoded(index), ABOUT)
    markers = {LOCAL: MarkerRow(blob, len(files), kept=True)}
    row = SnapshotRow(JOB, number + 1, task, STAGE, checkpoint, Lineage("bench"), 1, Generation(1), RunId("bench"), now, markers=markers)
    async with store.begin() as tx:
        await tx.snapshots.put_all([row])


# --- the peer --------------------------------------------------------------------------------------------------------------


def peer_seconds(top: Path) -> float:
    for number in range(STORES):
        make_files(top, list(ids(TaskName(f"Partition {number}"), SAMPLE // STORES)))
    began = time.perf_counter()
    for path in _files(top):
        Path(path).unlink()
    return time.perf_counter() - began


def _files(top: Path) -> Iterator[str]:
    """The files, with one stat call each, as a listing with sizes needs."""
    with os.scandir(top) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                entry.stat(follow_symlinks=False)
                yield entry.path


# --- the process that is measured ---------------------------------------------------------------------------------------------


async def collect(home: Path) -> dict[str, float]:
    """Run two passes. Raises BenchFailed if they do not find the expected blobs."""
    settings, clock = read_settings(home=home), SystemClock()
    store = open_store(settings.database)
    blob_stores = stores_of_blobs(settings, clock, {}, partial(owns_blob_store, store))
    collection = GarbageCollector(
        store,
        blob_stores,
        clock,
        DeletionHold(clock, timedelta(0)),
        grace=timedelta(0),
        every=timedelta(hours=1),
        deletes_per_second=1e9,
        pause=lambda seconds: asyncio.sleep(0),
    )
    try:
        began = time.perf_counter()
        first = await collection.run(Progress("blobs"), dry=False)
        between = time.perf_counter()
        second = await collection.run(Progress("blobs"), dry=False)
        ended = time.perf_counter()
    finally:
        await blob_stores.close()
        await store.close()
    garbage = BLOBS - BLOBS // KEPT
    _check(first[0], condemned=garbage, deleted=0)
    _check(second[0], condemned=0, deleted=garbage)
    return {"condemn_s": round(between - began, 2), "delete_s": round(ended - between, 2), "peak_mb": round(peak_megabytes(), 1)}


def _check(found: CollectionResult, condemned: int, deleted: int) -> None:
    if found.not_judged or (found.condemned.blobs, found.deleted.blobs) != (condemned, deleted):
        raise BenchFailed(f"{found.condemned.blobs} blobs were condemned and {found.deleted.blobs} deleted; expected were other numbers")


def peak_megabytes() -> float:
    """Peak memory of this process. Not from getrusage, because a child process starts with its parent's peak."""
    with suppress(OSError), Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    import resource  # where there is no /proc; the value is in bytes there

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(collect(Path(sys.argv[1])))))
