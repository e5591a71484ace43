"""Jobs of the kind attached: one slot and one task for a command that the coordinator does not know."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.api import Caller, problem_slug, run_body


def attached(**changes: Any) -> dict[str, Any]:
    return {"job": "orders", "kind": "attached", "containers": 1, "inputs": [], "stages": [], **changes}


async def test_an_attached_job_has_one_task_in_one_slot(caller: Caller) -> None:
    run = await caller.deploy(attached())
    detail = await caller.run(run["runId"])
    assert (detail["kind"], detail["slots"]) == ("attached", ["0"])
    assert [(each["task"], each["processorId"], each["assignedStages"]) for each in detail["tasks"]] == [("Driver", "0", [])]


async def test_other_jobs_are_of_the_kind_stages(caller: Caller) -> None:
    assert (await caller.deploy(run_body()))["kind"] == "stages"


async def test_deploying_it_again_answers_with_the_run_that_it_has(caller: Caller) -> None:
    first, second = await asyncio.gather(caller.deploy(attached()), caller.deploy(attached()))
    assert first["runId"] == second["runId"]
    assert first["stopRequestedAt"] is None


async def test_after_a_stop_a_deployment_makes_another_run(caller: Caller) -> None:
    first = await caller.deploy(attached())
    await caller.stop(first["runId"])
    assert (await caller.deploy(attached()))["runId"] != first["runId"]


async def test_its_request_can_be_sent_again(caller: Caller) -> None:
    run = await caller.deploy(attached())
    request = (await caller.http.get(f"/runs/{run['runId']}/request")).json()
    assert (request["kind"], request["stages"]) == ("attached", [])


async def test_an_attached_job_with_streams_or_several_containers_is_refused(caller: Caller) -> None:
    for wrong in (attached(containers=2), run_body(kind="attached")):
        assert problem_slug(await caller.http.post("/runs", json=wrong)) == (422, "bad-graph")


async def test_it_cannot_be_scaled(caller: Caller) -> None:
    run = await caller.deploy(attached())
    assert problem_slug(await caller.http.patch(f"/runs/{run['runId']}", json={"containers": 2})) == (422, "bad-placement")


async def test_its_drain_is_refused(caller: Caller) -> None:
    run = await caller.deploy(attached())
    assert problem_slug(await caller.http.post("/drain", json={"runId": run["runId"]})) == (409, "attached-job")
    assert (await caller.run(run["runId"]))["state"] == "CREATED"


async def test_a_slot_is_given_only_while_it_is_free_if_that_is_asked(caller: Caller) -> None:
    run = (await caller.deploy(attached()))["runId"]
    await caller.registered(run, "c1", onlyIfFree=True)
    assert problem_slug(await caller.register(run, "c2", onlyIfFree=True)) == (409, "slot-in-use")
    assert await caller.alive("c1", 1)
    await caller.exited("c1")
    assert (await caller.registered(run, "c3", onlyIfFree=True))["epoch"] == 2


async def test_a_repeated_registration_keeps_the_slot_that_it_has(caller: Caller) -> None:
    run = (await caller.deploy(attached()))["runId"]
    first = await caller.registered(run, "c1", onlyIfFree=True)
    again = await caller.registered(run, "c1", onlyIfFree=True)
    assert again | {"token": None} == first | {"token": None}


async def test_of_two_that_register_together_one_gets_the_slot(caller: Caller) -> None:
    run = (await caller.deploy(attached()))["runId"]
    answers = await asyncio.gather(*(caller.register(run, f"c{n}", onlyIfFree=True) for n in range(5)))
    assert sorted(each.status_code for each in answers) == [201, 409, 409, 409, 409]


async def test_who_replaces_the_owner_gets_the_task_when_that_one_has_ended(caller: Caller) -> None:
    run = (await caller.deploy(attached()))["runId"]
    await caller.registered(run, "c1")
    await caller.acquired(run, "c1", task="Driver")
    await caller.registered(run, "c2")
    assert (await caller.acquire(run, "c2", 2, task="Driver")).status_code == 202
    await caller.exited("c1")
    assert (await caller.acquired(run, "c2", 2, task="Driver"))["generation"] == 2
