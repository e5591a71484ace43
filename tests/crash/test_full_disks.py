"""The disk is full at each write in turn: incomplete files are not read as complete ones, and work continues when there is room again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest

from containers.errors import DiskFull
from containers.state.checkpoint import Checkpoints, check_writable, inspect
from containers.state.commits.freeze import freeze
from sluice.blobs.filesystem import FilesystemBlobs
from sluice.blobs.port import Purpose, RequestContext
from sluice.clock import SystemClock
from sluice.core.errors import BlobDeleted, BlobMissing, BlobUnavailable, StreamUnavailable
from sluice.core.ids import Generation, Lineage
from sluice.core.snapshots.snapshot import BlobId
from sluice.streams.log import Log, Record, Writer
from tests.support.api import calling, problem_slug, run_body
from tests.support.disks import SmallDisk, small_disk
from tests.support.fakes import FakeClock

PAGE = 4096
SIZE = 8 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", SIZE) as made:
        yield made


def refusal(call: Callable[[], object], kind: type[Exception]) -> str:
    """The text of the error; "" if the call succeeds."""
    try:
        call()
    except kind as error:
        return str(error)
    return ""


def test_a_batch_is_in_the_log_completely_or_not_at_all_when_the_disk_becomes_full(disk: SmallDisk) -> None:
    log = Log(disk.root / "log", wal_bytes=PAGE * 8)
    log.create("s", 1)
    writer, refused = Writer(Lineage("l"), "o", Generation(1)), 0
    for batch in range(24):
        records = [Record(bytes([batch]) * 1000, partition=0)] * 20
        append = partial(log.append, "s", records, writer=writer, batch=batch, now_micros=1)
        disk.fill(leave=batch * PAGE)
        error = refusal(append, StreamUnavailable)
        if error:
            refused += 1
            assert str(log.directory / "s.db") in error
        disk.make_room()
        assert log.latest("s") == {0: (batch if error else batch + 1) * 20}
        append()
        assert log.latest("s") == {0: (batch + 1) * 20}
    assert refused >= 3
    found = [row[3] for rows in log.read("s", 0, 0, 24 * 20) for row in rows]
    assert found == [bytes([batch]) * 1000 for batch in range(24) for _ in range(20)]


def test_a_stream_for_which_there_is_no_room_is_not_created(disk: SmallDisk) -> None:
    log = Log(disk.root / "log")
    log.create("first", 1)
    for pages in range(0, 12, 2):
        create = partial(log.create, f"s{pages}", 2)
        disk.fill(leave=pages * PAGE)
        if error := refusal(create, StreamUnavailable):
            assert f"cannot create the log stream s{pages}" in error
            assert not [each for each in log.directory.iterdir() if each.name.startswith((f"s{pages}", "."))]
        disk.make_room()
        create()
        assert log.partitions(f"s{pages}") == 2


def test_a_blob_is_stored_completely_or_not_at_all_and_the_error_names_the_disk(disk: SmallDisk) -> None:
    blobs = FilesystemBlobs(disk.root / "blobs", SystemClock())
    asyncio.run(blobs.open(create=True))
    body, refused = bytes(5 * PAGE), 0
    for pages in range(8):
        blob, got, about = BlobId(f"b{pages}"), BytesIO(), RequestContext(Purpose.DATA)
        disk.fill(leave=pages * PAGE)
        if error := refusal(lambda: asyncio.run(blobs.put(blob, body, about)), BlobUnavailable):  # noqa: B023 — called at once
            refused += 1
            assert f"the disk of {disk.root / 'blobs'} is full" in error
            with pytest.raises(BlobMissing):
                asyncio.run(blobs.get(blob, got, about))
        disk.make_room()
        asyncio.run(blobs.put(blob, body, about))
        asyncio.run(blobs.get(blob, got, about))
        assert got.getvalue() == body
    assert 3 <= refused < 8


async def test_deletions_free_a_full_disk_of_blobs(disk: SmallDisk, clock: FakeClock) -> None:
    root = disk.root / "blobs"
    blobs, about = FilesystemBlobs(root, clock), RequestContext(Purpose.DATA)
    await blobs.open(create=True)
    for name in ("a", "b"):
        await blobs.put(BlobId(name), bytes(5 * PAGE), about)
    disk.fill()
    await blobs.open(create=True)  # by a coordinator that is started again
    await blobs.delete([BlobId("a")], about)
    with pytest.raises(BlobMissing, match="there is no blob a"):
        await blobs.get(BlobId("a"), BytesIO(), about)
    await blobs.put(BlobId("c"), bytes(4 * PAGE), about)
    await blobs.delete([BlobId("b")], about)
    with pytest.raises(BlobDeleted):
        await blobs.get(BlobId("b"), BytesIO(), about)
    assert list((root / "tmp").iterdir()) == []


async def test_expired_blobs_free_a_full_disk(disk: SmallDisk, clock: FakeClock) -> None:
    root = disk.root / "blobs"
    blobs, about, day = FilesystemBlobs(root, clock), RequestContext(Purpose.DATA), timedelta(days=1)
    await blobs.open(create=True)
    await blobs.put(BlobId("expires"), bytes(5 * PAGE), about, ttl=day)
    for number in range(20):
        await blobs.delete([BlobId(f"deleted/{number}")], about)
    disk.fill()
    assert await blobs.sweep_expired(clock.now(), 10) == 0, "the records cannot be merged, which can wait"
    assert len(list((root / "deleted").iterdir())) == 20
    assert list((root / "tmp").iterdir()) == []
    assert await blobs.sweep_expired(clock.now() + 2 * day, 10) == 1
    assert len(list((root / "deleted").iterdir())) == 1, "there is room for the merged record now"
    await blobs.put(BlobId("fits"), bytes(4 * PAGE), about)


async def test_files_that_killed_processes_left_are_deleted_from_a_full_disk(disk: SmallDisk) -> None:
    root = disk.root / "blobs"
    blobs = FilesystemBlobs(root, SystemClock())
    await blobs.open(create=True)
    for number in range(20):
        await blobs.delete([BlobId(f"deleted/{number}")], RequestContext(Purpose.DATA))
    (root / "tmp" / "left").write_bytes(bytes(PAGE))
    disk.fill()
    await blobs.sweep_expired(datetime.now(UTC) + timedelta(days=2), 10)
    assert list((root / "tmp").iterdir()) == []


def test_a_checkpoint_is_created_completely_or_not_at_all(disk: SmallDisk) -> None:
    checkpoints = Checkpoints(disk.root / "state", "job")
    disk.fill()
    with pytest.raises(DiskFull, match=str(disk.root)):
        checkpoints.prepare("Partition 0", "first", Lineage("l"), None)
    assert inspect(checkpoints.directory("Partition 0", "first")) is None
    with pytest.raises(DiskFull, match=str(disk.root)):
        check_writable(disk.root / "state")
    disk.make_room()
    made = checkpoints.prepare("Partition 0", "first", Lineage("l"), None)
    found = inspect(made)
    assert found is not None
    assert found.lineage == "l"


def test_a_checkpoint_on_a_full_disk_can_be_frozen(disk: SmallDisk) -> None:
    checkpoints = Checkpoints(disk.root / "state", "job")
    made = checkpoints.prepare("Partition 0", "first", Lineage("l"), None)
    disk.fill()
    assert freeze(made, checkpoints.frozen("Partition 0", "first") / "c").lineage == "l"


async def test_a_coordinator_on_a_full_disk_reports_it_renews_leases_and_continues_when_there_is_room(
    disk: SmallDisk, clock: FakeClock
) -> None:
    limits = {"disk_low_bytes": 2 << 20, "disk_full_bytes": 64 << 10, "log_dir": disk.root / "log"}
    async with calling(disk.root / "home", clock, **limits) as caller:
        caller.log.directory.mkdir(parents=True, exist_ok=True)
        Log(disk.root / "log").create("flights", 2)
        run_id = (await caller.deploy(run_body(containers=2)))["runId"]
        await caller.registered(run_id, "c1")
        assert "[+] disk database: not low" in (await caller.http.get("/readyz?verbose")).text

        disk.fill(leave=1 << 20)
        low = await caller.http.get("/readyz?verbose")
        assert (low.status_code, "[-] disk database: low: 1.0 MiB free of 8.0 MiB" in low.text) == (200, True)

        disk.fill()
        registered, refused = ["c1"], None
        while refused is None:
            answer = await caller.register(run_id, f"d{len(registered)}", "1")
            if answer.status_code == 201:
                registered.append(f"d{len(registered)}")
                disk.fill()
            else:
                refused = answer
        assert problem_slug(refused) == (503, "store-unavailable")
        assert f"the disk of {disk.root / 'home'} is full" in refused.json()["detail"]
        assert await caller.alive("c1", 1)
        full = await caller.http.get("/readyz?verbose")
        assert full.status_code == 503
        for name in ("database", "log", "blob store local"):
            assert f"[-] disk {name}: full: " in full.text
        metrics = (await caller.http.get("/metrics")).text
        assert 'sluice_disk_low_bytes{disk="database"} 2.097152e+06' in metrics

        disk.make_room()
        assert (await caller.http.get("/readyz")).status_code == 200
        await caller.registered(run_id, "c2", "1")
        found = [each["executionContainerId"] for each in (await caller.run(run_id))["incarnations"]]
        assert sorted(found) == sorted([*registered, "c2"])
    with closing(sqlite3.connect(disk.root / "home" / "coordinator.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
