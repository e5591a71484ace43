"""The catalog of a restored database is completed from the blob store: snapshots that it lacks survive garbage collection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.snapshots.merge import complete
from sluice.blobs.port import Purpose, RequestContext
from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation
from sluice.core.snapshots.retention import Retention
from tests.support.backups import KEY, TASK, Agent, World, new_world


async def committing(*bodies: bytes, world: World | None = None) -> tuple[World, Agent]:
    """A world whose task has committed each of these as the contents of a file."""
    world = world or new_world(Retention(5))
    await world.begin()
    agent = await world.acquired()
    for body in bodies:
        await world.run_batch(agent, {"state": body})
        await world.commit(agent)
    return world, agent


async def restore(world: World, snapshots: int) -> None:
    """The database is as after so many snapshots, and the task's first owner."""
    async with world.store.begin() as tx:
        rows = sorted(await tx.snapshots.of_stage(KEY), key=lambda row: row.seq)
        for row in rows[snapshots:]:
            await tx.snapshots.drop(row.job, row.seq)
        state = await tx.fleet.stage_state(KEY)
        assert state is not None
        last = rows[snapshots - 1]
        await tx.fleet.put_stage_state(replace(state, head=last.checkpoint, batch_id=last.batch_id, offsets=last.offsets))
        held = await tx.fleet.owner(KEY.job, TASK)
        assert held is not None
        await tx.fleet.put_owner(replace(held, owner=replace(held.owner, generation=Generation(1))))


async def test_snapshots_that_the_database_lacks_are_added_and_survive_garbage_collection() -> None:
    world, agent = await committing(b"one", b"two", b"three")
    await restore(world, 1)
    assert await complete(world.store, world.blob_stores, world.clock) == {"snapshots": 2}
    await world.tidy()
    assert set(await world.retained()) == set(world.kept)
    await world.check_retained()
    await world.run_batch(agent, {"state": b"four"})
    await world.commit(agent)
    assert len(await world.retained()) == 4


async def test_a_catalog_is_completed_once() -> None:
    world, _ = await committing(b"one", b"two")
    await restore(world, 1)
    await complete(world.store, world.blob_stores, world.clock)
    assert sum((await complete(world.store, world.blob_stores, world.clock)).values()) == 0


async def test_the_owner_that_the_restored_database_names_is_no_owner_if_a_later_one_has_committed() -> None:
    world, first = await committing(b"one")
    second = await world.acquired()
    await world.run_batch(second, {"state": b"two"})
    await world.commit(second)
    await restore(world, 1)
    await complete(world.store, world.blob_stores, world.clock)
    for agent in (first, second):
        blob, index = await world.upload(agent)
        with pytest.raises(LeaseLost):
            await world.report(agent, blob, index)
    third = await world.acquired()
    assert (third.generation, third.files) == (3, {"state": b"two"})


async def test_a_snapshot_that_was_collected_after_the_copy_was_made_leaves_the_catalog() -> None:
    world, _ = await committing(b"one", b"two", b"three")
    oldest = min(await world.retained())
    async with world.store.read() as tx:
        lost = next(row for row in await tx.snapshots.of_stage(KEY) if row.checkpoint == oldest)
    await world.blobs.delete([(await world.retained())[oldest]], RequestContext(Purpose.AUDIT))
    await restore(world, 2)
    assert await complete(world.store, world.blob_stores, world.clock) == {"snapshots": 1, "removed": 1}
    assert lost.checkpoint not in await world.retained()


async def test_nothing_is_deleted_while_the_catalog_may_be_incomplete() -> None:
    world, _ = await committing(b"one", b"two", b"three", world=new_world(Retention(1)))
    world.incomplete = True
    before, retained = await world.listed(), await world.retained()
    await world.tidy()
    assert (await world.listed(), await world.retained()) == (before, retained)
    world.incomplete = False
    await world.tidy()
    assert len(await world.retained()) == 1
