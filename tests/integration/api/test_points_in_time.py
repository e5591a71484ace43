"""Lists of snapshots, pins, and restoring an earlier snapshot, as operators request them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.api import Caller, Json, chained_body, checkpoint_id, held, index_id, marker, problem_slug, report, report_body, run_body
from tests.support.fakes import FakeClock

JOB = "/jobs/flight-delays"
STORE = {"task": "Partition 0", "stage": "hourly"}


async def reported(caller: Caller, count: int) -> tuple[str, str]:
    """A run with that many snapshots, and its lineage."""
    run_id, lineage = await held(caller)
    for number in range(1, count + 1):
        answer = await report(caller, run_id, report_body(number, lineage, number - 1 or None))
        assert answer.status_code == 200, answer.text
    return run_id, lineage


async def listed(caller: Caller, **query: Any) -> Json:
    answer = await caller.http.get(f"{JOB}/snapshots", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def choose(caller: Caller, number: int) -> httpx.Response:
    return await caller.http.post(f"{JOB}/snapshots/{checkpoint_id(number)}/restore", json=STORE)


async def test_snapshots_are_listed_in_pages_newest_first(caller: Caller) -> None:
    await reported(caller, 5)
    first = await listed(caller, limit=2)
    second = await listed(caller, limit=2, before=first["next"])
    third = await listed(caller, limit=2, before=second["next"])
    assert [[each["seq"] for each in page["snapshots"]] for page in (first, second, third)] == [[5, 4], [3, 2], [1]]
    assert third["next"] is None
    assert (await listed(caller, task="Partition 1"))["snapshots"] == []
    assert len((await listed(caller, **STORE))["snapshots"]) == 5


async def test_a_snapshot_shows_everything_that_was_reported(caller: Caller) -> None:
    run_id, lineage = await reported(caller, 1)
    found = (await caller.http.get(f"{JOB}/snapshots/{checkpoint_id(1)}", params=STORE)).json()
    assert (found["runId"], found["lineage"], found["batchId"], found["head"], found["chosen"]) == (run_id, lineage, 10, True, False)
    assert found["markers"]["local"]["index"] == index_id(1)
    assert found["retainedBy"] == ["head", "last"]


async def test_pins_are_listed_page_by_page(caller: Caller) -> None:
    await reported(caller, 2)
    for name in ("c", "a", "b", "d"):
        assert (await caller.http.post(f"{JOB}/pins", json={**STORE, "pinId": name})).status_code == 201
    found: list[list[str]] = []
    after: Json = {}
    for _ in range(2):
        page = (await caller.http.get(f"{JOB}/pins", params={"limit": 2, **after})).json()
        found.append([each["pinId"] for each in page["pins"]])
        after = {"after": page["next"]}
    assert found == [["a", "b"], ["c", "d"]]
    assert page["next"] is None


async def test_nothing_is_verified_for_a_job_or_store_without_snapshots(caller: Caller) -> None:
    await caller.deploy()
    assert problem_slug(await caller.http.post("/jobs/lost/snapshots/verify", json={})) == (404, "unknown-job")
    assert problem_slug(await caller.http.post(f"{JOB}/snapshots/verify", json={})) == (404, "unknown-snapshot")


async def test_a_snapshot_is_verified_only_in_stores_that_have_it(caller: Caller) -> None:
    await reported(caller, 1)
    elsewhere = {"blobStore": "elsewhere"}
    one = f"{JOB}/snapshots/{checkpoint_id(1)}/verify"
    assert problem_slug(await caller.http.post(f"{JOB}/snapshots/verify", json=elsewhere)) == (404, "unknown-snapshot")
    assert problem_slug(await caller.http.post(one, json=STORE | elsewhere)) == (404, "unknown-snapshot")
    assert (await caller.http.post(f"{JOB}/snapshots/verify", json={"blobStore": "local"})).status_code == 202
    assert (await caller.http.post(one, json=STORE | {"blobStore": "local"})).status_code == 202


async def test_a_pin_shows_what_it_keeps_and_until_when(caller: Caller, clock: FakeClock) -> None:
    await reported(caller, 2)
    body = {**STORE, "checkpointId": checkpoint_id(1), "pinId": "keep", "reason": "an é", "expiresSeconds": 3600}
    made = await caller.http.post(f"{JOB}/pins", json=body)
    assert made.status_code == 201
    assert made.json()["snapshots"] == [{**STORE, "checkpointId": checkpoint_id(1)}]
    assert "pin keep" in (await listed(caller))["snapshots"][1]["retainedBy"]
    assert [each["pinId"] for each in (await caller.http.get(f"{JOB}/pins")).json()["pins"]] == ["keep"]
    clock.advance(3601)
    assert (await caller.http.get(f"{JOB}/pins")).json()["pins"] == []
    assert "pin keep" not in (await listed(caller))["snapshots"][1]["retainedBy"]


async def test_a_pin_without_a_checkpoint_is_on_the_newest_of_each_store_until_it_is_deleted(caller: Caller) -> None:
    await reported(caller, 2)
    made = (await caller.http.post(f"{JOB}/pins", json={})).json()
    assert [each["checkpointId"] for each in made["snapshots"]] == [checkpoint_id(2)]
    path = f"{JOB}/pins/{made['pinId']}"
    assert (await caller.http.delete(path)).status_code == 204
    assert problem_slug(await caller.http.delete(path)) == (404, "unknown-pin")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"checkpointId": "17000000001-123456"}, (422, "bad-request")),
        ({**STORE, "checkpointId": "17000000099-123456"}, (404, "unknown-snapshot")),
        ({"task": "Partition 9"}, (404, "unknown-snapshot")),
        ({"pinId": "../x"}, (422, "invalid-request")),
        ({"expiresSeconds": -1}, (422, "invalid-request")),
    ],
)
async def test_an_invalid_pin_is_refused(caller: Caller, body: Json, expected: tuple[int, str]) -> None:
    await reported(caller, 1)
    assert problem_slug(await caller.http.post(f"{JOB}/pins", json=body)) == expected
    assert (await caller.http.get(f"{JOB}/pins")).json()["pins"] == []


async def test_every_request_about_a_missing_job_is_answered_with_unknown_job(caller: Caller) -> None:
    for path in ("/jobs/nobody/snapshots", "/jobs/nobody/pins"):
        assert problem_slug(await caller.http.get(path)) == (404, "unknown-job")
    assert problem_slug(await caller.http.get("/operations/nothing")) == (404, "unknown-errand")
    assert problem_slug(await caller.http.get("/gc/explain", params={"blob": "../x"})) == (422, "bad-name")


async def test_a_chosen_snapshot_is_restored_and_continued_under_a_new_lineage(caller: Caller) -> None:
    run_id, lineage = await reported(caller, 3)
    assert problem_slug(await choose(caller, 1)) == (409, "task-held")
    await caller.release(run_id, 1)
    for _ in range(2):
        reply = (await choose(caller, 1)).json()
        assert (reply["batchId"], reply["batchesGivenUp"]) == (10, 20)
    (stage,) = (await caller.acquired(run_id, "c1"))["stages"]
    assert (stage["snapshot"]["checkpointId"], stage["snapshot"]["chosen"]) == (checkpoint_id(1), True)
    early = report_body(4, lineage, 1, generation=2)
    assert problem_slug(await report(caller, run_id, early)) == (409, "snapshot-conflict")
    path = f"/runs/{run_id}/tasks/Partition 0/stages/hourly/lineage"
    begun = (await caller.http.post(path, json={"generation": 2, "lineage": lineage, "why": "chosen"})).json()["lineage"]
    (stage,) = (await caller.acquired(run_id, "c1"))["stages"]
    assert (stage["lineage"], stage["batchId"]) == (begun, 10)
    assert (stage["snapshot"]["checkpointId"], stage["snapshot"]["chosen"]) == (checkpoint_id(1), False)
    late = report_body(4, begun, 3, generation=2, batchId=11)
    assert problem_slug(await report(caller, run_id, late)) == (409, "snapshot-conflict")
    right = report_body(4, begun, generation=2, batchId=11) | {"markers": {"local": marker(4, 1)}}
    assert (await report(caller, run_id, right)).status_code == 200
    assert [each["seq"] for each in (await listed(caller))["snapshots"] if each["head"]] == [4]


async def test_restoring_a_snapshot_of_a_chain_of_stages_warns_that_the_result_is_not_exact(caller: Caller) -> None:
    run = await caller.deploy(chained_body(partitions=2))
    await caller.registered(run["runId"], "c1")
    reply = await caller.acquired(run["runId"], "c1")
    lineage = next(each["lineage"] for each in reply["stages"] if each["stage"] == "hourly")
    assert (await report(caller, run["runId"], report_body(1, lineage))).status_code == 200
    await caller.release(run["runId"], 1)
    assert any("not exact" in each for each in (await choose(caller, 1)).json()["warnings"])


async def test_an_explicit_start_begins_without_the_snapshots_of_the_history_before(caller: Caller) -> None:
    run_id, _ = await reported(caller, 1)
    await caller.stop(run_id)
    await caller.exited("c1")
    again = await caller.deploy()
    await caller.registered(again["runId"], "c2")
    assert (await caller.acquired(again["runId"], "c2"))["stages"][0]["snapshot"]["checkpointId"] == checkpoint_id(1)
    await caller.stop(again["runId"])
    await caller.exited("c2")
    restarted = await caller.deploy(run_body(start="earliest"))
    await caller.registered(restarted["runId"], "c3")
    assert (await caller.acquired(restarted["runId"], "c3"))["stages"][0]["snapshot"] is None
