"""A year of deployments, restarts and growth, and what is left of it in the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator.runs.pruning import PruneHistory
from coordinator.store.snapshots import PinRow
from sluice.core.ids import JobName, StageName, TaskName
from sluice.core.snapshots.snapshot import CommitId
from tests.support.api import Caller, Json, calling, patched, problem_slug, run_body
from tests.support.fakes import FakeClock

DAY = timedelta(days=1).total_seconds()


@pytest.fixture
async def caller(home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    async with calling(home, clock, keep_incarnations=30) as made:
        made.log.create("flights", 4)
        yield made


def chore(caller: Caller) -> PruneHistory:
    (found,) = (each for each in caller.coordinator.api.state.parts.health.maintenance._chores if isinstance(each, PruneHistory))
    return replace(found, rows=7)


async def replaced(caller: Caller, run_id: str, times: int, slot: str = "0") -> None:
    """Register that many containers, each of which ends before the next one."""
    for number in range(times):
        await caller.registered(run_id, f"{run_id}-{slot}-{number}", slot)
        await caller.exited(f"{run_id}-{slot}-{number}")


async def incarnations(caller: Caller, run_id: str) -> list[int]:
    answer = await caller.http.get(f"/runs/{run_id}/containers", params={"limit": 200})
    return [each["epoch"] for each in answer.json()["containers"]]


async def runs(caller: Caller) -> list[str]:
    return [each["runId"] for each in (await caller.http.get("/runs", params={"limit": 200})).json()["runs"]]


async def test_the_newest_containers_of_each_slot_are_kept_and_epochs_continue(caller: Caller) -> None:
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    await replaced(caller, run_id, 45)
    await replaced(caller, run_id, 3, "1")
    assert await chore(caller).run_once() == {"containers": 15}
    async with chore(caller).store.read() as tx:
        left = await tx.fleet.containers(run_id)  # type: ignore[arg-type]
    assert [each.epoch for each in left] == [*range(16, 46), 1, 2, 3]
    assert (await caller.registered(run_id, "next"))["epoch"] == 46
    assert await chore(caller).run_once() == {"containers": 1}


async def test_the_last_owner_of_a_task_is_kept_because_its_disk_may_have_the_state(caller: Caller) -> None:
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "owner")
    await caller.acquired(run_id, "owner")
    await caller.exited("owner")
    await replaced(caller, run_id, 40)
    assert await chore(caller).run_once() == {"containers": 10}
    async with chore(caller).store.read() as tx:
        assert (await tx.fleet.containers(run_id))[0].execution_id == "owner"  # type: ignore[arg-type]


async def deployed_daily(caller: Caller, clock: FakeClock, days: int) -> list[str]:
    """Deployments one a day, each with a container that ends: their runs, oldest first."""
    made = []
    for _ in range(days):
        run_id = str((await caller.deploy())["runId"])
        await replaced(caller, run_id, 1)
        made.append(run_id)
        clock.advance(DAY)
    return made


async def test_runs_are_deleted_with_all_that_belongs_to_them_and_the_job_continues(caller: Caller, clock: FakeClock) -> None:
    made = await deployed_daily(caller, clock, 40)
    done = await chore(caller).run_once()
    gone = [run_id for run_id in made if run_id not in await runs(caller)]
    assert made[0] not in gone
    assert gone == made[1 : 1 + len(gone)]
    assert done["runs"] == len(gone) == 9
    for url in (f"/runs/{gone[0]}", f"/runs/{gone[0]}/request", f"/runs/{gone[0]}/notices"):
        assert problem_slug(await caller.http.get(url)) == (404, "unknown-run")
    async with chore(caller).store.read() as tx:
        assert [list(await tx.fleet.containers(each)) for each in gone] == [[]] * len(gone)  # type: ignore[arg-type]
        assert [await tx.runs.last_notice(each) for each in gone] == [0] * len(gone)  # type: ignore[arg-type]
        assert [dict(await tx.runs.start_offsets(each)) for each in gone] == [{}] * len(gone)  # type: ignore[arg-type]
    assert (await caller.run(made[-1]))["firstRun"] == made[0]
    assert (await caller.deploy())["firstRun"] == made[0]
    assert await chore(caller).run_once() == {}


async def test_a_live_run_of_a_year_keeps_its_versions_in_force_and_its_newest_notice(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy(run_body(containers=1)))["runId"])
    for number in range(60):
        await patched(caller, run_id, {"containers": 1 + (number + 1) % 2})
    registered = await caller.registered(run_id, "c0")
    assert registered["jobModelVersion"] == 61
    clock.advance(31 * DAY)
    await caller.registered(run_id, "c1")
    assert await chore(caller).run_once() == {"versions": 11, "notices": 59}
    assert [each["seq"] for each in await caller.notices(run_id)] == [60]
    assert (await caller.http.get("/jobs/flight-delays/models/61")).status_code == 200
    assert problem_slug(await caller.http.get("/jobs/flight-delays/models/5")) == (404, "unknown-version")
    await patched(caller, run_id, {"containers": 2})
    assert ((await caller.run(run_id))["jobModelVersion"], [each["seq"] for each in await caller.notices(run_id)]) == (62, [60, 61])


async def cancelled(caller: Caller, clock: FakeClock) -> Json:
    """A cancelled drain of a new run."""
    run_id = str((await caller.deploy())["runId"])
    drain = (await caller.http.post("/drain", json={"runId": run_id})).json()
    answer = await caller.http.delete(f"/drain/{drain['uuid']}")
    assert answer.status_code == 200, answer.text
    clock.advance(1)
    return drain  # type: ignore[no-any-return]


async def test_drains_are_deleted_after_a_month_and_their_count_does_not_decrease(caller: Caller, clock: FakeClock) -> None:
    made = [await cancelled(caller, clock) for _ in range(5)]
    watch = next(each for each in caller.coordinator.api.state.parts.health.maintenance._chores if each.name == "watch_drains")
    await watch.run_once()
    clock.advance(31 * DAY)
    assert (await chore(caller).run_once())["drains"] == 2  # the last two runs keep theirs, the first run of the history too
    await watch.run_once()
    assert 'sluice_drains_total{phase="CANCELLED"} 5.0' in (await caller.http.get("/metrics")).text
    assert [(await caller.http.get(f"/drain/{each['uuid']}")).status_code for each in made] == [200, 404, 404, 200, 200]


async def test_pins_are_deleted_a_month_after_they_have_expired(caller: Caller, clock: FakeClock) -> None:
    await caller.deploy()
    job, start = JobName("flight-delays"), clock.now()
    async with chore(caller).store.begin() as tx:
        for number, expires in enumerate([None, start + timedelta(days=20), *[start + timedelta(days=1)] * 3]):
            for stage in ("a", "b"):
                pin = PinRow(f"p{number}", job, TaskName("Partition 0"), StageName(stage), CommitId("1-1"), "daily", start, expires)
                await tx.snapshots.put_pins([pin])
    clock.advance(32 * DAY)
    assert await chore(caller).run_once() == {"pins": 3}
    async with chore(caller).store.read() as tx:
        assert [each.pin_id for each in await tx.snapshots.pins(job)] == ["p0", "p0", "p1", "p1"]
    clock.advance(400 * DAY)
    assert await chore(caller).run_once() == {"pins": 1}
    assert [each["pinId"] for each in (await caller.http.get("/jobs/flight-delays/pins")).json()["pins"]] == ["p0"]


async def test_nothing_is_deleted_while_the_clock_may_have_jumped(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy())["runId"])
    await replaced(caller, run_id, 40)
    clock.jump(timedelta(days=40))
    assert await chore(caller).run_once() == {"held_back": 1}
    assert len(await incarnations(caller, run_id)) == 40
