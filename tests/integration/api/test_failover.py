"""Slots that lose their container: which slots get their tasks, and how the tasks return; slots that fail repeatedly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.chores import Chore
from coordinator.fleet.expiry import ExpireLeases
from coordinator.jobmodels.failover import ReassignTasks
from tests.support.api import (
    UNSAVED,
    Caller,
    Json,
    calling,
    history,
    index_id,
    marker,
    patched,
    plan,
    problem_slug,
    report,
    report_body,
    run_body,
    slots_of,
    versioning,
)
from tests.support.fakes import FakeClock

AFTER = 60


@pytest.fixture
async def caller(home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    async with calling(home, clock, failover_after_seconds=AFTER) as made:
        made.log.create("flights", 6)
        yield made


async def turn(caller: Caller, of: type[Chore] = ReassignTasks) -> None:
    """Run the chore once."""
    chores = caller.coordinator.api.state.parts.health.maintenance._chores
    (chore,) = (each for each in chores if isinstance(each, of))
    await chore.run_once()


async def running(caller: Caller, containers: int = 3, **changes: object) -> str:
    """A run with one container per slot; the containers own their tasks."""
    run_id = str((await caller.deploy(run_body(containers=containers, **changes)))["runId"])
    for slot, tasks in (await slots_of(caller)).items():
        await caller.registered(run_id, f"c{slot}", slot)
        for task in tasks:
            await caller.acquired(run_id, f"c{slot}", task=task)
    return run_id


async def beat(caller: Caller, clock: FakeClock, seconds: float, *alive: str) -> None:
    """Advance the clock while these containers send heartbeats."""
    for _ in range(int(seconds / 10)):
        clock.advance(10)
        for each in alive:
            assert await caller.alive(each, 1)


async def test_the_tasks_of_a_slot_without_a_container_are_spread_and_later_given_back(caller: Caller, clock: FakeClock) -> None:
    run_id = await running(caller)
    before = await slots_of(caller)
    await caller.exited("c1", 137)
    await beat(caller, clock, AFTER - 10, "c0", "c2")
    await turn(caller)
    assert (await slots_of(caller), (await caller.run(run_id))["jobModelVersion"]) == (before, 1)
    await beat(caller, clock, 10, "c0", "c2")
    await turn(caller)
    after = await slots_of(caller)
    assert (sorted(after), [len(tasks) for tasks in after.values()]) == (["0", "2"], [3, 3])
    run = await caller.run(run_id)
    assert (run["failedOverSlots"], run["containers"]) == (["1"], 3)
    newest = (await history(caller))[0]
    assert (newest["actor"], newest["why"]) == ("fail-over", "slot 1 has had no container for 60 s")
    assert [each["detail"]["version"] for each in await caller.notices(run_id)] == [2]
    for slot in ("0", "2"):
        (gained,) = set(after[slot]) - set(before[slot])
        assert (await caller.acquired(run_id, f"c{slot}", task=gained))["generation"] == 2
    await caller.registered(run_id, "c1b", "1")
    await turn(caller)
    assert (await caller.run(run_id))["failedOverSlots"] == ["1"]
    await beat(caller, clock, 30, "c0", "c2")
    await turn(caller)
    assert await slots_of(caller) == before
    assert (await history(caller))[0]["why"] == "slot 1 is back"
    assert (await caller.acquire(run_id, "c1b", 2, before["1"][0])).status_code == 202


async def test_tasks_of_a_lost_container_are_reassigned_only_when_its_lease_and_grace_have_also_passed(
    caller: Caller, clock: FakeClock
) -> None:
    run_id = await running(caller, 2, config={"failover.after.seconds": "1"})
    (task, *_) = (await slots_of(caller))["1"]
    await beat(caller, clock, 30, "c0")
    await turn(caller)
    assert (await caller.run(run_id))["jobModelVersion"] == 1
    assert await caller.alive("c1", 1)
    for _ in range(3):
        await beat(caller, clock, 10, "c0")
    clock.advance(5)
    await turn(caller, ExpireLeases)
    clock.advance(1)
    await turn(caller)
    assert list(await slots_of(caller)) == ["0"]
    assert (await caller.acquired(run_id, "c0", task=task))["generation"] == 2


async def test_tasks_go_to_the_host_on_which_they_ran(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy(run_body(containers=3)))["runId"])
    for slot, host in (("0", "a"), ("1", "b"), ("2", "b")):
        await caller.registered(run_id, f"c{slot}", slot, host=host)
    before = await slots_of(caller)
    for task in before["1"]:
        await caller.acquired(run_id, "c1", task=task)
    await patched(caller, run_id, {"containers": 2})
    await patched(caller, run_id, {"containers": 3})
    await caller.exited("c1", 1)
    await beat(caller, clock, AFTER, "c0", "c2")
    await turn(caller)
    after = await slots_of(caller)
    assert set(after["2"]) & set(before["1"])


async def test_tasks_of_a_slot_that_never_had_a_container_are_reassigned_after_the_same_time(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    clock.advance(1000)
    await turn(caller)
    assert (await caller.run(run_id))["jobModelVersion"] == 1
    await caller.registered(run_id, "c0", "0")
    await beat(caller, clock, AFTER, "c0")
    await turn(caller)
    assert list(await slots_of(caller)) == ["0"]
    await patched(caller, run_id, {"containers": 3})
    assert list(await slots_of(caller)) == ["0", "2"]


async def test_no_task_is_reassigned_while_there_is_no_other_live_container(caller: Caller, clock: FakeClock) -> None:
    run_id = await running(caller, 2)
    await caller.exited("c0", 1)
    await caller.exited("c1", 1)
    clock.advance(10 * AFTER)
    await turn(caller)
    assert (await caller.run(run_id))["jobModelVersion"] == 1


@pytest.mark.parametrize("changes", [UNSAVED, {"config": {"failover.after.seconds": "0"}}])
async def test_a_run_without_backup_or_with_fail_over_off_does_not_fail_over(
    caller: Caller, clock: FakeClock, changes: dict[str, object]
) -> None:
    run_id = await running(caller, 2, **changes)
    await caller.exited("c1", 1)
    await beat(caller, clock, 10 * AFTER, "c0")
    await turn(caller)
    assert (await caller.run(run_id))["jobModelVersion"] == 1


async def test_tasks_stay_where_they_moved_until_a_request_if_the_job_is_configured_so(caller: Caller, clock: FakeClock) -> None:
    run_id = await running(caller, 2, config={"failover.give.back": "false"})
    await caller.exited("c1", 1)
    await beat(caller, clock, AFTER, "c0")
    await turn(caller)
    await caller.registered(run_id, "c1b", "1")
    for _ in range(10):
        await beat(caller, clock, 10, "c0")
        assert await caller.alive("c1b", 2)
    await turn(caller)
    assert list(await slots_of(caller)) == ["0"]
    reply = await patched(caller, run_id, {"containers": 2})
    assert len(reply["moves"]) == 3
    assert sorted(await slots_of(caller)) == ["0", "1"]


async def test_growth_gives_no_tasks_to_a_slot_without_tasks(caller: Caller, clock: FakeClock) -> None:
    run_id = await running(caller, 2)
    await caller.exited("c1", 1)
    await beat(caller, clock, AFTER, "c0")
    await turn(caller)
    caller.log.grow("flights", 12)
    await versioning(caller).watch.run_once()
    run = await caller.run(run_id)
    assert (run["failedOverSlots"], run["streams"][0]["partitions"]) == (["1"], 12)


async def test_an_invalid_time_in_the_config_is_refused_at_the_deployment(caller: Caller) -> None:
    answer = await caller.http.post("/runs", json=run_body(config={"failover.after.seconds": "soon"}))
    assert problem_slug(answer) == (422, "bad-config")


async def lost_slot_0(caller: Caller, clock: FakeClock) -> str:
    """A run of two slots, of which "0" has neither a container nor tasks."""
    run_id = await running(caller, 2)
    await caller.exited("c0", 1)
    await beat(caller, clock, AFTER, "c1")
    await turn(caller)
    assert (await caller.run(run_id))["failedOverSlots"] == ["0"]
    return run_id


async def test_a_run_that_is_scaled_down_while_its_lowest_slot_has_no_container_keeps_the_slot_that_has_one(
    caller: Caller, clock: FakeClock
) -> None:
    run_id = await lost_slot_0(caller, clock)
    for _ in range(2):
        reply = await patched(caller, run_id, {"containers": 1})
        assert (reply["containers"], reply["moves"]) == (1, [])
        run = await caller.run(run_id)
        assert (run["containers"], run["slots"], run["failedOverSlots"]) == (1, ["1"], [])
        assert [(slot, len(tasks)) for slot, tasks in (await slots_of(caller)).items()] == [("1", 6)]
    assert set((await caller.http.get("/locality")).json()["processor-localities"]) == {"1"}
    answer = await caller.register(run_id, "c0b", "0")
    assert problem_slug(answer) == (404, "unknown-slot")
    assert "has no processor '0': it has 1" in answer.json()["detail"]
    await caller.registered(run_id, "c1b", "1")
    await turn(caller)
    caller.log.grow("flights", 12)
    await versioning(caller).watch.run_once()
    assert list(await slots_of(caller)) == ["1"]
    await patched(caller, run_id, {"containers": 3})
    assert [(slot, len(tasks)) for slot, tasks in (await slots_of(caller)).items()] == [("0", 2), ("1", 2), ("2", 2)]
    assert (await caller.run(run_id))["slots"] == ["0", "1", "2"]


async def test_a_plan_for_one_container_while_the_lowest_slot_has_none_is_safe_and_moves_nothing(caller: Caller, clock: FakeClock) -> None:
    await lost_slot_0(caller, clock)
    found = await plan(caller, containers=1)
    assert (found["verdict"], found["containers"], found["moves"]) == ("SAFE", 1, [])


# --- warm standby ----------------------------------------------------------------------------------------------------

STANDBY = {"standby.replicas": "1"}


async def kept(caller: Caller, run_id: str, execution_id: str) -> Json:
    answer = await caller.http.get(f"/runs/{run_id}/containers/{execution_id}/standby")
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def backed_up(caller: Caller, run_id: str, execution_id: str, task: str) -> None:
    lineage = str((await caller.acquired(run_id, execution_id, task=task))["stages"][0]["lineage"])
    index = index_id(1).replace("Partition_0", task.replace(" ", "_"))
    body = report_body(1, lineage, markers={"local": {**marker(1), "index": index}}, offsets=[])
    answer = await report(caller, run_id, body, task)
    assert answer.status_code == 200, answer.text


async def test_a_task_is_taken_over_by_the_slot_that_has_its_copy(caller: Caller, clock: FakeClock) -> None:
    run_id = await running(caller, config=STANDBY)
    before = await slots_of(caller)
    for task in before["1"]:
        await backed_up(caller, run_id, "c1", task)
    copies = {slot: [each["task"] for each in (await kept(caller, run_id, f"c{slot}"))["copies"]] for slot in before}
    assert copies["1"] == []
    assert sorted(copies["0"] + copies["2"]) == before["1"]
    assert (await kept(caller, run_id, "c0"))["own"] == before["0"]
    await caller.exited("c1", 137)
    await beat(caller, clock, AFTER, "c0", "c2")
    await turn(caller)
    after = await slots_of(caller)
    assert {slot: sorted(set(after[slot]) - set(before[slot])) for slot in after} == {slot: copies[slot] for slot in ("0", "2")}


async def test_a_standby_copies_the_snapshot_from_which_the_task_would_be_restored(caller: Caller) -> None:
    run_id = await running(caller, 2, config=STANDBY)
    (task, *_) = (await slots_of(caller))["0"]
    assert (await kept(caller, run_id, "c1"))["copies"] == []
    await backed_up(caller, run_id, "c0", task)
    (copy,) = (await kept(caller, run_id, "c1"))["copies"]
    snapshot = (await caller.acquired(run_id, "c0", task=task))["stages"][0]["snapshot"]
    assert (copy["task"], copy["stage"], copy["snapshot"]) == (task, "hourly", snapshot)


@pytest.mark.parametrize("changes", [{}, {"config": {"standby.replicas": "0"}}])
async def test_a_job_without_standby_has_no_copies(caller: Caller, changes: Json) -> None:
    run_id = await running(caller, 2, **changes)
    (task, *_) = (await slots_of(caller))["0"]
    await backed_up(caller, run_id, "c0", task)
    assert (await kept(caller, run_id, "c1"))["copies"] == []


async def test_an_invalid_number_of_copies_is_refused(caller: Caller) -> None:
    answer = await caller.http.post("/runs", json=run_body(config={"standby.replicas": "many"}))
    assert problem_slug(answer) == (422, "bad-config")
    assert "standby.replicas" in answer.json()["detail"]


async def test_a_container_that_the_run_does_not_have_keeps_nothing(caller: Caller) -> None:
    run_id = await running(caller, 2, config=STANDBY)
    answer = await caller.http.get(f"/runs/{run_id}/containers/nobody/standby")
    assert problem_slug(answer) == (404, "unknown-container")


# --- held back -------------------------------------------------------------------------------------------------------


async def test_a_slot_that_fails_repeatedly_is_held_back_longer_and_longer_and_the_run_shows_it(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    for number in range(4):
        await caller.registered(run_id, f"c{number}", "0")
        await caller.exited(f"c{number}", 1)
    answer = await caller.register(run_id, "c4", "0")
    assert (problem_slug(answer), answer.headers["retry-after"]) == ((503, "held-back"), "5")
    assert "slot 0 has failed 4 times in a row right after starting" in answer.json()["detail"]
    assert (await caller.run(run_id))["crashLoopBackoff"] == [{"processorId": "0", "failures": 4, "until": "2026-03-01T12:00:05Z"}]
    await caller.registered(run_id, "other", "1")
    clock.advance(5)
    assert (await caller.run(run_id))["crashLoopBackoff"] == []
    await caller.registered(run_id, "c4", "0")
    await caller.registered(run_id, "c4", "0")
    await caller.exited("c4", 1)
    assert (await caller.register(run_id, "c5", "0")).headers["retry-after"] == "10"
    clock.advance(10)
    await caller.registered(run_id, "c5", "0")
    clock.advance(61)
    await caller.exited("c5", 1)
    await caller.registered(run_id, "c6", "0")


async def test_a_slot_is_not_held_back_after_normal_exits_and_replacements(caller: Caller) -> None:
    run_id = str((await caller.deploy())["runId"])
    for number in range(10):
        await caller.registered(run_id, f"c{number}")
        await caller.exited(f"c{number}", 0 if number % 2 else 3)
    for number in range(10, 20):
        await caller.registered(run_id, f"c{number}")


async def test_the_failures_of_a_run_do_not_hold_back_the_slots_of_the_next_run(caller: Caller) -> None:
    run_id = str((await caller.deploy())["runId"])
    for number in range(5):
        answer = await caller.register(run_id, f"c{number}")
        if answer.status_code == 201:
            await caller.exited(f"c{number}", 1)
    assert answer.status_code == 503
    second = str((await caller.deploy())["runId"])
    await caller.registered(second, "d1")
