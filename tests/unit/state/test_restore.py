from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from containers.errors import CheckpointUnreadable, DiskFull, DiskUnwritable
from containers.state.files import LocalFiles
from containers.state.recovery.restore import finish_swap
from sluice.blobs.indexes import read_index
from sluice.blobs.port import Purpose, RequestContext
from sluice.core.errors import BlobCorrupted, BlobDeleted, BlobMissing, BlobUnavailable, IndexUnreadable
from sluice.core.snapshots.indexjson import encoded
from sluice.core.snapshots.snapshot import BlobId, FileBlob, SnapshotIndex, walk
from sluice.disks import DiskSpace
from tests.support.fakes import FakeClock
from tests.support.faults import Fault, FaultyBlobs, FullDisk, at
from tests.support.memory import MemoryBlobs
from tests.support.trees import KEY, TINY, File, Place, disk_is_clean, flip, make, plain, read, trees, with_parents

ABOUT = RequestContext.of_stage(Purpose.AUDIT, KEY)

TREE: dict[str, File | None] = {
    "metadata": (b'{"id":"lineage"}', 0o644),
    "commits/1": (b"v2\n{}", 0o644),
    "state/large.sst": (bytes(range(200)), 0o444),
    "state/tool": (b"#!/bin/sh", 0o755),
    "state/empty": (b"", 0o600),
    "state/none": None,
    "state/deep/er": None,
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def blobs(clock: FakeClock) -> FaultyBlobs:
    return FaultyBlobs(MemoryBlobs(clock))


@pytest.fixture
async def place(tmp_path: Path, blobs: FaultyBlobs, clock: FakeClock) -> Place:
    """One snapshot of TREE exists, and nothing on the disk."""
    place = Place(tmp_path, blobs, clock=clock)
    place.make(TREE)
    await place.commit()
    place.store.rename(tmp_path / "original")
    blobs.operations.clear()
    return place


def gets(blobs: FaultyBlobs) -> list[str]:
    return [operation.blob for operation in blobs.operations if operation.name == "get"]


def body(blobs: FaultyBlobs, blob: str) -> bytes:
    inner = blobs.inner
    assert isinstance(inner, MemoryBlobs)
    return inner._held[BlobId(blob)].body


async def tamper(place: Place, blobs: FaultyBlobs, blob: BlobId, with_what: bytes) -> None:
    await blobs.inner.put(blob, with_what, ABOUT)


async def index_of(place: Place) -> SnapshotIndex:
    assert place.newest is not None
    return await read_index(place.blobs, place.newest, RequestContext.of_stage(Purpose.INDEX, KEY))


# --- a whole checkpoint ----------------------------------------------------------------------------------------------------


async def test_a_store_comes_back_on_a_new_disk_with_modes_empty_files_and_empty_directories(place: Place) -> None:
    restored = await place.restore()
    assert read(place.store) == with_parents(TREE)
    assert (restored.files, restored.fetched_files, restored.reused_files) == (5, 4, 1)
    assert disk_is_clean(place.root)


async def test_the_parts_of_a_large_file_come_back_in_their_order(tmp_path: Path, clock: FakeClock) -> None:
    place = Place(tmp_path, MemoryBlobs(clock), replace(TINY, packing=replace(TINY.packing, chunk_bytes=10)), clock=clock)
    letters = b"".join(bytes([65 + number]) * 10 for number in range(26))
    place.make(plain({"letters": letters}))
    await place.commit()
    await place.restorer(chunk_bytes=3).restore(place.newest, tmp_path / "other", None)  # type: ignore[arg-type]
    assert read(tmp_path / "other") == plain({"letters": letters})


async def test_small_files_are_fetched_with_one_request_for_their_pack(place: Place, blobs: FaultyBlobs) -> None:
    await place.restore()
    assert len(gets(blobs)) == 1 + 1 + 4  # index, pack, chunks of the large file


async def test_nothing_but_the_index_is_fetched_when_the_local_directory_is_the_same(place: Place, blobs: FaultyBlobs) -> None:
    make(place.store, TREE)
    inode = (place.store / "state/large.sst").stat().st_ino
    restored = await place.restore()
    assert len(gets(blobs)) == 1
    assert (restored.reused_files, restored.gets) == (5, 0)
    assert (place.store / "state/large.sst").stat().st_ino == inode, "linked, not copied"
    assert read(place.store) == with_parents(TREE)


async def test_only_differences_are_fetched_and_superfluous_files_are_removed(place: Place, blobs: FaultyBlobs) -> None:
    make(place.store, {**TREE, "commits/1": (b"v2\n{ }", 0o644), "commits/2": (b"later", 0o644), "more/stuff": (b"", 0o644)})
    restored = await place.restore()
    assert (restored.fetched_files, len(gets(blobs))) == (1, 2)
    assert read(place.store) == with_parents(TREE)


@pytest.mark.parametrize("path", ["metadata", "state/large.sst"])
async def test_a_flipped_bit_in_a_local_file_of_any_directory_is_found_and_the_file_fetched(place: Place, path: str) -> None:
    make(place.store, TREE)
    flip(place.store / path)
    restored = await place.restore()
    assert restored.fetched_files == 1
    assert read(place.store) == with_parents(TREE)


async def test_a_local_file_with_another_mode_is_not_shared_with_the_restored_one(place: Place) -> None:
    make(place.store, {**TREE, "state/tool": (b"#!/bin/sh", 0o600)})
    keeper = place.root / "keeper"
    keeper.hardlink_to(place.store / "state/tool")
    await place.restore()
    assert read(place.store) == with_parents(TREE)
    assert keeper.stat().st_mode & 0o777 == 0o600


async def test_a_file_is_where_a_directory_must_be_and_the_other_way_round(place: Place) -> None:
    make(place.store, {"state": (b"", 0o644), "metadata/x": (b"", 0o644)})
    await place.restore()
    assert read(place.store) == with_parents(TREE)


async def test_an_index_that_samza_wrote_is_restored_and_its_checksums_verified(place: Place, blobs: FaultyBlobs, clock: FakeClock) -> None:
    plain_place = Place(place.root, blobs, replace(TINY, packing=replace(TINY.packing, packs=False)), clock=clock)
    plain_place.make(TREE)
    _, index = await plain_place.upload()
    document = json.loads(encoded(index))
    for key in ("schema-version", "generation", "lineage", "batch-id", "index-sha256"):
        del document[key]
    samza = json.dumps(document).replace('"sha256"', '"unknown"').encode()
    await blobs.put(BlobId("samza"), samza, ABOUT)
    await place.restore(BlobId("samza"))
    assert read(place.store) == with_parents(TREE)
    large = next(file for path, file in walk(index.root) if path == "state/large.sst")
    await tamper(place, blobs, large.blobs[0].blob, bytes(64))
    with pytest.raises(BlobCorrupted, match=r"state/large\.sst"):
        await place.restore(BlobId("samza"), place.root / "other")


async def test_owners_of_another_machine_do_not_matter(place: Place, blobs: FaultyBlobs) -> None:
    index = await index_of(place)
    files = tuple(replace(file, metadata=file.metadata._replace(owner="nobody-here", group="4711")) for file in index.root.files)
    await blobs.put(BlobId("other-owners"), encoded(replace(index, root=replace(index.root, files=files))), ABOUT)
    await place.restore(BlobId("other-owners"))
    assert (place.store / "metadata").read_bytes() == b'{"id":"lineage"}'


# --- corrupted blobs -------------------------------------------------------------------------------------


async def refused(place: Place, error: type[Exception], *says: str, index: BlobId | None = None) -> None:
    """The restore with no staged files fails with that message; the directory on the disk is unchanged."""
    make(place.store, plain({"mine": b"old"}))
    make(place.root / ".staging", {})
    with pytest.raises(error) as caught:
        await place.restore(index)
    for each in says:
        assert each in str(caught.value)
    assert read(place.store) == plain({"mine": b"old"})


async def test_every_missing_blob_is_a_clear_error_and_loses_nothing(place: Place, blobs: FaultyBlobs) -> None:
    for blob in (await index_of(place)).blobs:
        kept = body(blobs, blob)
        await blobs.inner.delete([blob], ABOUT)
        await refused(place, BlobDeleted, blob, str(place.newest), "choose an earlier snapshot")
        await tamper(place, blobs, blob, kept)
    await place.restore()
    assert read(place.store) == with_parents(TREE)


async def test_a_missing_index_is_distinguished_from_a_deleted_one(place: Place, blobs: FaultyBlobs) -> None:
    await refused(place, BlobMissing, "nowhere", "index of a snapshot of stage hourly", index=BlobId("nowhere"))
    assert place.newest is not None
    await blobs.inner.delete([place.newest], ABOUT)
    await refused(place, BlobDeleted, place.newest)


async def test_every_blob_that_is_cut_short_or_flipped_or_exchanged_is_found(place: Place, blobs: FaultyBlobs) -> None:
    wanted = sorted((await index_of(place)).blobs)
    for blob in wanted:
        kept = body(blobs, blob)
        other = body(blobs, next(each for each in wanted if each != blob))
        for wrong in (kept[:-1], b"", bytes([kept[0] ^ 1]) + kept[1:], kept[:-1] + bytes([kept[-1] ^ 128]), other):
            await tamper(place, blobs, blob, wrong)
            await refused(place, BlobCorrupted, blob)
        await tamper(place, blobs, blob, kept)


async def test_an_index_that_is_cut_short_foreign_or_of_another_store_is_refused(place: Place, blobs: FaultyBlobs) -> None:
    index = await index_of(place)
    assert place.newest is not None
    whole = body(blobs, place.newest)
    other = encoded(replace(index, metadata=replace(index.metadata, task="Partition 1")))  # type: ignore[arg-type]
    for wrong in (whole[:-1], b"", b"PK", whole.replace(b"commits", b"comnits"), other):
        await tamper(place, blobs, place.newest, wrong)
        await refused(place, IndexUnreadable, place.newest)


@pytest.mark.parametrize("name", ["../escaped", "..", "/escaped", "a/../../escaped"])
async def test_an_index_never_writes_outside_the_store(place: Place, blobs: FaultyBlobs, name: str) -> None:
    index = await index_of(place)
    evil = replace(index.root.files[0], name=name)
    await blobs.put(BlobId("evil"), encoded(replace(index, root=replace(index.root, files=(evil,)))), ABOUT)
    await refused(place, IndexUnreadable, "evil", index=BlobId("evil"))
    assert {path.name for path in place.root.iterdir()} == {"hourly", "original", ".staging"}
    assert not any((place.root / ".staging").iterdir())
    assert not any(path.name == "escaped" for path in place.root.parent.iterdir())


async def test_two_files_may_share_the_bytes_of_a_pack(place: Place, blobs: FaultyBlobs) -> None:
    index = await index_of(place)
    (metadata,) = index.root.files
    twin = replace(metadata, name="twin")
    await blobs.put(BlobId("twins"), encoded(replace(index, root=replace(index.root, files=(metadata, twin)))), ABOUT)
    await place.restore(BlobId("twins"))
    assert (place.store / "twin").read_bytes() == (place.store / "metadata").read_bytes()


async def test_parts_that_reach_beyond_their_blob_are_refused(place: Place, blobs: FaultyBlobs) -> None:
    index = await index_of(place)
    (metadata,) = index.root.files
    beyond = replace(metadata, blobs=(FileBlob(metadata.blobs[0].blob, 0, metadata.metadata.size, 1_000_000),))
    await blobs.put(BlobId("beyond"), encoded(replace(index, root=replace(index.root, files=(beyond,)))), ABOUT)
    await refused(place, BlobCorrupted, index=BlobId("beyond"))


# --- interrupted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.PART])
async def test_a_restore_that_was_interrupted_fetches_only_the_rest(place: Place, blobs: FaultyBlobs, fault: Fault) -> None:
    blobs.plan = at(4, fault)
    with pytest.raises(BlobUnavailable):
        await place.restore()
    assert not place.store.exists()
    blobs.plan = at(0, fault)
    blobs.operations.clear()
    restored = await place.restore()
    assert restored.fetched_files == 1, "the large one; the pack was there"
    assert read(place.store) == with_parents(TREE)
    assert disk_is_clean(place.root)


async def test_a_flipped_bit_in_what_was_staged_is_found(place: Place, blobs: FaultyBlobs) -> None:
    blobs.plan = at(4, Fault.FAIL)
    with pytest.raises(BlobUnavailable):
        await place.restore()
    flip(place.root / ".staging/hourly/metadata")
    blobs.plan = at(0, Fault.FAIL)
    await place.restore()
    assert read(place.store) == with_parents(TREE)


async def test_what_was_staged_of_another_snapshot_is_used_as_far_as_it_is_the_same(place: Place, blobs: FaultyBlobs) -> None:
    make(place.root / ".staging/hourly", {**TREE, "commits/9": (b"other", 0o644), "state/none/x": (b"", 0o644), "d/e": None})
    restored = await place.restore()
    assert restored.gets == 0
    assert read(place.store) == with_parents(TREE)


async def test_links_in_what_was_staged_are_removed_and_never_followed(place: Place) -> None:
    outside = make(place.root / "outside", plain({"x": b"theirs"}))
    staging = make(place.root / ".staging/hourly", {})
    (staging / "metadata").symlink_to(outside / "x")
    (staging / "state").symlink_to(outside)
    (staging / "more").symlink_to(outside)
    await place.restore()
    assert read(place.store) == with_parents(TREE)
    assert read(outside) == plain({"x": b"theirs"})


@pytest.mark.parametrize("where", ["hourly", ".staging", ".staging/hourly", ".replaced"])
async def test_a_link_in_the_place_of_a_directory_is_refused(place: Place, where: str) -> None:
    outside = make(place.root / "outside", plain({"x": b"theirs"}))
    (place.root / where).parent.mkdir(exist_ok=True)
    (place.root / where).symlink_to(outside)
    with pytest.raises(CheckpointUnreadable, match="is not a directory"):
        await place.restore()
    assert read(outside) == plain({"x": b"theirs"})


async def test_links_in_the_local_directory_are_not_taken_over(place: Place) -> None:
    make(place.store, {})
    (place.store / "metadata").symlink_to(place.root / "original/metadata")
    await place.restore()
    assert read(place.store) == with_parents(TREE)


@pytest.mark.parametrize("room", [0, 1, 20, 50, 150])
async def test_a_full_disk_is_an_error_and_the_old_directory_and_what_was_fetched_stay(place: Place, blobs: FaultyBlobs, room: int) -> None:
    make(place.store, plain({"mine": b"old"}))
    whole = place.files
    place.files = FullDisk(room)
    with pytest.raises(DiskUnwritable, match=r"No space left on device.*free some space"):
        await place.restore()
    assert read(place.store) == plain({"mine": b"old"})
    place.files = whole
    restored = await place.restore()
    assert read(place.store) == with_parents(TREE)
    assert room < 50 or restored.reused_files > 1


class Free(LocalFiles):
    """A disk with so much free space, and of this size."""

    def __init__(self, free: int, size: int = 1 << 30) -> None:
        self._space = DiskSpace(free, size)

    def space(self, path: Path) -> DiskSpace:
        return self._space


@pytest.mark.parametrize(("disk", "fits"), [(Free(1230), True), (Free(1229), False), (Free(0, size=0), True)])
async def test_what_must_leave_room_is_fetched_only_if_it_does(place: Place, blobs: FaultyBlobs, disk: Free, fits: bool) -> None:
    """The files have 230 bytes. A file system without a size is no disk."""
    place.files = disk
    restorer = place.restorer(leave_free=1000)
    assert place.newest is not None
    if fits:
        await restorer.restore(place.newest, place.store, None)
        assert read(place.store) == with_parents(TREE)
    else:
        with pytest.raises(DiskFull, match="230 B do not fit, as 1000 B of the disk must stay free"):
            await restorer.restore(place.newest, place.store, None)
        assert len(gets(blobs)) == 1, "the index"
        assert not place.store.exists()
    assert disk_is_clean(place.root)


def test_an_interrupted_swap_is_completed(tmp_path: Path) -> None:
    store, replaced = tmp_path / "hourly", tmp_path / ".replaced/hourly"
    make(replaced, plain({"a": b"old"}))
    finish_swap(store)
    assert read(store) == plain({"a": b"old"})
    make(replaced, plain({"a": b"older"}))
    finish_swap(store)
    assert (read(store), replaced.exists()) == (plain({"a": b"old"}), False)
    finish_swap(store)
    assert read(store) == plain({"a": b"old"})


# --- any tree ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roots() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(trees(), min_size=1, max_size=4), st.booleans(), st.data())
async def test_every_snapshot_of_any_changes_is_restored_over_any_directory(
    roots: Path, history: list[dict[str, File | None]], packing: bool, data: st.DataObject
) -> None:
    clock = FakeClock()
    root = Path(tempfile.mkdtemp(dir=roots))
    place = Place(root, MemoryBlobs(clock), replace(TINY, packing=replace(TINY.packing, packs=packing)), clock=clock)
    markers = []
    for tree in history:
        place.make(tree)
        markers.append(await place.commit())
    for marker, tree in data.draw(st.permutations(list(zip(markers, history, strict=True)))):
        restored = await place.restore(marker.index)
        assert read(place.store) == with_parents(tree)
        assert restored.files == marker.files == sum(file is not None for file in tree.values())
        assert restored.bytes == marker.bytes
        assert disk_is_clean(root)
