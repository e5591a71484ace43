"""A rebuild, and the completion of a restored catalog, of jobs with many tasks. On PostgreSQL a transaction has a time limit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from coordinator.snapshots.merge import STAGES_PER_TRANSACTION, complete
from coordinator.snapshots.rebuild import RebuiltCatalog, write
from sluice.core.ids import Generation, Lineage, StageKey, TaskName
from sluice.core.snapshots.indexjson import encoded
from sluice.core.snapshots.snapshot import CommitId, DirIndex, Kind, SnapshotIndex, SnapshotMetadata, fresh_blob_id
from tests.contracts.query_plans import Statement, listening
from tests.contracts.rows import JOB, snapshot_row, stage_state_row
from tests.support.backups import ABOUT, STAGE, World, new_world


def keys(tasks: int) -> list[StageKey]:
    return [StageKey(JOB, TaskName(f"Partition {number}"), STAGE) for number in range(tasks)]


def rebuilt(tasks: int) -> RebuiltCatalog:
    """Two snapshots of each task."""
    found = RebuiltCatalog()
    for number, key in enumerate(keys(tasks)):
        rows = [snapshot_row(2 * number + each, key.task, key.stage) for each in (0, 1)]
        found.snapshots += rows
        found.stores.append(replace(stage_state_row(key.task, key.stage), head=rows[-1].checkpoint))
        found.generations[key] = Generation(1)
    return found


@pytest.mark.parametrize("force", [False, True])
async def test_the_number_of_statements_of_a_rebuild_does_not_grow_with_the_number_of_tasks(*, force: bool) -> None:
    executed = []
    for tasks in (4, 40):
        world = new_world()
        for _ in range(1 + force):
            with listening(world.store) as heard:
                await write(world.store, world.blob_stores, world.clock, rebuilt(tasks), force=force)
        async with world.store.read() as tx:
            assert list(await tx.snapshots.stages(JOB)) == sorted(keys(tasks), key=str)
            assert {row.task: row.owner.generation for row in await tx.fleet.owners(JOB)} == {key.task: 1001 for key in keys(tasks)}
        executed.append(Counter(each.sql for each in heard))
    few, many = executed
    assert many - few == {}


async def upload(world: World, key: StageKey, number: int) -> None:
    """Upload a snapshot without files."""
    checkpoint = CommitId(f"{1_700_000_000_000 + number}-123456")
    index = SnapshotIndex(
        number, SnapshotMetadata(checkpoint, key.job, key.task, key.stage), DirIndex("", ()), None, Generation(1), Lineage("l"), number
    )
    await world.blobs.put(fresh_blob_id(key, Kind.SNAPSHOTS, number, f"{number:016x}"), encoded(index), ABOUT)


def per_transaction(heard: list[Statement]) -> list[int]:
    """The number of statements in each write transaction."""
    counts: list[int] = []
    for each in heard:
        if each.sql == "BEGIN IMMEDIATE":
            counts.append(0)
        elif counts:
            counts[-1] += 1
    return counts


async def test_the_completion_of_a_catalog_begins_another_transaction_after_some_stages() -> None:
    world = new_world()
    await world.begin()
    tasks = keys(2 * STAGES_PER_TRANSACTION + 1)
    for number, key in enumerate(tasks):
        await upload(world, key, number)
    with listening(world.store) as heard:
        assert await complete(world.store, world.blob_stores, world.clock) == {"snapshots": len(tasks)}
    assert max(per_transaction(heard)) <= 15 * STAGES_PER_TRANSACTION
    async with world.store.read() as tx:
        assert len(await tx.snapshots.stages(JOB)) == len(tasks)
    assert sum((await complete(world.store, world.blob_stores, world.clock)).values()) == 0
