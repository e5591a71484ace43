"""Containers, owners of tasks and states of stages: what each database must do; inherited by `StoreContract`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from coordinator.store.fleet import ContainerState, LateRows, RunCounts, SlotRow
from coordinator.store.sql import Store
from sluice.core.ids import ExecutionContainerId, Generation, Lineage, ProcessorId, RunId, TaskName
from tests.contracts.query_plans import listening
from tests.contracts.rows import (
    JOB,
    NOON,
    OTHER,
    SSP,
    checkpoint_of,
    container_row,
    ownership_row,
    stage_state_row,
)


class FleetContract:
    async def test_every_field_of_a_container_is_read_as_it_was_written(self, store: Store) -> None:
        full = container_row(
            bare=True,
            state=ContainerState.EXITED,
            ended_at=NOON,
            exit_code=-9,
            reason="killed",
            metrics_address="h:1",
            model_version=7,
            adopted_at=NOON,
            chose_token=True,
        )
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row())
            await tx.fleet.put_container(full)
        async with store.read() as tx:
            assert await tx.fleet.container(ExecutionContainerId("c1")) == full

    async def test_containers_of_a_run_are_ordered_by_slot_and_epoch(self, store: Store) -> None:
        async with store.begin() as tx:
            for name, slot, epoch, run in [("a", "1", 1, "r1"), ("b", "0", 2, "r1"), ("z", "0", 1, "r1"), ("c", "0", 1, "r2")]:
                await tx.fleet.put_container(container_row(name, slot, epoch, run))
        async with store.read() as tx:
            assert [each.execution_id for each in await tx.fleet.containers(RunId("r1"))] == ["z", "b", "a"]

    async def test_active_containers_are_live_or_replaced_ones_that_have_not_ended(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row("live"))
            await tx.fleet.put_container(container_row("old", epoch=2, state=ContainerState.REPLACED))
            await tx.fleet.put_container(container_row("gone", epoch=3, state=ContainerState.REPLACED, ended_at=NOON))
            await tx.fleet.put_container(container_row("lost", epoch=4, state=ContainerState.LOST, ended_at=NOON))
            await tx.fleet.put_container(container_row("exited", epoch=5, state=ContainerState.EXITED, ended_at=NOON))
        async with store.read() as tx:
            assert [each.execution_id for each in await tx.fleet.active_containers()] == ["live", "old"]

    async def test_a_run_has_active_containers_until_the_last_one_has_ended(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row("a"))
            await tx.fleet.put_container(container_row("b", "1", state=ContainerState.REPLACED))
            await tx.fleet.put_container(container_row("c", run_id="r2", ended_at=NOON, state=ContainerState.LOST))
            assert [bool(await tx.fleet.active_containers(RunId(run), 1)) for run in ("r1", "r2", "r3")] == [True, False, False]
            await tx.fleet.put_container(container_row("a", ended_at=NOON, state=ContainerState.EXITED))
            assert bool(await tx.fleet.active_containers(RunId("r1"), 1))
            await tx.fleet.put_container(container_row("b", "1", ended_at=NOON, state=ContainerState.EXITED))
            assert not bool(await tx.fleet.active_containers(RunId("r1"), 1))

    async def test_a_slot_is_live_if_its_newest_container_is(self, store: Store) -> None:
        later = NOON + timedelta(minutes=1)
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row("a", state=ContainerState.LOST, ended_at=NOON))
            await tx.fleet.put_container(container_row("b", epoch=2, registered_at=later))
            await tx.fleet.put_container(container_row("c", "1", ended_at=later, state=ContainerState.EXITED, exit_code=7))
            await tx.fleet.put_container(container_row("d", "2", state=ContainerState.REPLACED))
            await tx.fleet.put_container(container_row("e", "3", run_id="r2"))
        async with store.read() as tx:
            found = {each.processor_id: each for each in await tx.fleet.slots(RunId("r1"))}
        assert found == {
            "0": SlotRow(ProcessorId("0"), True, later, None),
            "1": SlotRow(ProcessorId("1"), False, later, 7),
            "2": SlotRow(ProcessorId("2"), False, NOON, None),
        }

    async def test_last_seen_is_written_for_containers_that_exist_and_for_no_others(self, store: Store) -> None:
        later = NOON + timedelta(minutes=1)
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row("a"))
            await tx.fleet.put_container(container_row("b", epoch=2))
            await tx.fleet.set_last_seen([(ExecutionContainerId("a"), later), (ExecutionContainerId("stranger"), later)])
            await tx.fleet.set_last_seen([])
        async with store.read() as tx:
            assert [each.last_seen_at for each in await tx.fleet.containers(RunId("r1"))] == [later, NOON]
            assert await tx.fleet.container(ExecutionContainerId("stranger")) is None

    async def test_the_last_owner_of_a_task_is_kept(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_owners([ownership_row("b")])
            await tx.fleet.put_owners([ownership_row("a")])
            await tx.fleet.put_owners([ownership_row("a", generation=2, holder="c2")])
            await tx.fleet.put_owners([ownership_row("a", job=OTHER)])
        async with store.read() as tx:
            assert list(await tx.fleet.owners(JOB)) == [ownership_row("a", 2, "c2"), ownership_row("b")]
            assert await tx.fleet.owner(OTHER, TaskName("a")) == ownership_row("a", job=OTHER)

    async def test_a_container_owns_the_tasks_that_it_has_not_released(self, store: Store) -> None:
        async with store.begin() as tx:
            for row in (
                ownership_row("b"),
                ownership_row("a"),
                ownership_row("c", released=True),
                ownership_row("d", holder="c2"),
                ownership_row("z", job=OTHER),
            ):
                await tx.fleet.put_owners([row])
        async with store.read() as tx:
            assert [(row.job, row.task) for row in await tx.fleet.owned_by(ExecutionContainerId("c1"))] == [
                (JOB, "a"),
                (JOB, "b"),
                (OTHER, "z"),
            ]

    async def test_the_containers_of_each_state_and_the_owned_tasks_of_a_run_are_counted(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_container(container_row("c1", state=ContainerState.REPLACED))
            await tx.fleet.put_container(container_row("c2", epoch=2, state=ContainerState.EXITED, ended_at=NOON))
            await tx.fleet.put_container(container_row("c3", epoch=3))
            await tx.fleet.put_container(container_row("c4", "1", model_version=2))
            await tx.fleet.put_container(container_row("c5", run_id="r2"))
            await tx.fleet.put_container(container_row("c6", "2", bare=True))
            await tx.fleet.put_container(container_row("c7", "3", bare=True, state=ContainerState.LOST, ended_at=NOON))
            for row in (ownership_row("a"), ownership_row("b"), ownership_row("c", released=True), ownership_row("d", job=OTHER)):
                await tx.fleet.put_owners([row])
            await tx.fleet.put_owners([replace(ownership_row("e"), run_id=RunId("r2"))])
        async with store.read() as tx:
            counts = {ContainerState.REPLACED: 1, ContainerState.EXITED: 1, ContainerState.LIVE: 3, ContainerState.LOST: 1}
            found = RunCounts(counts, 2, {0: 2, 2: 1}, bare_slots=frozenset({ProcessorId("2")}))
            assert await tx.fleet.counts(RunId("r1"), JOB) == found
            assert await tx.fleet.counts(RunId("nobody's"), JOB) == RunCounts({}, 0)

    async def test_states_of_stages_are_ordered_by_task_and_stage_and_have_their_offsets(self, store: Store) -> None:
        full = replace(stage_state_row("a", "z"), batch_id=2**40, offsets={SSP: 2**62}, generation=Generation(3), reported_at=NOON)
        async with store.begin() as tx:
            for row in (stage_state_row("b", "s"), full, stage_state_row("a", "y"), stage_state_row("a", "y", OTHER)):
                await tx.fleet.put_stage_states([row])
        async with store.read() as tx:
            assert list(await tx.fleet.stage_states(JOB)) == [stage_state_row("a", "y"), full, stage_state_row("b", "s")]
            assert list(await tx.fleet.stage_states(JOB, TaskName("a"))) == [stage_state_row("a", "y"), full]

    async def test_dropping_the_states_of_the_stages_of_a_job_does_not_affect_other_jobs(self, store: Store) -> None:
        async with store.begin() as tx:
            await tx.fleet.put_stage_states([stage_state_row()])
            await tx.fleet.put_stage_states([stage_state_row(job=OTHER)])
            await tx.fleet.drop_stage_states(JOB)
            await tx.fleet.drop_stage_states(JOB)
        async with store.read() as tx:
            assert list(await tx.fleet.stage_states(JOB)) == []
            assert list(await tx.fleet.stage_states(OTHER)) == [stage_state_row(job=OTHER)]

    async def test_the_state_of_a_stage_keeps_its_head_and_can_be_dropped_alone(self, store: Store) -> None:
        late_rows = LateRows(RunId("r"), 5, 2, NOON, Generation(3), 4, gave_up=True)
        full = replace(stage_state_row(), head=checkpoint_of(3), chosen=True, former=Lineage("l0"), late_rows=late_rows)
        async with store.begin() as tx:
            await tx.fleet.put_stage_states([full])
            await tx.fleet.put_stage_states([stage_state_row("other")])
        async with store.begin() as tx:
            assert list(await tx.fleet.stage_states(JOB)) == [full, stage_state_row("other")]
            assert await tx.fleet.stage_state(full.key) == full
            assert list(await tx.fleet.stage_states(JOB, only_chosen=True)) == [full]
            for _ in range(2):
                await tx.fleet.drop_stage_states(JOB, [full.key])
            await tx.fleet.drop_stage_states(JOB, [])
            assert await tx.fleet.stage_state(full.key) is None
        async with store.read() as tx:
            assert list(await tx.fleet.stage_states(JOB)) == [stage_state_row("other")]

    async def test_a_statement_writes_or_drops_the_states_of_up_to_a_thousand_stages(self, store: Store) -> None:
        rows = [stage_state_row(f"t-{number:04}") for number in range(2_001)]
        with listening(store) as heard:
            async with store.begin() as tx:
                await tx.fleet.put_stage_states(rows)
                await tx.fleet.drop_stage_states(JOB, [row.key for row in rows[1:]])
        assert [len([each for each in heard if each.sql.startswith(verb)]) for verb in ("INSERT INTO stores", "DELETE FROM stores")] == [
            3,
            2,
        ]
        async with store.read() as tx:
            assert list(await tx.fleet.stage_states(JOB)) == rows[:1]
