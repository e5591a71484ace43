"""The plan of a deployment before it is made, and the request that created a run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import UNSAVED, Caller, Json, chained_body, problem_slug, run_body, running


async def plan(caller: Caller, body: Json) -> Json:
    answer = await caller.http.post("/runs/plan", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def runs(caller: Caller) -> list[str]:
    return [each["runId"] for each in (await caller.http.get("/runs")).json()["runs"]]


async def test_a_plan_shows_tasks_and_streams_and_creates_none_of_them(caller: Caller) -> None:
    found = await plan(caller, chained_body(containers=2))
    assert (found["job"], found["replaces"], found["creates"]) == ("flight-delays", None, ["by-carrier", "delays"])
    assert [(each["name"], each["partitions"]) for each in found["streams"]] == [("flights", 2), ("by-carrier", 4), ("delays", 1)]
    assert [(each["task"], each["processorId"]) for each in found["tasks"]] == [(f"Partition {n}", str(n % 2)) for n in range(4)]
    assert caller.log.streams() == ["flights"]
    assert await runs(caller) == []


async def test_a_deployment_has_the_tasks_and_streams_of_its_plan(caller: Caller) -> None:
    body = chained_body(containers=3)
    found = await plan(caller, body)
    made = await caller.run((await caller.deploy(body))["runId"])
    assert [(t["task"], t["processorId"]) for t in made["tasks"]] == [(t["task"], t["processorId"]) for t in found["tasks"]]
    assert made["streams"] == found["streams"]
    again = await plan(caller, body)
    assert (again["replaces"], again["creates"]) == (made["runId"], [])
    assert (await caller.run(made["runId"]))["stopRequestedAt"] is None


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (run_body(inputs=[{"name": "nowhere", "system": "log"}]), (422, "bad-graph")),
        (run_body(inputs=[{"name": "flights", "system": "log", "stream": "nowhere"}]), (422, "unknown-stream")),
        (run_body(inputs=[{"name": "flights", "system": "mars"}]), (422, "unknown-system")),
        (run_body(grouper="some:Where"), (422, "bad-grouping")),
        (run_body(config={"backup.stores": "moon"}), (422, "blob-store-unusable")),
        (run_body(start="drained", stages=[]), (422, "bad-graph")),
    ],
)
async def test_a_plan_is_refused_as_the_deployment_would_be(caller: Caller, body: Json, refusal: tuple[int, str]) -> None:
    assert problem_slug(await caller.http.post("/runs/plan", json=body)) == refusal
    assert problem_slug(await caller.http.post("/runs", json=body)) == refusal


async def test_a_start_after_a_drain_is_planned_before_there_is_a_drain(caller: Caller) -> None:
    drained = run_body(start="drained", **UNSAVED)
    assert problem_slug(await caller.http.post("/runs", json=drained))[1] == "never-drained"
    assert len((await plan(caller, drained))["tasks"]) == 2
    job = await running(caller)
    await job.requested()
    assert problem_slug(await caller.http.post("/runs/plan", json=run_body(**UNSAVED))) == (409, "run-is-draining")
    assert (await plan(caller, drained))["replaces"] == job.run_id


async def test_a_start_after_a_drain_may_read_a_grown_stream_that_a_continued_history_may_not(caller: Caller) -> None:
    await caller.deploy(run_body(**UNSAVED))
    caller.log.grow("flights", 3)
    assert problem_slug(await caller.http.post("/runs/plan", json=run_body(**UNSAVED))) == (422, "incompatible-expansion")
    assert len((await plan(caller, run_body(start="drained", **UNSAVED)))["tasks"]) == 3


async def test_the_request_that_created_a_run_creates_an_equal_one(caller: Caller) -> None:
    body: dict[str, Any] = chained_body(containers=2, config={"a": "b"}, stateful=False, maxTasks=3, start="2026-03-01T12:00:00+01:00")
    run_id = (await caller.deploy(body))["runId"]
    found = (await caller.http.get(f"/runs/{run_id}/request")).json()
    assert found["start"] == "2026-03-01T11:00:00Z"
    assert {name: found[name] for name in ("containers", "config", "stateful", "maxTasks")} == {
        name: body[name] for name in ("containers", "config", "stateful", "maxTasks")
    }
    again = (await caller.deploy(found))["runId"]
    assert (await caller.http.get(f"/runs/{again}/request")).json() == found


async def test_the_request_of_an_unknown_run_is_not_found(caller: Caller) -> None:
    assert problem_slug(await caller.http.get("/runs/lost/request")) == (404, "unknown-run")
