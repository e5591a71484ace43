"""The process dies before, after and during every single operation of a commit and of a restore; then the operation runs again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from containers.state.files import LocalFiles
from sluice.blobs.port import Purpose, RequestContext
from sluice.core.snapshots.snapshot import BlobId
from tests.support.fakes import FakeClock
from tests.support.faults import Fault, FaultyBlobs, FaultyFiles, Killed, at
from tests.support.memory import MemoryBlobs
from tests.support.trees import KEY, File, Place, disk_is_clean, plain, read, with_parents

ABOUT = RequestContext.of_stage(Purpose.AUDIT, KEY)

FIRST: dict[str, File | None] = {
    "metadata": (b'{"id":"lineage"}', 0o644),
    "commits/1": (b"v2\n{}", 0o644),
    "state/large.sst": (bytes(range(200)), 0o444),
    "state/tool": (b"#!/bin/sh", 0o755),
    "state/gone": (b"x" * 70, 0o600),
    "state/none": None,
}
SECOND: dict[str, File | None] = {
    "metadata": (b'{"id":"lineage"}', 0o644),
    "commits/2": (b"v2\n{ }", 0o644),
    "state/large.sst": (bytes(range(200)), 0o444),
    "state/tool": (b"#!/bin/zsh", 0o700),
    "state/new.sst": (b"y" * 130, 0o600),
    "state/empty": (b"", 0o600),
    "other/none": None,
}


async def committed(root: Path) -> tuple[Place, FaultyBlobs]:
    """FIRST is durable, and SECOND is on the disk."""
    clock = FakeClock()
    blobs = FaultyBlobs(MemoryBlobs(clock))
    place = Place(root, blobs, clock=clock)
    place.make(FIRST)
    await place.commit()
    place.make(SECOND)
    blobs.operations.clear()
    return place, blobs


async def all_blobs(blobs: MemoryBlobs) -> set[BlobId]:
    return {listed.blob async for page in blobs.list("", ABOUT) for listed in page}


async def restored(place: Place, index: BlobId, name: str) -> dict[str, File | None]:
    await place.restorer().restore(index, place.root / name, None)
    return read(place.root / name)


def dead_and_again(place: Place, blobs: FaultyBlobs) -> None:
    """Start the process again: everything in memory is lost."""
    place.blobs = blobs.inner
    place.files = LocalFiles()
    place.uploader = place.new_uploader()


async def commit_again_and_check(place: Place, inner: MemoryBlobs) -> None:
    """The former snapshot is still durable, and the next commit makes the rest durable. All other blobs are garbage with a TTL."""
    before = place.newest
    assert before is not None
    assert await restored(place, before, "before") == with_parents(FIRST)
    await place.uploader.begin(before)
    marker, index = await place.upload(2)
    assert marker.previous == before
    assert await restored(place, marker.index, "after") == with_parents(SECOND)
    for blob in (marker.index, *index.blobs):
        await inner.remove_ttl(blob, ABOUT)
    await inner.sweep_expired(place.clock.now() + timedelta(days=31), 1000)
    assert await all_blobs(inner) == {marker.index, *index.blobs}


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER])
async def test_a_commit_killed_at_any_request_leaves_the_former_snapshot_and_garbage_with_a_ttl(tmp_path: Path, fault: Fault) -> None:
    place, blobs = await committed(tmp_path / "whole")
    await place.upload()
    count = len(blobs.operations)
    assert count >= 5
    for number in range(1, count + 1):
        place, blobs = await committed(tmp_path / str(number))
        blobs.plan = at(number, fault)
        with pytest.raises(Killed):
            await place.upload()
        assert isinstance(blobs.inner, MemoryBlobs)
        dead_and_again(place, blobs)
        await commit_again_and_check(place, blobs.inner)


async def test_a_commit_killed_at_any_read_of_the_disk_leaves_the_former_snapshot(tmp_path: Path) -> None:
    place, _ = await committed(tmp_path / "whole")
    place.files = FaultyFiles()
    place.uploader = place.new_uploader()
    await place.uploader.begin(place.newest)
    await place.upload()
    assert len(place.files.operations) >= 8
    for number in range(1, len(place.files.operations) + 1):
        place, blobs = await committed(tmp_path / str(number))
        place.files = FaultyFiles(number)
        place.uploader = place.new_uploader()
        await place.uploader.begin(place.newest)
        with pytest.raises(Killed):
            await place.upload()
        assert isinstance(blobs.inner, MemoryBlobs)
        dead_and_again(place, blobs)
        await commit_again_and_check(place, blobs.inner)


async def restorable(root: Path) -> tuple[Place, FaultyBlobs]:
    """FIRST is durable. The disk has newer state, which is discarded, and foreign files among the staged ones."""
    place, blobs = await committed(root)
    (root / ".staging/hourly/state").mkdir(parents=True)
    (root / ".staging/hourly/state/strange").symlink_to(root)
    return place, blobs


async def restore_again_and_check(place: Place, blobs: FaultyBlobs) -> None:
    """The disk has the whole old directory or the whole new one, or neither between the two renames of the swap. Then restore again."""
    if place.store.exists():
        assert read(place.store) in (with_parents(SECOND), with_parents(FIRST))
    else:
        assert read(place.root / ".replaced/hourly") == with_parents(SECOND)
    dead_and_again(place, blobs)
    await place.restore()
    assert read(place.store) == with_parents(FIRST)
    assert disk_is_clean(place.root)


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER, Fault.KILL_PART])
async def test_a_restore_killed_at_any_request_continues_and_ends_with_the_snapshot(tmp_path: Path, fault: Fault) -> None:
    place, blobs = await restorable(tmp_path / "whole")
    await place.restore()
    count = len(blobs.operations)
    assert count >= 4
    for number in range(1, count + 1):
        place, blobs = await restorable(tmp_path / str(number))
        blobs.plan = at(number, fault)
        with pytest.raises(Killed):
            await place.restore()
        await restore_again_and_check(place, blobs)


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER, Fault.KILL_PART])
async def test_a_restore_killed_at_any_change_of_the_disk_continues_and_ends_with_the_snapshot(tmp_path: Path, fault: Fault) -> None:
    place, _ = await restorable(tmp_path / "whole")
    counting = place.files = FaultyFiles()
    await place.restore()
    assert {"link", "write", "rename", "remove", "sync", "make_directory"} <= set(counting.operations)
    died = 0
    for number in range(1, len(counting.operations) + 1):
        place, blobs = await restorable(tmp_path / str(number))
        place.files = FaultyFiles(number, fault)
        try:
            await place.restore()
        except Killed:
            died += 1
        await restore_again_and_check(place, blobs)
    assert died >= sum(name in ("link", "write", "rename", "remove", "sync", "make_directory") for name in counting.operations)


async def test_a_store_without_files_is_committed_and_restored(tmp_path: Path) -> None:
    clock = FakeClock()
    place = Place(tmp_path, MemoryBlobs(clock), clock=clock)
    place.make({})
    await place.commit()
    place.make(plain({"a": b"1"}))
    await place.restore()
    assert read(place.store) == {}
