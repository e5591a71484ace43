"""A drain from its request to its end, through the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.api import (
    UNSAVED,
    Caller,
    Drained,
    appended,
    calling,
    deployed,
    offsets_json,
    offsets_of,
    problem_slug,
    run_body,
    running,
)
from tests.support.fakes import FakeClock


async def test_a_run_drains_phase_by_phase_and_ends(caller: Caller) -> None:
    run = await running(caller)
    asked = await run.requested()
    assert (asked["phase"], asked["runId"], asked["drainMode"]) == ("STOPPING", run.run_id, "DEFAULT")
    assert (await caller.run(run.run_id))["state"] == "DRAINING"
    assert await run.phase_after("stopped", 0) == "STOPPING"
    assert await run.phase_after("stopped", 1) == "FLUSHING"
    assert await run.phase_after("flushing", 0) == "FLUSHING"
    assert await run.phase_after("flushed", 0) == "FLUSHING"
    assert await run.phase_after("flushed", 1) == "COMMITTING"
    assert await run.phase_after("committed", 0) == "COMMITTING"
    assert await run.phase_after("committed", 1) == "DRAINED"
    ended = await caller.run(run.run_id)
    assert (ended["state"], ended["drain"]["phase"]) == ("DRAINED", "DRAINED")
    phases = ["REQUESTED", "STOPPING", "FLUSHING", "COMMITTING", "DRAINED"]
    assert await run.kinds() == [*(("DRAIN", phase) for phase in phases), ("ENDED", "DRAINED")]
    reported = await run.drain_status()
    assert [each["phase"] for each in reported["phases"]] == phases
    assert (reported["remaining"], reported["total"], reported["blockedBy"]) == (0, 2, [])


async def test_a_drain_shows_what_is_done_what_remains_and_what_blocks(caller: Caller) -> None:
    run = await running(caller, chained=True)
    await run.requested()
    await run.all_take("stopped", ["route", "hourly"])
    await run.phase_after("flushing", 0, "route", note="round 2 of timers")
    await run.phase_after("flushed", 1, "route", leftoverRows=3, leftoverOperators=["flatMapGroupsWithState"])
    reported = await run.drain_status()
    assert (reported["phase"], reported["total"], reported["remaining"], reported["leftoverRows"]) == ("FLUSHING", 4, 3, 3)
    assert reported["blockedBy"] == [{"processorId": "0", "task": "Partition 0", "stage": "route", "why": "at work", "lastExit": ""}]
    (slot,) = reported["containers"]
    assert (slot["processorId"], slot["executionContainerId"]) == ("0", "c1")
    first, second = slot["tasks"]
    stages = {each["stage"]: each for each in first["stages"]}
    assert (stages["route"]["step"], stages["route"]["note"], stages["route"]["waitsFor"]) == ("flushing", "round 2 of timers", [])
    assert (stages["hourly"]["step"], stages["hourly"]["waitsFor"]) == ("stopped", ["route"])
    assert (first["done"], second["done"], second["holder"]) == (0, 1, "c1")
    left = next(each for each in second["stages"] if each["stage"] == "route")
    assert (left["leftoverRows"], left["leftoverOperators"], left["generation"]) == (3, ["flatMapGroupsWithState"], 1)


async def test_when_the_last_task_has_flushed_a_stage_the_stages_after_it_are_notified(caller: Caller) -> None:
    run = await running(caller, chained=True)
    await run.requested()
    await run.all_take("stopped", ["route", "hourly"])
    await run.phase_after("flushed", 0, "route")
    before = await run.kinds()
    await run.phase_after("flushed", 1, "route")
    assert await run.kinds() == [*before, ("DRAIN", "FLUSHING")]
    await run.phase_after("flushed", 0, "hourly")
    assert await run.kinds() == [*before, ("DRAIN", "FLUSHING")]


async def test_in_flushing_notices_and_answers_list_the_stages_that_every_task_has_flushed(caller: Caller) -> None:
    run = await running(caller, chained=True)
    await run.requested()
    steps = [("stopped", task, stage) for stage in ("route", "hourly") for task in (0, 1)]
    steps += [("flushing", 0, "route"), ("flushed", 0, "route"), ("flushed", 1, "route"), ("flushing", 0, "hourly")]
    answers = [(await run.step(*each)).json() for each in steps]
    assert [each["flushed"] for each in answers] == [None, None, None, [], None, None, ["route"], None]
    flushing = [each["detail"] for each in await caller.notices(run.run_id) if each["detail"].get("phase") == "FLUSHING"]
    assert [each["flushed"] for each in flushing] == [[], ["route"]]


# --- every state of a run ---------------------------------------------------------------------------------------------


async def test_a_drain_waits_for_the_first_containers_and_continues_when_they_register(caller: Caller, clock: FakeClock) -> None:
    run = await deployed(caller, containers=2)
    assert (await run.requested())["phase"] == "REQUESTED"
    clock.advance(10_000)
    reported = await run.drain_status()
    assert [(each["processorId"], each["why"]) for each in reported["blockedBy"]] == [("0", "no container"), ("1", "no container")]
    assert (reported["hardDeadlineAt"], reported["late"]) == (None, False)
    await caller.registered(run.run_id, "c1", "0")
    reported = await run.drain_status()
    assert (reported["phase"], reported["hardDeadlineAt"] is None) == ("STOPPING", False)
    blocked = [(each["processorId"], each["task"], each["why"]) for each in reported["blockedBy"]]
    assert blocked == [("0", "Partition 0", "not held"), ("1", None, "no container")]
    assert (await caller.run(run.run_id))["startedAt"] is not None
    await caller.acquired(run.run_id, "c1", task="Partition 0")
    await caller.registered(run.run_id, "c2", "1")
    await caller.acquired(run.run_id, "c2", task="Partition 1")
    await run.to_drained()


async def test_a_starting_run_is_drained(caller: Caller) -> None:
    run = await deployed(caller)
    await caller.registered(run.run_id, "c1")
    assert (await run.requested())["phase"] == "STOPPING"
    assert (await run.drain_status())["blockedBy"][0]["why"] == "not held"


async def test_a_repeated_request_for_a_run_answers_with_the_same_drain(caller: Caller) -> None:
    run = await running(caller)
    first = await run.requested()
    for phase, step in (("STOPPING", "stopped"), ("FLUSHING", "flushed"), ("COMMITTING", "committed"), ("DRAINED", "")):
        again = await run.request()
        assert (again.status_code, again.json()["uuid"], again.json()["phase"]) == (200, first["uuid"], phase)
        if step:
            await run.all_take(step)


async def test_a_run_that_is_stopping_is_not_drained(caller: Caller) -> None:
    run = await running(caller)
    await caller.stop(run.run_id)
    assert problem_slug(await run.request()) == (409, "stale-run")
    await caller.exited("c1")
    assert (await caller.run(run.run_id))["state"] == "STOPPED"
    assert problem_slug(await run.request()) == (409, "stale-run")


async def test_a_run_that_failed_is_not_drained(caller: Caller) -> None:
    run = await running(caller)
    await caller.stop(run.run_id, failed=True)
    await caller.exited("c1", 1)
    assert (await caller.run(run.run_id))["state"] == "FAILED"
    assert problem_slug(await run.request()) == (409, "stale-run")


async def test_a_run_that_is_not_the_current_one_is_not_drained(caller: Caller) -> None:
    run = await running(caller)
    await caller.deploy(run_body(**UNSAVED))
    assert problem_slug(await run.request()) == (409, "stale-run")
    assert problem_slug(await Drained(caller, "no-run").request()) == (404, "unknown-run")


async def test_a_request_for_a_run_whose_drain_failed_after_its_flush_began_answers_with_that_drain(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    await run.to_flushing()
    await caller.stop(run.run_id)
    for _ in range(2):
        again = await run.request()
        assert (again.status_code, again.json()["uuid"], again.json()["phase"]) == (200, run.uuid, "FAILED")
        await caller.exited("c1")
    assert (await caller.run(run.run_id))["state"] == "STOPPED"


@pytest.mark.parametrize(
    "body",
    [
        {"drainMode": "FAST"},
        {"runId": 7},
        {"runId": ""},
        {"surprise": 1},
        {"hardDeadlineSeconds": -1},
        {"hardDeadlineSeconds": "NaN"},
        {"budgetSeconds": {"dancing": 3}},
    ],
)
async def test_a_malformed_request_is_refused_and_changes_nothing(caller: Caller, body: dict[str, object]) -> None:
    run = await running(caller)
    assert problem_slug(await run.request(**body)) == (422, "invalid-request")
    assert (await caller.run(run.run_id))["state"] == "RUNNING"
    assert await run.kinds() == []
    await run.requested()


# --- cancelling, and two drains ---------------------------------------------------------------------------------------


async def test_a_drain_that_is_cancelled_leaves_the_run_as_it_was(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    await run.phase_after("stopped", 0)
    for _ in range(2):
        answer = await run.cancel()
        assert (answer.status_code, answer.json()["phase"]) == (200, "CANCELLED")
    detail = await caller.run(run.run_id)
    assert (detail["state"], detail["drain"], detail["failedDrains"]) == ("RUNNING", None, [])
    assert await run.phase_after("stopped", 1) == "CANCELLED"
    assert (await run.kinds())[-1] == ("DRAIN", "CANCELLED")


async def test_a_drain_can_be_cancelled_before_any_container_has_registered(caller: Caller) -> None:
    run = await deployed(caller)
    await run.requested()
    assert (await run.cancel()).status_code == 200
    assert (await caller.run(run.run_id))["state"] == "CREATED"
    await caller.registered(run.run_id, "c1")
    assert (await caller.run(run.run_id))["state"] == "RUNNING"


async def test_after_a_cancelled_drain_another_may_be_requested(caller: Caller) -> None:
    run = await running(caller)
    first = (await run.requested())["uuid"]
    await run.phase_after("stopped", 0)
    await run.cancel()
    assert (await run.requested())["uuid"] != first
    assert (await run.drain_status())["remaining"] == 2
    assert await run.phase_after("stopped", 0, uuid=first) == "CANCELLED"
    await run.to_drained()
    answer = await caller.http.get("/drains", params={"job": "flight-delays", "limit": 1})
    assert [(each["uuid"], each["phase"]) for each in answer.json()["drains"]] == [(run.uuid, "DRAINED")]
    older = (await caller.http.get("/drains", params={"job": "flight-delays", "before": answer.json()["next"]})).json()
    assert ([each["uuid"] for each in older["drains"]], older["next"]) == ([first], None)


async def test_a_drain_cannot_be_cancelled_once_anything_may_have_been_flushed(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    for step in ("stopped", "flushed", "committed"):
        await run.all_take(step)
        assert problem_slug(await run.cancel()) == (409, "not-cancellable")
    assert (await run.drain_status())["phase"] == "DRAINED"


async def test_an_unknown_drain_is_not_found(caller: Caller) -> None:
    await running(caller)
    nowhere = Drained(caller, "x", "no-such-drain")
    assert problem_slug(await nowhere.cancel()) == (404, "unknown-drain")
    assert problem_slug(await caller.http.get("/drain/no-such-drain")) == (404, "unknown-drain")
    assert problem_slug(await caller.http.get("/drains", params={"job": "nothing"})) == (404, "unknown-job")


# --- steps ------------------------------------------------------------------------------------------------------------


async def test_a_repeated_or_late_step_changes_nothing(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    assert [await run.phase_after("stopped", 0) for _ in range(2)] == ["STOPPING"] * 2
    await run.phase_after("stopped", 1)
    assert await run.phase_after("flushed", 0) == "FLUSHING"
    for step in ("stopped", "flushing"):
        assert await run.phase_after(step, 0, batchId=1) == "FLUSHING"
    first = (await run.drain_status())["containers"][0]["tasks"][0]["stages"][0]
    assert (first["step"], first["batchId"]) == ("flushed", 7)
    await run.all_take("flushed")
    await run.all_take("committed")
    assert await run.phase_after("committed", 1) == "DRAINED"


async def test_a_step_of_a_later_phase_is_refused(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    for step in ("flushing", "flushed", "committed"):
        assert problem_slug(await run.step(step)) == (409, "drain-too-early")
    await run.to_flushing()
    assert problem_slug(await run.step("committed")) == (409, "drain-too-early")


async def test_a_step_for_another_drain_is_refused(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    assert problem_slug(await run.step("stopped", uuid="another")) == (409, "unknown-drain")
    assert problem_slug(await run.step("stopped", stage="nothing")) == (404, "unknown-task")
    assert problem_slug(await run.step("jumped")) == (422, "invalid-request")
    assert (await run.drain_status())["remaining"] == 2


async def test_only_the_owner_of_a_task_may_report_its_steps(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    await run.to_flushing()
    await caller.registered(run.run_id, "c2")
    await caller.exited("c1")
    for task in (0, 1):
        assert (await caller.acquired(run.run_id, "c2", 2, f"Partition {task}"))["generation"] == 2
    assert problem_slug(await run.step("flushed", 0)) == (409, "lease-lost")
    assert await run.all_take("flushed", generation=2) == "COMMITTING"
    assert problem_slug(await run.step("committed", 0)) == (409, "lease-lost")
    assert await run.all_take("committed", generation=2) == "DRAINED"


async def test_a_container_that_joins_a_drain_gets_the_steps_of_its_stages(caller: Caller) -> None:
    run = await running(caller)
    assert (await caller.acquired(run.run_id, "c1"))["drain"] is None
    await run.requested()
    reply = await caller.acquired(run.run_id, "c1")
    assert (reply["drain"]["uuid"], reply["drain"]["phase"], reply["stages"][0]["drainStep"]) == (run.uuid, "STOPPING", None)
    await run.to_flushing()
    await run.phase_after("flushed", 1)
    await caller.registered(run.run_id, "c2")
    await caller.exited("c1")
    found = [await caller.acquired(run.run_id, "c2", 2, f"Partition {task}") for task in (0, 1)]
    assert [(each["drain"]["phase"], each["stages"][0]["drainStep"]) for each in found] == [
        ("FLUSHING", "stopped"),
        ("FLUSHING", "flushed"),
    ]


# --- containers and deployments during a drain ------------------------------------------------------------------------


async def test_a_container_is_notified_of_the_drain_and_gets_the_ends_of_the_streams(caller: Caller) -> None:
    run = await running(caller, chained=True)
    appended(caller, "by-carrier", partition=1, records=5)
    await run.requested()
    drain = (await caller.run(run.run_id))["drain"]
    assert (drain["uuid"], drain["phase"], drain["mode"]) == (run.uuid, "STOPPING", "DEFAULT")
    assert offsets_of(drain["pinned"]) == {("by-carrier", 0): 0, ("by-carrier", 1): 5}


async def test_a_deployment_over_a_run_that_drains_is_refused(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    assert problem_slug(await caller.http.post("/runs", json=run_body())) == (409, "run-is-draining")
    await run.cancel()
    assert (await caller.http.post("/runs", json=run_body())).status_code == 201


async def test_a_drain_continues_after_a_restart_of_the_coordinator(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as caller:
        caller.log.create("flights", 2)
        run = await running(caller)
        await run.requested()
        await run.phase_after("stopped", 0)
    for step in ("stopped", "flushed", "committed"):
        async with calling(home, clock) as caller:
            run = Drained(caller, run.run_id, run.uuid)
            assert await caller.alive("c1", 1)
            assert (await run.request()).json()["uuid"] == run.uuid
            await run.phase_after(step, 0)
        async with calling(home, clock) as caller:
            phase = await Drained(caller, run.run_id, run.uuid).phase_after(step, 1)
    assert phase == "DRAINED"


# --- the next run -----------------------------------------------------------------------------------------------------


async def starts_of_next(caller: Caller, execution_id: str = "d1", **changes: Any) -> tuple[Drained, dict[tuple[str, int], int]]:
    """Deploy the next run, and acquire all its tasks. Returns the start offsets of their stages, which all have empty state."""
    after = await deployed(caller, **changes)
    await caller.registered(after.run_id, execution_id)
    starts: dict[tuple[str, int], int] = {}
    for task in (await caller.run(after.run_id))["tasks"]:
        for stage in (await caller.acquired(after.run_id, execution_id, task=task["task"]))["stages"]:
            assert (stage["batchId"], stage["snapshot"]) == (None, None)
            starts |= offsets_of(stage["starts"])
    return after, starts


async def drained(caller: Caller, *, chained: bool = False) -> Drained:
    """A run that was drained and whose container has exited."""
    run = await running(caller, chained=chained)
    await run.requested()
    stages = ["route", "hourly"] if chained else ["hourly"]
    for step in ("stopped", "flushed", "committed"):
        await run.all_take(step, stages)
    await caller.exited("c1")
    return run


async def test_the_next_run_begins_at_the_drained_offsets_with_empty_state(caller: Caller) -> None:
    run = await running(caller)
    lineage = (await caller.acquired(run.run_id, "c1"))["stages"][0]["lineage"]
    await run.requested()
    await run.to_drained()
    assert offsets_of((await run.drain_status())["drained"]) == {("flights", 0): 70, ("flights", 1): 71}
    await caller.exited("c1")
    after, starts = await starts_of_next(caller)
    assert starts == {("flights", 0): 70, ("flights", 1): 71}
    detail = await caller.run(after.run_id)
    assert (detail["firstRun"], detail["drain"]) == (after.run_id, None)
    assert lineage not in {stage["lineage"] for task in detail["tasks"] for stage in task["stages"]}


async def test_a_container_of_the_drained_run_keeps_its_tasks_until_it_has_ended(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    await run.to_drained()
    after = await deployed(caller)
    await caller.registered(after.run_id, "d1")
    assert (await caller.acquire(after.run_id, "d1")).status_code == 202
    await caller.exited("c1")
    assert (await caller.acquire(after.run_id, "d1")).status_code == 200


async def test_the_next_run_does_not_read_records_left_in_an_intermediate_stream(caller: Caller) -> None:
    run = await running(caller, chained=True)
    await run.requested()
    appended(caller, "by-carrier", partition=1, records=5)
    stages = ["route", "hourly"]
    await run.all_take("stopped", stages)
    appended(caller, "by-carrier", partition=0, records=3)
    for step in ("flushed", "committed"):
        await run.all_take(step, stages)
    await caller.exited("c1")
    _, starts = await starts_of_next(caller, chained=True)
    assert starts == {("flights", 0): 70, ("flights", 1): 71, ("by-carrier", 0): 3, ("by-carrier", 1): 5}


async def test_a_partition_added_between_a_drain_and_the_next_run_is_read_from_its_beginning(caller: Caller) -> None:
    await drained(caller)
    caller.log.grow("flights", 3)
    _, starts = await starts_of_next(caller)
    assert starts == {("flights", 0): 70, ("flights", 1): 71, ("flights", 2): 0}


async def test_a_partition_that_was_never_read_begins_where_the_run_began(caller: Caller) -> None:
    appended(caller, "flights", partition=0, records=9)
    run = await running(caller, start="latest")
    await run.requested()
    for step in ("stopped", "flushed", "committed"):
        await run.all_take(step, batchId=None, offsets=[])
    assert offsets_of((await run.drain_status())["drained"]) == {("flights", 0): 9, ("flights", 1): 0}


async def test_an_older_drain_can_be_started_from_again(caller: Caller) -> None:
    await drained(caller)
    await starts_of_next(caller)
    await caller.exited("d1")
    again, starts = await starts_of_next(caller, "e1", start="drained")
    assert starts == {("flights", 0): 70, ("flights", 1): 71}
    assert (await caller.run(again.run_id))["firstRun"] == again.run_id


async def test_a_job_that_was_never_drained_has_no_drained_start(caller: Caller) -> None:
    assert problem_slug(await caller.http.post("/runs", json=run_body(start="drained"))) == (422, "never-drained")
    await running(caller)
    assert problem_slug(await caller.http.post("/runs", json=run_body(start="drained"))) == (422, "never-drained")


async def test_the_second_run_after_a_drain_continues_where_the_first_one_ended(caller: Caller) -> None:
    await drained(caller)
    after, _ = await starts_of_next(caller)
    await caller.exited("d1")
    third = await deployed(caller)
    assert (await caller.run(third.run_id))["firstRun"] == after.run_id


async def test_readers_of_one_partition_get_the_offsets_to_which_they_must_catch_up(caller: Caller) -> None:
    stages = [{"name": name, "reads": ["flights"], "writes": []} for name in ("hourly", "daily")]
    run = await running(caller, stages=stages, outputs=[])
    await run.requested()
    await run.all_take("stopped", ["hourly"])
    for task, offset in ((0, 64), (1, 71)):
        answer = await run.step("stopped", task, "daily", offsets=offsets_json({("flights", task): offset}))
    expected = {("flights", 0): 70}
    assert offsets_of(answer.json()["catchUp"]) == expected
    assert offsets_of((await run.step("flushing", 0, "hourly")).json()["catchUp"]) == expected
    assert offsets_of((await run.drain_status())["catchUp"]) == expected
    assert offsets_of((await caller.run(run.run_id))["drain"]["catchUp"]) == expected
