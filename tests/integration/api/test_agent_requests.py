"""Requests that every container of a run sends at its start, at each version and repeatedly: their cost does not grow with the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator.api.deps import JobModelParts
from tests.contracts.query_plans import Statement, listening
from tests.support.api import Caller, Json, calling, patched, problem_slug, run_body
from tests.support.fakes import FakeClock

STANDBY = {"standby.replicas": "1"}
ASKED_BY_AGENTS = {"blobStores", "garbageGraceSeconds", "backupTo", "restoreFrom", "drain", "failedDrains", "slots"}


@pytest.fixture
async def caller(home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    async with calling(home, clock) as made:
        made.log.create("flights", 6)
        yield made


async def deployed(caller: Caller, containers: int = 3, **changes: object) -> str:
    return str((await caller.deploy(run_body(containers=containers, **changes)))["runId"])


async def basic(caller: Caller, run_id: str) -> Json:
    answer = await caller.http.get(f"/runs/{run_id}", params={"view": "basic"})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def copied(caller: Caller, run_id: str, slots: int) -> dict[str, list[str]]:
    """Slot -> the slots whose tasks it would copy according to the layout."""
    standbys = _versioning(caller).standbys
    for slot in range(slots):
        answer = await caller.http.get(f"/runs/{run_id}/containers/c{slot}/standby")
        assert answer.status_code == 200, answer.text
    (layout,) = standbys._layouts.values()
    return {slot: sorted(tasks) for slot, tasks in sorted(layout.kept.items())}


def _versioning(caller: Caller) -> JobModelParts:
    found: JobModelParts = caller.coordinator.api.state.versioning
    return found


@contextmanager
def asked_of_the_database(caller: Caller) -> Iterator[list[Statement]]:
    with listening(_versioning(caller).standbys._store) as heard:
        yield heard


def of_all_containers(heard: list[Statement]) -> list[str]:
    return [each.sql for each in heard if "FROM containers" in each.sql and "containers.execution_id = " not in each.sql]


# --- the run ---------------------------------------------------------------------------------------------------------


async def test_the_basic_view_of_a_run_has_what_every_container_needs_and_no_list_of_containers(caller: Caller) -> None:
    run_id = await deployed(caller)
    await caller.registered(run_id, "c0", "0")
    whole, view = await caller.run(run_id), await basic(caller, run_id)
    assert view.keys() >= ASKED_BY_AGENTS | {"state", "streams", "stages", "config", "systems", "jobModelVersion", "firstRun"}
    assert view.keys().isdisjoint({"incarnations", "tasks", "adoption", "watermarks"})
    assert view == {name: whole[name] for name in view}


async def test_the_basic_view_is_never_older_than_the_request(caller: Caller) -> None:
    run_id = await deployed(caller, 2)
    await caller.registered(run_id, "c0", "0")
    assert (await basic(caller, run_id))["state"] == "RUNNING"
    await patched(caller, run_id, {"containers": 3})
    assert ((await basic(caller, run_id))["slots"], (await basic(caller, run_id))["jobModelVersion"]) == (["0", "1", "2"], 2)
    drain = (await caller.http.post("/drain", json={"runId": run_id})).json()
    assert (await basic(caller, run_id))["drain"]["uuid"] == drain["uuid"]
    await caller.stop(run_id, reason="enough")
    view = await basic(caller, run_id)
    assert (view["reason"], view["drain"], view["stopRequestedAt"] is None) == ("enough", None, False)


async def test_concurrent_requests_of_containers_share_the_reads_of_their_run(caller: Caller) -> None:
    run_id = await deployed(caller)
    with asked_of_the_database(caller) as heard:
        views = await asyncio.gather(*(basic(caller, run_id) for _ in range(100)))
    assert all(view == views[0] for view in views)
    assert len([each for each in heard if "FROM runs" in each.sql]) < 50


async def test_a_request_for_the_basic_view_of_an_unknown_run_does_not_affect_other_requests(caller: Caller) -> None:
    run_id = await deployed(caller)
    lost, view = await asyncio.gather(caller.http.get("/runs/lost", params={"view": "basic"}), basic(caller, run_id))
    assert (problem_slug(lost), view["runId"]) == ((404, "unknown-run"), run_id)
    assert problem_slug(await caller.http.get(f"/runs/{run_id}", params={"view": "short"})) == (422, "invalid-request")


# --- the job model ---------------------------------------------------------------------------------------------------


async def test_the_model_of_a_slot_has_no_other_slots(caller: Caller) -> None:
    await deployed(caller)
    whole = await caller.http.get("/jobModel?job=flight-delays")
    part = await caller.http.get("/jobModel?job=flight-delays&processorId=1")
    assert part.json() == whole.json() | {"containers": {"1": whole.json()["containers"]["1"]}}
    names = ("sluice-run-id", "sluice-job-model-version")
    assert [part.headers[name] for name in names] == [whole.headers[name] for name in names]
    assert (await caller.http.get("/jobModel?job=flight-delays&processorId=7%0d%0a")).json()["containers"] == {}


async def test_the_model_of_a_slot_has_its_own_etag(caller: Caller) -> None:
    run_id = await deployed(caller)
    urls = ["/jobModel?job=flight-delays", *(f"/jobModel?job=flight-delays&processorId={slot}" for slot in ("0", "1"))]
    etags = [(await caller.http.get(url)).headers["etag"] for url in urls]
    assert len(set(etags)) == 3
    for url, etag in zip(urls, etags, strict=True):
        assert (await caller.http.get(url, headers={"If-None-Match": etag})).status_code == 304
    patch = await caller.http.patch(f"/runs/{run_id}", json={"containers": 2}, headers={"If-Match": etags[1]})
    assert patch.status_code == 200


# --- standby copies --------------------------------------------------------------------------------------------------


async def test_a_poll_for_standby_copies_reads_the_other_containers_only_when_they_have_changed(caller: Caller) -> None:
    run_id = await deployed(caller, config=STANDBY)
    for slot in ("0", "1", "2"):
        await caller.registered(run_id, f"c{slot}", slot)
    with asked_of_the_database(caller) as heard:
        for _ in range(4):
            await copied(caller, run_id, 3)
    assert len(of_all_containers(heard)) == 1


async def test_copies_follow_a_slot_to_another_host(caller: Caller) -> None:
    run_id = await deployed(caller, 2, config=STANDBY)
    await caller.registered(run_id, "c0", "0", host="a")
    await caller.registered(run_id, "c1", "1", host="a")
    assert await copied(caller, run_id, 2) == {}
    await caller.registered(run_id, "c1b", "1", host="b")
    found = await copied(caller, run_id, 2)
    assert {slot: len(tasks) for slot, tasks in found.items()} == {"0": 3, "1": 3}


async def test_copies_follow_the_job_model(caller: Caller) -> None:
    run_id = await deployed(caller, 2, config=STANDBY)
    for slot in ("0", "1"):
        await caller.registered(run_id, f"c{slot}", slot)
    before = await copied(caller, run_id, 2)
    caller.log.grow("flights", 12)
    await patched(caller, run_id, {"grow": True})
    after = await copied(caller, run_id, 2)
    assert (sum(map(len, before.values())), (await caller.run(run_id))["jobModelVersion"]) == (6, 2)
    assert after == before  # tasks stay in their slots when partitions are added
    assert {layout.version for layout in _versioning(caller).standbys._layouts.values()} == {2}


# --- adoption --------------------------------------------------------------------------------------------------------


async def test_a_report_of_an_adopted_version_reads_no_other_container(caller: Caller) -> None:
    run_id = await deployed(caller)
    for slot in ("0", "1", "2"):
        await caller.registered(run_id, f"c{slot}", slot)
    with asked_of_the_database(caller) as heard:
        answer = await caller.http.post(f"/runs/{run_id}/containers/c0/adopted", json={"version": 1, "epoch": 1})
    assert answer.json() == {"version": 1, "current": 1, "allOn": 1}
    assert [sql for sql in of_all_containers(heard) if "count(*)" not in sql] == []
