"""Restarts of the coordinator, with the same settings or others, while containers may act."""

from __future__ import annotations

from pathlib import Path

from coordinator.fleet.expiry import LowerLeaseBounds
from tests.support.api import Caller, calling, run_body
from tests.support.fakes import FakeClock


async def acquiring(caller: Caller) -> str:
    """A run whose task is owned by c1."""
    caller.log.create("flights", 2)
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "c1")
    await caller.acquired(run_id, "c1")
    return run_id


async def lower(caller: Caller) -> int:
    """The number of bounds that the chore has lowered."""
    parts = caller.coordinator.api.state.parts
    return sum((await LowerLeaseBounds(parts.health.store, parts.leases).run_once()).values())


async def test_a_shorter_lease_after_a_restart_waits_for_the_longer_one_that_a_container_has(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock, lease_seconds=300) as before:
        run_id = await acquiring(before)
    async with calling(home, clock, lease_seconds=40) as after:
        await after.registered(run_id, "c2")
        for _ in range(16):
            clock.advance(19)
            assert await after.alive("c2", 2)
        assert (await after.acquire(run_id, "c2", 2)).json()["waitSeconds"] == 1
        clock.advance(1)
        assert (await after.acquired(run_id, "c2", 2))["generation"] == 2


async def test_a_container_that_was_replaced_before_the_restart_has_the_longer_lease_too(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock, lease_seconds=300) as before:
        run_id = await acquiring(before)
        await before.registered(run_id, "c2")
    async with calling(home, clock, lease_seconds=40) as after:
        clock.advance(304)
        assert await after.alive("c2", 2)
        assert (await after.acquire(run_id, "c2", 2)).status_code == 202
        clock.advance(1)
        assert (await after.acquired(run_id, "c2", 2))["generation"] == 2


async def test_a_container_that_was_seen_after_the_restart_has_the_shorter_lease_when_the_longer_has_expired(
    home: Path, clock: FakeClock
) -> None:
    async with calling(home, clock, lease_seconds=300) as before:
        run_id = await acquiring(before)
    async with calling(home, clock, lease_seconds=40) as after:
        for _ in range(31):
            clock.advance(10)
            assert (await after.beat("c1", 1)).headers["Sluice-Lease-Seconds"] == "40"
        await after.registered(run_id, "c2")
        assert (await after.acquire(run_id, "c2", 2)).json()["waitSeconds"] == 45


async def test_after_a_shorter_grace_period_the_margin_of_a_running_container_still_applies(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock, margin_seconds=0.5, grace_seconds=20) as before:
        run_id = await acquiring(before)
    async with calling(home, clock, margin_seconds=10, grace_seconds=0, heartbeat_seconds=5) as after:
        assert await after.alive("c1", 1)
        await after.registered(run_id, "c2")
        assert (await after.acquire(run_id, "c2", 2)).json()["waitSeconds"] == 50


async def test_a_fleet_that_has_shrunk_before_the_restart_is_waited_for_with_the_leases_of_the_larger_one(
    home: Path, clock: FakeClock
) -> None:
    settings = {"heartbeat_max_rate": 0.2}
    async with calling(home, clock, **settings) as before:
        run_id = await acquiring(before)
        await before.registered((await before.deploy(run_body(job="other")))["runId"], "other")
        assert (await before.beat("c1", 1)).headers["Sluice-Lease-Seconds"] == "60"
        await before.exited("other")
    async with calling(home, clock, **settings) as after:
        await after.registered(run_id, "c2")
        assert (await after.acquire(run_id, "c2", 2)).json()["waitSeconds"] == 65


async def test_the_longer_lease_no_longer_applies_when_no_container_can_have_it(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock, lease_seconds=300, bare_lease_seconds=200) as before:
        run_id = await acquiring(before)
    async with calling(home, clock, lease_seconds=40, bare_lease_seconds=160) as after:
        clock.advance(300)
        assert await after.alive("c1", 1)
        assert await lower(after) == 0
        clock.advance(30)
        assert await after.alive("c1", 1)
        assert (await lower(after), await lower(after)) == (1, 0)
    async with calling(home, clock, lease_seconds=40) as again:
        await again.registered(run_id, "c2")
        assert (await again.acquire(run_id, "c2", 2)).json()["waitSeconds"] == 45


async def test_a_restart_soon_after_a_restart_waits_for_the_longest_lease_again(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock, lease_seconds=300) as before:
        run_id = await acquiring(before)
    async with calling(home, clock, lease_seconds=40):
        clock.advance(200)
    async with calling(home, clock, lease_seconds=40) as again:
        await again.registered(run_id, "c2")
        assert (await again.acquire(run_id, "c2", 2)).json()["waitSeconds"] == 305


async def test_without_a_container_the_bounds_are_those_of_the_settings(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock, lease_seconds=300, grace_seconds=50) as before:
        run_id = await acquiring(before)
        await before.exited("c1")
    async with calling(home, clock, lease_seconds=40, grace_seconds=5) as after:
        await after.registered(run_id, "c2")
        await after.acquired(run_id, "c2", 2)
        await after.registered(run_id, "c3")
        assert (await after.acquire(run_id, "c3", 3)).json()["waitSeconds"] == 45
