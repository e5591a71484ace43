"""Drains: what each database must do; inherited by `StoreContract`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from coordinator.store.sql import Store
from sluice.core.drain import DrainId, Mode, Phase, Step
from sluice.core.ids import Generation, Lineage, RunId, StageName, TaskName
from tests.contracts.rows import (
    JOB,
    NOON,
    OTHER,
    SSP,
    checkpoint_of,
    drain_row,
    drain_stage_row,
    snapshot_row,
)


class DrainsContract:
    async def test_an_empty_database_has_no_drains(self, store: Store) -> None:
        async with store.read() as tx:
            assert await tx.drains.get(DrainId("d")) is None
            assert await tx.drains.newest(RunId("r1")) is None
            assert await tx.drains.last_drained(JOB) is None
            assert await tx.drains.stage(DrainId("d"), TaskName("t"), StageName("s")) is None
            lists = [
                await tx.drains.page(JOB, None, 9),
                await tx.drains.active(),
                await tx.drains.failed_flushes(JOB),
                await tx.drains.stages(DrainId("d")),
            ]
            assert [list(each) for each in lists] == [[]] * 4
            assert (dict(await tx.drains.outcomes()), dict(await tx.drains.step_counts(DrainId("d")))) == ({}, {})
            assert await tx.drains.lowest_step(DrainId("d")) is Step.COMMITTED

    async def test_every_field_of_a_drain_is_read_as_it_was_written(self, store: Store) -> None:
        times: dict[str, Any] = {
            name: NOON + timedelta(seconds=n) for n, name in enumerate(("stopping_at", "flushing_at", "committing_at", "ended_at"))
        }
        full = drain_row(
            2**30,
            mode=Mode.KEEP_STATE,
            phase=Phase.DRAINED,
            soft=timedelta(seconds=1.5),
            budgets={Phase.STOPPING: timedelta(seconds=0.25)},
            pinned={SSP: 2**40},
            catch_up={SSP: 1},
            drained={SSP: 0},
            reason="é",
            **times,
        )
        async with store.begin() as tx:
            await tx.drains.put(drain_row(2**30))
            await tx.drains.put(full)
            assert await tx.drains.get(full.drain_id) == full
        async with store.read() as tx:
            assert await tx.drains.get(full.drain_id) == full
            assert await tx.drains.newest(full.run_id) == full

    async def test_every_field_of_a_stage_in_a_drain_is_read_as_it_was_written(self, store: Store) -> None:
        full = drain_stage_row(
            step=Step.FLUSHED,
            generation=Generation(7),
            batch_id=2**40,
            offsets={SSP: 2**40},
            pinned=checkpoint_of(1),
            committed=checkpoint_of(2),
            began_empty=True,
            rows_left=2**40,
            operators_left=("a", "é"),
            lineage=Lineage("l1"),
            operators=("dropDuplicates by é string",),
            note="n",
            reported_at=NOON,
        )
        async with store.begin() as tx:
            await tx.drains.put_stages([drain_stage_row(), drain_stage_row(drain_id="other")])
            await tx.drains.put_stages([full])
        async with store.read() as tx:
            assert await tx.drains.stage(full.drain_id, full.task, full.stage) == full
            assert list(await tx.drains.stages(full.drain_id)) == [full]

    async def test_drains_of_a_job_are_listed_newest_first_in_pages(self, store: Store) -> None:
        over: dict[str, Any] = {"phase": Phase.CANCELLED, "ended_at": NOON}
        async with store.begin() as tx:
            for seq in (2, 1, 3):
                await tx.drains.put(drain_row(seq, **over))
            await tx.drains.put(drain_row(9, "r2", OTHER, **over))
        async with store.read() as tx:
            assert [row.seq for row in await tx.drains.page(JOB, None, 2)] == [3, 2]
            assert [row.seq for row in await tx.drains.page(JOB, 2, 2)] == [1]
            newest = await tx.drains.newest(RunId("r1"))
            assert newest is not None
            assert newest.seq == 3

    async def test_drains_are_found_by_their_outcome(self, store: Store) -> None:
        ended: dict[str, Any] = {"ended_at": NOON}
        async with store.begin() as tx:
            await tx.drains.put(drain_row(1, phase=Phase.DRAINED, flushing_at=NOON, **ended))
            await tx.drains.put(drain_row(2, phase=Phase.DRAINED, flushing_at=NOON, **ended))
            await tx.drains.put(drain_row(3, phase=Phase.FAILED, flushing_at=NOON, **ended))
            await tx.drains.put(drain_row(4, phase=Phase.FAILED, **ended))
            await tx.drains.put(drain_row(5, phase=Phase.FLUSHING, flushing_at=NOON))
            await tx.drains.put(drain_row(1, "r2", OTHER))
        async with store.read() as tx:
            last = await tx.drains.last_drained(JOB)
            assert last is not None
            assert (last.seq, await tx.drains.last_drained(OTHER)) == (2, None)
            assert list(await tx.drains.failed_flushes(JOB)) == [drain_row(3).drain_id]
        async with store.begin() as tx:
            await tx.drains.put(drain_row(3, phase=Phase.FAILED, flushing_at=NOON, mode=Mode.KEEP_STATE, **ended))
            assert list(await tx.drains.failed_flushes(JOB)) == []
            await tx.drains.put(drain_row(3, phase=Phase.FAILED, flushing_at=NOON, **ended))
        async with store.read() as tx:
            assert [(row.job, row.seq) for row in await tx.drains.active()] == [(JOB, 5), (OTHER, 1)]
            counts = {Phase.DRAINED: 2, Phase.FAILED: 2, Phase.FLUSHING: 1, Phase.REQUESTED: 1}
            assert dict(await tx.drains.outcomes()) == counts

    async def test_a_stage_is_behind_a_step_while_some_task_has_not_taken_it(self, store: Store) -> None:
        rows = [drain_stage_row("t0", step=Step.FLUSHED), drain_stage_row("t1", step=Step.FLUSHING)]
        drain_id, stage = rows[0].drain_id, rows[0].stage
        async with store.begin() as tx:
            await tx.drains.put_stages([*rows, drain_stage_row(drain_id="other")])
            assert await tx.drains.is_behind(drain_id, stage, Step.FLUSHED)
            assert not await tx.drains.is_behind(drain_id, StageName("another"), Step.FLUSHED)
            await tx.drains.put_stages([drain_stage_row("t1", step=Step.FLUSHED)])
            assert not await tx.drains.is_behind(drain_id, stage, Step.FLUSHED)

    async def test_the_lowest_step_is_that_of_the_stage_furthest_behind(self, store: Store) -> None:
        rows = [drain_stage_row(f"t{n}", step=step) for n, step in enumerate((Step.FLUSHED, Step.STOPPED, Step.COMMITTED))]
        async with store.begin() as tx:
            await tx.drains.put_stages([*rows, drain_stage_row(drain_id="other")])
            assert await tx.drains.lowest_step(rows[0].drain_id) is Step.STOPPED
            await tx.drains.put_stages([drain_stage_row("t1", step=Step.COMMITTED)])
            assert await tx.drains.lowest_step(rows[0].drain_id) is Step.FLUSHED
            assert [row.task for row in await tx.drains.stages(rows[0].drain_id)] == ["t0", "t1", "t2"]
            assert dict(await tx.drains.step_counts(rows[0].drain_id)) == {Step.FLUSHED: 1, Step.COMMITTED: 2}

    async def test_the_snapshots_that_a_drain_pinned_or_committed_are_found_while_they_are_retained(self, store: Store) -> None:
        pinned, committed = checkpoint_of(1), checkpoint_of(2)
        dropped = checkpoint_of(9)
        retained = [snapshot_row(1, "a"), snapshot_row(2, "a"), snapshot_row(3, "b"), snapshot_row(4, "c")]
        stages = [
            drain_stage_row("a", pinned=pinned, committed=committed),
            drain_stage_row("b", pinned=dropped, committed=checkpoint_of(3)),
            drain_stage_row("c"),
            drain_stage_row("c", drain_id=f"{JOB}-drain-2", pinned=checkpoint_of(4)),
        ]
        async with store.begin() as tx:
            for row in (*retained, snapshot_row(9, "b", job=OTHER)):
                await tx.snapshots.put_all([row])
            await tx.drains.put_stages(stages)
        a, b = ((TaskName(task), StageName("route")) for task in ("a", "b"))
        async with store.read() as tx:
            assert await tx.drains.snapshots(stages[0].drain_id, JOB, "pinned") == {a: retained[0]}
            assert await tx.drains.snapshots(stages[0].drain_id, JOB, "committed") == {a: retained[1], b: retained[2]}
            assert await tx.drains.snapshots(DrainId("d"), JOB, "pinned") == {}
