"""What the store must do on each database: the promises of `coordinator/store/__init__.py`, as tests.

A test of an implementation inherits `StoreContract` and provides the fixture `store`: an empty one.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from coordinator.store.fleet import ContainerState, Tally
from coordinator.store.runs import JobRow, NoticeRow
from coordinator.store.sql import Store
from sluice.core.grouping import Previous
from sluice.core.ids import ExecutionContainerId, Generation, JobName, RunId, Ssp, StreamId, TaskName
from sluice.core.lifecycle import RunState
from tests.contracts.rows import JOB, NOON, OTHER, SSP, container_row, ownership_row, run_row, stage_state_row
from tests.contracts.store_backups import StoreBackupsContract
from tests.contracts.store_drains import StoreDrainsContract
from tests.contracts.store_versions import StoreVersionsContract


class StoreContract(StoreBackupsContract, StoreDrainsContract, StoreVersionsContract):
    async def test_an_empty_store_knows_nothing(self, store: Store) -> None:
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) is None
            assert await tx.runs.current(JOB) is None
            assert await tx.jobmodels.get(JOB) is None
            assert await tx.jobmodels.assignment(JOB) == Previous()
            assert await tx.fleet.container(ExecutionContainerId("c1")) is None
            assert await tx.fleet.owner(JOB, TaskName("Partition 0")) is None
            assert dict(await tx.runs.start_offsets(RunId("r1"))) == {}
            lists = [
                await tx.runs.active(),
                await tx.runs.jobs(),
                await tx.fleet.containers(RunId("r1")),
                await tx.fleet.active_containers(),
            ]
            lists += [await tx.fleet.owners(JOB), await tx.fleet.owned_by(ExecutionContainerId("c1")), await tx.fleet.stage_states(JOB)]
            assert [list(each) for each in [*lists, await tx.runs.notices(RunId("r1"), 0)]] == [[]] * 8

    # --- transactions ---

    async def test_what_a_transaction_wrote_is_there_when_it_has_ended(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(run_row())
            assert await tx.runs.get(RunId("r1")) == run_row()
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) == run_row()

    async def test_nothing_is_kept_of_a_transaction_that_raised(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row())
        with pytest.raises(ZeroDivisionError):
            await self._write_everything_and_fail(store)
        async with store.read() as tx:
            assert await tx.fleet.container(ExecutionContainerId("c1")) == container_row()
            assert await tx.runs.get(RunId("r1")) is None
            assert list(await tx.runs.jobs()) == []
            assert list(await tx.runs.notices(RunId("r1"), 0)) == []
            assert list(await tx.fleet.stage_states(JOB)) == []
            assert await tx.jobmodels.assignment(JOB) == Previous()

    async def _write_everything_and_fail(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(run_row())
            await tx.jobmodels.put_assignment(JOB, Previous({SSP: TaskName("t")}, {SSP.stream_id: 4}, "g"))
            await tx.fleet.put_container(container_row(state=ContainerState.LOST))
            await tx.fleet.put_stage_state(stage_state_row())
            await tx.runs.add_notice(RunId("r1"), "STOP", NOON, {})
            raise ZeroDivisionError

    async def test_a_store_can_be_used_after_a_transaction_that_raised(self, store: Store) -> None:
        with pytest.raises(ZeroDivisionError):
            await self._write_everything_and_fail(store)
        async with store.begin() as tx:
            await tx.runs.put(run_row())
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) == run_row()

    async def test_transactions_that_write_are_serial(self, store: Store) -> None:
        async def add() -> int:
            async with store.begin() as tx:
                known = len(await tx.runs.notices(RunId("r1"), 0))
                await asyncio.sleep(0)
                seq = await tx.runs.add_notice(RunId("r1"), "STOP", NOON, {})
                assert seq == known + 1
                return seq

        assert sorted(await asyncio.gather(*(add() for _ in range(20)))) == list(range(1, 21))

    async def test_a_reader_sees_nothing_of_a_transaction_that_has_not_ended(self, store: Store) -> None:
        written, seen = asyncio.Event(), asyncio.Event()

        async def write() -> None:
            async with store.begin() as tx:
                await tx.runs.put(run_row())
                written.set()
                await seen.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            await written.wait()
            async with store.read() as tx:
                assert await tx.runs.get(RunId("r1")) is None
            seen.set()
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) == run_row()

    async def test_what_a_reader_has_read_does_not_change_before_it_ends(self, store: Store) -> None:
        async with store.read() as tx:
            before = await tx.runs.jobs()
            async with store.begin() as other:
                await other.runs.put(run_row())
            assert await tx.runs.jobs() == before

    async def test_a_claim_may_be_taken_twice_and_is_no_hindrance_to_writing(self, store: Store) -> None:
        for _ in range(2):
            await store.claim()
            assert store.claimed
            async with store.begin() as tx:
                await tx.runs.add_notice(RunId("r1"), "STOP", NOON, {})
        async with store.read() as tx:
            assert len(await tx.runs.notices(RunId("r1"), 0)) == 2

    async def test_nothing_is_kept_of_a_transaction_that_raised_under_the_claim(self, store: Store) -> None:
        await store.claim()
        with pytest.raises(ZeroDivisionError):
            await self._write_everything_and_fail(store)
        assert store.claimed
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) is None

    # --- runs and models ---

    async def test_every_field_of_a_run_comes_back(self, store: Store) -> None:
        full = run_row(
            state=RunState.FAILED,
            first_run=RunId("r0"),
            started_at=NOON + timedelta(seconds=1),
            stop_requested_at=NOON + timedelta(seconds=2),
            ended_at=NOON + timedelta(seconds=3),
            reason="a é \n reason",
            failing=True,
        )
        async with store.begin() as tx:
            await tx.runs.put(full)
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) == full

    async def test_times_come_back_as_utc(self, store: Store) -> None:
        elsewhere = NOON.astimezone(datetime.fromisoformat("2026-01-01T00:00:00+05:30").tzinfo)
        async with store.begin() as tx:
            await tx.runs.put(run_row(created_at=elsewhere))
        async with store.read() as tx:
            found = await tx.runs.get(RunId("r1"))
            assert found is not None
            assert (found.created_at, found.created_at.utcoffset()) == (NOON, timedelta(0))

    async def test_the_newest_run_is_the_jobs_current_one_even_when_an_older_is_written_again(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(run_row("r1"))
            await tx.runs.put(run_row("r2"))
            await tx.runs.put(run_row("r1", state=RunState.STOPPED))
            await tx.runs.put(run_row("q1", OTHER))
        async with store.read() as tx:
            assert await tx.runs.current(JOB) == run_row("r2")
            assert list(await tx.runs.jobs()) == [
                JobRow(JOB, RunId("r2"), RunState.CREATED, 2),
                JobRow(OTHER, RunId("q1"), RunState.CREATED, 1),
            ]

    async def test_active_runs_are_those_not_ended_oldest_first(self, store: Store) -> None:
        async with store.begin() as tx:
            for hours, (run_id, state) in enumerate(
                [("z", "RUNNING"), ("b", "STOPPED"), ("a", "DRAINING"), ("c", "FAILED"), ("d", "DRAINED")]
            ):
                await tx.runs.put(run_row(run_id, state=RunState(state), created_at=NOON + timedelta(hours=hours)))
        async with store.read() as tx:
            assert [run.run_id for run in await tx.runs.active()] == ["z", "a"]

    async def test_runs_come_newest_first_and_by_id_where_they_are_of_one_moment(self, store: Store) -> None:
        async with store.begin() as tx:
            for run_id, job, hours in [("b", JOB, 0), ("a", JOB, 2), ("d", JOB, 1), ("c", JOB, 1), ("z", OTHER, 3)]:
                await tx.runs.put(run_row(run_id, job, created_at=NOON + timedelta(hours=hours)))
        async with store.read() as tx:
            assert [run.run_id for run in await tx.runs.page(JOB, None, 10)] == ["a", "d", "c", "b"]
            assert [run.run_id for run in await tx.runs.page(None, None, 10)] == ["z", "a", "d", "c", "b"]
            assert list(await tx.runs.page(JobName("nowhere"), None, 10)) == []

    async def test_runs_come_in_pages_that_neither_repeat_nor_leave_out_any(self, store: Store) -> None:
        async with store.begin() as tx:
            for n in range(7):
                await tx.runs.put(run_row(f"r{n}", created_at=NOON + timedelta(seconds=n // 3)))
        async with store.read() as tx:
            pages, last = [], None
            while page := await tx.runs.page(JOB, last, 2):
                pages.append([run.run_id for run in page])
                last = page[-1]
        assert pages == [["r6", "r5"], ["r4", "r3"], ["r2", "r1"], ["r0"]]

    async def test_an_assignment_replaces_the_last_as_a_whole(self, store: Store) -> None:
        first = Previous({SSP: TaskName("t"), Ssp("log", "x", 0): TaskName("u")}, {SSP.stream_id: 4, StreamId("log", "x"): 1}, "g")
        second = Previous({SSP: TaskName("v")}, {SSP.stream_id: 8}, "h")
        async with store.begin() as tx:
            await tx.runs.put(run_row())
            await tx.jobmodels.put_assignment(JOB, first)
            assert await tx.jobmodels.assignment(JOB) == first
            await tx.jobmodels.put_assignment(JOB, second)
        async with store.read() as tx:
            assert await tx.jobmodels.assignment(JOB) == second
            assert await tx.jobmodels.assignment(OTHER) == Previous()

    async def test_starts_come_back_as_large_as_they_were(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put_start_offsets(RunId("r1"), {SSP: 2**62, Ssp("log", "x", 0): 0})
            await tx.runs.put_start_offsets(RunId("r1"), {Ssp("log", "x", 0): 5})
            await tx.runs.put_start_offsets(RunId("r2"), {})
        async with store.read() as tx:
            assert dict(await tx.runs.start_offsets(RunId("r1"))) == {SSP: 2**62, Ssp("log", "x", 0): 5}
            assert dict(await tx.runs.start_offsets(RunId("r2"))) == {}

    # --- containers ---

    async def test_every_field_of_a_container_comes_back(self, store: Store) -> None:
        full = container_row(
            bare=True,
            state=ContainerState.EXITED,
            ended_at=NOON,
            exit_code=-9,
            reason="killed",
            metrics_address="h:1",
            model_version=7,
            adopted_at=NOON,
        )
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row())
            await tx.fleet.put_container(full)
        async with store.read() as tx:
            assert await tx.fleet.container(ExecutionContainerId("c1")) == full

    async def test_containers_of_a_run_come_by_slot_and_epoch(self, store: Store) -> None:
        async with store.begin() as tx:
            for name, slot, epoch, run in [("a", "1", 1, "r1"), ("b", "0", 2, "r1"), ("z", "0", 1, "r1"), ("c", "0", 1, "r2")]:
                await tx.fleet.put_container(container_row(name, slot, epoch, run))
        async with store.read() as tx:
            assert [each.execution_id for each in await tx.fleet.containers(RunId("r1"))] == ["z", "b", "a"]

    async def test_standing_containers_are_the_live_and_the_replaced_that_have_not_ended(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row("live"))
            await tx.fleet.put_container(container_row("old", epoch=2, state=ContainerState.REPLACED))
            await tx.fleet.put_container(container_row("gone", epoch=3, state=ContainerState.REPLACED, ended_at=NOON))
            await tx.fleet.put_container(container_row("lost", epoch=4, state=ContainerState.LOST, ended_at=NOON))
            await tx.fleet.put_container(container_row("exited", epoch=5, state=ContainerState.EXITED, ended_at=NOON))
        async with store.read() as tx:
            assert [each.execution_id for each in await tx.fleet.active_containers()] == ["live", "old"]

    async def test_a_run_has_standing_containers_until_the_last_has_ended(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row("a"))
            await tx.fleet.put_container(container_row("b", "1", state=ContainerState.REPLACED))
            await tx.fleet.put_container(container_row("c", run_id="r2", ended_at=NOON, state=ContainerState.LOST))
            assert [await tx.fleet.has_active_containers(RunId(run)) for run in ("r1", "r2", "r3")] == [True, False, False]
            await tx.fleet.put_container(container_row("a", ended_at=NOON, state=ContainerState.EXITED))
            assert await tx.fleet.has_active_containers(RunId("r1"))
            await tx.fleet.put_container(container_row("b", "1", ended_at=NOON, state=ContainerState.EXITED))
            assert not await tx.fleet.has_active_containers(RunId("r1"))

    async def test_last_seen_is_written_for_those_that_are_there(self, store: Store) -> None:
        later = NOON + timedelta(minutes=1)
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row("a"))
            await tx.fleet.put_container(container_row("b", epoch=2))
            await tx.fleet.set_last_seen([(ExecutionContainerId("a"), later), (ExecutionContainerId("stranger"), later)])
            await tx.fleet.set_last_seen([])
        async with store.read() as tx:
            assert [each.last_seen_at for each in await tx.fleet.containers(RunId("r1"))] == [later, NOON]
            assert await tx.fleet.container(ExecutionContainerId("stranger")) is None

    # --- tasks ---

    async def test_the_last_hold_of_a_task_is_kept(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_owner(ownership_row("b"))
            await tx.fleet.put_owner(ownership_row("a"))
            await tx.fleet.put_owner(ownership_row("a", generation=2, holder="c2"))
            await tx.fleet.put_owner(ownership_row("a", job=OTHER))
        async with store.read() as tx:
            assert list(await tx.fleet.owners(JOB)) == [ownership_row("a", 2, "c2"), ownership_row("b")]
            assert await tx.fleet.owner(OTHER, TaskName("a")) == ownership_row("a", job=OTHER)

    async def test_holds_of_a_container_are_those_it_has_not_released(self, store: Store) -> None:
        async with store.begin() as tx:
            for row in (
                ownership_row("b"),
                ownership_row("a"),
                ownership_row("c", released=True),
                ownership_row("d", holder="c2"),
                ownership_row("z", job=OTHER),
            ):
                await tx.fleet.put_owner(row)
        async with store.read() as tx:
            assert [(row.job, row.task) for row in await tx.fleet.owned_by(ExecutionContainerId("c1"))] == [
                (JOB, "a"),
                (JOB, "b"),
                (OTHER, "z"),
            ]

    async def test_a_run_is_tallied_by_containers_of_each_state_and_tasks_held(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row("c1", state=ContainerState.REPLACED))
            await tx.fleet.put_container(container_row("c2", epoch=2, state=ContainerState.EXITED, ended_at=NOON))
            await tx.fleet.put_container(container_row("c3", epoch=3))
            await tx.fleet.put_container(container_row("c4", "1", model_version=2))
            await tx.fleet.put_container(container_row("c5", run_id="r2"))
            for row in (ownership_row("a"), ownership_row("b"), ownership_row("c", released=True), ownership_row("d", job=OTHER)):
                await tx.fleet.put_owner(row)
            await tx.fleet.put_owner(replace(ownership_row("e"), run_id=RunId("r2")))
        async with store.read() as tx:
            counts = {ContainerState.REPLACED: 1, ContainerState.EXITED: 1, ContainerState.LIVE: 2}
            assert await tx.fleet.tally(RunId("r1"), JOB) == Tally(counts, 2, {0: 1, 2: 1})
            assert await tx.fleet.tally(RunId("nobody's"), JOB) == Tally({}, 0)

    async def test_stores_come_by_task_and_stage_with_their_offsets(self, store: Store) -> None:
        full = replace(stage_state_row("a", "z"), batch_id=2**40, offsets={SSP: 2**62}, generation=Generation(3), reported_at=NOON)
        async with store.begin() as tx:
            for row in (stage_state_row("b", "s"), full, stage_state_row("a", "y"), stage_state_row("a", "y", OTHER)):
                await tx.fleet.put_stage_state(row)
        async with store.read() as tx:
            assert list(await tx.fleet.stage_states(JOB)) == [stage_state_row("a", "y"), full, stage_state_row("b", "s")]
            assert list(await tx.fleet.stage_states(JOB, TaskName("a"))) == [stage_state_row("a", "y"), full]

    async def test_dropped_stores_are_those_of_one_job(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_stage_state(stage_state_row())
            await tx.fleet.put_stage_state(stage_state_row(job=OTHER))
            await tx.fleet.drop_stage_states(JOB)
            await tx.fleet.drop_stage_states(JOB)
        async with store.read() as tx:
            assert list(await tx.fleet.stage_states(JOB)) == []
            assert list(await tx.fleet.stage_states(OTHER)) == [stage_state_row(job=OTHER)]

    # --- notices ---

    async def test_notices_are_numbered_from_one_within_their_run(self, store: Store) -> None:
        async with store.begin() as tx:
            assert await tx.runs.add_notice(RunId("r1"), "STOP", NOON, {"reason": "é"}) == 1
            assert await tx.runs.add_notice(RunId("r2"), "STOP", NOON, {}) == 1
            assert await tx.runs.add_notice(RunId("r1"), "ENDED", NOON, {}) == 2
        async with store.read() as tx:
            assert list(await tx.runs.notices(RunId("r1"), 0)) == [
                NoticeRow(RunId("r1"), 1, "STOP", NOON, {"reason": "é"}),
                NoticeRow(RunId("r1"), 2, "ENDED", NOON, {}),
            ]
            assert [row.seq for row in await tx.runs.notices(RunId("r1"), 1)] == [2]
            assert [await tx.runs.last_notice(RunId(run)) for run in ("r1", "r2", "r3")] == [2, 1, 0]
            assert list(await tx.runs.notices(RunId("r1"), 2**31 - 1)) == []

    async def test_a_row_that_was_handed_out_does_not_change_what_is_stored(self, store: Store) -> None:
        detail = {"reason": "first"}
        async with store.begin() as tx:
            await tx.runs.add_notice(RunId("r1"), "STOP", NOON, detail)
        detail["reason"] = "changed"
        async with store.read() as tx:
            assert (await tx.runs.notices(RunId("r1"), 0))[0].detail == {"reason": "first"}
