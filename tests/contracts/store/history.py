"""The history of jobs, and its deletion: what each database must do; inherited by `StoreContract`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from coordinator.store.fleet import ContainerState
from coordinator.store.history import References
from coordinator.store.sql import Store
from sluice.core.drain import DrainId, Phase
from sluice.core.ids import ExecutionContainerId, RunId, Ssp
from sluice.core.lifecycle import RunState
from sluice.core.pruning import PastContainer, PastDrain, PastRun
from tests.contracts.rows import (
    JOB,
    NOON,
    OTHER,
    container_row,
    drain_row,
    drain_stage_row,
    model_row,
    ownership_row,
    run_row,
    snapshot_row,
    stage_state_row,
)

LATER = NOON + timedelta(hours=1)
R1, R2 = RunId("r1"), RunId("r2")
STOPPED = run_row("r1", state=RunState.STOPPED, ended_at=LATER)


class HistoryContract:
    async def test_past_runs_are_listed_newest_first_and_show_whether_a_container_may_still_act(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(STOPPED)
            await tx.runs.put(run_row("r2", created_at=LATER, first_run=R1, model_version=3))
            await tx.runs.put(run_row("q1", OTHER))
            await tx.fleet.put_container(container_row("c1", run_id="r1", state=ContainerState.REPLACED))
            await tx.fleet.put_container(container_row("c2", run_id="r2", state=ContainerState.EXITED, ended_at=NOON))
            assert await tx.history.runs(JOB) == [
                PastRun(R2, LATER, None, R1, 3, active=False),
                PastRun(R1, NOON, LATER, R1, 1, active=True),
            ]

    async def test_past_drains_are_listed_newest_first_and_show_whether_they_had_begun_to_empty_state(self, store: Store) -> None:
        async with store.begin() as tx:
            flushed = replace(drain_row(1, "r1"), phase=Phase.FAILED, flushing_at=NOON, ended_at=LATER)
            for row in (flushed, drain_row(2, "r1")):
                await tx.drains.put(row)
            newest, oldest = await tx.history.drains(JOB)
            assert oldest == PastDrain(flushed.drain_id, R1, 1, Phase.FAILED, LATER, flushed.model_version, emptied=True)
            assert (newest.seq, newest.ended_at, newest.emptied) == (2, None, False)

    async def test_snapshots_owners_and_containers_refer_to_runs_and_versions(self, store: Store) -> None:
        async with store.begin() as tx:
            assert await tx.history.references(JOB, R1) == References(frozenset(), frozenset(), 0)
            await tx.snapshots.put_all([replace(snapshot_row(1, job=JOB), run_id=R2)])
            await tx.fleet.put_owners([replace(ownership_row(), model_version=4)])
            await tx.fleet.put_container(container_row("c1", run_id="r1", model_version=6))
            await tx.fleet.put_container(container_row("c2", run_id="r2", model_version=9))
            assert await tx.history.references(JOB, R1) == References(frozenset({R1, R2}), frozenset({4}), 6)

    async def test_surplus_containers_are_found_page_by_page_and_dropped(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_owners([ownership_row(holder="c0-2")])
            for slot in ("0", "1"):
                for epoch in range(1, 6):
                    row = container_row(f"c{slot}-{epoch}", slot, epoch)
                    await tx.fleet.put_container(replace(row, state=ContainerState.EXITED, ended_at=None if epoch == 1 else NOON))
            pages = [await tx.history.surplus_containers(R1, 3, after, 3) for after in (None, ("1", 1), ("1", 2))]
            found = [each for page in pages for _, each in page]
            assert found[:2] == [
                PastContainer(ExecutionContainerId("c0-1"), 1, 5, ended=False, owner=False),
                PastContainer(ExecutionContainerId("c0-2"), 2, 5, ended=True, owner=True),
            ]
            assert [each.execution_id for each in found] == ["c0-1", "c0-2", "c1-1", "c1-2"]
            assert [cursor for cursor, _ in pages[0]] == [("0", 1), ("0", 2), ("1", 1)]
            await tx.history.drop_containers([ExecutionContainerId("c0-1"), ExecutionContainerId("c0-3")])
            assert [each.epoch for each in await tx.fleet.containers(R1)] == [2, 4, 5, 1, 2, 3, 4, 5]

    async def test_old_notices_are_dropped_but_not_the_newest(self, store: Store) -> None:
        async with store.begin() as tx:
            for run_id in (R1, R2):
                for hours in range(5):
                    await tx.runs.add_notice(run_id, "MODEL", NOON + timedelta(hours=hours), {})
            assert await tx.history.drop_notices(R1, NOON + timedelta(hours=2), 1) == 1
            assert await tx.history.drop_notices(R1, NOON + timedelta(hours=2), 9) == 1
            assert [each.seq for each in await tx.runs.notices(R1, 0)] == [3, 4, 5]
            assert await tx.history.drop_notices(R1, NOON + timedelta(days=2), 9) == 2
            assert [each.seq for each in await tx.runs.notices(R1, 0)] == [5]
            assert len(await tx.runs.notices(R2, 0)) == 5

    async def test_versions_and_drains_are_dropped(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(run_row())
            for number in range(1, 5):
                await tx.jobmodels.add(model_row(number, JOB))
                await tx.drains.put(replace(drain_row(number, "r1"), drain_id=DrainId(f"d{number}")))
                await tx.drains.put_stages([drain_stage_row("t", "s", f"d{number}")])
            await tx.history.drop_versions(JOB, [1, 3])
            await tx.history.drop_versions(OTHER, [2])
            await tx.history.drop_drains([DrainId("d2")])
            assert [each.version for each in await tx.jobmodels.page(JOB, None, 9)] == [4, 2]
            assert [each.seq for each in await tx.drains.page(JOB, None, 9)] == [4, 3, 1]
            assert [len(await tx.drains.stages(DrainId(f"d{number}"))) for number in (1, 2)] == [1, 0]

    async def test_a_former_run_is_dropped_after_the_rows_that_belong_to_it(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(STOPPED)
            await tx.runs.put(run_row("r2", created_at=LATER))
            await tx.runs.put_start_offsets(R1, {Ssp("log", "s", 0): 5})
            await tx.runs.add_notice(R1, "STOP", NOON, {})
            for number in range(3):
                await tx.fleet.put_container(container_row(f"c{number}", "0", number, "r1"))
            assert [await tx.history.drop_of_run(R1, 2) for _ in range(3)] == [2, 1, 1]
            assert await tx.runs.get(R1) == STOPPED
            assert [await tx.history.drop_of_run(R1, 2) for _ in range(2)] == [1, 0]
            assert (await tx.runs.get(R1), await tx.runs.start_offsets(R1)) == (None, {})

    async def test_a_run_that_is_current_or_has_not_ended_is_not_dropped(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(run_row("r1"))
            await tx.runs.put(replace(STOPPED, run_id=R2, created_at=LATER))
            assert [await tx.history.drop_of_run(run_id, 9) for run_id in (R1, R2)] == [0, 0]

    async def test_a_job_is_dropped_as_a_whole_except_for_the_owners_of_its_tasks(self, store: Store) -> None:
        async with store.begin() as tx:
            for job, run_id in ((JOB, "r1"), (OTHER, "q1")):
                await tx.runs.put(run_row(run_id, job))
                await tx.runs.add_notice(RunId(run_id), "STOP", NOON, {})
                await tx.runs.put_start_offsets(RunId(run_id), {Ssp("log", "s", 0): 5})
                await tx.fleet.put_container(container_row(f"{run_id}-c", run_id=run_id, job=job))
                await tx.fleet.put_owners([ownership_row(job=job)])
                await tx.fleet.put_stage_states([stage_state_row(job=job)])
                await tx.jobmodels.add(model_row(1, job))
                await tx.snapshots.put_all([snapshot_row(1, job=job)])
                await tx.drains.put(drain_row(1, run_id, job))
                await tx.drains.put_stages([drain_stage_row("t", "s", drain_row(1, run_id, job).drain_id)])
            kept = await tx.history.rows_of_job(OTHER)
            assert await tx.history.rows_of_job(JOB) == kept
            await tx.history.drop_job(JOB)
            assert not any((await tx.history.rows_of_job(JOB)).values())
            assert await tx.history.rows_of_job(OTHER) == kept
            assert [each.job for each in await tx.runs.jobs()] == [OTHER]
            assert (await tx.runs.notices(R1, 0), await tx.runs.start_offsets(R1)) == ([], {})
            assert await tx.drains.stages(drain_row(1, "r1", JOB).drain_id) == []
            assert len(await tx.drains.stages(drain_row(1, "q1", OTHER).drain_id)) == 1
            assert [each.owner.generation for each in await tx.fleet.owners(JOB)] == [1]
