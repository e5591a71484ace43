"""The contract of a ledger in a blob store (`sluice/blobs/ledger.py`) as tests. A test of an implementation inherits `LedgerContract` and
provides two fixtures: `store`, opened, in an empty location, and `second`, another client of the same location.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from sluice.blobs.ledger import PREFIX, append, entry_id, read_ledgers, tidy
from sluice.blobs.port import BlobStore
from sluice.core.errors import LedgerUnreadable
from sluice.core.leases.issued import LedgerEntry
from sluice.core.leases.lease import LeaseBounds
from tests.contracts.blobs import ids, put

ENTRY = LedgerEntry(1, "o", "t", sequence=7, reserved=10_000, bounds=LeaseBounds(*(timedelta(seconds=n) for n in (40, 5, 60, 120))))


class LedgerContract:
    async def test_an_empty_blob_store_has_no_ledger(self, store: BlobStore) -> None:
        assert await read_ledgers(store) == []

    async def test_an_appended_entry_is_read_by_other_clients(self, store: BlobStore, second: BlobStore) -> None:
        assert await append(store, ENTRY)
        assert await read_ledgers(store) == await read_ledgers(second) == [ENTRY]

    async def test_the_newest_entry_of_each_origin_is_read(self, store: BlobStore, second: BlobStore) -> None:
        later = [replace(ENTRY, number=number, sequence=number) for number in (2, 3)]
        other = replace(ENTRY, origin="another", number=12)
        for each in (ENTRY, *later, other):
            assert await append(store, each)
        assert sorted(await read_ledgers(second), key=lambda each: each.origin) == [other, later[-1]]

    async def test_exactly_one_of_many_writers_of_the_same_number_wins(self, store: BlobStore, second: BlobStore) -> None:
        entries = [replace(ENTRY, timeline=f"t{number}") for number in range(8)]
        written = await asyncio.gather(*(append((store, second)[number % 2], each) for number, each in enumerate(entries)))
        assert sum(written) == 1
        assert await read_ledgers(second) == [entries[written.index(True)]]

    async def test_appending_the_same_entry_again_succeeds_and_writes_nothing(self, store: BlobStore, second: BlobStore) -> None:
        assert await append(store, ENTRY)
        assert await append(second, ENTRY)
        assert not await append(second, replace(ENTRY, sequence=8))
        assert await ids(store, PREFIX) == [entry_id("o", 1)]

    async def test_replaced_entries_are_deleted_and_a_reader_finds_the_newest(self, store: BlobStore, second: BlobStore) -> None:
        for number in range(1, 26):
            assert await append(store, replace(ENTRY, number=number))
            (found,) = await read_ledgers(second)
            assert found.number == number
            await tidy(store, "o")
        assert await ids(store, PREFIX) == [entry_id("o", number) for number in range(21, 26)]

    async def test_a_blob_that_is_not_an_entry_is_reported_as_unreadable(self, store: BlobStore) -> None:
        await put(store, entry_id("o", 1), b"{}")
        with pytest.raises(LedgerUnreadable, match="issued/o/000000000001"):
            await read_ledgers(store)
