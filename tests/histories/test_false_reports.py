"""False reports among true ones: no record is deleted before its reader has read it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.api.runs import spec_of
from coordinator.fleet.acting import Acting
from coordinator.fleet.leases import Leases
from coordinator.fleet.notices import Notices
from coordinator.fleet.registration import Registration, Registrations
from coordinator.fleet.report_checks import ReportChecks
from coordinator.fleet.stage_metrics import StageMetrics, StageReport
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.groupers import Groupers
from coordinator.runs.deploy import Deployments
from coordinator.runs.lag import LagMonitor
from coordinator.runs.regrouping import Regrouping
from coordinator.runs.tasks import AcquiredTask, Tasks
from coordinator.runs.trim import TrimStreams
from coordinator.store.sql import Store
from sluice.core.errors import FalseReport, LeaseLost
from sluice.core.ids import ExecutionContainerId, Generation, Lineage, ProcessorId, RunId, Ssp, StageName, TaskName
from sluice.core.leases.lease import LeasePolicy
from sluice.streams.port import Offsets
from sluice.wire import runs as wire_runs
from tests.support.api import chained_body
from tests.support.databases import temporary_store
from tests.support.fakes import FakeClock, no_blob_stores
from tests.support.streams import TwoPartitions

HOURLY = StageName("hourly")
FAR = 10**9
"""An offset beyond all ends."""


@dataclass
class Filling(TwoPartitions):
    """Streams of two partitions that are written to; trims are recorded."""

    ends: dict[int, int] = field(default_factory=lambda: {0: 5, 1: 5})
    trimmed: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})

    async def latest(self, stream: str) -> Offsets:
        return dict(self.ends)

    async def at_time(self, stream: str, when: datetime) -> Offsets:
        return dict(self.ends)

    async def trim(self, stream: str, before: Offsets) -> int:
        self.trimmed = {p: max(at, before.get(p, 0)) for p, at in self.trimmed.items()}
        return 0


@dataclass
class Reader:
    """The owner of one task. `read`: how far it has read its partition."""

    task: TaskName
    generation: Generation
    lineage: Lineage
    batch: int = 0
    read: int = 0


class World:
    """A run of two stages and two tasks; the second stage reads an intermediate stream."""

    def __init__(self) -> None:
        numbers = count(1)
        self.clock = FakeClock()
        self.store = temporary_store(Store)
        self.system = Filling()
        systems, models, notices, metrics = {"log": self.system}, JobModels(self.store), Notices(self.store), StageMetrics()
        self.leases = Leases(LeasePolicy(lease=timedelta(seconds=30)), self.clock)

        def lineage() -> Lineage:
            return Lineage(f"l{next(numbers)}")

        self.lag = LagMonitor(self.store, systems, metrics, self.clock, models.decoded)
        self.checks = ReportChecks(models.decoded, self.lag.ends_after)
        acting, no_stores = Acting(self.leases, self.clock, models.decoded), no_blob_stores()
        regrouping = Regrouping(acting, lineage, self.lag.forget)
        parts = (metrics, self.checks, no_stores, regrouping, acting)
        self.tasks = Tasks(self.store, self.leases, self.clock, models.decoded, lineage, *parts)
        self.deployments = Deployments(
            self.store,
            systems,
            models,
            notices,
            self.clock,
            lambda job, at: RunId(f"{job}-{next(numbers)}"),
            Groupers(),
            no_stores,
        )
        self.registrations = Registrations(self.store, self.leases, notices, self.clock, acting)
        self.trim = TrimStreams(self.store, systems, self.clock, timedelta(0), models.decoded)
        self.run_id, self.readers = RunId(""), list[Reader]()

    async def begin(self) -> None:
        self.system.ends = {0: 0, 1: 0}
        self.run_id = (await self.deployments.deploy(spec_of(wire_runs.RunRequest.model_validate(chained_body(partitions=2))))).run_id
        self.system.ends = {0: 5, 1: 5}
        holder = ExecutionContainerId("c1")
        registered = await self.registrations.register(self.run_id, Registration(ProcessorId("0"), holder, "h", False, None))
        for task in (TaskName("Partition 0"), TaskName("Partition 1")):
            found = await self.tasks.acquire(self.run_id, task, holder, registered.container.epoch)
            assert isinstance(found, AcquiredTask)
            (stage,) = (each for each in found.stages if each.store.stage == HOURLY)
            self.readers.append(Reader(task, found.generation, stage.store.lineage))

    async def report(self, reader: Reader, batch: int, offsets: dict[int, int]) -> None:
        ssps = {Ssp("log", "by-carrier", p): offset for p, offset in offsets.items()}
        await self.tasks.progress(self.run_id, reader.task, HOURLY, StageReport(reader.generation, reader.lineage, batch, ssps))


Step = Callable[[World, int, int], Awaitable[None]]


async def write(world: World, partition: int, number: int) -> None:
    world.system.ends[partition] += number


async def read(world: World, partition: int, number: int) -> None:
    """Read on, and report it."""
    reader = world.readers[partition]
    reader.read = min(world.system.ends[partition], reader.read + number)
    reader.batch += 1
    await world.report(reader, reader.batch, {partition: reader.read})


async def foreign(world: World, partition: int, number: int) -> None:
    """Report the offsets of the other task as read."""
    reader = world.readers[partition]
    await world.report(reader, reader.batch + 1, {partition: reader.read, 1 - partition: world.system.ends[1 - partition]})


async def beyond(world: World, partition: int, number: int) -> None:
    """Report an offset beyond the end; the next survey detects it."""
    reader = world.readers[partition]
    reader.batch += 1
    await world.report(reader, reader.batch, {partition: FAR + number})
    await world.trim.run_once()
    world.clock.advance(1)
    await world.lag.run_once()


async def huge(world: World, partition: int, number: int) -> None:
    reader = world.readers[partition]
    await world.report(reader, 2**62 + number, {partition: reader.read})


async def backwards(world: World, partition: int, number: int) -> None:
    """Such a report is accepted before the first report, and after one that was beyond the end."""
    reader = world.readers[partition]
    await world.report(reader, reader.batch + 1, {partition: max(0, reader.read - number)})
    reader.batch += 1


async def stale(world: World, partition: int, number: int) -> None:
    """A former owner reports that it has read everything."""
    reader = world.readers[partition]
    former = Reader(reader.task, Generation(reader.generation - 1), reader.lineage)
    await world.report(former, reader.batch + 1, {partition: world.system.ends[partition]})


async def survey(world: World, partition: int, number: int) -> None:
    world.clock.advance(1)
    await world.lag.run_once()


async def trim(world: World, partition: int, number: int) -> None:
    await world.trim.run_once()


REJECTED = (foreign, huge, stale)


async def played(steps: list[tuple[Step, int, int]]) -> None:
    world = World()
    await world.begin()
    for step, partition, number in steps:
        try:
            await step(world, partition, number)
        except (FalseReport, LeaseLost):
            assert step in (*REJECTED, backwards)
        else:
            assert step not in REJECTED
        for p, reader in enumerate(world.readers):
            assert world.system.trimmed[p] <= reader.read
    for p in (0, 1):  # a true report is still accepted afterwards, and trims
        await read(world, p, FAR)
    world.clock.advance(1)
    await world.trim.run_once()
    assert world.system.trimmed == {p: reader.read for p, reader in enumerate(world.readers)}


STEPS = [write, read, read, foreign, beyond, huge, backwards, stale, survey, trim]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1), st.integers(1, 5)), max_size=15))
def test_no_false_report_deletes_unread_records_or_blocks_true_reports(steps: list[tuple[Step, int, int]]) -> None:
    asyncio.run(played(steps))
