"""The wall clock jumps, or was wrong when something was recorded: every wait ends, none too early, and nothing in use is deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, timedelta
from pathlib import Path

import pytest

from coordinator.drains.deadlines import DrainDeadlines
from coordinator.jobmodels.failover import ReassignTasks
from coordinator.runs.trim import TrimStreams
from coordinator.snapshots.operations import Progress
from coordinator.snapshots.rebuild import find
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.support.api import Caller, calling, deployed, problem_slug, run_body, running, slots_of, turn
from tests.support.backups import new_world
from tests.support.fakes import FakeClock

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
async def backed_up(home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    async with calling(home, clock, failover_after_seconds=300) as made:
        made.log.create("flights", 6)
        yield made


# --- drains ----------------------------------------------------------------------------------------------------------


async def test_a_drain_that_flushes_does_not_fail_when_the_clock_jumps_by_an_hour(caller: Caller, clock: FakeClock) -> None:
    run = await running(caller)
    await run.requested(hardDeadlineSeconds=600)
    await run.to_flushing()
    clock.jump(HOUR)
    await turn(caller, DrainDeadlines)
    assert (await run.drain_status())["phase"] == "FLUSHING"
    clock.advance(599)
    await turn(caller, DrainDeadlines)
    assert (await run.drain_status())["phase"] == "FLUSHING"
    clock.advance(1)
    await turn(caller, DrainDeadlines)
    assert (await run.drain_status())["phase"] == "FAILED"


async def test_a_clock_that_is_set_back_does_not_prolong_a_drain(caller: Caller, clock: FakeClock) -> None:
    run = await running(caller)
    await run.requested(hardDeadlineSeconds=600)
    await turn(caller, DrainDeadlines)
    clock.jump(-3 * DAY)
    clock.advance(600)
    await turn(caller, DrainDeadlines)
    assert (await run.drain_status())["phase"] == "FAILED"


async def test_a_drain_continues_after_a_restart_of_the_coordinator_under_a_clock_that_is_ahead(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as caller:
        caller.log.create("flights", 2)
        run = await running(caller)
        await run.requested(hardDeadlineSeconds=600)
        await run.to_flushing()
    clock.jump(HOUR)
    async with calling(home, clock) as caller:
        run.caller = caller
        await turn(caller, DrainDeadlines)
        assert (await run.drain_status())["phase"] == "FLUSHING"
        clock.advance(60)
        await turn(caller, DrainDeadlines)
        assert (await run.drain_status())["phase"] == "FLUSHING"
        clock.advance(540)
        await turn(caller, DrainDeadlines)
        assert (await run.drain_status())["phase"] == "FAILED"


async def test_a_drain_may_continue_after_a_restart_when_the_leases_of_lost_containers_have_ended(home: Path, clock: FakeClock) -> None:
    """The minute begins when the tasks of these containers can be acquired. They may have longer leases than the new coordinator grants."""
    async with calling(home, clock, lease_seconds=300) as caller:
        caller.log.create("flights", 2)
        run = await running(caller)
        await run.requested(hardDeadlineSeconds=600)
        await run.to_flushing()
    clock.jump(HOUR)
    async with calling(home, clock, lease_seconds=40) as caller:
        run.caller = caller
        await turn(caller, DrainDeadlines)
        clock.advance(300 + 5 + 59)
        await turn(caller, DrainDeadlines)
        assert (await run.drain_status())["phase"] == "FLUSHING"
        clock.advance(1)
        await turn(caller, DrainDeadlines)
        assert (await run.drain_status())["phase"] == "FAILED"


# --- slots -----------------------------------------------------------------------------------------------------------


async def test_a_slot_that_failed_under_a_clock_three_days_ahead_may_register_when_the_clock_is_right(
    caller: Caller, clock: FakeClock
) -> None:
    run_id = str((await caller.deploy())["runId"])
    clock.jump(3 * DAY)
    for number in range(4):
        await caller.registered(run_id, f"c{number}")
        await caller.exited(f"c{number}", 1)
    clock.jump(-3 * DAY)
    assert (await caller.run(run_id))["crashLoopBackoff"] == []
    await caller.registered(run_id, "c4")


async def test_a_jump_of_the_clock_does_not_reassign_tasks_of_a_slot_that_has_just_lost_its_container(
    backed_up: Caller, clock: FakeClock
) -> None:
    run_id = str((await backed_up.deploy(run_body(containers=2)))["runId"])
    for slot in ("0", "1"):
        await backed_up.registered(run_id, f"c{slot}", slot)
    await backed_up.exited("c1", 137)
    await turn(backed_up, ReassignTasks)
    clock.jump(HOUR)
    await turn(backed_up, ReassignTasks)
    assert sorted(await slots_of(backed_up)) == ["0", "1"]
    for _ in range(30):
        clock.advance(10)
        await backed_up.beat("c0", 1)
    await turn(backed_up, ReassignTasks)
    assert sorted(await slots_of(backed_up)) == ["0"]


async def test_tasks_are_reassigned_in_time_although_the_end_was_recorded_under_a_clock_that_was_ahead(
    backed_up: Caller, clock: FakeClock
) -> None:
    run_id = str((await backed_up.deploy(run_body(containers=2)))["runId"])
    for slot in ("0", "1"):
        await backed_up.registered(run_id, f"c{slot}", slot)
    clock.jump(3 * DAY)
    await backed_up.exited("c1", 137)
    clock.jump(-3 * DAY)
    await turn(backed_up, ReassignTasks)
    for _ in range(30):
        clock.advance(10)
        await backed_up.beat("c0", 1)
    await turn(backed_up, ReassignTasks)
    assert sorted(await slots_of(backed_up)) == ["0"]


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [timedelta(days=3650), -timedelta(days=3650)])
async def test_an_append_under_a_wrong_clock_does_not_end_the_trimming(caller: Caller, clock: FakeClock, ahead: timedelta) -> None:
    run = await deployed(caller, chained=True)
    await caller.registered(run.run_id, "c1")
    held = await caller.acquired(run.run_id, "c1")
    for batch, skew in enumerate((timedelta(0), ahead, timedelta(0), timedelta(0))):
        micros = int((clock.now().astimezone(UTC) + skew).timestamp() * 1_000_000)
        writer = Writer(Lineage("l"), "producer", Generation(1))
        caller.log.append("by-carrier", [Record(b"x", partition=0)] * 10, writer=writer, batch=batch, now_micros=micros)
        clock.advance(60)
    read = [{"system": "log", "stream": "by-carrier", "partition": 0, "offset": 40}]
    (lineage,) = (each["lineage"] for each in held["stages"] if each["stage"] == "hourly")
    body = {"generation": 1, "stage": "hourly", "lineage": lineage, "batchId": 1, "offsets": read}
    assert (await caller.http.post(f"/runs/{run.run_id}/tasks/Partition 0/progress", json=body)).status_code == 204
    clock.advance(3600 + 150 - 240)
    await turn(caller, TrimStreams)
    assert caller.log.earliest("by-carrier")[0] == 30
    clock.advance(60)
    await turn(caller, TrimStreams)
    assert caller.log.earliest("by-carrier")[0] == 40


# --- state -----------------------------------------------------------------------------------------------------------


async def test_the_newest_snapshot_of_a_stage_is_kept_although_it_was_reported_under_a_clock_60_days_ahead() -> None:
    world = new_world()
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"v1"})
    blob, index = await world.upload(agent)
    world.clock.jump(60 * DAY)
    await world.report(agent, blob, index)
    world.clock.jump(-60 * DAY)
    await world.clean_up.run_once()
    world.clock.advance((31 * DAY).total_seconds())
    await world.sweep.run_once()
    await world.check_retained()


async def test_a_keep_from_a_clock_that_was_ahead_suspends_the_sweep_while_it_fails() -> None:
    world = new_world()
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"v1"})
    blob, index = await world.upload(agent)
    world.clock.jump(60 * DAY)
    await world.report(agent, blob, index)
    world.clock.jump(-60 * DAY)
    async with world.store.read() as tx:
        (keep,) = [each for each in await tx.cleanup.due_after(world.clock.now() + HOUR, 10) if each.kind.value == "keep"]
    await world.clean_up._postpone(keep, ValueError("the store is away"))  # type: ignore[arg-type]
    world.clock.advance((11 * DAY).total_seconds())
    async with world.store.read() as tx:
        world.clean_up.queue = await tx.cleanup.counts()
    assert world.clean_up.overdue(world.clock.now())


async def test_garbage_marked_under_a_clock_that_was_ahead_is_deleted_after_the_grace_period() -> None:
    world = new_world()
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"v1"})
    await world.upload(agent)
    world.clock.jump(3650 * DAY)
    await world.collection.run_once()
    world.clock.jump(-3650 * DAY)
    await world.collection.run_once()
    world.clock.advance(world.collection.grace.total_seconds())
    await world.collection.run_once()
    assert world.collection.totals.popitem()[1].deleted > 0


@pytest.mark.parametrize("restarted", [False, True])
async def test_blobs_that_are_being_uploaded_when_the_clock_jumps_ahead_are_neither_swept_nor_collected(restarted: bool) -> None:
    world = new_world()
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"v1"})
    await world.commit(agent)
    await world.clean_up.run_once()
    await world.run_batch(agent, {"b": b"v2"})
    blob, index = await world.upload(agent)
    await world.collection.run_once()
    world.clock.jump(60 * DAY)
    if restarted:
        world.wire(world.blobs)
        await world.snapshots.recover()
        world.hold.check_start(max(world.snapshots.newest.values()))
    for _ in range(3):
        await world.sweep.run_once()
        await world.collection.run_once()
        world.clock.advance(60)
    await world.report(agent, blob, index)
    await world.clean_up.run_once()
    await world.tidy()
    await world.check_retained()


async def test_a_rebuild_finds_the_newest_snapshot_although_the_clock_of_its_container_was_set_back() -> None:
    world = new_world()
    await world.begin()
    agent = await world.acquired()
    for number in range(3):
        await world.run_batch(agent, {f"f{number}": b"v1"})
        newest = await world.commit(agent)
        world.clock.jump(-DAY)
    found = await find(world.blob_stores, Progress("blobs"), world.clock.now())
    assert [each.head for each in found.stores] == [newest]


# --- versions --------------------------------------------------------------------------------------------------------


async def test_a_version_that_a_container_has_acquired_is_not_rolled_back_although_the_clock_was_set_back(
    caller: Caller, clock: FakeClock
) -> None:
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    for slot in ("0", "1"):
        await caller.registered(run_id, f"c{slot}", slot)
    assert (await caller.http.patch(f"/runs/{run_id}", json={"containers": 1})).status_code == 200
    clock.jump(-HOUR)
    await caller.acquired(run_id, "c0", task="Partition 1")
    answer = await caller.http.post("/jobs/flight-delays/models/1/rollback")
    assert problem_slug(answer) == (409, "version-adopted")
