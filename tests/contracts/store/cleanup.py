"""The clean-up queue, marked blobs and owners of blob stores: what each database must do; inherited by `StoreContract`."""

from __future__ import annotations

from datetime import timedelta

from coordinator.store.cleanup import CleanupKind, QueueCounts
from coordinator.store.sql import Store
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName
from tests.contracts.rows import (
    LOCAL,
    NOON,
    cleanup_row,
    marked_blob_row,
)


class CleanupContract:
    async def test_due_tasks_are_ordered_by_their_due_times(self, store: Store) -> None:
        async with store.begin() as tx:
            for number, minutes in ((1, 3), (2, 1), (3, 2), (4, 9)):
                await tx.cleanup.put(cleanup_row(number, due=NOON + timedelta(minutes=minutes)))
        async with store.read() as tx:
            due = await tx.cleanup.due(NOON + timedelta(minutes=3), 9)
            assert [row.subject[-1] for row in due] == ["2", "3", "1"]
            assert due[0] == cleanup_row(2, due=NOON + timedelta(minutes=1))
            assert len(await tx.cleanup.due(NOON + timedelta(days=1), 2)) == 2
            assert [row.subject[-1] for row in await tx.cleanup.due_after(NOON + timedelta(minutes=2), 9)] == ["1", "4"]
            assert len(await tx.cleanup.due_after(NOON, 1)) == 1

    async def test_due_tasks_of_one_kind_are_not_hidden_by_earlier_ones_of_another(self, store: Store) -> None:
        async with store.begin() as tx:
            for number in range(1, 6):
                await tx.cleanup.put(cleanup_row(number, CleanupKind.RETIRE))
            await tx.cleanup.put(cleanup_row(6, due=NOON + timedelta(minutes=1)))
        async with store.read() as tx:
            for due in (
                await tx.cleanup.due(NOON + timedelta(hours=1), 2, CleanupKind.KEEP),
                await tx.cleanup.due_after(NOON - timedelta(hours=1), 2, CleanupKind.KEEP),
            ):
                assert [row.subject[-1] for row in due] == ["6"]

    async def test_a_task_that_was_queued_again_is_not_dropped_with_its_former_entry(self, store: Store) -> None:
        again = cleanup_row(queued_at=NOON + timedelta(seconds=1), tries=2, error="é")
        async with store.begin() as tx:
            await tx.cleanup.put(cleanup_row())
            await tx.cleanup.put(again)
            await tx.cleanup.drop(cleanup_row())
            assert await tx.cleanup.queued(cleanup_row()) == again
            await tx.cleanup.drop(again)
            assert await tx.cleanup.queued(cleanup_row()) is None

    async def test_the_tasks_in_the_queue_are_counted_by_kind(self, store: Store) -> None:
        later = NOON + timedelta(hours=1)
        async with store.begin() as tx:
            await tx.cleanup.put(cleanup_row(1, queued_at=later))
            await tx.cleanup.put(cleanup_row(2, tries=1))
            await tx.cleanup.put(cleanup_row(3, CleanupKind.RETIRE))
        async with store.read() as tx:
            found = [QueueCounts(CleanupKind.KEEP, 2, NOON, 1), QueueCounts(CleanupKind.RETIRE, 1, NOON, 0)]
            assert list(await tx.cleanup.counts()) == found

    async def test_blobs_that_are_marked_again_keep_their_time_and_are_ordered_by_the_bytes_of_their_ids(self, store: Store) -> None:
        later, other = NOON + timedelta(hours=1), BlobStoreName("other")
        blobs = ["a/B", "a/_", "a/b", "a-", "a/B0"]
        async with store.begin() as tx:
            await tx.cleanup.mark(marked_blob_row(blob) for blob in blobs)
            await tx.cleanup.mark([marked_blob_row("a/b", later), marked_blob_row("a/b", later, other)])
        async with store.begin() as tx:
            assert list(await tx.cleanup.marked(LOCAL, "", None)) == [marked_blob_row(blob) for blob in sorted(blobs)]
            assert [row.blob for row in await tx.cleanup.marked(LOCAL, "a/B", "a/_")] == ["a/B0", "a/_"]
            assert list(await tx.cleanup.marked(other, "", None)) == [marked_blob_row("a/b", later, other)]
            for _ in range(2):
                await tx.cleanup.unmark(LOCAL, [BlobId("a/B"), BlobId("a/b"), BlobId("never")])
            assert [row.blob for row in await tx.cleanup.marked(LOCAL, "", None)] == ["a-", "a/B0", "a/_"]

    async def test_thousands_of_blobs_are_marked_in_one_call(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.cleanup.mark(marked_blob_row(f"jobs/{n:05}") for n in range(2_500))
            assert len(await tx.cleanup.marked(LOCAL, "", None)) == 2_500

    async def test_each_blob_store_has_one_owner_id(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.cleanup.put_owner_id(LOCAL, "first")
            await tx.cleanup.put_owner_id(LOCAL, "second")
            await tx.cleanup.put_owner_id(BlobStoreName("other"), "third")
        async with store.read() as tx:
            assert await tx.cleanup.owner_id(LOCAL) == "second"
