"""Snapshots and pins: what each database must do; inherited by `StoreContract`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from coordinator.store.snapshots import HeadRow, MarkerRow
from coordinator.store.sql import Store
from sluice.core.ids import Generation, Lineage, RunId, StageKey, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName
from tests.contracts.rows import (
    JOB,
    LOCAL,
    NOON,
    OTHER,
    checkpoint_of,
    cleanup_row,
    pin_row,
    snapshot_row,
    stage_state_row,
)

KEY = StageKey(JOB, TaskName("Partition 0"), StageName("route"))


class SnapshotsContract:
    async def test_an_empty_database_has_no_snapshots_and_nothing_to_clean_up(self, store: Store) -> None:
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
            assert [list(each) for each in [*lists, await tx.cleanup.counts(), await tx.cleanup.marked(LOCAL, "", None)]] == [[]] * 9

    async def test_every_field_of_a_snapshot_is_read_as_it_was_written(self, store: Store) -> None:
        markers = {
            LOCAL: MarkerRow(BlobId("jobs/a/b/c/snapshots/1"), 1, 2**40, 3, 4, 5, kept=True),
            BlobStoreName("s3"): MarkerRow(BlobId("x")),
        }
        full = snapshot_row(2**33, batch_id=None, generation=Generation(7), markers=markers)
        async with store.begin() as tx:
            await tx.snapshots.put_all([snapshot_row(2**33)])
            await tx.snapshots.put_all([full])
        async with store.read() as tx:
            assert await tx.snapshots.get(KEY, full.checkpoint) == full
            assert await tx.snapshots.last_seq(JOB) == 2**33

    async def test_the_runs_that_reported_the_snapshots_of_a_job_are_found(self, store: Store) -> None:
        async with store.begin() as tx:
            for seq, task, run in ((1, "a", "r1"), (2, "a", "r2"), (3, "b", "r3"), (4, "c", "r3")):
                await tx.snapshots.put_all([snapshot_row(seq, task, run_id=RunId(run))])
            await tx.snapshots.put_all([snapshot_row(1, "a", job=OTHER, run_id=RunId("other"))])
        async with store.read() as tx:
            assert await tx.snapshots.runs(JOB) == {"r1", "r2", "r3"}
            assert await tx.snapshots.runs(OTHER) == {"other"}

    async def test_snapshots_of_a_job_a_task_or_a_stage_are_listed_newest_first_in_pages(self, store: Store) -> None:
        async with store.begin() as tx:
            for seq in range(1, 9):
                await tx.snapshots.put_all([snapshot_row(seq, "a" if seq % 2 else "b", "s" if seq < 5 else "t")])
            await tx.snapshots.put_all([snapshot_row(99, "a", "s", OTHER)])
        async with store.read() as tx:
            assert [row.seq for row in await tx.snapshots.page(JOB, None, None, None, 3)] == [8, 7, 6]
            assert [row.seq for row in await tx.snapshots.page(JOB, None, None, 6, 9)] == [5, 4, 3, 2, 1]
            assert [row.seq for row in await tx.snapshots.page(JOB, TaskName("a"), None, None, 9)] == [7, 5, 3, 1]
            assert [row.seq for row in await tx.snapshots.page(JOB, None, StageName("s"), None, 9)] == [4, 3, 2, 1]
            assert [row.seq for row in await tx.snapshots.of_stage(StageKey(JOB, TaskName("b"), StageName("t")))] == [8, 6]
            assert list(await tx.snapshots.jobs()) == [JOB, OTHER]
            stores = [(key.task, key.stage) for key in await tx.snapshots.stages(JOB)]
            assert stores == [("a", "s"), ("a", "t"), ("b", "s"), ("b", "t")]

    async def test_the_heads_of_a_job_are_the_snapshots_from_which_its_stages_would_be_restored(self, store: Store) -> None:
        async with store.begin() as tx:
            for seq in range(1, 7):
                await tx.snapshots.put_all([snapshot_row(seq, "a" if seq % 2 else "b", "s", batch_id=seq * 10)])
            await tx.snapshots.put_all([snapshot_row(5, "a", "s", OTHER)])
            five, two = snapshot_row(5, "a", "s"), snapshot_row(2, "b", "s")
            lineage = five.lineage
            await tx.fleet.put_stage_states([replace(stage_state_row("a", "s"), head=checkpoint_of(5), lineage=lineage)])
            moved = replace(stage_state_row("b", "s"), head=checkpoint_of(2), chosen=True, lineage=Lineage("another"))
            await tx.fleet.put_stage_states([moved])
            await tx.fleet.put_stage_states([stage_state_row("c", "s")])
        async with store.read() as tx:
            assert list(await tx.snapshots.heads(JOB)) == [
                HeadRow(five.task, five.stage, five.checkpoint, 50, True, False, five.reported_at, frozenset(five.markers)),
                HeadRow(two.task, two.stage, two.checkpoint, 20, False, True, two.reported_at, frozenset(two.markers)),
            ]
            assert [row.task for row in await tx.snapshots.heads(JOB, TaskName("b"))] == ["b"]
            assert list(await tx.snapshots.heads(OTHER)) == []

    async def test_dropping_a_snapshot_leaves_another_one_with_the_same_number(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.snapshots.put_all([snapshot_row(1)])
            await tx.snapshots.put_all([snapshot_row(1, job=OTHER)])
            for _ in range(2):
                await tx.snapshots.drop(JOB, [1])
        async with store.read() as tx:
            assert await tx.snapshots.get(KEY, checkpoint_of(1)) is None
            assert list(await tx.snapshots.jobs()) == [OTHER]

    async def test_a_pin_may_be_on_snapshots_of_several_stages(self, store: Store) -> None:
        expiring = pin_row("p2", expires_at=NOON + timedelta(days=1), reason="é")
        async with store.begin() as tx:
            for row in (pin_row("p1", "b"), pin_row("p1", "a"), expiring, pin_row("p3", job=OTHER)):
                await tx.snapshots.put_pins([row])
        async with store.begin() as tx:
            assert list(await tx.snapshots.pin("p1")) == [pin_row("p1", "a"), pin_row("p1", "b")]
            assert list(await tx.snapshots.pins(JOB)) == [pin_row("p1", "a"), pin_row("p1", "b"), expiring]
            assert [await tx.snapshots.drop_pin("p1") for _ in range(2)] == [2, 0]
            assert list(await tx.snapshots.pins(JOB)) == [expiring]

    async def test_the_pins_of_a_stage_are_those_of_no_other_stage_task_or_job(self, store: Store) -> None:
        expiring = pin_row("p2", expires_at=NOON - timedelta(days=1))
        others = pin_row("p3", "b"), pin_row("p3", stage=StageName("hourly")), pin_row("p4", job=OTHER)
        async with store.begin() as tx:
            for row in (expiring, pin_row("p1"), *others):
                await tx.snapshots.put_pins([row])
        async with store.read() as tx:
            assert list(await tx.snapshots.pins_of(KEY)) == [pin_row("p1"), expiring]
            assert list(await tx.snapshots.pins_of(StageKey(OTHER, KEY.task, KEY.stage))) == [pin_row("p4", job=OTHER)]
            assert list(await tx.snapshots.pins_of(StageKey(OTHER, KEY.task, StageName("hourly")))) == []
