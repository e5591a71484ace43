"""Removal of finished jobs: what is deleted, when it is refused, and what a later job of the same name finds."""

from __future__ import annotations

from coordinator.runs.removal import Removal
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.core.ids import JobName
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName
from tests.support.api import Caller, Json, held, index_id, problem_slug, report, report_body, run_body
from tests.support.fakes import FakeClock

URL = "/jobs/flight-delays"
ABOUT = RequestContext(Purpose.OPEN)


async def removed(caller: Caller, **query: str) -> Json:
    answer = await caller.http.delete(URL, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def finished(caller: Caller) -> str:
    """A job with a snapshot, whose run has ended. Returns the lineage of its stage."""
    run_id, lineage = await held(caller)
    assert (await report(caller, run_id, report_body(1, lineage))).status_code == 200
    await caller.exited("c1")
    await caller.stop(run_id)
    assert (await caller.run(run_id))["state"] == "STOPPED"
    return lineage


async def written(caller: Caller) -> BlobStore:
    """The blob store, with a blob of the job."""
    blobs: BlobStore = await caller.coordinator.api.state.parts.blob_stores.opened(BlobStoreName("local"))
    await blobs.put(BlobId(index_id(1)), b"of the removed job", ABOUT)
    return blobs


async def test_a_finished_job_is_removed_with_all_its_records(caller: Caller) -> None:
    await finished(caller)
    planned = await removed(caller, dryRun="true")
    assert (planned["dryRun"], planned["runs"], planned["containers"], planned["versions"], planned["snapshots"]) == (True, 1, 1, 1, 1)
    assert len((await caller.http.get("/jobs")).json()["jobs"]) == 1
    assert await removed(caller) == planned | {"dryRun": False}
    assert (await caller.http.get("/jobs")).json()["jobs"] == []
    for url in (URL + "/models", "/jobModel?job=flight-delays", "/runs?job=flight-delays"):
        assert (await caller.http.get(url)).status_code == 404
    assert problem_slug(await caller.http.delete(URL)) == (404, "unknown-job")
    removal: Removal = caller.coordinator.api.state.parts.removal
    async with removal.store.read() as tx:
        assert not any((await tx.history.rows_of_job(JobName("flight-delays"))).values())


async def test_a_running_job_is_not_removed_and_the_refusal_names_a_remedy(caller: Caller) -> None:
    run_id, _ = await held(caller)
    for url in (URL, f"{URL}?dryRun=true"):
        answer = await caller.http.delete(url)
        assert problem_slug(answer) == (409, "job-not-finished")
        assert "sluice drain flight-delays" in answer.json()["detail"]
    assert (await caller.run(run_id))["state"] == "RUNNING"


async def test_a_later_job_of_the_same_name_starts_fresh_under_higher_generations(caller: Caller) -> None:
    lineage = await finished(caller)
    await written(caller)
    await removed(caller)
    run = await caller.deploy(run_body())
    assert (run["jobModelVersion"], run["firstRun"]) == (1, run["runId"])
    await caller.registered(run["runId"], "c2")
    acquired = await caller.acquired(run["runId"], "c2")
    assert (acquired["generation"], acquired["stages"][0].get("snapshot")) == (2, None)
    assert acquired["stages"][0]["lineage"] != lineage


async def test_the_blobs_of_a_removed_job_are_deleted_after_the_grace_period(caller: Caller, clock: FakeClock) -> None:
    await finished(caller)
    await removed(caller)
    blobs = await written(caller)
    collection = caller.coordinator.api.state.backups.collection
    assert await collection.run_once() == {"condemned": 1}
    clock.advance(86_400)
    assert await collection.run_once() == {"deleted": 1}
    assert [listed async for page in blobs.list("jobs/", ABOUT) for listed in page] == []
