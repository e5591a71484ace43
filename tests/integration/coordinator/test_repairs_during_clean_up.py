"""A repair replaces the index of a snapshot while the time to live of the former index is being removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from coordinator.snapshots.reports import Replacement
from sluice.blobs.port import RequestContext
from sluice.core.errors import BlobUnavailable
from sluice.core.snapshots.indexjson import encoded
from sluice.core.snapshots.retention import Retention
from sluice.core.snapshots.snapshot import BlobId, FileBlob, Kind, walk
from tests.support.backups import ABOUT, KEY, LOCAL, RUN, STAGE, TASK, TTL, new_world


class Hooked:
    """A blob store that calls `before` before each removal of a TTL."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.before: Callable[[BlobId], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def remove_ttl(self, blob: BlobId, about: RequestContext) -> None:
        if self.before is not None:
            await self.before(blob)
        await self._inner.remove_ttl(blob, about)


async def test_the_blobs_of_a_repaired_snapshot_are_kept_although_its_former_index_was_being_kept() -> None:
    world = new_world(Retention(2))
    blobs = Hooked(world.blobs)
    world.wire(blobs)
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"a"})
    await world.commit(agent)
    await world.clean_up.run_once()
    lost = agent.known["a"].blobs[0].blob
    await world.run_batch(agent, {"b": b"b"})
    second = await world.commit(agent)
    former = agent.previous
    assert former is not None

    async def repair(_: BlobId) -> None:
        """The blob of "a" was lost. The owner of the task puts it again, and replaces the index of its newest snapshot."""
        blobs.before = None
        await blobs.delete([lost], ABOUT)
        index, again = await world.index_of(former), world.fresh(Kind.DATA, agent)
        await blobs.put(again, b"a", ABOUT, ttl=TTL)
        files = tuple(replace(f, blobs=(FileBlob(again, 0),)) if f.name == "a" else f for f in index.root.files)
        index = replace(index, root=replace(index.root, files=files))
        put = world.fresh(Kind.SNAPSHOTS, agent)
        await blobs.put(put, encoded(index), ABOUT, ttl=TTL)
        await world.snapshots.replace_index(RUN, TASK, STAGE, Replacement(agent.generation, second, LOCAL, former, put))
        agent.previous, agent.known = put, dict(walk(index.root))

    blobs.before = repair
    await world.clean_up.run_once()  # keeps the former index of the second snapshot; meanwhile it is repaired
    async with world.store.read() as tx:
        row = next(each for each in await tx.snapshots.of_stage(KEY) if each.checkpoint == second)
    marked_kept = row.markers[LOCAL].kept
    mended = agent.previous

    async def fails_once(blob: BlobId) -> None:
        if blob in (await world.index_of(mended)).blobs:  # type: ignore[arg-type]
            blobs.before = None
            raise BlobUnavailable("the store is away for a moment")

    blobs.before = fails_once
    for number in range(3):  # three more commits within the pause of the task that failed, so that the repaired one is retired
        await world.run_batch(agent, {f"c{number}": b"c"})
        await world.commit(agent)
        await world.clean_up.run_once()
        world.clock.advance(1)
    world.clock.advance(3600)
    await world.clean_up.run_once()
    world.clock.advance((TTL + timedelta(days=1)).total_seconds())
    await world.clean_up.run_once()
    await world.sweep.run_once()
    await world.check_retained()
    assert not marked_kept
