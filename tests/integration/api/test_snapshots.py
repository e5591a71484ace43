"""Reports of snapshots: only under the current generation, each based on the one before it; and what a container has to restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.api import PREFIX, Caller, calling, checkpoint_id, held, index_id, marker, problem_slug, report, report_body, run_body
from tests.support.fakes import FakeClock

STAGE = "tasks/Partition 0/stages/hourly"


async def begin_lineage(caller: Caller, run_id: str, lineage: str, generation: int = 1) -> Any:
    body = {"generation": generation, "lineage": lineage, "why": "the code has changed"}
    return await caller.http.post(f"/runs/{run_id}/{STAGE}/lineage", json=body)


async def test_the_next_owner_restores_the_reported_snapshot(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    assert (await caller.acquired(run_id, "c1"))["stages"][0]["snapshot"] is None
    answer = await report(caller, run_id, report_body(1, lineage))
    assert (answer.status_code, answer.json()) == (200, {"checkpointId": checkpoint_id(1), "seq": 1})
    (stage,) = (await caller.acquired(run_id, "c1"))["stages"]
    snapshot = {"checkpointId": checkpoint_id(1), "lineage": lineage, "batchId": 10, "markers": {"local": index_id(1)}, "chosen": False}
    assert (stage["snapshot"], stage["batchId"], stage["generation"]) == (snapshot, 10, 1)


async def test_a_lineage_begins_at_an_older_snapshot_when_the_newest_is_lost(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    await report(caller, run_id, report_body(1, lineage))
    await report(caller, run_id, report_body(2, lineage, 1))
    at = {"generation": 1, "lineage": lineage, "why": "its index is gone"}
    unknown = await caller.http.post(f"/runs/{run_id}/{STAGE}/lineage", json=at | {"checkpointId": checkpoint_id(7)})
    assert problem_slug(unknown) == (404, "unknown-snapshot")
    begun = [
        (await caller.http.post(f"/runs/{run_id}/{STAGE}/lineage", json=at | {"checkpointId": checkpoint_id(1)})).json()["lineage"]
        for _ in range(2)
    ]
    assert begun[0] == begun[1] != lineage
    (stage,) = (await caller.acquired(run_id, "c1"))["stages"]
    assert (stage["lineage"], stage["snapshot"]["checkpointId"], stage["batchId"]) == (begun[0], checkpoint_id(1), 10)
    assert (await report(caller, run_id, report_body(3, begun[0], 1))).status_code == 200


async def replaces(caller: Caller, run_id: str, number: int, **changes: Any) -> Any:
    body = {"generation": 1, "blobStore": "local", "previous": index_id(number), "index": index_id(number + 100), **changes}
    return await caller.http.put(f"/runs/{run_id}/{STAGE}/snapshots/{checkpoint_id(number)}/index", json=body)


async def test_a_retained_snapshot_gets_another_index_by_compare_and_swap(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    await report(caller, run_id, report_body(1, lineage))
    await report(caller, run_id, report_body(2, lineage, 1))
    answers = [await replaces(caller, run_id, 2) for _ in range(2)]
    assert [each.json() for each in answers] == [{"checkpointId": checkpoint_id(2), "seq": 2}] * 2
    rows = (await caller.http.get("/jobs/flight-delays/snapshots")).json()["snapshots"]
    assert [row["markers"]["local"]["index"] for row in rows] == [index_id(102), index_id(1)]
    assert [row["markers"]["local"]["kept"] for row in rows] == [False, False]
    (stage,) = (await caller.acquired(run_id, "c1"))["stages"]
    assert stage["snapshot"]["markers"] == {"local": index_id(102)}
    assert problem_slug(await report(caller, run_id, report_body(3, lineage, 2))) == (409, "snapshot-conflict")
    assert (await report(caller, run_id, report_body(3, lineage, 102))).status_code == 200


@pytest.mark.parametrize(
    ("number", "changes", "refused"),
    [
        (1, {"previous": index_id(7)}, (409, "snapshot-conflict")),
        (1, {"generation": 2}, (409, "lease-lost")),
        (1, {"index": "jobs/flight-delays/Partition_1/hourly/snapshots/x"}, (422, "bad-name")),
        (1, {"blobStore": "other"}, (422, "blob-store-unusable")),
        (7, {}, (404, "unknown-snapshot")),
    ],
    ids=["another index", "another generation", "another stage", "another blob store", "not retained"],
)
async def test_an_index_that_does_not_replace_the_one_that_was_read_is_refused(
    caller: Caller, number: int, changes: dict[str, Any], refused: tuple[int, str]
) -> None:
    run_id, lineage = await held(caller)
    await report(caller, run_id, report_body(1, lineage))
    assert problem_slug(await replaces(caller, run_id, number, **changes)) == refused
    (row,) = (await caller.http.get("/jobs/flight-delays/snapshots")).json()["snapshots"]
    assert row["markers"]["local"]["index"] == index_id(1)


async def test_a_repeated_report_gets_the_same_answer(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    assert [(await report(caller, run_id, report_body(1, lineage))).json()["seq"] for _ in range(2)] == [1, 1]
    assert (await report(caller, run_id, report_body(2, lineage, 1))).json()["seq"] == 2
    assert (await report(caller, run_id, report_body(1, lineage))).json()["seq"] == 1
    assert (await caller.acquired(run_id, "c1"))["stages"][0]["snapshot"]["checkpointId"] == checkpoint_id(2)


async def test_a_checkpoint_cannot_be_reported_again_with_other_contents(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    await report(caller, run_id, report_body(1, lineage))
    other = report_body(1, lineage) | {"markers": {"local": marker(7)}}
    assert problem_slug(await report(caller, run_id, other)) == (409, "snapshot-conflict")


@pytest.mark.parametrize("previous", [None, 1, 3])
async def test_a_snapshot_that_does_not_follow_the_newest_is_refused(caller: Caller, previous: int | None) -> None:
    run_id, lineage = await held(caller)
    await report(caller, run_id, report_body(1, lineage))
    await report(caller, run_id, report_body(2, lineage, 1))
    assert problem_slug(await report(caller, run_id, report_body(3, lineage, previous))) == (409, "snapshot-conflict")
    assert (await report(caller, run_id, report_body(3, lineage, 2))).status_code == 200


async def test_a_snapshot_with_an_older_batch_than_the_newest_is_refused(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    await report(caller, run_id, report_body(2, lineage))
    assert problem_slug(await report(caller, run_id, report_body(1, lineage, 2))) == (409, "snapshot-conflict")


@pytest.mark.parametrize(("batch", "offset"), [(15, 120), (25, 90), (2**53 + 1, 120)])
async def test_a_snapshot_with_impossible_offsets_or_an_impossible_batch_is_refused(caller: Caller, batch: int, offset: int) -> None:
    run_id, lineage = await held(caller)
    assert (await caller.progress(run_id, 1, lineage, 20, [("flights", 0, 100)])).status_code == 204
    body = report_body(1, lineage, batchId=batch)
    body["offsets"][0]["offset"] = offset
    assert problem_slug(await report(caller, run_id, body)) == (422, "false-report")
    assert (await caller.acquired(run_id, "c1"))["stages"][0]["snapshot"] is None


async def test_the_former_owner_of_a_task_can_no_longer_report_snapshots(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    await report(caller, run_id, report_body(1, lineage))
    await caller.registered(run_id, "c2")
    await caller.exited("c1")
    assert (await caller.acquired(run_id, "c2", 2))["generation"] == 2
    assert (await report(caller, run_id, report_body(2, lineage, 1, generation=2))).status_code == 200
    for number in (1, 2, 3):
        assert problem_slug(await report(caller, run_id, report_body(number, lineage, 2))) == (409, "lease-lost")
    assert problem_slug(await begin_lineage(caller, run_id, lineage)) == (409, "lease-lost")
    assert (await caller.acquired(run_id, "c2", 2))["stages"][0]["snapshot"]["checkpointId"] == checkpoint_id(2)


async def test_a_first_snapshot_may_have_no_batch(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    assert (await report(caller, run_id, report_body(1, lineage, batchId=None, offsets=[]))).status_code == 200
    (stage,) = (await caller.acquired(run_id, "c1"))["stages"]
    assert (stage["snapshot"]["batchId"], stage["batchId"]) == (None, None)


async def test_each_blob_store_has_its_own_newest_snapshot(home: Path, clock: FakeClock) -> None:
    places = {"local": (home / "own-newest-a").as_uri(), "other": (home / "own-newest-b").as_uri()}
    async with calling(home, clock, blob_stores=places) as caller:
        caller.log.create("flights", 2)
        run_id, lineage = await held(caller)
        await report(caller, run_id, report_body(1, lineage))
        both = {"local": marker(2, 1), "other": marker(2)}
        assert (await report(caller, run_id, report_body(2, lineage, markers=both))).status_code == 200
        assert (await report(caller, run_id, report_body(3, lineage, 2))).status_code == 200
        wrong = {"local": marker(4, 3), "other": marker(4, 1)}
        assert problem_slug(await report(caller, run_id, report_body(4, lineage, markers=wrong))) == (409, "snapshot-conflict")
        right = {"local": marker(4, 3), "other": marker(4, 2)}
        assert (await report(caller, run_id, report_body(4, lineage, markers=right))).status_code == 200


@pytest.mark.parametrize(
    ("changes", "slug"),
    [
        ({"markers": {"nowhere": marker(1)}}, "blob-store-unusable"),
        ({"markers": {"local": {"index": f"{PREFIX}/data/x"}}}, "bad-name"),
        ({"markers": {"local": {"index": "jobs/other/Partition_0/hourly/snapshots/x"}}}, "bad-name"),
        ({"markers": {"local": {"index": f"{PREFIX}/snapshots/../../x"}}}, "bad-name"),
        ({"markers": {"local": {"index": "/etc/passwd"}}}, "bad-name"),
        ({"markers": {}}, "invalid-request"),
        ({"checkpointId": "../x"}, "invalid-request"),
        ({"batchId": -1}, "invalid-request"),
        ({"batchId": 2**63}, "invalid-request"),
        ({"generation": 0}, "invalid-request"),
        ({"surprise": 1}, "invalid-request"),
    ],
)
async def test_an_invalid_report_is_refused_and_changes_nothing(caller: Caller, changes: Any, slug: str) -> None:
    run_id, lineage = await held(caller)
    assert problem_slug(await report(caller, run_id, report_body(1, lineage) | changes)) == (422, slug)
    assert (await caller.acquired(run_id, "c1"))["stages"][0]["snapshot"] is None


async def test_a_report_for_an_unknown_stage_is_refused(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    body = report_body(1, lineage)
    assert problem_slug(await report(caller, "no-run", body)) == (404, "unknown-run")
    assert problem_slug(await report(caller, run_id, body, task="Partition 9")) == (404, "unknown-task")
    elsewhere = body | {"markers": {"local": {"index": "jobs/flight-delays/Partition_0/x/snapshots/1-0000000000000000"}}}
    assert problem_slug(await report(caller, run_id, elsewhere, stage="x")) == (404, "unknown-task")
    assert problem_slug(await report(caller, run_id, body | {"lineage": "another"})) == (409, "snapshot-conflict")


async def test_a_new_lineage_continues_from_the_snapshot_and_is_created_once(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    await report(caller, run_id, report_body(1, lineage))
    await caller.progress(run_id, 1, lineage, 15, [("flights", 0, 150)])
    begun = [(await begin_lineage(caller, run_id, lineage)).json()["lineage"] for _ in range(2)]
    assert begun[0] == begun[1] != lineage
    (stage,) = (await caller.acquired(run_id, "c1"))["stages"]
    assert (stage["lineage"], stage["batchId"], stage["snapshot"]["lineage"]) == (begun[0], 10, lineage)
    assert problem_slug(await report(caller, run_id, report_body(2, lineage, 1))) == (409, "snapshot-conflict")
    assert (await report(caller, run_id, report_body(2, begun[0], 1, batchId=11))).status_code == 200


async def test_a_new_lineage_without_a_snapshot_begins_with_nothing(caller: Caller) -> None:
    run_id, lineage = await held(caller)
    await caller.progress(run_id, 1, lineage, 15, [("flights", 0, 150)])
    begun = (await begin_lineage(caller, run_id, lineage)).json()["lineage"]
    (stage,) = (await caller.acquired(run_id, "c1"))["stages"]
    assert (stage["lineage"], stage["batchId"]) == (begun, None)
    assert problem_slug(await begin_lineage(caller, run_id, "unheard-of")) == (409, "snapshot-conflict")


async def test_a_run_shows_where_its_state_is_backed_up_and_restored_from(home: Path, clock: FakeClock) -> None:
    places = {"a": (home / "tells-a").as_uri(), "b": (home / "tells-b").as_uri()}
    async with calling(home, clock, blob_stores=places, restore_from=("b",)) as caller:
        caller.log.create("flights", 2)
        reply = await caller.run((await caller.deploy())["runId"])
        assert (reply["blobStores"], reply["backupTo"], reply["restoreFrom"]) == (places, ["a", "b"], ["b"])
        own = run_body(config={"backup.stores": "b", "restore.from": "b, a"})
        reply = await caller.run((await caller.deploy(own))["runId"])
        assert (reply["backupTo"], reply["restoreFrom"]) == (["b"], ["b", "a"])
        reply = await caller.run((await caller.deploy())["runId"])
        assert (reply["backupTo"], reply["restoreFrom"]) == (["b"], ["b", "a"])
        unknown = await caller.http.post("/runs", json=run_body(config={"backup.stores": "c"}))
        assert problem_slug(unknown) == (422, "blob-store-unusable")


async def test_the_default_blob_store_is_a_directory_under_home(caller: Caller, home: Path) -> None:
    reply = await caller.run((await caller.deploy())["runId"])
    assert reply["blobStores"] == {"local": (home / "blobs").absolute().as_uri()}


async def test_a_run_is_moved_to_other_blob_stores_while_it_runs(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock, blob_stores={"a": (home / "moved-a").as_uri(), "b": (home / "moved-b").as_uri()}) as caller:
        caller.log.create("flights", 2)
        run_id = (await caller.deploy())["runId"]
        body = {"stores": ["b"], "restoreFrom": ["b", "a"]}
        answer = await caller.http.put(f"/runs/{run_id}/backup", json=body)
        assert (answer.status_code, answer.json()) == (200, {"runId": run_id, "backupTo": ["b"], "restoreFrom": ["b", "a"]})
        assert [(each["kind"], each["detail"]) for each in await caller.notices(run_id)] == [("BACKUP", body)]
        reply = await caller.run(run_id)
        assert (reply["backupTo"], reply["restoreFrom"]) == (["b"], ["b", "a"])
        for wrong in ({"stores": ["c"], "restoreFrom": []}, {"stores": [], "restoreFrom": ["c"]}):
            assert problem_slug(await caller.http.put(f"/runs/{run_id}/backup", json=wrong)) == (422, "blob-store-unusable")
        await caller.stop(run_id)
        assert problem_slug(await caller.http.put(f"/runs/{run_id}/backup", json=body)) == (409, "stale-run")


async def test_a_blob_store_that_does_not_answer_delays_no_heartbeat(home: Path, clock: FakeClock) -> None:
    (home / "blobs").mkdir(parents=True)
    (home / "blobs" / "of-somebody-else.txt").write_text("not ours")
    async with calling(home, clock) as caller:
        caller.log.create("flights", 2)
        await held(caller)
        assert await caller.alive("c1", 1)
        assert (await caller.http.get("/readyz")).status_code == 200
        reply = (await caller.http.get("/readyz?verbose")).text
        assert "[-] blob store local" in reply
