"""Random histories of drains: requests, steps in any order and by replaced owners, cancellations, deadlines, stops, restarts of the
coordinator. Invariant: a run becomes DRAINED only when all stages have committed, and rolls back only to the pinned snapshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.api.runs import spec_of
from coordinator.drains.deadlines import DrainDeadlines
from coordinator.drains.drains import DrainRequest, Drains, StepReport
from coordinator.fleet.acting import Acting
from coordinator.fleet.leases import Leases
from coordinator.fleet.notices import Notices
from coordinator.fleet.registration import Registration, Registrations
from coordinator.fleet.report_checks import ReportChecks
from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.groupers import Groupers
from coordinator.runs.deploy import Deployments
from coordinator.runs.regrouping import Regrouping
from coordinator.runs.runs import Runs
from coordinator.runs.tasks import Tasks
from coordinator.store.drains import DrainRow
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import MarkerRow, SnapshotRow
from coordinator.store.sql import Store
from sluice.core.drain import DrainId, DrainTimeLimits, Mode, Phase, Step
from sluice.core.errors import Bug, LeaseLost, SluiceError
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, Lineage, ProcessorId, RunId, StageName, TaskName
from sluice.core.leases.lease import LeasePolicy
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId
from sluice.wire import runs as wire_runs
from tests.support.api import chained_body
from tests.support.databases import temporary_store
from tests.support.fakes import FakeClock, no_blob_stores
from tests.support.streams import TwoPartitions

JOB = JobName("flight-delays")
TASKS = (TaskName("Partition 0"), TaskName("Partition 1"))
STAGES = (StageName("route"), StageName("hourly"))
KEYS = [(task, stage) for task in TASKS for stage in STAGES]
TIMES = DrainTimeLimits(timedelta(seconds=10), timedelta(seconds=25), {})


class World:
    """The services of a coordinator around one database; `restart` creates new ones."""

    def __init__(self, mode: Mode = Mode.DEFAULT) -> None:
        self.mode = mode
        self.clock = FakeClock()
        self.store = temporary_store(Store)
        self.numbers = count(1)
        self.run_id = RunId("")
        self.holder, self.generation = "", Generation(0)
        self.restart()

    def restart(self) -> None:
        systems, models, notices, measures = {"log": TwoPartitions()}, JobModels(self.store), Notices(self.store), StageMetrics()
        self.leases = Leases(LeasePolicy(lease=timedelta(seconds=30)), self.clock)
        blob_stores, names = no_blob_stores(), Groupers()
        self.deployments = Deployments(self.store, systems, models, notices, self.clock, self._run_id, names, blob_stores)
        self.runs = Runs(self.store, models, notices, self.clock)
        acting = Acting(self.leases, self.clock, models.decoded)
        self.registrations = Registrations(self.store, self.leases, notices, self.clock, acting)
        reports = ReportChecks(models.decoded, lambda _: {})
        regrouping = Regrouping(acting, self._lineage, lambda _: None)
        parts = (measures, reports, blob_stores, regrouping, acting)
        self.tasks = Tasks(self.store, self.leases, self.clock, models.decoded, self._lineage, *parts)
        self.drains = Drains(self.store, systems, blob_stores, measures, notices, self.clock, models.decoded, self._drain_id, reports)
        self.watch = DrainDeadlines(self.store, self.drains, self.clock, timedelta)

    def _run_id(self, job: JobName, _: object) -> RunId:
        return RunId(f"{job}-{next(self.numbers)}")

    def _lineage(self) -> Lineage:
        return Lineage(f"l{next(self.numbers)}")

    def _drain_id(self) -> DrainId:
        return DrainId(f"d{next(self.numbers)}")

    # --- what happens ---

    async def deploy(self) -> None:
        self.run_id = (await self.deployments.deploy(spec_of(wire_runs.RunRequest.model_validate(chained_body(partitions=2))))).run_id
        await self.replace()

    async def replace(self) -> None:
        """The container is gone, and another one owns all tasks."""
        if self.holder:
            await self.registrations.exited(ExecutionContainerId(self.holder), 1, "")
        self.holder = f"c{next(self.numbers)}"
        new = Registration(ProcessorId("0"), ExecutionContainerId(self.holder), "h", False, None, can_keep_state=True)
        epoch = (await self.registrations.register(self.run_id, new)).container.epoch
        for task in TASKS:
            found = await self.tasks.acquire(self.run_id, task, ExecutionContainerId(self.holder), Epoch(epoch))
            self.generation = found.generation  # type: ignore[union-attr]

    async def restarted(self) -> None:
        self.restart()
        await self.registrations.recover()

    async def request(self) -> None:
        await self.drains.request(DrainRequest(self.run_id, self.mode, TIMES))

    async def cancel(self) -> None:
        await self.drains.cancel((await self.newest()).drain_id)

    async def stop(self) -> None:
        await self.runs.stop(self.run_id, "by hand", failed=False)

    async def wait(self) -> None:
        self.clock.advance(13)
        await self.watch.run_once()

    async def step(self, key: tuple[TaskName, StageName], step: Step, *, stale: bool = False) -> None:
        drain = await self.newest()
        checkpoint = await self.snapshot(key)
        took = StepReport(self.generation, drain.drain_id, step, 7, {}, checkpoint)
        if stale:
            with pytest.raises(LeaseLost):
                await self.drains.report(self.run_id, *key, replace(took, generation=Generation(self.generation - 1)))
        else:
            await self.drains.report(self.run_id, *key, took)

    async def snapshot(self, key: tuple[TaskName, StageName]) -> CommitId:
        number = next(self.numbers)
        made = CommitId(f"{1_700_000_000_000 + number}-123456")
        async with self.store.begin() as tx:
            (row,) = [row for row in await tx.fleet.stage_states(JOB, key[0]) if row.stage == key[1]]
            marker = {BlobStoreName("local"): MarkerRow(BlobId(f"b{number}"))}
            now = self.clock.now()
            await tx.snapshots.put_all(
                [SnapshotRow(JOB, number, *key, made, row.lineage, 7, self.generation, self.run_id, now, {}, marker)]
            )
            await tx.fleet.put_stage_states([replace(row, head=row.head if row.chosen else made)])
        return made

    # --- what is there ---

    async def newest(self) -> DrainRow:
        async with self.store.read() as tx:
            found = await tx.drains.newest(self.run_id)
        return found or DrainRow(
            DrainId("none"), self.run_id, JOB, 0, self.mode, Phase.CANCELLED, 1, self.clock.now(), TIMES.soft, TIMES.hard
        )

    async def run(self) -> RunRow:
        async with self.store.read() as tx:
            found = await tx.runs.get(self.run_id)
        assert found is not None
        return found

    async def check(self, seen: Mapping[DrainId, Phase]) -> dict[DrainId, Phase]:
        run, drain = await self.run(), await self.newest()
        async with self.store.read() as tx:
            rows = {(row.task, row.stage): row for row in await tx.drains.stages(drain.drain_id)}
            stores = {(row.task, row.stage): row for row in await tx.fleet.stage_states(JOB)}
            pins = [row.pin_id for row in await tx.snapshots.pins(JOB) if row.expires_at is None]
        assert (run.state is RunState.DRAINING) == (not drain.phase.over)
        assert (run.state is RunState.DRAINED) == (drain.phase is Phase.DRAINED)
        if drain.phase is Phase.DRAINED:
            assert {key for key, row in rows.items() if row.step is Step.COMMITTED and row.committed} == set(KEYS)
            assert set(drain.drained) == {ssp for ssp in drain.drained if ssp.stream in ("flights", "by-carrier")}
            assert len(drain.drained) == 4
        if drain.phase is Phase.FAILED and drain.emptied:
            assert run.stop_requested_at is not None
            assert {key: (row.head, row.chosen) for key, row in stores.items()} == {key: (rows[key].pinned, True) for key in KEYS}
        elif drain.phase.over:
            assert not any(row.chosen for row in stores.values())
        assert set(pins) <= ({f"drain-{drain.drain_id}"} if not drain.phase.over else set())
        before = seen.get(drain.drain_id)
        assert before is None or not before.over or before is drain.phase
        entered = [at for at in (drain.requested_at, drain.stopping_at, drain.flushing_at, drain.committing_at, drain.ended_at) if at]
        assert entered == sorted(entered)
        return {**seen, drain.drain_id: drain.phase}


STEPS = st.tuples(st.just("step"), st.sampled_from(KEYS), st.sampled_from(list(Step)[1:]), st.booleans())
OTHERS = st.tuples(st.sampled_from(["request", "request", "cancel", "stop", "wait", "replace", "restarted"]))


Event = tuple[object, ...]


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Rounds in which each stage takes its next step or is skipped, with any events in between."""
    between = st.lists(st.one_of(STEPS, OTHERS), max_size=3)
    events: list[Event] = list(draw(between))
    for step in (Step.STOPPED, Step.FLUSHED, Step.COMMITTED):
        if draw(st.integers(0, 4)):
            events.append(("all", step))
        events += draw(between)
    return events


async def history(events: list[Event], mode: Mode) -> None:
    world = World(mode)
    await world.deploy()
    await world.replace()
    await world.request()
    seen: dict[DrainId, Phase] = {}
    for event in events:
        with suppress(SluiceError):
            await happens(world, event)
        seen = await world.check(seen)


async def happens(world: World, event: Event) -> None:
    """Refused requests are part of a history; violated invariants are not."""
    try:
        match event:
            case ("step", (str() as task, str() as stage), Step() as step, bool() as stale):
                await world.step((TaskName(task), StageName(stage)), step, stale=stale)
            case ("all", Step() as step):
                for key in KEYS:
                    await world.step(key, step)
            case (str() as name,):
                await getattr(world, name)()
    except Bug as bug:
        raise AssertionError(bug) from bug


@settings(max_examples=25, deadline=None)
@given(histories(), st.sampled_from(Mode))
def test_a_run_is_drained_by_all_its_stages_or_not_at_all(events: list[Event], mode: Mode) -> None:
    asyncio.run(history(events, mode))


def test_a_history_without_faults_ends_drained() -> None:
    async def whole() -> None:
        world = World()
        await world.deploy()
        await world.request()
        for step in (Step.STOPPED, Step.FLUSHED, Step.COMMITTED):
            await world.restarted()
            await world.replace()
            await happens(world, ("all", step))
        assert (await world.newest()).phase is Phase.DRAINED
        await world.check({})

    asyncio.run(whole())
