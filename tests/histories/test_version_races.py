"""Concurrent changes of a run's job model, and crashes of the coordinator during a change: the result is the complete old version or the
complete new one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from coordinator.api.runs import spec_of
from coordinator.fleet.acting import Acting
from coordinator.fleet.leases import Leases
from coordinator.fleet.notices import Notices
from coordinator.fleet.registration import Registration, Registrations
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.groupers import Groupers
from coordinator.jobmodels.partition_monitor import PartitionMonitor
from coordinator.jobmodels.rollout import ModelHistory
from coordinator.jobmodels.versions import Change, ChangeReason, ModelChange, ModelVersions, hypothetical
from coordinator.runs.deploy import Deployments
from coordinator.runs.runs import Runs
from coordinator.store.runs import RunRow
from coordinator.store.sql import Store, WriteTransaction
from sluice.core.errors import RunIsDraining, StaleRun, StreamUnavailable, VersionConflict
from sluice.core.ids import ExecutionContainerId, JobName, ProcessorId, RunId, Ssp, TaskName
from sluice.core.jobmodels.grouping import PreviousAssignment
from sluice.core.leases.lease import LeasePolicy
from sluice.core.lifecycle import RunState
from sluice.streams.port import Offsets
from sluice.wire import runs as wire_runs
from tests.support.api import run_body
from tests.support.databases import temporary_store
from tests.support.fakes import FakeClock, no_blob_stores, with_blob_stores
from tests.support.streams import TwoPartitions

REASON = ChangeReason("somebody", "because")


class Died(Exception):
    """The coordinator's process has died."""


class DyingStore(Store):
    """The coordinator dies at the `calls_left`-th call of an aggregate in a writing transaction; never while that is None."""

    calls_left: int | None = None

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[WriteTransaction]:
        async with super().begin() as tx:
            yield tx if self.calls_left is None else _Dying(self, tx)  # type: ignore[misc]


class _Dying:
    def __init__(self, store: DyingStore, tx: WriteTransaction) -> None:
        self._store = store
        self._tx = tx

    def __getattr__(self, aggregate: str) -> Any:
        return _DyingAggregate(self._store, getattr(self._tx, aggregate))


class _DyingAggregate:
    def __init__(self, store: DyingStore, aggregate: object) -> None:
        self._store = store
        self._aggregate = aggregate

    def __getattr__(self, name: str) -> Any:
        assert self._store.calls_left is not None
        self._store.calls_left -= 1
        if self._store.calls_left < 0:
            raise Died(name)
        return getattr(self._aggregate, name)


class GrowingSystem(TwoPartitions):
    """Runs an action when the start of a stream is looked up."""

    def __init__(self) -> None:
        self.count = 2
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def partitions(self, stream: str) -> int:
        return self.count if stream == "flights" else 2

    async def earliest(self, stream: str) -> Offsets:
        if self.meanwhile is not None:
            happening, self.meanwhile = self.meanwhile, None
            await happening()
        return dict.fromkeys(range(self.count), 0)


class World:
    """The services of a coordinator around one database."""

    def __init__(self) -> None:
        numbers = count(1)
        self.clock = clock = FakeClock()
        self.store = temporary_store(DyingStore)
        self.system = GrowingSystem()
        systems = {"log": self.system}
        self.models, notices, names = JobModels(self.store), Notices(self.store), Groupers()
        self.leases = Leases(LeasePolicy(lease=timedelta(seconds=30)), clock)
        self.registrations = Registrations(self.store, self.leases, notices, clock, Acting(self.leases, clock, self.models.decoded))
        self.deployments = Deployments(
            self.store,
            systems,
            self.models,
            notices,
            clock,
            lambda job, at: RunId(f"{job}-{next(numbers)}"),
            names,
            no_blob_stores(),
        )
        self.runs = Runs(self.store, self.models, notices, clock)
        self.versions = ModelVersions(
            self.store, systems, self.models, notices, clock, names, self.leases.set_model_version, with_blob_stores()
        )
        self.history = ModelHistory(self.store, self.models, clock, self.versions.in_force, with_blob_stores())
        self.watch = PartitionMonitor(self.store, systems, self.versions, clock, timedelta(seconds=60))

    async def deploy(self, **changes: object) -> RunRow:
        return await self.deployments.deploy(spec_of(wire_runs.RunRequest.model_validate(run_body(**changes))))

    async def grow(self, run: RunRow, partitions: int = 4, asked: ChangeReason = REASON) -> Change:
        self.system.count = partitions
        return await self.versions.change(run.run_id, ModelChange(counts=hypothetical(run, {"flights": partitions})), asked)

    async def row(self, run: RunRow) -> RunRow:
        async with self.store.read() as tx:
            found = await tx.runs.get(run.run_id)
        assert found is not None
        return found

    async def everything(self, run: RunRow) -> tuple[object, ...]:
        """Everything that a version of the run's model consists of."""
        async with self.store.read() as tx:
            newest = await tx.jobmodels.page(run.job, None, 9)
            notices = [row.detail.get("version") for row in await tx.runs.notices(run.run_id, 0)]
            return (
                newest,
                await tx.runs.get(run.run_id),
                await tx.jobmodels.assignment(run.job),
                dict(await tx.runs.start_offsets(run.run_id)),
                notices,
            )


@pytest.fixture
def world() -> World:
    return World()


async def test_a_coordinator_that_dies_at_any_call_leaves_the_complete_old_version_or_the_complete_new_one(world: World) -> None:
    run = await world.deploy()
    old = await world.everything(run)
    for calls in count():
        world.store.calls_left = calls
        try:
            await world.grow(run)
        except Died:
            assert await world.everything(run) == old
            assert world.models.served(run.job).headers["sluice-job-model-version"] == "1"
        else:
            break
    assert calls > 6
    world.store.calls_left = None
    _, changed, assignment, starts, notices = await world.everything(run)
    assert isinstance(changed, RunRow)
    assert isinstance(assignment, PreviousAssignment)
    assert (changed.model_version, changed.spec.streams[0].partitions, notices) == (2, 4, [2])
    assert assignment.tasks[Ssp("log", "flights", 3)] == TaskName("Partition 1")
    assert starts == {Ssp("log", "flights", p): 0 for p in range(4)}
    again = JobModels(world.store)
    await again.recover()
    assert again.served(run.job).headers["sluice-job-model-version"] == "2"


async def test_a_coordinator_that_dies_at_any_call_of_a_roll_back_has_changed_nothing(world: World) -> None:
    run = await world.deploy()
    world.clock.advance(1)
    await world.grow(run)
    grown = await world.everything(run)
    for calls in count():
        world.store.calls_left = calls
        try:
            await world.history.roll_back(JobName("flight-delays"), 1, REASON)
        except Died:
            assert await world.everything(run) == grown
        else:
            break
    world.store.calls_left = None
    assert calls > 6
    assert (await world.row(run)).model_version == 3


async def test_of_two_changes_planned_from_one_version_the_second_is_refused_and_changes_nothing(world: World) -> None:
    run = await world.deploy()
    scaled = ModelChange(containers=2)
    world.system.meanwhile = lambda: world.versions.change(run.run_id, scaled, REASON)
    with pytest.raises(VersionConflict, match="version 2 of the job model of flight-delays is in force, not version 1"):
        await world.grow(run)
    left = await world.row(run)
    assert (left.model_version, left.spec.containers, left.spec.streams[0].partitions) == (2, 2, 2)
    await world.grow(left)
    assert (await world.row(run)).model_version == 3


async def test_a_run_that_is_stopped_meanwhile_does_not_grow(world: World) -> None:
    run = await world.deploy()
    await world.registrations.register(run.run_id, Registration(ProcessorId("0"), ExecutionContainerId("c1"), "h", False, None))
    world.system.meanwhile = lambda: world.runs.stop(run.run_id, "by hand", failed=False)
    with pytest.raises(StaleRun):
        await world.grow(run)
    assert (await world.row(run)).model_version == 1


async def test_a_run_that_begins_to_drain_meanwhile_does_not_grow(world: World) -> None:
    run = await world.deploy()

    async def drain() -> None:
        async with world.store.begin() as tx:
            await tx.runs.put(replace(run, state=RunState.DRAINING))

    world.system.meanwhile = drain
    with pytest.raises(RunIsDraining):
        await world.grow(run)
    assert (await world.row(run)).model_version == 1


async def test_a_run_that_is_replaced_meanwhile_does_not_grow_and_the_next_one_has_all_partitions(world: World) -> None:
    run = await world.deploy()
    world.system.meanwhile = world.deploy
    with pytest.raises(StaleRun):
        await world.grow(run)
    async with world.store.read() as tx:
        second = await tx.runs.current(run.job)
        assert second is not None
        assert set(await tx.runs.start_offsets(second.run_id)) == {Ssp("log", "flights", p) for p in range(4)}


async def test_a_deployment_during_which_the_former_run_grows_is_planned_again(world: World) -> None:
    run = await world.deploy()
    world.system.meanwhile = lambda: world.grow(run)
    second = await world.deploy()
    assert second.spec.streams[0].partitions == 4
    async with world.store.read() as tx:
        assert len((await tx.jobmodels.assignment(run.job)).tasks) == 4
        assert [head.version for head in await tx.jobmodels.page(run.job, None, 9)] == [2, 1]
    assert (second.model_version, (await world.row(run)).model_version) == (2, 2)


async def test_a_system_that_fails_before_the_store_is_read_changes_nothing(world: World) -> None:
    run = await world.deploy()
    before = await world.everything(run)

    async def fail() -> None:
        raise StreamUnavailable("the cluster is away")

    world.system.meanwhile = fail
    with pytest.raises(StreamUnavailable):
        await world.grow(run)
    assert await world.everything(run) == before
    world.system.meanwhile = fail
    await world.watch.run_once()
    async with world.store.read() as tx:
        (row,) = await tx.jobmodels.monitored(run.job)
    assert (row.verdict, row.known, row.seen) == ("UNKNOWN", 2, 4)
    assert "log.flights has 4 partitions: the cluster is away" in row.reason
    assert await world.watch.run_once() == {"changed": 1, "grown": 1}


async def test_a_roll_back_while_the_monitor_counts_partitions_stays_in_force(world: World) -> None:
    run = await world.deploy()
    world.clock.advance(1)
    await world.grow(run)

    async def back() -> None:
        await world.history.roll_back(JobName("flight-delays"), 1, REASON)

    counted = world.system.partitions

    async def partitions(stream: str) -> int:
        if (await world.row(run)).model_version == 2:
            await back()
        return await counted(stream)

    world.system.partitions = partitions  # type: ignore[method-assign]
    await world.watch.run_once()
    await world.watch.run_once()
    left = await world.row(run)
    assert (left.model_version, left.spec.streams[0].partitions) == (3, 2)
    async with world.store.read() as tx:
        (row,) = await tx.jobmodels.monitored(run.job)
    assert (row.kept_from, row.verdict) == (4, "REFUSED")
