"""What every `Store` must do for backups: the promises of `coordinator/store/snapshots.py`, as tests; inherited by `StoreContract`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from coordinator.store.cleanup import CleanupKind, QueueTally
from coordinator.store.snapshots import MarkerRow
from coordinator.store.sql import Store
from sluice.core.ids import Generation, Lineage, StageKey, StageName, TaskName
from sluice.core.snapshot import BlobId, BlobStoreName
from tests.contracts.rows import (
    JOB,
    LOCAL,
    NOON,
    OTHER,
    checkpoint_of,
    cleanup_row,
    marked_blob_row,
    pin_row,
    run_row,
    snapshot_row,
    stage_state_row,
)

KEY = StageKey(JOB, TaskName("Partition 0"), StageName("route"))


class StoreBackupsContract:
    async def test_nothing_is_known_of_backups_in_an_empty_store(self, store: Store) -> None:
        async with store.read() as tx:
            assert await tx.snapshots.last_seq(JOB) == 0
            assert await tx.snapshots.get(KEY, checkpoint_of(1)) is None
            assert await tx.cleanup.queued(cleanup_row()) is None
            assert await tx.cleanup.owner_id(LOCAL) is None
            lists = [await tx.snapshots.of_stage(KEY), await tx.snapshots.page(JOB, None, None, None, 9), await tx.snapshots.jobs()]
            lists += [
                await tx.snapshots.stages(JOB),
                await tx.snapshots.pins(JOB),
                await tx.snapshots.pin("p"),
                await tx.cleanup.due(NOON, 9),
            ]
            assert [list(each) for each in [*lists, await tx.cleanup.tally(), await tx.cleanup.marked(LOCAL, "", None)]] == [[]] * 9

    async def test_every_field_of_a_snapshot_comes_back(self, store: Store) -> None:
        markers = {
            LOCAL: MarkerRow(BlobId("jobs/a/b/c/snapshots/1"), 1, 2**40, 3, 4, 5, kept=True),
            BlobStoreName("s3"): MarkerRow(BlobId("x")),
        }
        full = snapshot_row(2**33, batch_id=None, generation=Generation(7), markers=markers)
        async with store.begin() as tx:
            await tx.snapshots.put(snapshot_row(2**33))
            await tx.snapshots.put(full)
        async with store.read() as tx:
            assert await tx.snapshots.get(KEY, full.checkpoint) == full
            assert await tx.snapshots.last_seq(JOB) == 2**33

    async def test_snapshots_come_newest_first_in_pages_of_a_job_a_task_or_a_stage(self, store: Store) -> None:
        async with store.begin() as tx:
            for seq in range(1, 9):
                await tx.snapshots.put(snapshot_row(seq, "a" if seq % 2 else "b", "s" if seq < 5 else "t"))
            await tx.snapshots.put(snapshot_row(99, "a", "s", OTHER))
        async with store.read() as tx:
            assert [row.seq for row in await tx.snapshots.page(JOB, None, None, None, 3)] == [8, 7, 6]
            assert [row.seq for row in await tx.snapshots.page(JOB, None, None, 6, 9)] == [5, 4, 3, 2, 1]
            assert [row.seq for row in await tx.snapshots.page(JOB, TaskName("a"), None, None, 9)] == [7, 5, 3, 1]
            assert [row.seq for row in await tx.snapshots.page(JOB, None, StageName("s"), None, 9)] == [4, 3, 2, 1]
            assert [row.seq for row in await tx.snapshots.of_stage(StageKey(JOB, TaskName("b"), StageName("t")))] == [8, 6]
            assert list(await tx.snapshots.jobs()) == [JOB, OTHER]
            stores = [(key.task, key.stage) for key in await tx.snapshots.stages(JOB)]
            assert stores == [("a", "s"), ("a", "t"), ("b", "s"), ("b", "t")]

    async def test_a_dropped_snapshot_is_gone_and_another_of_its_number_is_not(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.snapshots.put(snapshot_row(1))
            await tx.snapshots.put(snapshot_row(1, job=OTHER))
            for _ in range(2):
                await tx.snapshots.drop(JOB, 1)
        async with store.read() as tx:
            assert await tx.snapshots.get(KEY, checkpoint_of(1)) is None
            assert list(await tx.snapshots.jobs()) == [OTHER]

    async def test_a_store_keeps_its_head_and_can_be_forgotten_alone(self, store: Store) -> None:
        full = replace(stage_state_row(), head=checkpoint_of(3), chosen=True, former=Lineage("l0"))
        async with store.begin() as tx:
            await tx.fleet.put_stage_state(full)
            await tx.fleet.put_stage_state(stage_state_row("other"))
        async with store.begin() as tx:
            assert list(await tx.fleet.stage_states(JOB)) == [full, stage_state_row("other")]
            assert await tx.fleet.stage_state(full.key) == full
            for _ in range(2):
                await tx.fleet.drop_stage_states(full.job, full.task, full.stage)
            assert await tx.fleet.stage_state(full.key) is None
        async with store.read() as tx:
            assert list(await tx.fleet.stage_states(JOB)) == [stage_state_row("other")]

    async def test_a_run_keeps_where_it_is_backed_up_to(self, store: Store) -> None:
        told = run_row(backup={"to": ["a"], "restoreFrom": []})
        async with store.begin() as tx:
            await tx.runs.put(run_row("r2"))
            await tx.runs.put(told)
        async with store.read() as tx:
            assert await tx.runs.get(told.run_id) == told
            assert (await tx.runs.get(run_row("r2").run_id)) == run_row("r2")

    async def test_a_pin_may_be_on_snapshots_of_several_stores(self, store: Store) -> None:
        expiring = pin_row("p2", expires_at=NOON + timedelta(days=1), reason="é")
        async with store.begin() as tx:
            for row in (pin_row("p1", "b"), pin_row("p1", "a"), expiring, pin_row("p3", job=OTHER)):
                await tx.snapshots.put_pin(row)
        async with store.begin() as tx:
            assert list(await tx.snapshots.pin("p1")) == [pin_row("p1", "a"), pin_row("p1", "b")]
            assert list(await tx.snapshots.pins(JOB)) == [pin_row("p1", "a"), pin_row("p1", "b"), expiring]
            assert [await tx.snapshots.drop_pin("p1") for _ in range(2)] == [2, 0]
            assert list(await tx.snapshots.pins(JOB)) == [expiring]

    async def test_what_is_due_comes_in_the_order_in_which_it_became_so(self, store: Store) -> None:
        async with store.begin() as tx:
            for number, minutes in ((1, 3), (2, 1), (3, 2), (4, 9)):
                await tx.cleanup.put(cleanup_row(number, due=NOON + timedelta(minutes=minutes)))
        async with store.read() as tx:
            due = await tx.cleanup.due(NOON + timedelta(minutes=3), 9)
            assert [row.subject[-1] for row in due] == ["2", "3", "1"]
            assert due[0] == cleanup_row(2, due=NOON + timedelta(minutes=1))
            assert len(await tx.cleanup.due(NOON + timedelta(days=1), 2)) == 2

    async def test_an_item_that_was_queued_again_is_not_taken_away_by_who_did_it_before(self, store: Store) -> None:
        again = cleanup_row(queued_at=NOON + timedelta(seconds=1), tries=2, error="é")
        async with store.begin() as tx:
            await tx.cleanup.put(cleanup_row())
            await tx.cleanup.put(again)
            await tx.cleanup.drop(cleanup_row())
            assert await tx.cleanup.queued(cleanup_row()) == again
            await tx.cleanup.drop(again)
            assert await tx.cleanup.queued(cleanup_row()) is None

    async def test_the_queue_is_tallied_by_kind(self, store: Store) -> None:
        later = NOON + timedelta(hours=1)
        async with store.begin() as tx:
            await tx.cleanup.put(cleanup_row(1, queued_at=later))
            await tx.cleanup.put(cleanup_row(2, tries=1))
            await tx.cleanup.put(cleanup_row(3, CleanupKind.RETIRE))
        async with store.read() as tx:
            found = [QueueTally(CleanupKind.KEEP, 2, NOON, 1), QueueTally(CleanupKind.RETIRE, 1, NOON, 0)]
            assert list(await tx.cleanup.tally()) == found

    async def test_the_condemned_keep_their_time_and_come_in_the_order_of_bytes(self, store: Store) -> None:
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

    async def test_thousands_are_condemned_at_once(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.cleanup.mark(marked_blob_row(f"jobs/{n:05}") for n in range(2_500))
            assert len(await tx.cleanup.marked(LOCAL, "", None)) == 2_500

    async def test_each_blob_store_knows_the_registry_by_one_id(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.cleanup.put_owner_id(LOCAL, "first")
            await tx.cleanup.put_owner_id(LOCAL, "second")
            await tx.cleanup.put_owner_id(BlobStoreName("other"), "third")
        async with store.read() as tx:
            assert await tx.cleanup.owner_id(LOCAL) == "second"
