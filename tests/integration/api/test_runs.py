"""How runs end, and how their containers are notified."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.fleet.expiry import ExpireLeases
from sluice.core.ids import RunId
from tests.support.api import Caller, problem_slug, run_body
from tests.support.fakes import FakeClock


def expiry(caller: Caller, clock: FakeClock) -> ExpireLeases:
    parts = caller.coordinator.api.state.parts
    return ExpireLeases(parts.health.store, parts.leases, parts.notices, clock)


async def state(caller: Caller, run_id: str) -> str:
    return str((await caller.run(run_id))["state"])


@pytest.fixture
async def run_id(caller: Caller) -> str:
    """A run of two containers, c0 and c1."""
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    await caller.registered(run_id, "c0", "0")
    await caller.registered(run_id, "c1", "1")
    return run_id


async def test_a_run_that_never_had_a_container_stops_at_once(caller: Caller) -> None:
    run = await caller.deploy()
    answer = await caller.stop(run["runId"], reason="enough")
    assert (answer.status_code, answer.json()["state"], answer.json()["reason"]) == (202, "STOPPED", "enough")


async def test_a_stopping_run_is_stopped_when_its_last_container_has_ended(caller: Caller, run_id: str) -> None:
    await caller.stop(run_id)
    await caller.exited("c0")
    assert await state(caller, run_id) == "RUNNING"
    await caller.exited("c1")
    assert await state(caller, run_id) == "STOPPED"
    assert [each["kind"] for each in await caller.notices(run_id)] == ["STOP", "ENDED"]


async def test_a_replaced_container_that_may_still_act_keeps_its_run_from_ending(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c2", "0")
    await caller.stop(run_id)
    await caller.exited("c1")
    await caller.exited("c2")
    assert await state(caller, run_id) == "RUNNING"
    await caller.exited("c0")
    assert await state(caller, run_id) == "STOPPED"


async def test_a_stopping_run_ends_when_its_containers_are_lost(caller: Caller, clock: FakeClock, run_id: str) -> None:
    await caller.stop(run_id)
    clock.advance(35)
    await expiry(caller, clock).run_once()
    assert await state(caller, run_id) == "STOPPED"
    assert {each["state"] for each in (await caller.run(run_id))["incarnations"]} == {"LOST"}


async def test_lost_containers_are_found_once(caller: Caller, clock: FakeClock, run_id: str) -> None:
    await caller.acquired(run_id, "c0")
    chore = expiry(caller, clock)
    clock.advance(34)
    assert await chore.run_once() == {}
    assert await caller.alive("c1", 1)
    clock.advance(1)
    assert await chore.run_once() == {"expired": 1}
    assert await chore.run_once() == {}
    assert [t["holder"] for t in (await caller.run(run_id))["tasks"]] == [None, None]


async def test_a_run_stopped_as_failed_ends_as_failed_with_the_first_reason(caller: Caller, run_id: str) -> None:
    await caller.stop(run_id, failed=True, reason="schema")
    await caller.stop(run_id, reason="again")
    await caller.exited("c0")
    await caller.exited("c1")
    run = await caller.run(run_id)
    assert (run["state"], run["reason"]) == ("FAILED", "schema")
    assert len(await caller.notices(run_id)) == 2


async def test_stopping_an_ended_run_changes_nothing(caller: Caller) -> None:
    run = await caller.deploy()
    first = (await caller.stop(run["runId"])).json()
    assert (await caller.stop(run["runId"], failed=True, reason="late")).json() == first


async def test_a_stop_needs_no_body(caller: Caller, run_id: str) -> None:
    assert (await caller.http.post(f"/runs/{run_id}/stop")).status_code == 202


async def test_a_run_whose_containers_all_exit_continues_until_it_is_stopped(caller: Caller, run_id: str) -> None:
    await caller.exited("c0")
    await caller.exited("c1")
    assert await state(caller, run_id) == "RUNNING"
    assert (await caller.registered(run_id, "c2", "0"))["epoch"] == 2


async def test_no_container_can_register_for_a_run_that_is_stopping(caller: Caller, run_id: str) -> None:
    await caller.stop(run_id)
    assert problem_slug(await caller.register(run_id, "c2")) == (409, "stale-run")


async def test_a_deployment_over_a_live_run_stops_that_one(caller: Caller, run_id: str) -> None:
    second = await caller.deploy()
    (notice,) = await caller.notices(run_id)
    assert (notice["kind"], notice["detail"]) == ("STOP", {"reason": f"replaced by run {second['runId']}"})
    await caller.exited("c0")
    await caller.exited("c1")
    assert (await state(caller, run_id), await state(caller, second["runId"])) == ("STOPPED", "CREATED")


async def test_a_run_replaces_only_the_run_that_the_request_names(caller: Caller, clock: FakeClock) -> None:
    first = await caller.deploy()
    clock.advance(1)  # runs created at the same time are listed by their random suffix
    second = await caller.http.post("/runs", json=run_body(), headers={"Sluice-Replaces": first["runId"]})
    assert second.status_code == 201
    for gone in (first["runId"], "never-was"):
        answer = await caller.http.post("/runs", json=run_body(), headers={"Sluice-Replaces": gone})
        assert problem_slug(answer) == (412, "not-the-current-run")
        assert second.json()["runId"] in answer.json()["detail"]
    answer = await caller.http.post("/runs", json=run_body(job="another"), headers={"Sluice-Replaces": first["runId"]})
    assert (problem_slug(answer), "it has no run" in answer.json()["detail"]) == ((412, "not-the-current-run"), True)
    runs = (await caller.http.get("/runs")).json()["runs"]
    assert [each["runId"] for each in runs] == [second.json()["runId"], first["runId"]]


async def test_the_last_of_several_concurrent_deployments_is_current_and_the_others_end(caller: Caller) -> None:
    runs = await asyncio.gather(*(caller.deploy() for _ in range(4)))
    (job,) = (await caller.http.get("/jobs")).json()["jobs"]
    states = {run["runId"]: await state(caller, run["runId"]) for run in runs}
    assert states.pop(job["currentRun"]) == "CREATED"
    assert set(states.values()) == {"STOPPED"}
    assert (await caller.http.get("/jobModel?job=flight-delays")).headers["sluice-run-id"] == job["currentRun"]


# --- notices ---


async def polling(caller: Caller, run_id: str) -> None:
    """Let other tasks run until a poll waits for a notice of the run."""
    while not caller.coordinator.notices.waiting(RunId(run_id)):  # noqa: ASYNC110 – nothing is notified when a poll begins
        await asyncio.sleep(0)


async def test_a_poll_for_notices_is_answered_as_soon_as_a_stop_is_requested(caller: Caller, run_id: str) -> None:
    async with asyncio.TaskGroup() as group:
        poll = group.create_task(caller.notices(run_id, wait=300))
        await polling(caller, run_id)
        assert not poll.done()
        await caller.stop(run_id)
    assert [each["kind"] for each in poll.result()] == ["STOP"]


async def test_a_poll_is_woken_by_its_own_run_only(caller: Caller, run_id: str) -> None:
    other = (await caller.deploy(run_body(job="other", outputs=[{"name": "delays", "system": "log", "stream": "other"}])))["runId"]
    poll = asyncio.create_task(caller.notices(run_id, wait=300))
    await polling(caller, run_id)
    await caller.stop(other)
    assert not poll.done()
    await caller.stop(run_id)
    assert len(await poll) == 1


async def test_a_poll_gets_the_notices_after_the_number_that_it_sends(caller: Caller) -> None:
    run_id = (await caller.deploy())["runId"]
    await caller.stop(run_id)
    assert [each["seq"] for each in await caller.notices(run_id)] == [1, 2]
    assert [each["seq"] for each in await caller.notices(run_id, after=1)] == [2]
    assert await caller.notices(run_id, after=2**31 - 1) == []


async def test_a_poll_without_a_notice_ends_empty(caller: Caller, run_id: str) -> None:
    assert await caller.notices(run_id, wait=0.01) == []
    assert not caller.coordinator.notices.waiting(RunId(run_id))


async def test_polls_end_when_the_coordinator_stops(caller: Caller, run_id: str) -> None:
    poll = asyncio.create_task(caller.notices(run_id, wait=300))
    await polling(caller, run_id)
    caller.coordinator.notices.close()
    assert await poll == []
    assert await caller.notices(run_id, wait=300) == []
