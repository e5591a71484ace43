"""The contract of `BlobStore` (`sluice/blobs/port.py`) as tests.

A test of an implementation inherits `BlobStoreContract` and provides two fixtures: `store`, opened, in an empty location, and `second`,
another client of the same location. `WrappedBlobStoreContract` runs the same tests on a store inside all wrappers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from io import BytesIO

import pytest

from sluice.blobs.counted import Requests
from sluice.blobs.locations import wrapped
from sluice.blobs.port import BlobStore, ListedBlob, Purpose, RequestContext
from sluice.core.errors import BadName, BlobCorrupted, BlobDeleted, BlobMissing
from sluice.core.snapshots.snapshot import BlobId

ABOUT = RequestContext(Purpose.DATA, "flight-delays", "Partition 0", "route")
DAY = timedelta(days=1)
BIG = os.urandom(1 << 20) * 9 + b"the end"


def later(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


async def bytes_of(store: BlobStore, blob: str, start: int = 0, length: int | None = None) -> bytes:
    sink = BytesIO()
    await store.get(BlobId(blob), sink, ABOUT, start=start, length=length)
    return sink.getvalue()


async def put(store: BlobStore, blob: str, body: bytes = b"body", ttl: timedelta | None = None) -> None:
    await store.put(BlobId(blob), body, ABOUT, ttl=ttl)


async def listed(store: BlobStore, prefix: str = "", after: str = "") -> list[ListedBlob]:
    return [blob async for page in store.list(prefix, ABOUT, after=after) for blob in page]


async def ids(store: BlobStore, prefix: str = "", after: str = "") -> list[str]:
    return [found.blob for found in await listed(store, prefix, after)]


class BlobStoreContract:
    async def test_a_blob_is_read_as_it_was_put(self, store: BlobStore, second: BlobStore) -> None:
        await put(store, "jobs/a/data/1", b"some bytes")
        assert await bytes_of(store, "jobs/a/data/1") == b"some bytes"
        assert await bytes_of(second, "jobs/a/data/1") == b"some bytes"

    async def test_a_blob_may_be_empty(self, store: BlobStore) -> None:
        await put(store, "jobs/a/data/1", b"")
        assert await bytes_of(store, "jobs/a/data/1") == b""
        assert [found.size for found in await listed(store)] == [0]

    async def test_a_blob_may_have_many_megabytes_and_be_put_from_a_part_of_a_buffer(self, store: BlobStore) -> None:
        await store.put(BlobId("big"), memoryview(BIG)[3:], ABOUT)
        assert await bytes_of(store, "big") == BIG[3:]

    async def test_all_of_many_concurrent_puts_succeed(self, store: BlobStore) -> None:
        await asyncio.gather(*(put(store, f"jobs/a/{n % 7}/data/{n}", b"%d" % n) for n in range(60)))
        assert await asyncio.gather(*(bytes_of(store, f"jobs/a/{n % 7}/data/{n}") for n in range(60))) == [b"%d" % n for n in range(60)]

    async def test_a_put_may_be_repeated(self, store: BlobStore) -> None:
        await put(store, "a", b"x", ttl=DAY)
        await put(store, "a", b"x", ttl=DAY)
        assert await bytes_of(store, "a") == b"x"

    async def test_exactly_one_of_many_concurrent_calls_of_put_if_absent_wins(self, store: BlobStore, second: BlobStore) -> None:
        bodies = [b"%d" % n for n in range(8)]
        won = await asyncio.gather(*((store, second)[n % 2].put_if_absent(BlobId("a/1"), body, ABOUT) for n, body in enumerate(bodies)))
        assert sorted(won) == [False] * 7 + [True]
        assert await bytes_of(second, "a/1") == bodies[won.index(True)]

    async def test_put_if_absent_does_not_replace_a_blob_that_was_put(self, store: BlobStore) -> None:
        await put(store, "a", b"first")
        assert await store.put_if_absent(BlobId("a"), b"second", ABOUT) is False
        assert await bytes_of(store, "a") == b"first"

    @pytest.mark.parametrize(
        ("start", "length", "part"),
        [
            (0, 3, b"012"),
            (2, 5, b"23456"),
            (9, 1, b"9"),
            (4, None, b"456789"),
            (0, 10, b"0123456789"),
            (3, 0, b""),
            (10, None, b""),
            (10, 0, b""),
        ],
    )
    async def test_a_range_has_exactly_the_requested_bytes(self, store: BlobStore, start: int, length: int | None, part: bytes) -> None:
        await put(store, "a", b"0123456789")
        assert await bytes_of(store, "a", start, length) == part

    async def test_a_range_of_a_large_blob_has_exactly_the_requested_bytes(self, store: BlobStore) -> None:
        await put(store, "a", BIG)
        assert await bytes_of(store, "a", 1234567, 7654321) == BIG[1234567 : 1234567 + 7654321]

    @pytest.mark.parametrize(("start", "length"), [(0, 11), (9, 2), (10, 1), (11, 0), (11, None), (50, 5)])
    async def test_a_range_beyond_the_end_is_reported_as_a_corrupted_blob(self, store: BlobStore, start: int, length: int | None) -> None:
        await put(store, "a", b"0123456789")
        with pytest.raises(BlobCorrupted):
            await bytes_of(store, "a", start, length)

    @pytest.mark.parametrize(("start", "length"), [(0, None), (0, 0), (3, 4)])
    async def test_a_blob_that_never_existed_is_missing_and_not_deleted(self, store: BlobStore, start: int, length: int | None) -> None:
        await put(store, "jobs/a/data/1")
        for blob in ("jobs/a/data/2", "jobs/a", "other", "jobs/a/data/1/x"):
            with pytest.raises(BlobMissing) as caught:
                await bytes_of(store, blob, start, length)
            assert not isinstance(caught.value, BlobDeleted)
            assert blob in str(caught.value)

    async def test_a_deleted_blob_is_distinguished_from_one_that_never_existed(self, store: BlobStore, second: BlobStore) -> None:
        await put(store, "jobs/a/data/1")
        await store.delete([BlobId("jobs/a/data/1")], ABOUT)
        for client in (store, second):
            with pytest.raises(BlobDeleted, match="jobs/a/data/1"):
                await bytes_of(client, "jobs/a/data/1")
            with pytest.raises(BlobDeleted):
                await client.remove_ttl(BlobId("jobs/a/data/1"), ABOUT)

    async def test_deleting_a_missing_blob_is_not_an_error(self, store: BlobStore) -> None:
        await put(store, "a/1")
        await store.delete([BlobId("a/2"), BlobId("a/1"), BlobId("b")], ABOUT)
        await store.delete([BlobId("a/1")], ABOUT)
        await store.delete([], ABOUT)
        assert await ids(store) == []

    async def test_a_blob_that_is_put_again_after_its_deletion_exists(self, store: BlobStore) -> None:
        await put(store, "a")
        await store.delete([BlobId("a")], ABOUT)
        await put(store, "a")
        assert await bytes_of(store, "a") == b"body"

    async def test_more_than_a_thousand_blobs_are_listed_and_deleted(self, store: BlobStore) -> None:
        blobs = [BlobId(f"a/{n:04}") for n in range(1203)]
        await asyncio.gather(*(store.put(blob, b"x", ABOUT) for blob in blobs))
        assert await ids(store) == blobs
        await store.delete(blobs[:1101], ABOUT)
        assert await ids(store) == blobs[1101:]
        for blob in (blobs[0], blobs[1100]):
            with pytest.raises(BlobDeleted):
                await bytes_of(store, blob)

    async def test_a_list_is_ordered_by_the_bytes_of_the_ids(self, store: BlobStore) -> None:
        blobs = ["a-b/x", "a.b/x", "a/x", "a0/x", "B/x", "a/y/z", "a/Y/z", "a_/x", "a/x-1", "a/x.1"]
        for blob in blobs:
            await put(store, blob)
        assert await ids(store) == sorted(blobs, key=str.encode)

    async def test_a_list_has_the_ids_that_begin_with_the_prefix(self, store: BlobStore) -> None:
        for blob in ("jobs/a/1", "jobs/a/2", "jobs/ab/1", "jobs/b/1", "other/1"):
            await put(store, blob)
        assert await ids(store, "jobs/a/") == ["jobs/a/1", "jobs/a/2"]
        assert await ids(store, "jobs/a") == ["jobs/a/1", "jobs/a/2", "jobs/ab/1"]
        assert await ids(store, "jobs/a/2") == ["jobs/a/2"]
        assert await ids(store, "jobs/c/") == []

    async def test_a_list_continues_after_an_id(self, store: BlobStore) -> None:
        for blob in ("a/1", "a/1-1", "a/2", "b/1", "b/2"):
            await put(store, blob)
        assert await ids(store, after="a/1") == ["a/1-1", "a/2", "b/1", "b/2"]
        assert await ids(store, "a/", after="a/1-1") == ["a/2"]
        assert await ids(store, "a/", after="b/1") == []
        assert await ids(store, "b/", after="a/1") == ["b/1", "b/2"]
        assert await ids(store, "a/", after="a/1-2") == ["a/2"]

    async def test_a_list_has_the_size_and_time_of_each_blob(self, store: BlobStore) -> None:
        await put(store, "a", b"12345")
        [found] = await listed(store)
        assert found.size == 5
        assert abs(found.modified - datetime.now(UTC)) < timedelta(minutes=2)

    async def test_a_sweep_deletes_blobs_whose_ttl_has_expired_and_no_others(self, store: BlobStore) -> None:
        await put(store, "goes", ttl=DAY)
        await put(store, "stays-for-ever")
        await put(store, "is-kept", ttl=DAY)
        await put(store, "goes-later", ttl=30 * DAY)
        await store.remove_ttl(BlobId("is-kept"), ABOUT)
        assert await store.sweep_expired(later(0.9), 100) == 0
        assert await store.sweep_expired(later(2), 100) == 1
        assert await ids(store) == ["goes-later", "is-kept", "stays-for-ever"]
        with pytest.raises(BlobMissing):
            await bytes_of(store, "goes")
        assert await store.sweep_expired(later(2), 100) == 0
        assert await store.sweep_expired(later(31), 100) == 1

    async def test_a_sweep_deletes_at_most_as_many_blobs_as_its_limit(self, store: BlobStore) -> None:
        for n in range(5):
            await put(store, f"a/{n}", ttl=DAY)
        assert [await store.sweep_expired(later(2), 2) for _ in range(4)] == [2, 2, 1, 0]

    async def test_sweeps_keep_the_record_of_a_deletion_for_thirty_days(self, store: BlobStore) -> None:
        await put(store, "a")
        await store.delete([BlobId("a")], ABOUT)
        await store.sweep_expired(later(29), 100)
        with pytest.raises(BlobDeleted):
            await bytes_of(store, "a")
        await store.sweep_expired(later(31), 100)
        with pytest.raises(BlobMissing) as caught:
            await bytes_of(store, "a")
        assert not isinstance(caught.value, BlobDeleted)

    async def test_a_repeated_put_does_not_restore_a_removed_ttl(self, store: BlobStore) -> None:
        await put(store, "a", ttl=DAY)
        await store.remove_ttl(BlobId("a"), ABOUT)
        await put(store, "a", ttl=DAY)
        assert await store.sweep_expired(later(3), 100) == 0
        assert await bytes_of(store, "a") == b"body"

    async def test_merged_records_of_deletions_still_name_every_deleted_blob(self, store: BlobStore) -> None:
        for n in range(40):
            await store.delete([BlobId(f"a/{n}")], ABOUT)
        await store.sweep_expired(later(0), 100)
        for n in (0, 17, 39):
            with pytest.raises(BlobDeleted):
                await bytes_of(store, f"a/{n}")
        await store.sweep_expired(later(31), 100)
        with pytest.raises(BlobMissing) as caught:
            await bytes_of(store, "a/17")
        assert not isinstance(caught.value, BlobDeleted)

    async def test_removing_a_ttl_twice_or_from_a_blob_without_one_is_not_an_error(self, store: BlobStore) -> None:
        await put(store, "a", ttl=DAY)
        await put(store, "b")
        for blob in ("a", "a", "b"):
            await store.remove_ttl(BlobId(blob), ABOUT)
        assert await bytes_of(store, "a") == b"body"

    async def test_the_ttl_of_a_blob_that_never_existed_cannot_be_removed(self, store: BlobStore) -> None:
        with pytest.raises(BlobMissing) as caught:
            await store.remove_ttl(BlobId("a"), ABOUT)
        assert not isinstance(caught.value, BlobDeleted)

    @pytest.mark.parametrize("name", ["", "..", "a/../b", "/a", "a//b", ".hidden", "a/.b", "a/", "x" * 901, "a b", "é"])
    async def test_every_operation_refuses_an_invalid_blob_id(self, store: BlobStore, name: str) -> None:
        blob = BlobId(name)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.put(blob, b"x", ABOUT),
            lambda: store.put_if_absent(blob, b"x", ABOUT),
            lambda: bytes_of(store, name),
            lambda: store.delete([blob], ABOUT),
            lambda: store.remove_ttl(blob, ABOUT),
        ]
        if name not in ("", "a/"):
            calls.append(lambda: ids(store, name))
        for call in calls:
            with pytest.raises(BadName):
                await call()
        assert await ids(store) == []

    async def test_a_location_may_be_opened_twice_and_by_another_client(self, store: BlobStore, second: BlobStore) -> None:
        await put(store, "a")
        await store.open(create=True)
        await second.open(create=False)
        await second.open(create=True)
        assert await bytes_of(second, "a") == b"body"

    async def test_a_store_may_be_closed_twice(self, second: BlobStore) -> None:
        await second.close()
        await second.close()


class BareBlobStoreContract(BlobStoreContract):
    """The same tests on a store without wrappers. Inherit it beside fixtures `bare` and `bare_second`."""

    @pytest.fixture
    def store(self, bare: BlobStore) -> BlobStore:
        return bare

    @pytest.fixture
    def second(self, bare_second: BlobStore) -> BlobStore:
        return bare_second


class WrappedBlobStoreContract(BlobStoreContract):
    """The same tests on a store inside every wrapper. Inherit it before a class whose fixtures are `bare` and `bare_second`."""

    @pytest.fixture
    def store(self, bare: BlobStore) -> BlobStore:
        return wrapped(bare, Requests())

    @pytest.fixture
    def second(self, bare_second: BlobStore) -> BlobStore:
        return wrapped(bare_second, Requests())
