"""Deployments during which the database changes, between the reads and the writes of the deployment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest

from coordinator.api.runs import spec_of
from coordinator.fleet.acting import Acting
from coordinator.fleet.leases import Leases
from coordinator.fleet.notices import Notices
from coordinator.fleet.registration import Registration, Registrations
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.groupers import Groupers
from coordinator.runs.deploy import Deployments
from coordinator.runs.runs import Runs
from coordinator.store.runs import RunRow
from coordinator.store.sql import Store
from sluice.core.errors import RunIsDraining, StaleRun
from sluice.core.ids import ExecutionContainerId, JobName, ProcessorId, RunId
from sluice.core.leases.lease import LeasePolicy
from sluice.core.lifecycle import RunState
from sluice.streams.port import Offsets
from sluice.wire import runs as wire_runs
from tests.support.api import run_body
from tests.support.databases import temporary_store
from tests.support.fakes import FakeClock, no_blob_stores
from tests.support.streams import TwoPartitions


class SlowSystem(TwoPartitions):
    """Runs an action when the start of a stream is looked up."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def earliest(self, stream: str) -> Offsets:
        if self.meanwhile is not None:
            happening, self.meanwhile = self.meanwhile, None
            await happening()
        return await super().earliest(stream)


class World:
    """The services of a coordinator around one database."""

    def __init__(self, policy: LeasePolicy | None = None) -> None:
        numbers = count(1)
        self.clock = clock = FakeClock()
        self.store = temporary_store(Store)
        self.system = SlowSystem()
        notices = Notices(self.store)
        self.leases = Leases(policy or LeasePolicy(lease=timedelta(seconds=30)), clock)
        models = JobModels(self.store)
        self.acting = Acting(self.leases, clock, models.decoded)
        self.registrations = Registrations(self.store, self.leases, notices, clock, self.acting)
        self.deployments = Deployments(
            self.store,
            {"log": self.system},
            models,
            notices,
            clock,
            lambda job, at: RunId(f"{job}-{next(numbers)}"),
            Groupers(),
            no_blob_stores(),
        )
        self.runs = Runs(self.store, models, notices, clock)

    async def deploy(self, **changes: object) -> RunRow:
        return await self.deployments.deploy(spec_of(wire_runs.RunRequest.model_validate(run_body(**changes))))

    async def register(self, run: RunRow, execution_id: str, slot: str = "0") -> object:
        return await self.registrations.register(
            run.run_id, Registration(ProcessorId(slot), ExecutionContainerId(execution_id), "h", False, None)
        )

    async def row(self, run: RunRow) -> RunRow:
        async with self.store.read() as tx:
            found = await tx.runs.get(run.run_id)
        assert found is not None
        return found


@pytest.fixture
def world() -> World:
    return World()


async def test_a_replaced_run_whose_container_registers_meanwhile_ends_with_that_container(world: World) -> None:
    first = await world.deploy()
    world.system.meanwhile = lambda: world.register(first, "c1")
    await world.deploy()
    left = await world.row(first)
    assert (left.state, left.stop_requested_at is not None, left.started_at is not None) == (RunState.RUNNING, True, True)
    await world.registrations.exited(ExecutionContainerId("c1"), 0, "")
    assert (await world.row(first)).state is RunState.STOPPED


async def test_a_run_that_ends_meanwhile_is_not_ended_again(world: World) -> None:
    first = await world.deploy()
    world.system.meanwhile = lambda: world.runs.stop(first.run_id, "by hand", failed=True)
    await world.deploy()
    left = await world.row(first)
    assert (left.state, left.reason) == (RunState.FAILED, "by hand")
    async with world.store.read() as tx:
        assert [row.kind for row in await tx.runs.notices(first.run_id, 0)] == ["STOP", "ENDED"]


async def test_a_deployment_is_refused_if_a_drain_begins_meanwhile(world: World) -> None:
    first = await world.deploy()
    await world.register(first, "c1")

    async def drain() -> None:
        async with world.store.begin() as tx:
            found = await tx.runs.get(first.run_id)
            assert found is not None
            await tx.runs.put(replace(found, state=RunState.DRAINING))

    world.system.meanwhile = drain
    with pytest.raises(RunIsDraining):
        await world.deploy()
    async with world.store.read() as tx:
        current = await tx.runs.current(JobName("flight-delays"))
    assert current == await world.row(first)
    assert current.state is RunState.DRAINING
    assert current.stop_requested_at is None


async def test_a_deployment_is_refused_if_the_former_run_is_drained_meanwhile(world: World) -> None:
    first = await world.deploy()

    async def drained() -> None:
        async with world.store.begin() as tx:
            await tx.runs.put(replace(first, state=RunState.DRAINED, ended_at=world.clock.now()))

    world.system.meanwhile = drained
    with pytest.raises(RunIsDraining, match="in the meantime"):
        await world.deploy()
    assert (await world.row(first)).state is RunState.DRAINED


async def test_a_container_of_the_replaced_run_that_registers_afterwards_is_refused(world: World) -> None:
    first = await world.deploy()
    await world.deploy()
    with pytest.raises(StaleRun):
        await world.register(first, "late")
    assert len(world.leases) == 0


async def test_after_a_restart_a_large_fleet_gets_its_longer_leases_at_once() -> None:
    world = World(LeasePolicy(lease=timedelta(seconds=30), max_rate=0.2))
    run = await world.deploy(containers=2)
    for slot in ("0", "1"):
        await world.register(run, f"c{slot}", slot)
    leases = Leases(world.leases.policy, world.clock)
    assert await Registrations(world.store, leases, Notices(world.store), world.clock, world.acting).recover() == 2
    assert [leases.free_at(ExecutionContainerId(f"c{slot}")) for slot in ("0", "1")] == [world.clock.elapsed() + 65] * 2
