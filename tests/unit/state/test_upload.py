from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from containers.errors import CheckpointUnreadable
from containers.state.commits.packing import Packing
from containers.state.commits.upload import CommitSettings
from containers.state.diff import Identity
from containers.state.files import FileChanged, LocalFiles
from sluice.blobs.port import Purpose, RequestContext
from sluice.core.errors import BadSettings, BlobMissing, BlobUnavailable, IndexUnreadable
from sluice.core.snapshots.indexjson import encoded
from sluice.core.snapshots.snapshot import BlobId, walk
from tests.support.fakes import FakeClock
from tests.support.faults import Fault, FaultyBlobs, Operation, at, healthy
from tests.support.memory import MemoryBlobs
from tests.support.trees import KEY, TINY, Place, flip, make, plain, read, with_parents

ABOUT = RequestContext.of_stage(Purpose.AUDIT, KEY)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def blobs(clock: FakeClock) -> FaultyBlobs:
    return FaultyBlobs(MemoryBlobs(clock))


@pytest.fixture
def place(tmp_path: Path, blobs: FaultyBlobs, clock: FakeClock) -> Place:
    return Place(tmp_path, blobs, clock=clock)


def puts(blobs: FaultyBlobs) -> list[Operation]:
    return [operation for operation in blobs.operations if operation.name == "put"]


async def held(blobs: FaultyBlobs) -> set[str]:
    return {listed.blob async for page in blobs.inner.list("", ABOUT) for listed in page}


async def test_the_first_commit_puts_everything_and_the_index_last(place: Place, blobs: FaultyBlobs) -> None:
    place.make(plain({"a": b"1", "b": b"2", "d/large": b"x" * 150}))
    marker, index = await place.upload(batch=7)
    kinds = [operation.about.purpose.value for operation in puts(blobs) if operation.about]
    assert (sorted(kinds[:-1]), kinds[-1]) == (["data", "data", "data", "pack"], "index")  # all but the index are uploaded in parallel
    assert puts(blobs)[-1].blob == marker.index
    assert (marker.files, marker.bytes, marker.uploaded_files, marker.uploaded_bytes, marker.retained_bytes) == (3, 152, 3, 152, 0)
    assert (marker.puts, marker.previous) == (5, None)
    assert (index.previous, index.generation, index.lineage, index.batch) == (None, 1, "lineage", 7)


async def test_the_next_commit_puts_what_changed_and_names_the_one_before(place: Place, blobs: FaultyBlobs) -> None:
    place.make(plain({"a": b"1", "d/large": b"x" * 150}))
    first = await place.commit()
    (place.store / "new").write_bytes(b"3")
    blobs.operations.clear()
    marker, index = await place.upload(2)
    assert [operation.about.purpose.value for operation in puts(blobs) if operation.about] == ["pack", "index"]
    assert (marker.uploaded_files, marker.uploaded_bytes, marker.retained_bytes, marker.puts) == (1, 1, 151, 2)
    assert marker.previous == index.previous == first.index


async def test_nothing_changed_costs_one_put(place: Place, blobs: FaultyBlobs) -> None:
    place.make(plain({"a": b"1", "d/large": b"x" * 150}))
    await place.commit()
    blobs.operations.clear()
    assert (await place.commit()).puts == 1
    assert [operation.name for operation in blobs.operations] == ["put"]


async def test_every_request_names_its_container_and_purpose(place: Place, blobs: FaultyBlobs) -> None:
    place.make(plain({"a": b"1"}))
    await place.commit()
    assert {(op.about.job, op.about.task, op.about.store) for op in blobs.operations if op.about} == {("delays", "Partition 0", "hourly")}


async def test_every_blob_is_put_with_a_ttl_and_none_has_it_removed_here(place: Place, blobs: FaultyBlobs, clock: FakeClock) -> None:
    place.make(plain({"a": b"1", "large": b"x" * 150}))
    await place.commit()
    before = len(await held(blobs))
    assert await blobs.inner.sweep_expired(clock.now() + timedelta(days=29), 100) == 0
    assert await blobs.inner.sweep_expired(clock.now() + timedelta(days=31), 100) == before


async def test_an_upload_that_was_not_reported_does_not_become_the_previous_one(place: Place) -> None:
    place.make(plain({"a": b"1"}))
    first = await place.commit()
    (place.store / "b").write_bytes(b"2")
    await place.upload(2)
    marker, _ = await place.upload(3)
    assert (marker.previous, marker.uploaded_files) == (first.index, 1)


# --- what counts as changed -------------------------------------------------------------------------------------------


async def test_a_large_file_changed_in_place_at_the_same_size_is_uploaded(place: Place) -> None:
    place.make(plain({"d/large": b"x" * 150}))
    await place.commit()
    (place.store / "d/large").write_bytes(b"x" * 149 + b"y")
    place.settle()
    assert (await place.commit()).uploaded_files == 1
    await place.restore(target=place.root / "other")
    assert read(place.root / "other") == read(place.store)


async def test_a_file_changed_in_place_within_the_tick_of_the_last_commit_is_uploaded(place: Place) -> None:
    """Its inode, size and modification time are those of the committed file."""
    make(place.store, plain({"a": b"xxxx"}))
    place.clock.advance((place.store / "a").stat().st_mtime + 1 - place.clock.now().timestamp())
    await place.commit()
    flip(place.store / "a")
    assert (await place.commit()).uploaded_files == 1


async def test_a_file_whose_mode_changed_is_not_uploaded_again_and_has_its_new_mode(place: Place) -> None:
    place.make(plain({"a": b"1"}))
    await place.commit()
    (place.store / "a").chmod(0o600)
    assert (await place.commit()).uploaded_files == 0
    await place.restore(target=place.root / "other")
    assert read(place.root / "other") == {"a": (b"1", 0o600)}


async def test_a_file_that_was_copied_over_itself_is_read_once_and_not_uploaded(place: Place) -> None:
    place.make(plain({"a": b"1"}))
    await place.commit()
    make(place.store, plain({"a": b"1"}))
    place.settle()
    assert (await place.commit()).uploaded_files == 0


async def test_a_restarted_container_reads_its_files_once_to_compare_them(place: Place) -> None:
    class Counting(LocalFiles):
        read_files = 0

        def fingerprint(self, path: Path, identity: Identity):  # type: ignore[no-untyped-def]
            self.read_files += 1
            return super().fingerprint(path, identity)

    place.make(plain({"a": b"1", "large": b"x" * 150}))
    await place.commit()
    files = place.files = Counting()
    place.uploader = place.new_uploader()
    await place.uploader.begin(place.newest)
    assert (await place.commit()).uploaded_files == 0
    assert files.read_files == 2
    assert (await place.commit()).uploaded_files == 0
    assert files.read_files == 2


async def test_removed_files_and_directories_are_recorded_with_their_blobs(place: Place) -> None:
    place.make(plain({"gone": b"1", "d/e/gone-too": b"2", "stays": b"3" * 10}))
    await place.commit()
    make(place.store, plain({"stays": b"3" * 10}))
    place.settle()
    _, index = await place.upload(2)
    assert [file.name for file in index.root.files] == ["stays"]
    assert [file.name for file in index.root.files_removed] == ["gone"]
    assert [path for each in index.root.dirs_removed for path, _ in walk(each, each.name + "/")] == ["d/e/gone-too"]
    assert index.root.files_removed[0].blobs[0].blob in {part.blob for part in index.root.files[0].blobs}, "the pack lives on"


async def test_files_of_a_pack_that_is_mostly_dead_are_put_again_and_the_pack_is_not_needed_any_more(place: Place) -> None:
    place.make(plain({"a": b"1" * 10, "b": b"2" * 30}))
    _, first = await place.upload()
    await place.commit()
    (place.store / "b").unlink()
    marker, index = await place.upload(2)
    assert (marker.uploaded_files, marker.puts) == (1, 2)
    assert not index.blobs & first.blobs
    await place.restorer().restore(marker.index, place.root / "other", None)
    assert read(place.root / "other") == plain({"a": b"1" * 10})


# --- the frozen copy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strange", ["link", "dangling", "fifo", "directory link"])
async def test_a_link_or_special_file_is_refused_by_name(place: Place, blobs: FaultyBlobs, strange: str) -> None:
    place.make(plain({"a": b"1", "d/b": b"2"}))
    path = place.store / "d" / "strange"
    match strange:
        case "link":
            path.symlink_to("../a")
        case "dangling":
            path.symlink_to("nowhere")
        case "directory link":
            path.symlink_to(place.root)
        case _:
            os.mkfifo(path)
    with pytest.raises(CheckpointUnreadable, match="d/strange is a link or a special file"):
        await place.commit()
    assert puts(blobs) == []


class Meddling(LocalFiles):
    """Changes the checkpoint just before a file is read."""

    def __init__(self, meddle: object) -> None:
        self.meddle = meddle

    def read(self, path: Path, offset: int, length: int, identity: Identity) -> bytes:
        if path.name == "large" and offset:
            self.meddle(path)  # type: ignore[operator]
        return super().read(path, offset, length, identity)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def shrink(path: Path) -> None:
    os.truncate(path, 10)


def replace_it(path: Path) -> None:
    path.with_name("draft").write_bytes(b"y" * 150)
    path.with_name("draft").replace(path)


@pytest.mark.parametrize(
    ("meddle", "says"), [(Path.unlink, "was deleted"), (grow, "changed"), (shrink, "changed"), (replace_it, "changed")]
)
async def test_a_file_that_changes_or_vanishes_while_it_is_read_fails_the_commit(
    tmp_path: Path, blobs: FaultyBlobs, clock: FakeClock, meddle: object, says: str
) -> None:
    place = Place(tmp_path, blobs, replace(TINY, concurrency=1), Meddling(meddle), clock)
    place.make(plain({"large": b"x" * 150}))
    with pytest.raises(FileChanged, match=f"large {says}"):
        await place.commit()
    assert not any("snapshots" in blob for blob in await held(blobs))


# --- a blob store that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usable", [timedelta(0), timedelta(hours=1)])
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST])
async def test_the_commit_fails_if_any_upload_fails_and_the_next_one_succeeds(
    place: Place, blobs: FaultyBlobs, fault: Fault, usable: timedelta
) -> None:
    tree = plain({"a": b"1", "d/large": b"x" * 150, "e": b"2"})
    place.usable = usable
    place.make(tree)
    for number in range(1, 6):
        place.uploader = place.new_uploader()
        blobs.operations.clear()
        blobs.plan = at(number, fault)
        with pytest.raises(BlobUnavailable):
            await place.upload()
        blobs.plan = healthy
        await place.commit()
        other = place.root / f"other-{number}"
        await place.restore(target=other)
        assert read(other) == with_parents(tree)


LARGE = {f"large-{number}": bytes([number]) * 150 for number in range(4)}
"""Files of three chunks."""


async def failed(place: Place, blobs: FaultyBlobs) -> None:
    """An upload of which only one put at a time is tried, and the last one fails: that of the fourth file's last chunk."""
    place.usable = timedelta(hours=1)
    place.settings = replace(TINY, concurrency=1)
    place.uploader = place.new_uploader()
    place.make(plain(LARGE))
    blobs.plan = at(12, Fault.FAIL)
    with pytest.raises(BlobUnavailable):
        await place.commit()
    assert place.uploader.gained_bytes == 450
    blobs.operations.clear()
    blobs.plan = healthy


async def test_an_upload_uses_the_files_that_a_failed_one_has_put(place: Place, blobs: FaultyBlobs) -> None:
    await failed(place, blobs)
    marker = await place.commit()
    assert [operation.about.purpose.value for operation in puts(blobs) if operation.about] == ["data", "data", "data", "index"]
    assert (marker.uploaded_files, marker.uploaded_bytes, marker.retained_bytes, marker.bytes) == (1, 150, 450, 600)
    assert place.uploader.gained_bytes == 600
    await place.restore(target=place.root / "other")
    assert read(place.root / "other") == with_parents(plain(LARGE))


async def test_an_upload_whose_report_fails_is_not_repeated(place: Place, blobs: FaultyBlobs) -> None:
    place.usable = timedelta(hours=1)
    place.make(plain({"a": b"1", "d/large": b"x" * 150}))
    await place.upload()
    blobs.operations.clear()
    await place.commit()
    assert len(puts(blobs)) == 1
    await place.restore(target=place.root / "other")


async def test_a_file_that_was_put_and_has_changed_since_is_put_again(place: Place, blobs: FaultyBlobs) -> None:
    await failed(place, blobs)
    (place.store / "large-0").write_bytes(b"y" * 150)
    place.settle()
    await place.commit()
    assert len(puts(blobs)) == 3 + 3 + 1
    await place.restore(target=place.root / "other")
    assert read(place.root / "other") == with_parents(plain({**LARGE, "large-0": b"y" * 150}))


async def test_what_a_failed_upload_has_put_is_used_only_while_it_cannot_have_been_collected(place: Place, blobs: FaultyBlobs) -> None:
    await failed(place, blobs)
    place.clock.advance(3600)
    assert (await place.commit()).uploaded_files == 4
    assert place.uploader.gained_bytes == 600, "what was too old does not count"


async def test_what_a_failed_upload_has_put_is_not_used_once_the_store_has_lost_blobs(place: Place, blobs: FaultyBlobs) -> None:
    await failed(place, blobs)
    place.uploader.begin_whole(None)
    assert (await place.commit()).uploaded_files == 4


async def test_a_put_that_fails_ends_the_others_that_wait(place: Place, blobs: FaultyBlobs) -> None:
    place.make(plain({f"large-{number}": b"x" * 150 for number in range(4)}))
    blobs.plan = lambda operation: Fault.FAIL if operation.number == 3 else Fault.HANG
    with pytest.raises(BlobUnavailable):
        await place.commit()
    assert len(puts(blobs)) == 3, "so many at a time"


async def test_a_commit_that_is_cancelled_leaves_no_work_behind(place: Place, blobs: FaultyBlobs) -> None:
    place.make(plain({"large": b"x" * 150}))
    putting = asyncio.Event()

    def hang(operation: Operation) -> Fault:
        putting.set()
        return Fault.HANG

    blobs.plan = hang
    commit = asyncio.create_task(place.commit())
    await putting.wait()
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_no_more_blobs_than_the_concurrency_are_held_at_a_time(tmp_path: Path, clock: FakeClock) -> None:
    class Measuring(MemoryBlobs):
        now = most = 0

        async def put(self, *args: object, **more: object) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            await super().put(*args, **more)  # type: ignore[arg-type]

    blobs = Measuring(clock)
    place = Place(tmp_path, blobs, clock=clock)
    place.make(plain({f"large-{number}": b"x" * 150 for number in range(10)}))
    await place.commit()
    assert 1 < blobs.most <= TINY.concurrency


# --- the snapshot before ----------------------------------------------------------------------------------------------


async def test_a_previous_index_that_cannot_be_read_names_its_blob(place: Place, blobs: FaultyBlobs) -> None:
    with pytest.raises(BlobMissing, match="nowhere"):
        await place.uploader.begin(BlobId("nowhere"))
    await blobs.put(BlobId("foreign"), b"{}", ABOUT)
    with pytest.raises(IndexUnreadable, match="foreign"):
        await place.uploader.begin(BlobId("foreign"))


async def test_the_index_of_another_store_is_refused(place: Place, blobs: FaultyBlobs) -> None:
    place.make(plain({"a": b"1"}))
    _, index = await place.upload()
    other = replace(index, metadata=replace(index.metadata, store="daily"))  # type: ignore[arg-type]
    await blobs.put(BlobId("other"), encoded(other), ABOUT)
    with pytest.raises(IndexUnreadable, match="stage daily of task Partition 0 of job delays, not of stage hourly"):
        await place.uploader.begin(BlobId("other"))


async def test_without_packing_samza_finds_a_blob_for_every_file_or_chunk(tmp_path: Path, blobs: FaultyBlobs, clock: FakeClock) -> None:
    place = Place(tmp_path, blobs, replace(TINY, packing=replace(TINY.packing, packs=False)), clock=clock)
    tree = plain({"a": b"1", "empty": b"", "large": b"x" * 150})
    place.make(tree)
    marker, index = await place.upload()
    assert all(part.length is None and part.at == 0 for _, file in walk(index.root) for part in file.blobs)
    assert [(path, [part.offset for part in file.blobs]) for path, file in walk(index.root)] == [
        ("a", [0]),
        ("empty", [0]),
        ("large", [0, 50, 100]),
    ]
    await place.restorer().restore(marker.index, tmp_path / "other", None)
    assert read(tmp_path / "other") == tree


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(BadSettings):
        Packing(chunk_bytes=0)
    with pytest.raises(BadSettings):
        CommitSettings(concurrency=0)
