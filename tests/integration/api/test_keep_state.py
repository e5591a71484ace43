"""Drains that keep the state, and the runs that continue with it, through the API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import (
    UNSAVED,
    Caller,
    Drained,
    Json,
    checkpoint_id,
    deployed,
    offsets_of,
    problem_slug,
    run_body,
    running,
    snapshot,
)

KEEP: Json = {"drainMode": "KEEP_STATE"}
KNOWN: Json = {"drainModes": ["DEFAULT", "KEEP_STATE"]}
OPERATORS = ["dropDuplicates by id string"]
SAVED: Json = {"config": {}}


async def keeping(caller: Caller, **changes: Any) -> Drained:
    """A run whose container supports drains that keep the state, and owns both tasks."""
    run = await deployed(caller, **changes)
    await caller.registered(run.run_id, "c1", **KNOWN)
    for task in (0, 1):
        await caller.acquired(run.run_id, "c1", task=f"Partition {task}")
    return run


async def kept(caller: Caller, run: Drained, *, saved: bool = False) -> None:
    """Drain the run with its state, with snapshot 1 of each task if it is backed up, and let its container exit."""
    lineages = [task["stages"][0]["lineage"] for task in (await caller.run(run.run_id))["tasks"]]
    made = [{"checkpointId": await snapshot(caller, run.run_id, 1, lineages[task], task)} if saved else {} for task in (0, 1)]
    await run.requested(**KEEP)
    for step, more in (("stopped", made), ("flushed", [{"operators": OPERATORS}] * 2), ("committed", made)):
        for task in (0, 1):
            phase = await run.phase_after(step, task, **more[task])
    assert phase == "DRAINED"
    await caller.exited("c1")


async def start_of(caller: Caller, run_id: str, container: str, task: int = 0, **more: Any) -> Json:
    """The start of a task's first stage."""
    epoch = (await caller.registered(run_id, container, **KNOWN))["epoch"]
    return dict((await caller.acquired(run_id, container, epoch, f"Partition {task}"))["stages"][0])


async def test_a_run_after_a_drain_that_keeps_the_state_continues_with_it_and_gets_its_operators(caller: Caller) -> None:
    run = await keeping(caller)
    await kept(caller, run)
    before = [task["stages"][0]["lineage"] for task in (await caller.run(run.run_id))["tasks"]]
    after = await caller.deploy(run_body(**UNSAVED))
    assert after["firstRun"] == after["runId"]
    start = await start_of(caller, after["runId"], "c2")
    assert (start["lineage"], start["batchId"], start["keptOperators"]) == (before[0], 7, OPERATORS)
    assert offsets_of(start["starts"]) == {("flights", 0): 70}
    assert (await caller.progress(after["runId"], 2, before[0], 8)).status_code == 204
    again = await caller.acquired(after["runId"], "c2", 1, "Partition 0")
    assert (again["stages"][0]["batchId"], again["stages"][0]["keptOperators"]) == (8, None)


async def test_a_drain_that_keeps_the_state_may_be_cancelled_or_fail_in_any_phase_and_the_run_continues(caller: Caller) -> None:
    run = await keeping(caller)
    for phase, steps in (("STOPPING", []), ("FLUSHING", ["stopped"]), ("COMMITTING", ["stopped", "flushed"])):
        await run.requested(**KEEP)
        for step in steps:
            await run.all_take(step)
        assert (await run.drain_status())["phase"] == phase
        assert (await run.cancel()).json()["phase"] == "CANCELLED"
        assert (await caller.run(run.run_id))["state"] == "RUNNING"
    detail = await caller.run(run.run_id)
    assert (detail["drain"], detail["failedDrains"]) == (None, [])
    await run.requested()
    await run.to_drained()


async def test_a_run_that_is_stopped_during_a_drain_that_keeps_the_state_keeps_its_state(caller: Caller) -> None:
    run = await keeping(caller)
    await run.requested(**KEEP)
    await run.all_take("stopped")
    await caller.stop(run.run_id)
    assert (await run.drain_status())["phase"] == "CANCELLED"
    await caller.exited("c1")
    assert (await caller.run(run.run_id))["state"] == "STOPPED"


@pytest.mark.parametrize("first", ["DEFAULT", "KEEP_STATE"])
async def test_a_request_for_the_other_mode_is_refused_during_and_after_a_drain(caller: Caller, first: str) -> None:
    run = await keeping(caller)
    other = {"DEFAULT": "KEEP_STATE", "KEEP_STATE": "DEFAULT"}[first]
    await run.requested(drainMode=first)
    assert problem_slug(await run.request(drainMode=other)) == (409, "other-drain-mode")
    await run.to_drained()
    assert problem_slug(await run.request(drainMode=other)) == (409, "other-drain-mode")
    assert (await run.request(drainMode=first)).json()["phase"] == "DRAINED"


# --- containers that cannot keep state ---------------------------------------------------------------------------------


async def test_a_drain_that_keeps_the_state_is_refused_for_a_run_with_a_container_of_the_previous_release(caller: Caller) -> None:
    run = await running(caller)
    refused = await run.request(**KEEP)
    assert problem_slug(refused) == (409, "outdated-containers")
    assert "c1" in refused.json()["detail"]
    plan = (await caller.http.post("/drain/plan", json={"runId": run.run_id})).json()
    assert plan["keepStateRefused"] == refused.json()["detail"]
    assert (await caller.run(run.run_id))["state"] == "RUNNING"
    await caller.registered(run.run_id, "c2", **KNOWN)
    assert (await run.request(**KEEP)).status_code == 202


async def test_a_container_of_the_previous_release_cannot_register_during_a_drain_that_keeps_the_state(caller: Caller) -> None:
    run = await deployed(caller)
    await run.requested(**KEEP)
    assert problem_slug(await caller.register(run.run_id, "c1")) == (409, "outdated-containers")
    assert (await caller.run(run.run_id))["incarnations"] == []
    await caller.registered(run.run_id, "c2", **KNOWN)


# --- what the next run must have ---------------------------------------------------------------------------------------


async def test_a_version_without_the_stage_that_has_state_is_refused_and_the_old_one_continues(caller: Caller) -> None:
    run = await keeping(caller)
    await kept(caller, run)
    renamed = run_body(**UNSAVED, stages=[{"name": "daily", "reads": ["flights"], "writes": ["delays"]}])
    for start in ("checkpoint", "drained"):
        for path in ("/runs/plan", "/runs"):
            refused = await caller.http.post(path, json={**renamed, "start": start}, params={"drainMode": "KEEP_STATE"})
            assert problem_slug(refused) == (409, "incompatible-state")
            assert "stage hourly has state (dropDuplicates by id string)" in refused.json()["detail"]
    assert (await caller.http.post("/runs", json=run_body(**UNSAVED))).status_code == 201


async def test_a_version_that_reads_another_stream_into_the_state_is_refused_unless_the_state_is_empty(caller: Caller) -> None:
    caller.log.create("other", 2)
    run = await keeping(caller)
    await kept(caller, run)
    other = run_body(**UNSAVED, inputs=[{"name": "flights", "system": "log", "stream": "other"}])
    refused = await caller.http.post("/runs", json=other)
    assert problem_slug(refused) == (409, "incompatible-state")
    assert "reads log.other in the new version instead of log.flights" in refused.json()["detail"]
    explicit = await caller.deploy({**other, "start": "earliest"})
    start = await start_of(caller, explicit["runId"], "c2")
    assert (start["batchId"], start["keptOperators"]) == (None, None)
    given_up = await caller.http.post("/runs", json=run_body(**UNSAVED, start="drained"))
    assert problem_slug(given_up) == (409, "incompatible-state")


async def test_other_tasks_for_the_partitions_of_kept_state_are_refused_before_and_after_the_drain(caller: Caller) -> None:
    run = await keeping(caller)
    one_task = run_body(**UNSAVED, grouper="AllSspToSingleTask", start="drained")
    await kept(caller, run)
    assert (await caller.http.post("/runs", json=one_task)).status_code in (409, 422)


# --- roll-back ---------------------------------------------------------------------------------------------------------


async def test_a_roll_back_returns_to_the_state_of_the_drain(caller: Caller) -> None:
    run = await keeping(caller, **SAVED)
    await kept(caller, run, saved=True)
    (pin,) = (await caller.http.get("/jobs/flight-delays/pins")).json()["pins"]
    assert [each["checkpointId"] for each in pin["snapshots"]] == [checkpoint_id(1)] * 2
    new = await caller.deploy(run_body(**SAVED, start="drained"))
    start = await start_of(caller, new["runId"], "c2")
    assert (start["batchId"], start["snapshot"]["checkpointId"], start["snapshot"]["chosen"]) == (7, checkpoint_id(1), False)
    assert (await caller.progress(new["runId"], 2, start["lineage"], 9)).status_code == 204
    await caller.stop(new["runId"], failed=True)
    await caller.exited("c2", 1)
    back = await caller.deploy(run_body(**SAVED, start="drained"))
    assert back["firstRun"] == back["runId"]
    start = await start_of(caller, back["runId"], "c3")
    assert (start["snapshot"]["checkpointId"], start["snapshot"]["chosen"]) == (checkpoint_id(1), True)
    assert start["keptOperators"] == OPERATORS
    assert offsets_of(start["starts"]) == {("flights", 0): 70}


async def test_without_a_backup_a_roll_back_is_refused_after_a_batch_and_accepted_before_it(caller: Caller) -> None:
    run = await keeping(caller)
    await kept(caller, run)
    for number in (2, 3):
        new = await caller.deploy(run_body(**UNSAVED, start="drained"))
        start = await start_of(caller, new["runId"], f"c{number}")
        assert (start["batchId"], start["keptOperators"]) == (7, OPERATORS)
        await caller.stop(new["runId"], failed=True)
        await caller.exited(f"c{number}", 1)
    new = await caller.deploy(run_body(**UNSAVED, start="drained"))
    start = await start_of(caller, new["runId"], "c4")
    assert (await caller.progress(new["runId"], 4, start["lineage"], 8)).status_code == 204
    await caller.stop(new["runId"], failed=True)
    await caller.exited("c4", 1)
    refused = await caller.http.post("/runs", json=run_body(**UNSAVED, start="drained"))
    assert problem_slug(refused) == (409, "incompatible-state")
    assert "the job is not backed up" in refused.json()["detail"]
    assert (await caller.deploy(run_body(**UNSAVED)))["firstRun"] == new["firstRun"]


# --- the plan ----------------------------------------------------------------------------------------------------------


async def test_the_plan_shows_what_a_drain_does_to_each_operator(caller: Caller) -> None:
    run = await keeping(caller)
    lineage = (await caller.run(run.run_id))["tasks"][0]["stages"][0]["lineage"]
    operators = [{"operator": "aggregation", "effect": "emits"}, {"operator": "dropDuplicates", "effect": "forgets"}]
    metrics = {"rows": 1, "rowsPerSecond": 1, "batchMillis": 1, "unflushable": [], "operators": operators, "at": "2026-03-01T12:00:00Z"}
    body = {"generation": 1, "stage": "hourly", "lineage": lineage, "batchId": 1, "offsets": [], "metrics": metrics}
    answer = await caller.http.post(f"/runs/{run.run_id}/tasks/Partition 0/progress", json=body)
    assert answer.status_code == 204
    (stage,) = (await caller.http.post("/drain/plan", json={"runId": run.run_id})).json()["stages"]
    assert [(each["operator"], each["effect"]) for each in stage["stateful"]] == [("aggregation", "emits"), ("dropDuplicates", "forgets")]
    assert stage["stateful"][1]["does"].startswith("forgets the keys that it has seen")
    renamed = run_body(**UNSAVED, start="drained", stages=[{"name": "daily", "reads": ["flights"], "writes": ["delays"]}])
    before = await caller.http.post("/runs/plan", json=renamed, params={"drainMode": "KEEP_STATE"})
    assert problem_slug(before) == (409, "incompatible-state")
    assert (await caller.http.post("/runs/plan", json=renamed)).status_code == 200
