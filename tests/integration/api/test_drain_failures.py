"""Drains that fail: deadlines, stops, missing checkpoints, and state that a flush could not empty."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.api import Caller, Drained, Json, checkpoint_id, deployed, offsets_json, problem_slug, running, snapshot
from tests.support.fakes import FakeClock

SAVED: Json = {"config": {}}
"""Of a run that is backed up."""


async def saved(caller: Caller) -> tuple[Drained, list[str]]:
    """A run that is backed up, its drain that has not been requested yet, and the lineages of its tasks."""
    run = await running(caller, **SAVED)
    detail = await caller.run(run.run_id)
    return run, [task["stages"][0]["lineage"] for task in detail["tasks"]]


async def stopped_with_checkpoints(caller: Caller) -> tuple[Drained, list[str]]:
    """The same in FLUSHING: snapshot 1 of each task is pinned."""
    run, lineages = await saved(caller)
    await run.requested(hardDeadlineSeconds=20)
    for task in (0, 1):
        made = await snapshot(caller, run.run_id, 1, lineages[task], task)
        await run.phase_after("stopped", task, checkpointId=made)
    return run, lineages


async def pins(caller: Caller) -> list[Json]:
    return list((await caller.http.get("/jobs/flight-delays/pins")).json()["pins"])


async def over(caller: Caller, run: Drained, after: int) -> Json:
    """The detail of the notice with which a drain ends whose deadline has passed."""
    await caller.run_chore("watch_drains")
    for notice in await caller.notices(run.run_id, after):
        if notice["kind"] == "DRAIN" and notice["detail"]["phase"] in ("FAILED", "CANCELLED", "DRAINED"):
            return dict(notice["detail"])
    raise AssertionError("the drain has not ended")


# --- pinned checkpoints -----------------------------------------------------------------------------------------------


async def test_the_checkpoint_with_which_a_stage_stopped_is_pinned_until_the_drain_is_over(caller: Caller) -> None:
    run, lineages = await stopped_with_checkpoints(caller)
    (pin,) = await pins(caller)
    assert pin["pinId"] == f"drain-{run.uuid}"
    assert [(each["task"], each["checkpointId"]) for each in pin["snapshots"]] == [(f"Partition {n}", checkpoint_id(1)) for n in (0, 1)]
    await run.all_take("flushed")
    for task in (0, 1):
        made = await snapshot(caller, run.run_id, 2, lineages[task], task, previous=1)
        phase = await run.phase_after("committed", task, batchId=8, checkpointId=made)
    assert (phase, await pins(caller)) == ("DRAINED", [])
    stage = (await run.drain_status())["containers"][0]["tasks"][0]["stages"][0]
    assert (stage["pinnedCheckpoint"], stage["committedCheckpoint"]) == (checkpoint_id(1), checkpoint_id(2))


async def test_a_stage_that_stops_again_pins_its_newer_checkpoint(caller: Caller) -> None:
    run, lineages = await saved(caller)
    await run.requested()
    for number in (1, 2):
        made = await snapshot(caller, run.run_id, number, lineages[0], previous=number - 1 or None)
        assert await run.phase_after("stopped", 0, checkpointId=made) == "STOPPING"
    (pin,) = await pins(caller)
    assert [each["checkpointId"] for each in pin["snapshots"]] == [checkpoint_id(2)]
    await run.cancel()
    assert await pins(caller) == []


async def test_a_run_that_is_backed_up_stops_and_ends_with_durable_checkpoints_only(caller: Caller) -> None:
    run, lineages = await saved(caller)
    await run.requested()
    assert problem_slug(await run.step("stopped")) == (422, "checkpoint-needed")
    assert problem_slug(await run.step("stopped", checkpointId=checkpoint_id(1))) == (404, "unknown-snapshot")
    assert problem_slug(await run.step("stopped", checkpointId="x")) == (422, "invalid-request")
    for task in (0, 1):
        made = await snapshot(caller, run.run_id, 1, lineages[task], task)
        await run.phase_after("stopped", task, checkpointId=made)
    await run.all_take("flushed")
    assert problem_slug(await run.step("committed")) == (422, "checkpoint-needed")
    assert problem_slug(await run.step("committed", checkpointId=checkpoint_id(9))) == (404, "unknown-snapshot")
    assert (await run.drain_status())["remaining"] == 2


async def test_a_step_with_impossible_offsets_is_refused_and_does_not_advance_the_drain(caller: Caller) -> None:
    run = await running(caller)
    lineage = (await caller.acquired(run.run_id, "c1"))["stages"][0]["lineage"]
    assert (await caller.progress(run.run_id, 1, lineage, 7, [("flights", 0, 70)])).status_code == 204
    await run.requested()
    for changes in ({"offsets": offsets_json({("flights", 0): 69})}, {"batchId": 2**53 + 1}):
        assert problem_slug(await run.step("stopped", **changes)) == (422, "false-report")
    assert (await run.drain_status())["phase"] == "STOPPING"
    assert await run.phase_after("stopped") == "STOPPING"
    assert await run.phase_after("stopped", 1) == "FLUSHING"


async def test_a_stage_without_any_batch_needs_no_checkpoint(caller: Caller) -> None:
    run, _ = await saved(caller)
    await run.requested()
    for step in ("stopped", "flushed", "committed"):
        phase = await run.all_take(step, batchId=None, offsets=[])
    assert phase == "DRAINED"


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_a_drain_that_fails_before_it_flushed_leaves_the_run_as_it_was(caller: Caller, clock: FakeClock) -> None:
    run = await running(caller)
    await run.requested(hardDeadlineSeconds=20)
    await run.phase_after("stopped", 0)
    reply = len(await caller.notices(run.run_id))
    clock.advance(20)
    detail = await over(caller, run, reply)
    assert detail["phase"] == "FAILED"
    assert "hard deadline" in detail["reason"]
    assert "Partition 1, stage hourly (slot 0): at work" in detail["reason"]
    after = await caller.run(run.run_id)
    assert (after["state"], after["stopRequestedAt"], after["drain"], after["failedDrains"]) == ("RUNNING", None, None, [])
    first = run.uuid
    assert (await run.requested())["uuid"] != first


async def test_a_drain_that_fails_after_it_flushed_rolls_back_to_the_pinned_checkpoints(caller: Caller, clock: FakeClock) -> None:
    run, lineages = await stopped_with_checkpoints(caller)
    await run.phase_after("flushed", 0, batchId=8)
    flushed = await snapshot(caller, run.run_id, 2, lineages[0], 0, previous=1)
    reply = len(await caller.notices(run.run_id))
    clock.advance(20)
    assert (await over(caller, run, reply))["phase"] == "FAILED"
    failed = await caller.run(run.run_id)
    assert (failed["state"], failed["stopRequestedAt"] is None, failed["failedDrains"]) == ("RUNNING", False, [run.uuid])
    assert "hard deadline" in failed["reason"]
    assert await run.phase_after("flushed", 1) == "FAILED"
    await caller.exited("c1")
    assert (await caller.run(run.run_id))["state"] == "STOPPED"
    assert [kind for kind, _ in await run.kinds()][-2:] == ["STOP", "ENDED"]
    after = str((await caller.deploy())["runId"])
    await caller.registered(after, "d1")
    (stage,) = (await caller.acquired(after, "d1"))["stages"]
    assert (stage["snapshot"]["checkpointId"], stage["snapshot"]["chosen"]) == (checkpoint_id(1), True)
    assert flushed != checkpoint_id(1)
    assert (await caller.run(after))["failedDrains"] == [run.uuid]
    (pin,) = await pins(caller)
    assert datetime.fromisoformat(pin["expiresAt"]) - clock.now() == timedelta(days=30)


async def test_after_a_late_failure_a_stage_without_any_batch_starts_fresh(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    await run.phase_after("stopped", 0, batchId=None, offsets=[])
    await run.phase_after("stopped", 1)
    before = {task["task"]: task["stages"][0]["lineage"] for task in (await caller.run(run.run_id))["tasks"]}
    await caller.stop(run.run_id, reason="enough")
    assert "1 stages have no checkpoint to roll back to" in (await run.drain_status())["reason"]
    await caller.exited("c1")
    after = str((await caller.deploy())["runId"])
    await caller.registered(after, "d1")
    lineages = {n: (await caller.acquired(after, "d1", task=n))["stages"][0]["lineage"] for n in before}
    assert {name: lineages[name] == before[name] for name in before} == {"Partition 0": False, "Partition 1": True}


@pytest.mark.parametrize(("steps", "phase"), [(0, "CANCELLED"), (1, "FAILED"), (2, "FAILED")])
async def test_a_stop_ends_a_drain(caller: Caller, steps: int, phase: str) -> None:
    run = await running(caller)
    await run.requested()
    for step in ("stopped", "flushed")[:steps]:
        await run.all_take(step)
    answer = await caller.stop(run.run_id, reason="enough")
    assert answer.status_code == 202
    reported = await run.drain_status()
    assert (reported["phase"], "the run was stopped: enough" in reported["reason"]) == (phase, True)
    await caller.exited("c1")
    assert (await caller.run(run.run_id))["state"] == "STOPPED"


async def test_a_stop_before_any_container_has_registered_ends_a_drain_and_the_run(caller: Caller) -> None:
    run = await deployed(caller)
    await run.requested()
    assert (await caller.stop(run.run_id)).json()["state"] == "STOPPED"
    assert (await run.drain_status())["phase"] == "CANCELLED"


async def test_a_drain_whose_containers_are_all_lost_fails_and_ends_the_run(caller: Caller, clock: FakeClock) -> None:
    run = await running(caller)
    await run.requested(hardDeadlineSeconds=20)
    await run.to_flushing()
    await caller.exited("c1", 1)
    reply = len(await caller.notices(run.run_id))
    clock.advance(20)
    assert "slot 0: no container; the last one ended: stopped" in (await over(caller, run, reply))["reason"]
    assert (await caller.run(run.run_id))["state"] == "STOPPED"


async def test_a_stop_after_a_drain_changes_nothing(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    await run.to_drained()
    assert (await caller.stop(run.run_id)).json()["state"] == "DRAINED"
    assert (await run.drain_status())["phase"] == "DRAINED"


# --- late stages ------------------------------------------------------------------------------------------------------


async def test_after_the_soft_deadline_late_stages_are_named_and_the_drain_continues(caller: Caller, clock: FakeClock) -> None:
    run = await running(caller)
    asked = await run.requested(softDeadlineSeconds=20, hardDeadlineSeconds=1000)
    assert datetime.fromisoformat(asked["softDeadlineAt"]) == clock.now() + timedelta(seconds=20)
    assert not (await run.drain_status())["late"]
    clock.advance(20)
    reported = await run.drain_status()
    assert (reported["late"], reported["phase"], len(reported["blockedBy"])) == (True, "STOPPING", 2)
    await run.to_drained()
    assert not (await run.drain_status())["late"]


async def test_each_phase_has_its_own_time_budget(caller: Caller, clock: FakeClock) -> None:
    run = await running(caller)
    await run.requested(softDeadlineSeconds=1000, hardDeadlineSeconds=2000, budgetSeconds={"stopping": 5, "flushing": 100})
    clock.advance(12)
    assert (await run.drain_status())["late"]
    await run.to_flushing()
    clock.advance(12)
    reported = await run.drain_status()
    assert not reported["late"]
    phases = {each["phase"]: (each["seconds"], each["budgetSeconds"], each["late"]) for each in reported["phases"]}
    assert phases == {"REQUESTED": (0, None, False), "STOPPING": (12, 5, True), "FLUSHING": (12, 100, False)}


async def test_drains_have_metrics(caller: Caller, clock: FakeClock) -> None:
    run = await running(caller)
    await run.requested(hardDeadlineSeconds=20)
    reply = len(await caller.notices(run.run_id))
    clock.advance(20)
    await over(caller, run, reply)
    shown = (await caller.http.get("/metrics")).text
    assert 'sluice_drain_phase_seconds{phase="STOPPING",sluice_job="flight-delays"} 20.0' in shown
    assert 'sluice_drain_stages{sluice_job="flight-delays",step="none"} 2.0' in shown
    assert 'sluice_drain_late{sluice_job="flight-delays"} 1.0' in shown


# --- what a flush cannot empty ----------------------------------------------------------------------------------------


async def measured(caller: Caller, run: Drained, task: int, unflushable: Any) -> None:
    lineage = (await caller.run(run.run_id))["tasks"][task]["stages"][0]["lineage"]
    at = "2026-03-01T12:00:00Z"
    measures = {"rows": 1, "rowsPerSecond": 1, "batchMillis": 1, "stateRows": 40, "unflushable": unflushable, "at": at}
    body = {"generation": 1, "stage": "hourly", "lineage": lineage, "batchId": 1, "offsets": offsets_json({}), "metrics": measures}
    answer = await caller.http.post(f"/runs/{run.run_id}/tasks/Partition {task}/progress", json=body)
    assert answer.status_code == 204, answer.text


async def plan(caller: Caller, run: Drained) -> Json:
    answer = await caller.http.post("/drain/plan", json={"runId": run.run_id})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_plan_names_state_that_a_flush_could_not_empty(caller: Caller) -> None:
    run = await running(caller)
    (stage,) = (await plan(caller, run))["stages"]
    assert (stage["unknownTasks"], stage["operators"]) == (["Partition 0", "Partition 1"], [])
    assert (await plan(caller, run))["empties"] is None
    await measured(caller, run, 0, [])
    await measured(caller, run, 1, ["Aggregate without a watermark"])
    reply = await plan(caller, run)
    assert reply["empties"] is False
    expected = {"stage": "hourly", "tasks": 2, "operators": ["Aggregate without a watermark"], "stateRows": 80, "unknownTasks": []}
    assert reply["stages"] == [expected | {"stateful": None}]
    assert await run.kinds() == []


async def test_a_drain_that_must_empty_the_state_is_refused_if_a_flush_could_not_empty_it(caller: Caller) -> None:
    run = await running(caller)
    assert problem_slug(await run.request(requireEmpty=True)) == (409, "not-emptied")
    await measured(caller, run, 0, [])
    await measured(caller, run, 1, ["Aggregate without a watermark"])
    answer = await run.request(requireEmpty=True)
    assert problem_slug(answer) == (409, "not-emptied")
    assert "stage hourly: Aggregate without a watermark" in answer.json()["detail"]
    assert (await caller.run(run.run_id))["state"] == "RUNNING"
    await measured(caller, run, 1, [])
    assert (await plan(caller, run))["empties"] is True
    await run.requested(requireEmpty=True)


async def test_a_run_that_has_ended_has_no_plan(caller: Caller) -> None:
    run = await running(caller)
    await caller.stop(run.run_id)
    await caller.exited("c1")
    assert problem_slug(await caller.http.post("/drain/plan", json={"runId": run.run_id})) == (409, "stale-run")
    assert problem_slug(await caller.http.post("/drain/plan", json={"runId": "nothing"})) == (404, "unknown-run")


# --- deadlines and pins of a drain that is active -----------------------------------------------------------------------


async def test_a_drain_that_has_waited_long_for_its_first_container_has_its_whole_time_from_then_on(
    caller: Caller, clock: FakeClock
) -> None:
    run = await deployed(caller)
    await run.requested(softDeadlineSeconds=60, hardDeadlineSeconds=600)
    for _ in range(20):
        await caller.run_chore("watch_drains")
        clock.advance(60)
    await caller.registered(run.run_id, "c1")
    clock.advance(30)
    await caller.run_chore("watch_drains")
    reported = await run.drain_status()
    assert (reported["phase"], reported["late"]) == ("STOPPING", False)
    clock.advance(569)
    await caller.run_chore("watch_drains")
    assert (await run.drain_status())["phase"] == "STOPPING"
    clock.advance(1)
    await caller.run_chore("watch_drains")
    assert (await run.drain_status())["phase"] == "FAILED"


async def test_a_second_request_with_later_deadlines_extends_the_drain(caller: Caller, clock: FakeClock) -> None:
    run = await running(caller)
    first = await run.requested(softDeadlineSeconds=10, hardDeadlineSeconds=20)
    clock.advance(15)
    answer = await run.request(softDeadlineSeconds=20, hardDeadlineSeconds=25)
    assert (answer.status_code, answer.json()["uuid"]) == (200, run.uuid)
    for name, seconds in (("softDeadlineAt", 10), ("hardDeadlineAt", 5)):
        later = datetime.fromisoformat((await run.drain_status())[name]) - datetime.fromisoformat(first[name])
        assert later == timedelta(seconds=seconds), name
    clock.advance(7)  # past the first deadline, before the second
    await run.to_flushing()
    reply = len(await caller.notices(run.run_id))
    clock.advance(3)
    assert "hard deadline" in (await over(caller, run, reply))["reason"]


@pytest.mark.parametrize("body", [{}, {"hardDeadlineSeconds": 10}, {"softDeadlineSeconds": 1, "hardDeadlineSeconds": 20}])
async def test_a_second_request_without_later_deadlines_changes_nothing(caller: Caller, body: Json) -> None:
    run = await running(caller)
    await run.requested(softDeadlineSeconds=10, hardDeadlineSeconds=20)
    before = await run.drain_status()
    assert (await run.request(**body)).json()["uuid"] == run.uuid
    assert await run.drain_status() == before


async def test_a_drain_that_is_over_is_not_extended(caller: Caller) -> None:
    run = await running(caller)
    await run.requested(hardDeadlineSeconds=20)
    await run.to_drained()
    before = await run.drain_status()
    assert (await run.request(hardDeadlineSeconds=60)).status_code == 200
    assert await run.drain_status() == before


async def test_the_pin_of_an_active_drain_is_neither_deleted_nor_replaced(caller: Caller) -> None:
    run, _ = await stopped_with_checkpoints(caller)
    path, before = "/jobs/flight-delays/pins", await pins(caller)
    refused = await caller.http.delete(f"{path}/drain-{run.uuid}")
    assert problem_slug(refused) == (422, "bad-request")
    assert "wait until the drain has ended" in refused.json()["detail"]
    assert problem_slug(await caller.http.post(path, json={"pinId": f"drain-{run.uuid}"})) == (422, "bad-request")
    assert await pins(caller) == before


async def test_the_pin_of_a_failed_drain_may_be_deleted_and_the_next_run_begins_at_its_checkpoint(caller: Caller, clock: FakeClock) -> None:
    run, _ = await stopped_with_checkpoints(caller)
    reply = len(await caller.notices(run.run_id))
    clock.advance(20)
    await over(caller, run, reply)
    assert (await caller.http.delete(f"/jobs/flight-delays/pins/drain-{run.uuid}")).status_code == 204
    await caller.exited("c1")
    after = str((await caller.deploy())["runId"])
    await caller.registered(after, "d1")
    (stage,) = (await caller.acquired(after, "d1"))["stages"]
    assert stage["snapshot"]["checkpointId"] == checkpoint_id(1)
