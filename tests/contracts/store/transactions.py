"""Transactions and the claim: what each database must do; inherited by `StoreContract`."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.store.fleet import ContainerState
from coordinator.store.sql import Store
from sluice.core.errors import UnstorableText
from sluice.core.ids import ExecutionContainerId, RunId, TaskName
from sluice.core.jobmodels.grouping import PreviousAssignment
from tests.contracts.rows import (
    JOB,
    NOON,
    SSP,
    container_row,
    run_row,
    stage_state_row,
)


class TransactionsContract:
    @pytest.mark.parametrize("name", ["a\0b", "a\ud800b"], ids=["NUL", "a lone surrogate"])
    async def test_text_that_cannot_be_stored_is_refused_in_queries_and_in_rows(self, store: Store, name: str) -> None:
        async with store.read() as tx:
            for query in (lambda: tx.fleet.owner(JOB, TaskName(name)), lambda: tx.runs.get(RunId(name))):
                with pytest.raises(UnstorableText):
                    await query()

        async def put_both() -> None:
            async with store.begin() as tx:
                await tx.runs.put(run_row("r1"))
                await tx.runs.put(run_row(name))

        with pytest.raises(UnstorableText):
            await put_both()
        assert store.failures == 0
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) is None

    async def test_an_empty_database_has_no_rows(self, store: Store) -> None:
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) is None
            assert await tx.runs.current(JOB) is None
            assert await tx.jobmodels.get(JOB) is None
            assert await tx.jobmodels.assignment(JOB) == PreviousAssignment()
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

    async def test_the_writes_of_a_transaction_can_be_read_when_it_has_ended(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(run_row())
            assert await tx.runs.get(RunId("r1")) == run_row()
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) == run_row()

    async def test_a_transaction_that_raises_writes_nothing(self, store: Store) -> None:
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
            assert await tx.jobmodels.assignment(JOB) == PreviousAssignment()

    async def _write_everything_and_fail(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.runs.put(run_row())
            await tx.jobmodels.put_assignment(JOB, PreviousAssignment({SSP: TaskName("t")}, {SSP.stream_id: 4}, "g"))
            await tx.fleet.put_container(container_row(state=ContainerState.LOST))
            await tx.fleet.put_stage_states([stage_state_row()])
            await tx.runs.add_notice(RunId("r1"), "STOP", NOON, {})
            raise ZeroDivisionError

    async def test_the_database_can_be_used_after_a_transaction_that_raised(self, store: Store) -> None:
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

    async def test_a_reader_does_not_see_writes_of_a_transaction_that_has_not_ended(self, store: Store) -> None:
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

    async def test_a_reader_reads_the_same_rows_until_its_transaction_ends(self, store: Store) -> None:
        async with store.read() as tx:
            before = await tx.runs.jobs()
            async with store.begin() as other:
                await other.runs.put(run_row())
            assert await tx.runs.jobs() == before

    async def test_a_claim_may_be_taken_twice_and_does_not_prevent_writes(self, store: Store) -> None:
        for _ in range(2):
            await store.claim()
            assert store.claimed
            async with store.begin() as tx:
                await tx.runs.add_notice(RunId("r1"), "STOP", NOON, {})
        async with store.read() as tx:
            assert len(await tx.runs.notices(RunId("r1"), 0)) == 2

    async def test_a_transaction_that_raises_under_the_claim_writes_nothing(self, store: Store) -> None:
        await store.claim()
        with pytest.raises(ZeroDivisionError):
            await self._write_everything_and_fail(store)
        assert store.claimed
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) is None

    async def test_changing_a_value_after_it_was_written_does_not_change_the_stored_row(self, store: Store) -> None:
        detail = {"reason": "first"}
        async with store.begin() as tx:
            await tx.runs.add_notice(RunId("r1"), "STOP", NOON, detail)
        detail["reason"] = "changed"
        async with store.read() as tx:
            assert (await tx.runs.notices(RunId("r1"), 0))[0].detail == {"reason": "first"}
