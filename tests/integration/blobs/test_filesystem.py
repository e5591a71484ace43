"""Blobs as files, bare and wrapped, and properties of the filesystem store only."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.blobs import durable_fs
from sluice.blobs.filesystem import FilesystemBlobs, _Files
from sluice.blobs.port import BlobStore
from sluice.clock import SystemClock
from sluice.core.errors import BlobDeleted, BlobMissing, BlobStoreUnusable, BlobUnavailable
from sluice.core.snapshots.snapshot import BlobId
from tests.contracts.blobs import ABOUT, DAY, BareBlobStoreContract, WrappedBlobStoreContract, bytes_of, ids, later, put
from tests.support.fakes import FakeClock


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[BlobStore]:
    made = FilesystemBlobs(tmp_path / "blobs", SystemClock())
    await made.open(create=True)
    yield made
    await made.close()


@pytest.fixture
async def bare_second(tmp_path: Path, bare: BlobStore) -> AsyncIterator[BlobStore]:
    made = FilesystemBlobs(tmp_path / "blobs", SystemClock())
    await made.open(create=False)
    yield made
    await made.close()


class TestFilesystemBlobs(BareBlobStoreContract):
    pass


class TestFilesystemBlobsWrapped(WrappedBlobStoreContract):
    pass


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def test_a_directory_with_other_files_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter 1")
    for create in (True, False):
        with pytest.raises(BlobStoreUnusable, match=r"thesis\.txt"):
            await FilesystemBlobs(tmp_path, SystemClock()).open(create=create)
    assert files(tmp_path) == ["thesis.txt"]


async def test_a_missing_directory_cannot_be_used_and_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(BlobStoreUnusable, match="no directory"):
        await FilesystemBlobs(tmp_path / "blobs", SystemClock()).open(create=False)
    assert not (tmp_path / "blobs").exists()
    with pytest.raises(BlobStoreUnusable, match=r"sluice\.json"):
        await FilesystemBlobs(tmp_path, SystemClock()).open(create=False)


@pytest.mark.parametrize("marker", ["", "{}", "[]", '{"sluice-blobs": 2}', '{"sluice-blobs": "1"}'])
async def test_a_marker_of_another_kind_or_version_is_refused(tmp_path: Path, marker: str) -> None:
    (tmp_path / "sluice.json").write_text(marker)
    with pytest.raises(BlobStoreUnusable):
        await FilesystemBlobs(tmp_path, SystemClock()).open(create=True)


async def test_a_disk_that_is_no_longer_mounted_is_not_taken_for_an_empty_store(bare: BlobStore, tmp_path: Path) -> None:
    await put(bare, "jobs/a/1")
    (tmp_path / "blobs").rename(tmp_path / "away")
    (tmp_path / "blobs").mkdir()
    for call in (bytes_of(bare, "jobs/a/1"), ids(bare), put(bare, "jobs/a/2"), bare.remove_ttl(BlobId("jobs/a/1"), ABOUT)):
        with pytest.raises(BlobStoreUnusable):
            await call
    assert files(tmp_path / "blobs") == []


async def test_deleted_blobs_leave_no_directories_behind(bare: BlobStore, tmp_path: Path) -> None:
    await put(bare, "jobs/a/0/1", ttl=DAY)
    await put(bare, "jobs/a/1/1", ttl=DAY)
    await bare.delete([BlobId("jobs/a/0/1")], ABOUT)
    assert await bare.sweep_expired(later(2), 10) == 1
    assert list((tmp_path / "blobs" / "blobs").iterdir()) == []
    assert list((tmp_path / "blobs" / "ttl").iterdir()) == []


async def test_a_put_that_is_repeated_after_its_ttl_was_removed_does_not_restore_the_ttl(bare: BlobStore) -> None:
    await put(bare, "a", ttl=DAY)
    await bare.remove_ttl(BlobId("a"), ABOUT)
    await put(bare, "a", ttl=DAY)
    assert await bare.sweep_expired(later(400), 10) == 0


async def test_a_ttl_is_written_before_its_blob(tmp_path: Path) -> None:
    """A disk error during the write of a blob leaves a file that the sweep removes, not a permanent blob."""
    clock = FakeClock()
    store = FilesystemBlobs(tmp_path, clock)
    await store.open(create=True)
    (tmp_path / "blobs" / "jobs").write_text("in the way")
    with pytest.raises(Exception, match="jobs"):
        await put(store, "jobs/a", ttl=DAY)
    assert (tmp_path / "ttl" / "jobs" / "a").exists()
    assert await store.sweep_expired(clock.now() + 2 * DAY, 10) == 1
    assert files(tmp_path) == ["blobs/jobs", "lock", "sluice.json"]


async def test_the_removal_of_an_expired_ttl_keeps_the_blob_or_raises_blob_deleted(bare: BlobStore, bare_second: BlobStore) -> None:
    blobs = [BlobId(f"a/{n}") for n in range(60)]
    for blob in blobs:
        await put(bare, blob, ttl=DAY)
    answers = await asyncio.gather(
        *(bare_second.remove_ttl(blob, ABOUT) for blob in reversed(blobs)), bare.sweep_expired(later(2), 100), return_exceptions=True
    )
    kept = {blob for blob, answer in zip(reversed(blobs), answers, strict=False) if answer is None}
    assert set(await ids(bare)) == kept
    assert all(answer is None or isinstance(answer, BlobMissing) for answer in answers[:-1])
    assert answers[-1] == len(blobs) - len(kept)


async def test_files_that_killed_processes_left_are_deleted_after_a_day(bare: BlobStore, tmp_path: Path) -> None:
    left = tmp_path / "blobs" / "tmp" / "left"
    left.write_text("half")
    await bare.sweep_expired(later(0.5), 10)
    assert left.exists()
    await bare.sweep_expired(later(2), 10)
    assert not left.exists()


@contextmanager
def small_disk(directory: Path, options: str) -> Iterator[None]:
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("the right to mount is missing")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


async def test_a_full_disk_is_unavailable_and_keeps_no_partly_written_files(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m"):
        store = FilesystemBlobs(tmp_path / "disk" / "blobs", SystemClock())
        await store.open(create=True)
        await put(store, "fits", b"x" * 500_000)
        for call in (put(store, "a", b"x" * 900_000, ttl=DAY), store.put_if_absent(BlobId("b"), b"x" * 900_000, ABOUT)):
            with pytest.raises(BlobUnavailable, match="full"):
                await call
        assert await ids(store) == ["fits"]
        assert list((tmp_path / "disk" / "blobs" / "tmp").iterdir()) == []
        await store.delete([BlobId("fits")], ABOUT)
        await put(store, "a", b"x" * 900_000, ttl=DAY)
        await store.close()


async def test_a_read_only_disk_is_unusable_for_writing_and_can_be_read(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m"):
        store = FilesystemBlobs(tmp_path / "disk" / "blobs", SystemClock())
        await store.open(create=True)
        await put(store, "a")
        await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        for call in (put(store, "b"), store.delete([BlobId("a")], ABOUT), store.open(create=True)):
            with pytest.raises(BlobStoreUnusable):
                await call
        await store.open(create=False)
        assert await bytes_of(store, "a") == b"body"
        await store.close()


async def test_a_disk_error_of_the_sink_is_not_reported_as_one_of_the_store(bare: BlobStore) -> None:
    class Full:
        def write(self, part: bytes | memoryview, /) -> None:
            raise OSError(28, os.strerror(28))

    await put(bare, "a")
    with pytest.raises(OSError, match="No space"):
        await bare.get(BlobId("a"), Full(), ABOUT)


def test_a_directory_is_listed_in_order_and_in_parts(tmp_path: Path) -> None:
    for n in range(107):
        (tmp_path / f"{n * 37 % 107:03}").touch()
    (tmp_path / "050-x").mkdir()
    names = list(durable_fs.names_in_order(tmp_path, window=10))
    assert names == sorted([f"{n:03}" for n in range(107)] + ["050-x/"])


async def test_a_deleted_blob_is_distinguished_only_while_its_deletion_record_exists(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FilesystemBlobs(tmp_path, clock)
    await store.open(create=True)
    await store.delete([BlobId("a")], ABOUT)
    await store.sweep_expired(clock.now() + timedelta(days=31), 1)
    with pytest.raises(BlobMissing, match="there is no blob"):
        await bytes_of(store, "a")


async def test_records_of_deletions_are_merged_by_the_sweep(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FilesystemBlobs(tmp_path, clock)
    await store.open(create=True)
    for n in range(200):
        await store.delete([BlobId(f"a/{n}")], ABOUT)
        clock.advance(60)
    await store.sweep_expired(clock.now(), 100)
    assert len(list((tmp_path / "deleted").iterdir())) == 1
    await store.sweep_expired(clock.now() + timedelta(days=29), 1)
    with pytest.raises(BlobDeleted):
        await bytes_of(store, "a/0")
    await store.close()


def test_a_put_that_was_given_up_and_continues_late_does_not_restore_a_removed_ttl(tmp_path: Path) -> None:
    """The thread of a put cannot be interrupted."""
    clock = FakeClock()
    files, until = _Files(tmp_path, clock), (clock.now() + DAY).isoformat().encode()
    files.open(True)

    def begin() -> list[Path | BaseException]:
        assert not files.begin(BlobId("a"))
        return [files.write(BlobId("a"), until), files.write(BlobId("a"), b"body")]

    given_up, again = begin(), begin()
    files.place(BlobId("a"), again)
    files.remove_ttl(BlobId("a"))
    files.place(BlobId("a"), given_up)
    assert files.sweep_expired(clock.now() + 3 * DAY, 100) == 0
    assert not list((tmp_path / "tmp").iterdir())
