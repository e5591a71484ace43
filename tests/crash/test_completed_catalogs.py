"""The catalog of a restored database is completed from the blob store: snapshots that it lacks survive garbage collection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf

import pytest
from sqlalchemy import event

from coordinator.snapshots.merge import complete
from coordinator.store.sql import Store
from coordinator.store.tables import metadata
from sluice.blobs.port import ListedBlob, Purpose, RequestContext
from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation
from sluice.core.snapshots.retention import Retention
from tests.contracts.rows import NOON
from tests.support.backups import GRACE, KEY, TASK, Agent, World, new_world
from tests.support.databases import temporary_store
from tests.support.fakes import FakeClock
from tests.support.memory import MemoryBlobs


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
    """Set the database back to the state after that many snapshots, with the task's first owner."""
    async with world.store.begin() as tx:
        rows = sorted(await tx.snapshots.of_stage(KEY), key=lambda row: row.seq)
        for row in rows[snapshots:]:
            await tx.snapshots.drop(row.job, [row.seq])
        state = await tx.fleet.stage_state(KEY)
        assert state is not None
        last = rows[snapshots - 1]
        await tx.fleet.put_stage_states([replace(state, head=last.checkpoint, batch_id=last.batch_id, offsets=last.offsets)])
        held = await tx.fleet.owner(KEY.job, TASK)
        assert held is not None
        await tx.fleet.put_owners([replace(held, owner=replace(held.owner, generation=Generation(1)))])


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


async def test_the_owner_in_a_restored_database_is_fenced_if_a_later_one_has_committed() -> None:
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


class Killed(BaseException):
    """The process has ended."""


class Statements:
    """Ends the process at the statement with this number, counted from 1."""

    def __init__(self, last: float) -> None:
        self.sent = 0
        self._last = last

    def __call__(self, *_: object) -> None:
        self.sent += 1
        if self.sent > self._last:
            raise Killed


@contextmanager
def ended_after(world: World, last: float = inf) -> Iterator[Statements]:
    statements, engine = Statements(last), world.store.engine.sync_engine
    event.listen(engine, "before_cursor_execute", statements)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", statements)


async def rows_of(world: World) -> Mapping[str, object]:
    """The whole database, except the random id with which it owns the blob store."""
    async with world.store.engine.connect() as connection:
        kept = [table for table in metadata.sorted_tables if table.name != "registries"]
        return {table.name: sorted(map(str, await connection.execute(table.select()))) for table in kept}


async def older(world: World) -> None:
    """The copy was made after the first snapshot, under the first owner."""
    await restore(world, 1)


async def empty(world: World) -> None:
    """The copy was made before the job was deployed."""
    world.store = temporary_store(Store)
    world.wire(world.blobs)


@pytest.mark.parametrize("put_back", [older, pytest.param(empty, marks=pytest.mark.long)])
async def test_a_completion_that_is_killed_at_any_statement_is_finished_by_the_next(put_back: Callable[[World], Awaitable[None]]) -> None:
    async def behind() -> World:
        world, _ = await committing(b"one", b"two")
        await world.run_batch(later := await world.acquired(), {"state": b"three"})
        await world.commit(later)
        await put_back(world)
        return world

    world = await behind()
    with ended_after(world) as statements:
        await complete(world.store, world.blob_stores, world.clock)
    whole, last = await rows_of(world), statements.sent
    assert last > 10
    for sent in range(last):
        world = await behind()
        with ended_after(world, sent), pytest.raises(Killed):
            await complete(world.store, world.blob_stores, world.clock)
        world.wire(world.blobs)
        await complete(world.store, world.blob_stores, world.clock)
        assert await rows_of(world) == whole, f"ended after {sent} of {last} statements"
        assert sum((await complete(world.store, world.blob_stores, world.clock)).values()) == 0
        assert await rows_of(world) == whole


class BlobByBlob(MemoryBlobs):
    """Lists one blob a page. `between` runs once, after the first."""

    between: Callable[[], Awaitable[None]] | None = None

    async def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        async for page in super().list(prefix, about, after=after):
            for each in page:
                yield [each]
                if self.between is not None and prefix == "jobs/":
                    between, self.between = self.between, None
                    await between()


async def test_a_pass_that_began_before_the_catalog_was_complete_deletes_nothing_that_was_added_since() -> None:
    clock = FakeClock(start=NOON)
    blobs = BlobByBlob(clock)
    world, _ = await committing(b"one", b"two", world=World(blobs, clock, temporary_store(Store), Retention(5)))
    async with world.store.begin() as tx:  # the copy was made before the stage began
        for row in await tx.snapshots.of_stage(KEY):
            await tx.snapshots.drop(row.job, [row.seq])
        await tx.fleet.drop_stage_states(KEY.job)
    world.incomplete = True
    assert (await world.collection.run_once())["condemned"] > 2
    clock.advance(GRACE.total_seconds() + 1)

    async def completed() -> None:
        await complete(world.store, world.blob_stores, world.clock)
        world.incomplete = False

    blobs.between = completed
    await world.collection.run_once()
    assert set(await world.retained()) == set(world.kept)
    assert await world.needed() <= await world.listed()
    await world.check_retained()
