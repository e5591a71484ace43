"""What retirements read: they are repeated for each stage of each task of a job."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.snapshots.cleanup import retire
from sluice.core.ids import Ssp, StageKey, TaskName
from sluice.core.jobmodels.grouping import PreviousAssignment
from sluice.core.snapshots.retention import Retention
from tests.contracts.query_plans import Statement, listening
from tests.contracts.rows import JOB, SSP, pin_row, snapshot_row
from tests.support.backups import KEY, STAGE, TASK, World, new_world

TASKS = [TaskName(f"Partition {number}") for number in range(6)]


async def of_many_tasks() -> World:
    """A job of many tasks, each with a pin. The first task also has two snapshots."""
    world = new_world(Retention(1))
    await world.begin()
    await assigned(world, TASKS)
    async with world.store.begin() as tx:
        for task in TASKS[1:]:
            await tx.snapshots.put_pins([pin_row(task=task, stage=STAGE)])
        for seq in (1, 2):
            await tx.snapshots.put_all([snapshot_row(seq, TASK, STAGE)])
    return world


async def assigned(world: World, tasks: Sequence[TaskName]) -> None:
    owners = {Ssp(SSP.system, SSP.stream, number): task for number, task in enumerate(tasks)}
    async with world.store.begin() as tx:
        await tx.jobmodels.put_assignment(JOB, PreviousAssignment(owners, {SSP.stream_id: len(owners)}, "g"))


def without_task(heard: Sequence[Statement], table: str) -> list[str]:
    """The reads of the table that do not name the task."""
    return [each.sql for each in heard if f"FROM {table}" in each.sql and TASK not in each.parameters]


async def test_the_retirement_of_a_stage_reads_the_pins_of_that_stage_only() -> None:
    world = await of_many_tasks()
    with listening(world.store) as heard:
        async with world.store.begin() as tx:
            assert await retire(tx, KEY, world.retention, world.clock.now()) == 1
    assert without_task(heard, "pins") == []


async def test_the_removal_of_a_stage_that_the_job_no_longer_has_reads_the_pins_of_that_stage_only() -> None:
    world = await of_many_tasks()
    await assigned(world, TASKS[1:])
    world.clock.advance(world.retire.after.total_seconds() + 1)
    with listening(world.store) as heard:
        assert await world.retire.run_once() == {"stores": 1}
    assert without_task(heard, "pins") == []
    assert await world.retained() == {}


async def test_the_assignment_of_a_job_is_read_once_for_all_its_stages() -> None:
    world = await of_many_tasks()
    async with world.store.begin() as tx:
        for seq, task in enumerate(TASKS, 3):
            await tx.snapshots.put_all([snapshot_row(seq, task, STAGE)])
    await assigned(world, TASKS[:3])
    world.clock.advance(world.retire.after.total_seconds() + 1)
    with listening(world.store) as heard:
        assert await world.retire.run_once() == {"stores": 3, "snapshots": 2}
    assert len([each.sql for each in heard if "FROM assignments" in each.sql]) == 1
    async with world.store.read() as tx:
        assert await tx.snapshots.stages(JOB) == [StageKey(JOB, task, STAGE) for task in TASKS[:3]]
