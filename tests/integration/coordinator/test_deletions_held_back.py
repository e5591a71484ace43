"""Deletions that are held back: after a restart, and while the clock has jumped ahead (docs/waits.md)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from coordinator.snapshots.catalog import PinSpec
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.retention import Retention
from tests.contracts.rows import JOB
from tests.support.backups import RUN, TTL, new_world

DAY = timedelta(days=1)


async def test_after_a_restart_nothing_is_swept_before_overdue_ttls_are_removed() -> None:
    """The last snapshot of a job is reported, the run stops, and the coordinator is shut down before it has removed the TTLs. It starts
    again after more than the TTL."""
    world = new_world()
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"v1"})
    head = await world.commit(agent)
    await world.released()
    async with world.store.begin() as tx:
        run = await tx.runs.get(RUN)
        assert run is not None
        await tx.runs.put(replace(run, state=RunState.STOPPED, stop_requested_at=world.clock.now(), ended_at=world.clock.now()))
    world.clock.advance((TTL + DAY).total_seconds())

    world.wire(world.blobs)  # as in the lifespan of coordinator/app.py
    await world.snapshots.recover()
    world.hold.check_start(max(world.snapshots.newest.values(), default=None))
    assert await world.sweep.run_once() == {"held_back": 1}
    assert head in await world.retained()
    await world.check_retained()


async def test_no_pin_expires_and_no_snapshot_is_retired_while_the_clock_has_jumped_ahead() -> None:
    world = new_world(Retention(1))
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"v1"})
    pinned = await world.commit(agent)
    await world.catalog.pin(JOB, PinSpec("p", None, None, None, "", timedelta(days=30)))
    await world.run_batch(agent, {"a": b"v2"})
    await world.commit(agent)
    await world.clean_up.run_once()
    assert pinned in await world.retained()

    world.clock.jump(31 * DAY)
    assert await world.retire.run_once() == {"held_back": 1}
    await world.run_batch(agent, {"a": b"v3"})
    await world.commit(agent)
    await world.clean_up.run_once()
    world.clock.jump(-31 * DAY)
    assert pinned in await world.retained()
