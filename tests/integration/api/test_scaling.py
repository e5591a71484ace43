"""Plans, the number of containers, tasks that move, and the history of a job's model."""

from __future__ import annotations

import asyncio

import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.support.api import (
    UNSAVED,
    Caller,
    adopted,
    chained_body,
    check_partitions,
    history,
    partitions_of,
    patch,
    patched,
    plan,
    problem_slug,
    roll_back,
    run_body,
    running,
    slots_of,
    watched,
)
from tests.support.fakes import FakeClock


@pytest.fixture
async def run_id(caller: Caller, clock: FakeClock) -> str:
    """A run of four tasks on two containers, which have owned them for a second."""
    caller.log.grow("flights", 4)
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    for slot in ("0", "1"):
        await caller.registered(run_id, f"c{slot}", slot)
        for task in (await slots_of(caller))[slot]:
            await caller.acquired(run_id, f"c{slot}", task=task)
    clock.advance(1)
    return run_id


# --- plans -----------------------------------------------------------------------------------------------------------


async def test_a_plan_shows_the_effect_of_growth_and_changes_nothing(caller: Caller, run_id: str) -> None:
    before = await slots_of(caller)
    reply = await plan(caller, streams={"flights": 8})
    assert (reply["runId"], reply["version"], reply["containers"], reply["verdict"]) == (run_id, 1, 2, "SAFE")
    assert reply["streams"] == [
        {
            **{"name": "flights", "system": "log", "stream": "flights", "before": 4, "after": 8, "baseline": 4},
            **{"verdict": "SAFE", "reason": "log.flights grew from 4 to 8 partitions"},
        }
    ]
    assert [(each["partition"], each["task"]) for each in reply["partitions"]] == [(p, f"Partition {p % 4}") for p in range(4, 8)]
    assert (reply["tasksAffected"], reply["tasksNew"], reply["moves"]) == ([f"Partition {p}" for p in range(4)], [], [])
    assert reply["skewBefore"] == {"partitionsPerTask": {"max": 1, "mean": 1.0}, "tasksPerContainer": {"max": 2, "mean": 2.0}}
    assert reply["skewAfter"]["partitionsPerTask"] == {"max": 2, "mean": 2.0}
    assert (await slots_of(caller), (await caller.run(run_id))["jobModelVersion"], len(await history(caller))) == (before, 1, 1)
    assert await caller.notices(run_id) == []


async def test_a_plan_for_the_present_counts_shows_that_nothing_changes(caller: Caller, run_id: str) -> None:
    assert (await plan(caller))["verdict"] == "UNCHANGED"
    assert (await plan(caller, streams={"flights": 4}, containers=2))["verdict"] == "UNCHANGED"


@pytest.mark.parametrize(("count", "expected"), [(6, "not a multiple of 4"), (2, "cannot give partitions up")])
async def test_a_plan_for_an_unsafe_change_gives_the_reason(caller: Caller, run_id: str, count: int, expected: str) -> None:
    found = await plan(caller, streams={"flights": count})
    assert (found["verdict"], found["streams"][0]["verdict"], found["partitions"]) == ("REFUSED", "REFUSED", [])
    assert expected in found["reason"]


async def test_a_plan_for_another_number_of_containers_shows_the_moves(caller: Caller, run_id: str) -> None:
    found = await plan(caller, containers=3)
    assert found["verdict"] == "SAFE"
    assert [(move["former"], move["to"]) for move in found["moves"]] == [("1", "2")]
    assert found["skewAfter"]["tasksPerContainer"] == {"max": 2, "mean": 1.333}
    for containers, why in ((5, "5 containers for 4 tasks"), (0, "at least one container"), (-1, "at least one container")):
        found = await plan(caller, containers=containers)
        assert (found["verdict"], found["moves"]) == ("REFUSED", [])
        assert why in found["reason"]


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"job": "lost"}, (404, "unknown-job")),
        ({"job": "flight-delays", "streams": {"lost": 4}}, (422, "unknown-stream")),
        ({"job": "flight-delays", "streams": {"delays": 4}}, (422, "unknown-stream")),
        ({"job": "flight-delays", "streams": {"flights": 0}}, (422, "invalid-request")),
        ({"job": "flight-delays", "streams": {"flights": -4}}, (422, "invalid-request")),
        ({"job": "flight-delays", "streams": {"../x": 4}}, (422, "invalid-request")),
    ],
)
async def test_a_plan_for_an_unknown_job_or_stream_or_an_invalid_count_is_refused(
    caller: Caller, run_id: str, body: object, refusal: tuple[int, str]
) -> None:
    assert problem_slug(await caller.http.post("/jobModel/plan", json=body)) == refusal


async def test_a_plan_for_an_intermediate_stream_is_refused(caller: Caller) -> None:
    await caller.deploy(chained_body(partitions=2))
    answer = await caller.http.post("/jobModel/plan", json={"job": "flight-delays", "streams": {"by-carrier": 4}})
    assert problem_slug(answer) == (422, "unknown-stream")


async def test_scaling_that_would_separate_tasks_from_state_without_a_backup_is_refused_and_the_plan_shows_that(caller: Caller) -> None:
    run_id = str((await caller.deploy(run_body(containers=2, **UNSAVED)))["runId"])
    before = await slots_of(caller)
    reply = await plan(caller, containers=1)
    assert (reply["verdict"], reply["moves"]) == ("REFUSED", [])
    assert "is not backed up, so the state of the tasks that would move (Partition 1) would stay behind" in reply["reason"]
    answer = await patch(caller, run_id, {"containers": 1})
    assert problem_slug(answer) == (422, "bad-placement")
    assert answer.json()["detail"] == reply["reason"]
    assert (await slots_of(caller), (await caller.run(run_id))["jobModelVersion"]) == (before, 1)


async def test_a_stateless_run_that_is_not_backed_up_is_scaled_and_its_tasks_continue_at_their_offsets(caller: Caller) -> None:
    run_id = str((await caller.deploy(run_body(containers=2, stateful=False, **UNSAVED)))["runId"])
    await caller.registered(run_id, "c0", "0")
    await caller.registered(run_id, "c1", "1")
    (stage,) = (await caller.acquired(run_id, "c1", task="Partition 1"))["stages"]
    read = [{"system": "log", "stream": "flights", "partition": 1, "offset": 40}]
    body = {"generation": 1, "stage": "hourly", "lineage": stage["lineage"], "batchId": 7, "offsets": read}
    assert (await caller.http.post(f"/runs/{run_id}/tasks/Partition 1/progress", json=body)).status_code == 204
    (warning,) = (await plan(caller, containers=1))["warnings"]
    assert "the run is not backed up" in warning
    await patched(caller, run_id, {"containers": 1})
    await caller.exited("c1")
    for _ in range(2):
        (moved,) = (await caller.acquired(run_id, "c0", task="Partition 1"))["stages"]
        assert (moved["batchId"], moved["starts"][0]["offset"]) == (None, 40)
        assert moved["lineage"] != stage["lineage"]


async def test_a_roll_back_that_would_leave_the_state_of_a_task_behind_is_refused(caller: Caller, run_id: str) -> None:
    await patched(caller, run_id, {"containers": 3})
    answer = await caller.http.put(f"/runs/{run_id}/backup", json={"stores": [], "restoreFrom": []})
    assert answer.status_code == 200, answer.text
    assert problem_slug(await roll_back(caller, 1)) == (422, "bad-placement")


# --- the number of containers ----------------------------------------------------------------------------------------


async def test_an_additional_container_gets_its_share_of_tasks_when_the_former_owner_has_released_them(caller: Caller, run_id: str) -> None:
    reply = await patched(caller, run_id, {"containers": 3, "why": "more to do"}, Sluice_Actor="ops")
    (move,) = reply["moves"]
    assert (reply["former"], reply["version"], reply["containers"], move["to"]) == (1, 2, 3, "2")
    assert (await caller.run(run_id))["containers"] == 3
    (notice,) = await caller.notices(run_id)
    assert notice["detail"] == {"version": 2, "containers": 3, "why": "scaled from 2 to 3 containers; more to do"}
    await caller.registered(run_id, "c2", "2")
    task, slot = move["task"], move["former"]
    assert (await caller.acquire(run_id, "c2", 1, task)).status_code == 202
    lineage = next(each for each in (await caller.run(run_id))["tasks"] if each["task"] == task)["stages"][0]["lineage"]
    body = {"generation": 1, "stage": "hourly", "lineage": lineage, "batchId": 7, "offsets": []}
    assert (await caller.http.post(f"/runs/{run_id}/tasks/{task}/progress", json=body)).status_code == 204
    assert problem_slug(await caller.acquire(run_id, f"c{slot}", 1, task)) == (409, "task-not-yours")
    assert (await caller.acquire(run_id, "c2", 1, task)).status_code == 202
    assert (await caller.release(run_id, 1, task)).status_code == 204
    assert problem_slug(await caller.http.post(f"/runs/{run_id}/tasks/{task}/progress", json=body)) == (409, "lease-lost")
    got = await caller.acquired(run_id, "c2", task=task)
    assert (got["generation"], got["stages"][0]["batchId"], got["stages"][0]["lineage"]) == (2, 7, lineage)


async def test_a_task_that_moved_is_free_when_its_former_owner_s_exit_is_reported_or_its_lease_and_grace_have_passed(
    caller: Caller, run_id: str, clock: FakeClock
) -> None:
    (move,) = (await patched(caller, run_id, {"containers": 3}))["moves"]
    await caller.registered(run_id, "c2", "2")
    for _ in range(4):
        clock.advance(20)
        assert await caller.alive("c2", 1)
        assert await caller.alive("c0", 1)
        assert await caller.alive("c1", 1)
        assert (await caller.acquire(run_id, "c2", 1, move["task"])).status_code == 202
    clock.advance(20)
    assert await caller.alive("c2", 1)
    clock.advance(14.5)
    answer = await caller.acquire(run_id, "c2", 1, move["task"])
    assert (answer.status_code, answer.json()) == (202, {"waitSeconds": 0.5, "former": f"c{move['former']}"})
    clock.advance(0.5)
    assert (await caller.acquired(run_id, "c2", task=move["task"]))["generation"] == 2


async def test_a_task_that_moved_away_and_back_still_has_its_owner(caller: Caller, run_id: str) -> None:
    (move,) = (await patched(caller, run_id, {"containers": 3}))["moves"]
    await patched(caller, run_id, {"containers": 2})
    assert (await slots_of(caller))[move["former"]].count(move["task"]) == 1
    assert (await caller.acquired(run_id, f"c{move['former']}", task=move["task"]))["generation"] == 1


async def test_a_container_of_a_removed_slot_continues_until_it_ends_and_cannot_register_again(caller: Caller, run_id: str) -> None:
    reply = await patched(caller, run_id, {"containers": 1})
    assert sorted((move["former"], move["to"]) for move in reply["moves"]) == [("1", "0")] * 2
    assert (await caller.notices(run_id))[0]["detail"]["containers"] == 1
    assert await caller.alive("c1", 1)
    for move in reply["moves"]:
        assert (await caller.acquire(run_id, "c0", 1, move["task"])).status_code == 202
    await caller.exited("c1")
    for move in reply["moves"]:
        assert (await caller.acquired(run_id, "c0", task=move["task"]))["generation"] == 2
    assert set((await caller.http.get("/locality")).json()["processor-localities"]) == {"0"}
    answer = await caller.register(run_id, "c1-again", "1")
    assert problem_slug(answer) == (404, "unknown-slot")
    assert "has no processor '1': it has 0 to 0" in answer.json()["detail"]


async def test_tasks_that_must_move_go_to_the_host_on_which_they_ran(caller: Caller, clock: FakeClock) -> None:
    caller.log.grow("flights", 6)
    run_id = str((await caller.deploy(run_body(containers=3)))["runId"])
    for slot, host in (("0", "a"), ("1", "b"), ("2", "b")):
        await caller.registered(run_id, f"c{slot}", slot, host=host)
    tasks = await slots_of(caller)
    for task in tasks["2"]:
        await caller.acquired(run_id, "c2", task=task)
    moves = {move["task"]: move["to"] for move in (await plan(caller, containers=2))["moves"]}
    assert sorted(moves) == tasks["2"]
    assert "1" in moves.values()
    assert (await plan(caller, containers=2))["moves"] == (await patched(caller, run_id, {"containers": 2}))["moves"]


async def test_the_same_number_of_containers_changes_nothing(caller: Caller, run_id: str) -> None:
    reply = await patched(caller, run_id, {"containers": 2})
    assert (reply["former"], reply["version"], reply["verdict"], reply["moves"]) == (1, 1, "UNCHANGED", [])
    assert await caller.notices(run_id) == []


@pytest.mark.parametrize("containers", [5, 0, -3])
async def test_more_containers_than_tasks_and_zero_containers_are_refused(caller: Caller, run_id: str, containers: int) -> None:
    assert problem_slug(await patch(caller, run_id, {"containers": containers})) == (422, "bad-placement")
    assert (await caller.run(run_id))["containers"] == 2


async def test_of_two_changes_of_the_same_version_one_is_refused_as_out_of_date(caller: Caller, run_id: str) -> None:
    etag = (await caller.http.get(f"/runs/{run_id}")).headers["etag"]
    answers = await asyncio.gather(*(patch(caller, run_id, {"containers": n}, If_Match=etag) for n in (1, 3)))
    assert sorted(each.status_code for each in answers) == [200, 412]
    refused = next(each for each in answers if each.status_code == 412)
    assert problem_slug(refused) == (412, "version-conflict")
    assert len(await history(caller)) == 2
    done = next(each for each in answers if each.status_code == 200)
    assert done.headers["etag"] == (await caller.http.get(f"/runs/{run_id}")).headers["etag"] == '"2"'


async def test_if_match_accepts_the_etag_of_the_job_model_and_no_other(caller: Caller, run_id: str) -> None:
    etag = (await caller.http.get("/jobModel?job=flight-delays")).headers["etag"]
    for wrong in ('"7"', '"abc"', '""', '"1", "2"', "1²"):
        headers = {b"If-Match": wrong.encode()}
        answer = await caller.http.patch(f"/runs/{run_id}", json={"containers": 3}, headers=list(headers.items()))
        assert problem_slug(answer) == (412, "version-conflict")
    assert (await patched(caller, run_id, {"containers": 3}, If_Match=etag))["version"] == 2
    assert (await patched(caller, run_id, {"containers": 2}, If_Match="*"))["version"] == 3


async def test_a_run_that_is_stopping_has_ended_or_was_replaced_does_not_change(caller: Caller, run_id: str) -> None:
    await caller.stop(run_id)
    assert problem_slug(await patch(caller, run_id, {"containers": 3})) == (409, "stale-run")
    second = (await caller.deploy())["runId"]
    assert problem_slug(await patch(caller, run_id, {"containers": 3})) == (409, "stale-run")
    assert problem_slug(await patch(caller, "lost", {"containers": 3})) == (404, "unknown-run")
    assert (await patched(caller, second, {"containers": 3}))["containers"] == 3


async def test_a_run_that_drains_is_frozen(caller: Caller) -> None:
    run = await running(caller, config={})
    await run.requested()
    assert problem_slug(await patch(caller, run.run_id, {"containers": 2})) == (409, "run-is-draining")
    assert problem_slug(await patch(caller, run.run_id, {"grow": True})) == (409, "run-is-draining")
    assert problem_slug(await roll_back(caller, 1)) == (409, "run-is-draining")
    assert (await plan(caller, containers=2))["verdict"] == "SAFE"
    assert (await run.cancel()).status_code == 200
    assert (await patched(caller, run.run_id, {"containers": 2}))["containers"] == 2


async def test_a_run_can_grow_and_be_scaled_in_one_request(caller: Caller, run_id: str) -> None:
    caller.log.grow("flights", 8)
    reply = await patched(caller, run_id, {"containers": 3, "grow": True})
    assert (reply["containers"], len(reply["partitions"]), len(reply["moves"])) == (3, 4, 1)
    assert (await history(caller))[0]["why"] == "scaled from 2 to 3 containers; log.flights grew from 4 to 8 partitions"


async def test_the_next_run_with_another_number_of_containers_moves_as_little_as_it_can(caller: Caller, run_id: str) -> None:
    before = await slots_of(caller)
    await caller.deploy(run_body(containers=3))
    after = await slots_of(caller)
    assert len(set(before["0"]) - set(after["0"])) + len(set(before["1"]) - set(after["1"])) == 1


# --- history ---------------------------------------------------------------------------------------------------------


async def test_the_history_shows_who_made_each_version_when_and_why(caller: Caller, clock: FakeClock) -> None:
    deployed = await caller.http.post("/runs", json=run_body(), headers={"Sluice-Actor": "ann"})
    run_id = deployed.json()["runId"]
    clock.advance(60)
    caller.log.grow("flights", 4)
    await check_partitions(caller)
    clock.advance(60)
    await patched(caller, run_id, {"containers": 2}, Sluice_Actor="bob")
    found = await history(caller)
    assert [(each["version"], each["actor"], each["why"], each["at"], each["current"]) for each in found] == [
        (3, "bob", "scaled from 1 to 2 containers", "2026-03-01T12:02:00Z", True),
        (2, "partition monitor", "log.flights grew from 2 to 4 partitions", "2026-03-01T12:01:00Z", False),
        (1, "ann", f"run {run_id} was deployed", "2026-03-01T12:00:00Z", False),
    ]
    assert len({each["contentHash"] for each in found}) == 3
    pages = [(await caller.http.get("/jobs/flight-delays/models", params={"limit": 2, **more})).json() for more in ({}, {"before": 2})]
    assert [([each["version"] for each in page["models"]], page["next"]) for page in pages] == [([3, 2], 2), ([1], None)]
    detail = await caller.http.get("/jobs/flight-delays/models/1")
    assert detail.json()["model"]["config"]["job.container.count"] == "1"
    assert detail.headers["etag"] == f'"1-{found[2]["contentHash"][:16]}"'
    diff = (await caller.http.get("/jobs/flight-delays/models/1/diff/3")).json()
    assert ([each["partition"] for each in diff["partitions"]], len(diff["moves"])) == ([2, 3], 1)
    back = (await caller.http.get("/jobs/flight-delays/models/3/diff/1")).json()
    assert (back["partitions"], len(back["tasksAffected"])) == ([], 2)


async def test_a_version_or_a_job_that_does_not_exist_is_unknown(caller: Caller, run_id: str) -> None:
    for path in ("models/9", "models/9/diff/1", "models/1/diff/9"):
        assert problem_slug(await caller.http.get(f"/jobs/flight-delays/{path}")) == (404, "unknown-version")
    assert problem_slug(await caller.http.get("/jobs/lost/models")) == (404, "unknown-job")
    assert problem_slug(await caller.http.get("/jobs/lost/models/1")) == (404, "unknown-job")
    for version in (1, 9):
        assert problem_slug(await roll_back(caller, version)) == (404, "unknown-version")
    assert problem_slug(await roll_back(caller, 1, job="lost")) == (404, "unknown-job")


# --- roll back -------------------------------------------------------------------------------------------------------


async def test_growth_that_no_container_has_adopted_can_be_rolled_back_and_is_not_repeated_automatically(
    caller: Caller, run_id: str
) -> None:
    caller.log.grow("flights", 8)
    await check_partitions(caller)
    answer = await roll_back(caller, 1, If_Match='"2"', Sluice_Actor="ops")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["former"], answer.json()["version"]) == (2, 3)
    assert await partitions_of(caller) == {f"Partition {p}": [p] for p in range(4)}
    assert (await caller.run(run_id))["streams"][0]["partitions"] == 4
    assert [each["detail"]["version"] for each in await caller.notices(run_id)] == [2, 3]
    newest, second, first = await history(caller)
    assert (newest["actor"], newest["why"]) == ("ops", "rolled back to version 1; too soon")
    assert newest["contentHash"] == first["contentHash"] != second["contentHash"]
    await check_partitions(caller)
    run = await caller.run(run_id)
    assert (run["jobModelVersion"], watched(run)["verdict"], watched(run)["seen"]) == (3, "REFUSED", 8)
    assert "its growth to 8 partitions was rolled back (too soon): request growth again" in watched(run)["reason"]
    assert (await patched(caller, run_id, {"grow": True}))["version"] == 4
    assert (await check_partitions(caller), watched(await caller.run(run_id))["verdict"]) == ({"changed": 1}, "UNCHANGED")


async def test_partitions_that_are_added_again_after_a_roll_back_begin_at_their_earliest_offset_by_then(
    caller: Caller, run_id: str
) -> None:
    caller.log.grow("flights", 8)
    writer = Writer(Lineage("l"), "producer", Generation(1))
    caller.log.append("flights", [Record(b"x", partition=4)] * 9, writer=writer, batch=0, now_micros=1)
    await check_partitions(caller)
    assert (await roll_back(caller, 1)).status_code == 200
    caller.log.trim("flights", {4: 5})
    await patched(caller, run_id, {"grow": True})
    (stage,) = (await caller.acquired(run_id, "c0"))["stages"]
    assert {each["partition"]: each["offset"] for each in stage["starts"]} == {0: 0, 4: 5}


async def test_further_growth_after_a_roll_back_is_adopted_automatically(caller: Caller, run_id: str) -> None:
    caller.log.grow("flights", 8)
    await check_partitions(caller)
    assert (await roll_back(caller, 1)).status_code == 200
    caller.log.grow("flights", 16)
    await check_partitions(caller)
    assert (await caller.run(run_id))["streams"][0]["partitions"] == 16


async def test_a_version_that_a_container_has_adopted_cannot_be_rolled_back(caller: Caller, run_id: str) -> None:
    caller.log.grow("flights", 8)
    await check_partitions(caller)
    await adopted(caller, run_id, "c1", 2)
    answer = await roll_back(caller, 1)
    assert problem_slug(answer) == (409, "version-adopted")
    await caller.exited("c1")
    assert problem_slug(await roll_back(caller, 1)) == (409, "version-adopted")
    assert (await caller.run(run_id))["jobModelVersion"] == 2


async def test_a_version_under_which_a_task_was_acquired_cannot_be_rolled_back(caller: Caller, run_id: str) -> None:
    caller.log.grow("flights", 8)
    await check_partitions(caller)
    await caller.acquired(run_id, "c0")
    answer = await roll_back(caller, 1)
    assert problem_slug(answer) == (409, "version-adopted")
    assert "c0 has acquired task Partition 0 since version 2" in answer.json()["detail"]


async def test_a_roll_back_to_a_version_of_another_deployment_is_refused(caller: Caller, clock: FakeClock) -> None:
    await caller.deploy(chained_body(partitions=2))
    clock.advance(1)
    await caller.deploy(run_body(start="earliest"))
    answer = await roll_back(caller, 1)
    assert problem_slug(answer) == (422, "incompatible-expansion")


async def test_a_roll_back_of_a_version_that_is_no_longer_in_force_is_refused(caller: Caller, run_id: str) -> None:
    caller.log.grow("flights", 8)
    await check_partitions(caller)
    assert problem_slug(await roll_back(caller, 1, If_Match='"1"')) == (412, "version-conflict")
