"""Agents that back up and restore state, with a real coordinator and real blob stores, and a fake engine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from containers.agent.queries import Queries
from containers.state.backup import Backup
from containers.state.offsets.batch_waits import BatchInterrupted
from containers.state.offsets.wal import OffsetLog, PlanReplaced
from containers.state.recovery.decision import OffsetLogEntry
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK
from coordinator.app import prepare, stores_of_blobs
from coordinator.settings import read_settings
from coordinator.snapshots.operations import Progress
from coordinator.snapshots.rebuild import find, write
from sluice.blobs.locations import open_blob_store
from sluice.blobs.port import Purpose, RequestContext
from sluice.core.errors import BlobUnavailable
from sluice.core.ids import Generation, JobName, Lineage, RunId, Ssp, StageKey, StageName
from sluice.core.snapshots.snapshot import CommitId
from sluice.job import Job
from sluice.streams.log import Record, Writer
from sluice.wire.snapshots import MarkerBody, SnapshotRequest
from tests.support.agents import Incarnation, Place, acting, place, two_stages
from tests.support.backups import BACKED_UP, EVERY_BATCH, NEVER, began, disk_of, one_stage, start, stopped
from tests.support.databases import quick_store
from tests.support.engines import DiskEngine, FakeQuery, plan, soon
from tests.support.faults import Fault, FaultyBlobs, Operation, every, healthy
from tests.support.virtual_time import LoopClock

BY_REPLAY: dict[str, Any] = {"commit_interval_seconds": 3600, "max_replay": 3}


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **BACKED_UP) as made:
        yield made


async def snapshots(there: Place) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.get("/jobs/delays/snapshots")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["snapshots"]
        return found


async def test_a_container_on_an_empty_disk_restores_the_last_commit_of_an_orderly_stop(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
    await stopped(first)
    assert [each["batchId"] for each in await snapshots(there)] == [2]
    second = start(there, run_id, "c2", "disk2", **NEVER)
    disk2, query2 = await began(second)
    assert query2.start.lineage == query.start.lineage
    assert disk2.state(query2.start) == disk.state(query.start)
    assert disk2.outputs == {}


def backup_of(query: FakeQuery) -> Backup:
    queries: Queries = cast("Any", query.callbacks.before_batch).__self__
    found = queries._asked(query.start.query, query.start.generation).backup
    assert found is not None
    return found


async def test_without_an_interval_a_batch_begins_when_the_one_before_is_durable(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await began(start(there, run_id, "c1", "disk1", **EVERY_BATCH))
    for batch in range(3):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
        assert list(range(batch - 1, -1, -1)) == [each["batchId"] for each in await snapshots(there) if each["batchId"] < batch]


async def test_a_container_that_has_ended_normally_leaves_no_cut(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
    disk, query = await began(container)
    for batch in range(2):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
    await stopped(container)
    cuts = disk.directory(query.start).parent / ".cuts" / "only"
    assert list(cuts.iterdir()) == []


async def test_without_an_interval_the_last_batch_is_durable_although_no_other_follows(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 1, 1: 0})
    await container.wire.after("snapshots")
    assert [each["batchId"] for each in await snapshots(there)] == [0]


async def test_without_an_interval_each_batch_of_a_sink_that_does_not_wait_is_backed_up_and_that_is_logged(
    there: Place, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
    disk, query = await began(container)
    for batch in range(2):
        await disk.runs_unseen(query, batch, {0: batch + 1, 1: 0})
        await container.wire.after("snapshots", batch + 1)
    assert [each["batchId"] for each in await snapshots(there)] == [1, 0]
    assert sum("does not write through its task" in each.getMessage() for each in caplog.records) == 1


async def test_batches_after_the_snapshot_run_again_as_planned_on_the_new_disk(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **BY_REPLAY)
    disk, query = await began(first)
    for batch in range(3):
        await disk.runs(query, batch, {0: 10 * batch, 1: 0}, note=f"planned by c1: {batch}")
    await first.wire.after("snapshots")
    await disk.runs(query, 3, {0: 30, 1: 0}, note="planned by c1: 3")
    before = disk.state(query.start)
    first.life.cancel()  # as after SIGKILL: no exit is reported, and the lease expires
    there.clock.advance(60)
    second = start(there, run_id, "c2", "disk2", **BY_REPLAY)
    disk2, query2 = await began(second)
    assert [batch for batch, _ in disk2.outputs[query2.start.query]] == [3]
    assert disk2.state(query2.start) == before


@pytest.mark.parametrize("third_disk", ["disk1", "disk3"])
async def test_a_container_does_not_start_before_a_blob_store_says_which_batches_were_planned(there: Place, third_disk: str) -> None:
    """The first disk has the newest snapshot. The batches after it ran on another disk, and only their plans are durable."""
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 1, 1: 0})
    await stopped(first)
    second = start(there, run_id, "c2", "disk2", **NEVER)
    disk2, query2 = await began(second)
    second.wire.cut = True
    for batch in (1, 2):
        await disk2.runs(query2, batch, {0: 10 * batch, 1: 0}, note="by c2")
    second.life.cancel()
    there.clock.advance(60)
    blobs = FaultyBlobs(open_blob_store((there.home / "blobs").as_uri()), every("list", Fault.FAIL))
    third = start(there, run_id, "c3", third_disk, open_blobs=lambda url: blobs, **NEVER)
    assert (await third.ending()).exit_code == EXIT_FAILED
    assert third.engine.tries == []
    disk4, query4 = await began(start(there, run_id, "c4", third_disk, **NEVER))
    assert disk4.outputs[query4.start.query] == disk2.outputs[query2.start.query]
    assert disk4.state(query4.start) == disk2.state(query2.start)


async def test_after_the_loss_of_a_disk_before_the_first_commit_every_batch_runs_again(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch, 1: 0})
    first.life.cancel()
    there.clock.advance(60)
    disk2, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
    assert disk2.outputs[query2.start.query] == disk.outputs[query.start.query]


async def test_a_container_on_its_own_disk_continues_without_restoring(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
    disk, query = await began(first)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch, 1: 0})
    first.life.cancel()
    there.clock.advance(60)
    shutil.rmtree(there.home / "blobs" / "jobs" / "delays" / "Task-0" / "only" / "data", ignore_errors=True)
    disk2, query2 = await began(start(there, run_id, "c2", "disk1", **EVERY_BATCH))
    assert disk2.outputs == {}
    assert disk2.state(query2.start) == disk.state(query.start)


async def test_a_batch_that_another_owner_has_planned_runs_as_planned_by_that_owner(there: Place) -> None:
    """A container whose lease has ended while a batch was running."""
    run_id = await there.deploy(job=one_stage())
    disk, query = await began(start(there, run_id, "c1", "disk1", **NEVER))
    await disk.runs(query, 0, {0: 1, 1: 0})
    theirs = plan({0: 5, 1: 0}, note="theirs")
    blobs = open_blob_store((there.home / "blobs").as_uri())
    log = OffsetLog(blobs, StageKey(JobName("delays"), query.start.task, StageName("only")), query.start.lineage)
    await log.put_if_absent(OffsetLogEntry(1, theirs, Generation(7), strict=True, code=""))
    with pytest.raises(PlanReplaced, match="generation 7"):
        await disk.runs(query, 1, {0: 9, 1: 0}, note="ours")
    assert [batch for batch, _ in disk.outputs[query.start.query]] == [0]
    await query.ends("the batch was replaced")
    again = await disk.started()
    await disk.runs(again, 1, {0: 9, 1: 0}, note="ours")
    assert disk.outputs[query.start.query][1:] == [(1, theirs)]


async def test_state_without_a_readable_snapshot_is_never_started_fresh(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 1, 1: 0})
    await stopped(first)
    index = (await snapshots(there))[0]["markers"]["local"]["index"]
    for file in (there.home / "blobs").rglob(index.rpartition("/")[2]):
        file.unlink()
    second = start(there, run_id, "c2", "disk2", **NEVER)
    ending = await second.ending()
    assert ending.exit_code == EXIT_FAILED
    assert index in ending.reason
    assert second.engine.tries == []


async def test_a_second_blob_store_is_added_and_the_first_dropped_while_the_job_runs(tmp_path: Path) -> None:
    stores = {name: (tmp_path / name).as_uri() for name in ("old", "new")}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=("old",), restore_from=("old",)) as there:
        run_id = await there.deploy(job=one_stage())
        first = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
        disk, query = await began(first)
        for batch in range(2):
            await disk.runs(query, batch, {0: batch, 1: 0})
        for batch, to in ((2, ["old", "new"]), (4, ["new"])):
            async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
                answer = await http.put(f"/runs/{run_id}/backup", json={"stores": to, "restoreFrom": to[-1:]})
                assert answer.status_code == 200, answer.text
            await until_backed_up_to(first, to)
            await disk.runs(query, batch, {0: batch, 1: 0})
            await disk.runs(query, batch + 1, {0: batch, 1: 0})
            assert sorted((await snapshots(there))[0]["markers"]) == sorted(to)
        await stopped(first)
        shutil.rmtree(tmp_path / "old")
        disk2, query2 = await began(start(there, run_id, "c2", "disk2", **EVERY_BATCH))
        assert disk2.state(query2.start) == disk.state(query.start)


async def until_backed_up_to(container: Incarnation, names: list[str]) -> None:
    """The notice is the answer to a long poll, after which the agent requests the run."""
    for _ in range(1000):
        if list(container.agent._backups.destinations.to) == names:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"backed up to {container.agent._backups.destinations.to}, not to {names}")


async def test_batches_wait_during_an_outage_of_the_blob_store_and_continue_after_it(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    blobs = FaultyBlobs(open_blob_store((there.home / "blobs").as_uri()))
    disk, query = await began(start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs, **EVERY_BATCH))
    await disk.runs(query, 0, {0: 1, 1: 0})
    blobs.plan = lambda operation: Fault.FAIL
    running = asyncio.create_task(disk.runs(query, 1, {0: 2, 1: 0}))
    await asyncio.wait({running}, timeout=1)
    assert not running.done()
    assert [batch for batch, _ in disk.outputs[query.start.query]] == [0]
    blobs.plan = healthy
    await soon(running)
    assert [batch for batch, _ in disk.outputs[query.start.query]] == [0, 1]


async def test_a_container_whose_state_cannot_be_backed_up_for_too_long_ends_with_the_reason(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    settings = {
        "commit_interval_seconds": 0.05,
        "commit_max_delay_seconds": 0.1,
        "commit_timeout_seconds": 0.2,
    }
    blobs = FaultyBlobs(open_blob_store((there.home / "blobs").as_uri()))
    container = start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs, **settings)
    disk, query = await began(container)
    blobs.plan = every("put", Fault.FAIL)
    await disk.runs(query, 0, {0: 1, 1: 0})
    ending = await container.ending()
    assert ending.exit_code == EXIT_FAILED
    assert "backed up" in ending.reason


async def test_a_report_without_an_answer_is_given_up_before_its_blobs_may_be_deleted(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    settings = {"commit_interval_seconds": 3600, "max_replay": 1, "commit_max_delay_seconds": 0.1, "commit_timeout_seconds": 0.2}
    container = start(there, run_id, "c1", "disk1", **settings)
    disk, query = await began(container)
    container.wire.hold("/snapshots")
    await disk.runs(query, 0, {0: 1, 1: 0})
    ending = await container.ending()
    assert ending.exit_code == EXIT_FAILED
    assert "whether it has recorded a snapshot" in ending.reason


async def test_a_report_under_an_older_generation_ends_the_container_as_one_whose_lease_is_lost(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", commit_interval_seconds=0.05)
    disk, query = await began(container)
    there.clock.advance(60)  # its task is reassigned before it receives the notice
    await container.wire.after("containerHeartbeat", container.wire.answered["containerHeartbeat"] + 1)
    with suppress(Exception):
        await disk.runs(query, 0, {0: 1, 1: 0})
    assert (await container.ending()).exit_code == EXIT_LEASE_LOST
    assert await snapshots(there) == []


async def test_a_stop_in_the_middle_of_a_restore_does_not_change_the_store(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 1, 1: 0})
    await stopped(first)
    blobs, away = there.home / "blobs", there.home / "blobs.away"
    second = start(there, run_id, "c2", "disk2", **NEVER)
    await second.wire.after("jobModel")
    blobs.rename(away)  # from here on the container waits for the blob store
    await asyncio.wait({second.life}, timeout=0.3)
    second.agent.stop_requested()
    await second.ending()
    assert second.engine.tries == []
    shutil.rmtree(blobs, ignore_errors=True)
    away.rename(blobs)
    disk3, query3 = await began(start(there, run_id, "c3", "disk2", **NEVER))
    assert disk3.state(query3.start) == disk.state(query.start)


# --- failures around the report --------------------------------------------------------------------------------------

EVERY_BATCH_OR_LATE: dict[str, Any] = {
    "commit_interval_seconds": 3600,
    "max_replay": 1,
    "commit_max_delay_seconds": 1,
    "commit_timeout_seconds": 1,
}
"""A commit is given up after two seconds and tried again."""


async def report_is_lost_of(container: Incarnation, disk: DiskEngine, query: FakeQuery, batch: int) -> None:
    """The coordinator has recorded the report, but the answer is lost; later answers arrive."""
    container.wire.lose("/snapshots")
    await disk.runs(query, batch, {0: batch + 1, 1: 0})
    await soon(container.wire.held.wait())


async def test_a_report_whose_answer_was_lost_until_the_commit_was_given_up_is_sent_again(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **EVERY_BATCH_OR_LATE)
    disk, query = await began(container)
    await report_is_lost_of(container, disk, query, 0)
    await container.wire.after("snapshots")
    (first,) = await snapshots(there)
    await disk.runs(query, 1, {0: 2, 1: 0})
    await container.wire.after("snapshots", 2)
    second, again = await snapshots(there)
    assert (again["checkpointId"], again["batchId"], second["batchId"]) == (first["checkpointId"], 0, 1)
    await stopped(container)


async def test_a_drain_that_interrupts_a_commit_at_its_report_continues_from_that_snapshot(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **(NEVER | {"max_replay": 1}))
    disk, query = await began(container)
    await report_is_lost_of(container, disk, query, 0)
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.post("/drain", json={"runId": run_id, "drainMode": "DEFAULT"})
        assert answer.status_code < 300, answer.text
    assert (await container.ending()).exit_code == EXIT_OK
    assert await there.state(run_id) == "DRAINED"
    assert [each["batchId"] for each in await snapshots(there)] == [1, 0]


async def test_a_snapshot_reported_by_another_container_ends_the_container_even_after_a_lost_answer(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **EVERY_BATCH_OR_LATE)
    disk, query = await began(container)
    await report_is_lost_of(container, disk, query, 0)
    await container.wire.after("snapshots")
    (ours,) = await snapshots(there)
    prefix, _, _ = ours["markers"]["local"]["index"].rpartition("/")
    marker = MarkerBody(index=f"{prefix}/theirs", previous=ours["markers"]["local"]["index"])
    body = SnapshotRequest(
        generation=query.start.generation,
        lineage=query.start.lineage,
        batch_id=0,
        offsets=(),
        checkpoint_id=CommitId("1-000001"),
        markers={"local": marker},
    )
    await there.client.report_snapshot(run_id, query.start.task, StageName("only"), body)
    await disk.runs(query, 1, {0: 2, 1: 0})
    ending = await container.ending()
    assert ending.exit_code == EXIT_FAILED
    assert "theirs" in ending.reason


async def test_a_commit_that_is_refused_because_the_run_does_not_continue_ends_the_container_normally(there: Place) -> None:
    """The state after a failed drain: stages were rolled back, and the container has not received the stop yet."""
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **(NEVER | {"max_replay": 2}))
    container.wire.hold("/notices")
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 1, 1: 0})
    await there.client.new_lineage(run_id, query.start.task, StageName("only"), query.start.generation, query.start.lineage, "taken back")
    await there.client.stop_run(run_id, "the drain failed")
    await disk.runs(query, 1, {0: 2, 1: 0})
    ending = await container.ending()
    assert ending.exit_code == EXIT_OK
    assert "has ended or is stopping" in ending.reason


async def test_when_one_of_several_uploads_fails_the_others_end_before_the_commit_does(tmp_path: Path) -> None:
    stores = {name: (tmp_path / name).as_uri() for name in ("quick", "hanging")}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=tuple(stores), restore_from=tuple(stores)) as there:
        run_id = await there.deploy(job=one_stage())
        blobs = {url: FaultyBlobs(open_blob_store(url)) for url in stores.values()}
        container = start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs[url], **NEVER)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        quick, hanging = (blobs[url] for url in stores.values())
        hanging.plan = every("put", Fault.HANG)
        quick.plan = every("put", Fault.FAIL)
        with pytest.raises(BlobUnavailable):
            await soon(backup_of(query).commit())
        before = len(hanging.operations)
        hanging.release()
        quick.plan = healthy
        await soon(backup_of(query).commit())
        done = [each.blob for each in hanging.operations[before:] if each.name == "put"]
        there_now = [blob async for page in hanging.inner.list("jobs/", RequestContext(Purpose.AUDIT)) for blob in page]
        written = {each.blob for each in there_now if "/offsets/" not in each.blob}
        assert written == set(done)


async def test_a_blob_store_that_is_removed_and_added_again_between_two_commits_continues(tmp_path: Path) -> None:
    stores = {name: (tmp_path / name).as_uri() for name in ("one", "two")}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=tuple(stores), restore_from=("one",)) as there:
        run_id = await there.deploy(job=one_stage())
        blobs = {url: FaultyBlobs(open_blob_store(url)) for url in stores.values()}
        container = start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs[url], **NEVER)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await backup_of(query).commit()
        await disk.runs(query, 1, {0: 2, 1: 0})
        for to, plan_of in ((["one"], every("put", Fault.FAIL)), (["one", "two"], healthy)):
            async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
                assert (await http.put(f"/runs/{run_id}/backup", json={"stores": to, "restoreFrom": ["one"]})).status_code == 200
            await until_backed_up_to(container, to)
            blobs[stores["one"]].plan = plan_of
            with suppress(BlobUnavailable):
                await soon(backup_of(query).commit())
        assert [(each["batchId"], sorted(each["markers"])) for each in await snapshots(there)] == [(1, ["one", "two"]), (0, ["one", "two"])]


# --- batches that are given up ---------------------------------------------------------------------------------------


async def test_a_store_whose_batches_were_abandoned_continues_when_it_is_revived(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    blobs = FaultyBlobs(open_blob_store((there.home / "blobs").as_uri()))
    disk, query = await began(start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs, **EVERY_BATCH))
    await disk.runs(query, 0, {0: 1, 1: 0})
    waits = asyncio.Event()

    def hang(operation: Operation) -> Fault | None:
        if operation.name == "put_if_absent":
            waits.set()
            return Fault.HANG
        return None

    blobs.plan = hang
    running = asyncio.create_task(disk.runs(query, 1, {0: 2, 1: 0}))
    await soon(waits.wait())
    backup_of(query).release_batches()
    with pytest.raises(BatchInterrupted):
        await soon(running)
    blobs.plan = healthy
    with pytest.raises(BatchInterrupted):
        await disk.runs(query, 1, {0: 2, 1: 0})
    backup_of(query).hold_batches()
    await disk.runs(query, 1, {0: 2, 1: 0})
    assert [batch for batch, _ in disk.outputs[query.start.query]] == [0, 1]


async def test_a_batch_may_begin_to_write_twice_but_not_after_the_next_batch_has_started(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await began(start(there, run_id, "c1", "disk1", **NEVER))
    await disk.runs(query, 0, {0: 1, 1: 0})
    backup = backup_of(query)
    await asyncio.to_thread(backup.before_write, 0)
    await disk.runs(query, 1, {0: 2, 1: 0})
    with pytest.raises(BatchInterrupted, match="another batch has started"):
        await asyncio.to_thread(backup.before_write, 0)


async def test_a_batch_whose_plan_was_replaced_may_not_write_its_output(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await began(start(there, run_id, "c1", "disk1", **NEVER))
    blobs = open_blob_store((there.home / "blobs").as_uri())
    log = OffsetLog(blobs, StageKey(JobName("delays"), query.start.task, StageName("only")), query.start.lineage)
    await log.put_if_absent(OffsetLogEntry(0, plan({0: 5, 1: 0}, note="theirs"), Generation(7), strict=True, code=""))
    with pytest.raises(PlanReplaced):
        await disk.runs(query, 0, {0: 9, 1: 0})
    with pytest.raises(PlanReplaced):
        await asyncio.to_thread(backup_of(query).before_write, 0)


async def test_a_container_whose_commits_may_take_longer_than_the_grace_period_of_garbage_does_not_start(tmp_path: Path) -> None:
    async with place(tmp_path / "home", gc_grace_seconds=60, **BACKED_UP) as there:
        run_id = await there.deploy(job=one_stage())
        container = start(there, run_id, "c1", "disk1", **NEVER)
        ending = await container.ending()
        assert ending.exit_code == EXIT_FAILED
        assert "SLUICE_COMMIT_TIMEOUT_SECONDS" in ending.reason
        assert container.engine.opened == 0


# --- a coordinator that has lost its database ------------------------------------------------------------------------


async def rebuilt(home: Path) -> None:
    """Rebuild the catalog as `sluice rebuild` does."""
    settings, clock = read_settings(home=home), LoopClock()
    store = quick_store(settings.database)
    blob_stores = stores_of_blobs(settings, clock, {})
    try:
        await prepare(settings, store)
        await write(store, blob_stores, clock, await find(blob_stores, Progress("blobs"), clock.now()), force=False)
    finally:
        await blob_stores.close()
        await store.close()


async def test_after_a_rebuild_a_new_run_of_the_job_continues_on_an_empty_disk_with_every_batch(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with place(home, **BACKED_UP) as there:
        run_id = await there.deploy(job=one_stage())
        first = start(there, run_id, "c1", "disk1", **BY_REPLAY)
        disk, query = await began(first)
        for batch in range(3):
            await disk.runs(query, batch, {0: batch + 1, 1: 0})
        await first.wire.after("snapshots")
        await disk.runs(query, 3, {0: 9, 1: 0}, note="after the last snapshot")
        first.life.cancel()
    for each in home.glob("coordinator.db*"):
        each.unlink()
    await rebuilt(home)
    async with place(home, **BACKED_UP) as there:
        there.clock.advance(36)  # leases of containers that are not in the database
        run_id = await there.deploy(job=one_stage())
        second = start(there, run_id, "c2", "disk2", **BY_REPLAY)
        disk2, query2 = await began(second)
        assert query2.start.lineage == query.start.lineage
        assert disk2.outputs[query2.start.query] == disk.outputs[query.start.query][3:]
        assert disk2.state(query2.start) == disk.state(query.start)
        for batch in range(4, 7):
            await disk2.runs(query2, batch, {0: 10 + batch, 1: 0})
        await stopped(second)
        found = [each["batchId"] for each in await snapshots(there)]
        assert (found[0], found[-1]) == (6, 2)


async def assigned(there: Place) -> dict[str, dict[str, list[int]]]:
    """Task -> stream -> partitions, in the job model."""
    found: dict[str, dict[str, list[int]]] = {}
    served = await there.client.job_model(JobName("delays"))
    for name, task in served.model.tasks.items():
        for ssp in sorted(task.ssps):
            found.setdefault(name, {}).setdefault(ssp.stream, []).append(ssp.partition)
    return found


FLIGHTS = two_stages(streams=("flights", "mid", "out"))


async def test_after_a_rebuild_grown_streams_keep_their_tasks_and_unread_records_of_intermediate_streams_are_read(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def started(there: Place, run_id: RunId, name: str, disk: str) -> Incarnation:
        root = tmp_path / disk
        return there.start(run_id, name, engine=DiskEngine(root=root), job=FLIGHTS, state_dir=root, **NEVER)

    async with place(home, **BACKED_UP) as there:
        there.log.create("flights", 2)
        run_id = await there.deploy(job=FLIGHTS)
        first = started(there, run_id, "c1", "disk1")
        disk, second_stages = disk_of(first), await acting(first.engine, 4)
        there.log.grow("flights", 4)
        async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
            assert (await http.patch(f"/runs/{run_id}", json={"grow": True})).status_code == 200
        for task, query in (await acting(first.engine, 2)).items():
            await disk.runs(query, 0, {0: 5, 2: 6} if task == "Partition 0/first" else {1: 7, 3: 8})
        await disk.runs(second_stages["Partition 0/second"], 0, {0: 3})  # Partition 1 reads nothing before the database is lost
        await stopped(first)
        tasks = await assigned(there)
        assert tasks == {"Partition 0": {"flights": [0, 2], "mid": [0]}, "Partition 1": {"flights": [1, 3], "mid": [1]}}
    for each in home.glob("coordinator.db*"):
        each.unlink()
    await rebuilt(home)
    async with place(home, **BACKED_UP) as there:
        there.clock.advance(36)  # leases of containers that are not in the database
        there.log.append("mid", [Record(b"unread", partition=1)], writer=Writer(Lineage("l"), "o", Generation(1)), batch=0, now_micros=0)
        again = await there.deploy(job=FLIGHTS)
        assert await assigned(there) == tasks
        assert (await there.run(again)).first_run == run_id
        second = started(there, again, "c2", "disk2")
        queries = await acting(second.engine, 4)
        assert {name: (query.start.first_run, query.start.reported) for name, query in queries.items()} == {
            "Partition 0/first": (run_id, 0),
            "Partition 0/second": (run_id, 0),
            "Partition 1/first": (run_id, 0),
            "Partition 1/second": (run_id, None),
        }
        assert queries["Partition 1/second"].start.starts == {Ssp("log", "mid", 1): 0}
        offsets = {ssp.partition: at for each in await snapshots(there) if each["stage"] == "first" for ssp, at in read_offsets(each)}
        assert offsets == {0: 5, 1: 7, 2: 6, 3: 8}
        there.log.grow("flights", 8)
        async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
            assert (await http.patch(f"/runs/{again}", json={"grow": True})).status_code == 200
        assert (await assigned(there))["Partition 1"]["flights"] == [1, 3, 5, 7]


def read_offsets(snapshot: dict[str, Any]) -> list[tuple[Ssp, int]]:
    return [(Ssp(each["system"], each["stream"], each["partition"]), each["offset"]) for each in snapshot["offsets"]]


async def test_after_a_rebuild_single_partitions_are_broadcast_as_before(tmp_path: Path) -> None:
    home, job = tmp_path / "home", Job("delays")
    job.stage(reads=job.input("in", broadcast="#0"), writes=job.output("out"), name="only")(lambda task: None)  # type: ignore[arg-type, return-value]

    def started(there: Place, run_id: RunId, name: str, disk: str) -> Incarnation:
        return there.start(run_id, name, engine=DiskEngine(root=tmp_path / disk), job=job, state_dir=tmp_path / disk, **NEVER)

    async with place(home, **BACKED_UP) as there:
        first = started(there, await there.deploy(job=job), "c1", "disk1")
        disk, query = await began(first)
        await disk.runs(query, 0, {0: 5, 1: 7})
        await stopped(first)
        tasks = await assigned(there)
        assert tasks == {"Partition 1": {"in": [0, 1]}}
    for each in home.glob("coordinator.db*"):
        each.unlink()
    await rebuilt(home)
    async with place(home, **BACKED_UP) as there:
        there.clock.advance(36)  # leases of containers that are not in the database
        _, again = await began(started(there, await there.deploy(job=job), "c2", "disk2"))
        assert await assigned(there) == tasks
        assert (again.start.lineage, again.start.reported) == (query.start.lineage, 0)


async def test_a_rebuild_does_not_continue_from_snapshots_of_a_history_that_the_job_has_ended(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with place(home, **BACKED_UP) as there:
        for number, partitions in enumerate((2, 1)):
            run_id = await there.deploy(job=two_stages(), start="checkpoint" if number == 0 else "latest")
            root = tmp_path / f"disk{number}"
            made = there.start(run_id, f"c{number}", engine=DiskEngine(root=root), job=two_stages(), state_dir=root, **NEVER)
            queries = await acting(made.engine, 4)
            for partition in range(partitions):
                await disk_of(made).runs(queries[f"Partition {partition}/first"], 0, {partition: 5})
            await stopped(made)
    for each in home.glob("coordinator.db*"):
        each.unlink()
    await rebuilt(home)
    async with place(home, **BACKED_UP) as there:
        there.clock.advance(36)  # leases of containers that are not in the database
        last = await there.deploy(job=two_stages())
        root = tmp_path / "disk2"
        queries = await acting(there.start(last, "c3", engine=DiskEngine(root=root), job=two_stages(), state_dir=root, **NEVER).engine, 4)
        assert (await there.run(last)).first_run == run_id
        assert [queries[f"Partition {p}/first"].start.reported for p in (0, 1)] == [0, None]


async def test_a_rebuild_continues_from_state_that_drains_kept_even_if_its_task_has_run_no_batch_since(tmp_path: Path) -> None:
    """Two drains keep the state. One task runs a batch after each, the other one only before the first. Two losses of the database."""
    home = tmp_path / "home"

    async def started(there: Place, name: str, disk: str) -> tuple[Incarnation, Mapping[str, FakeQuery]]:
        root = tmp_path / disk
        run_id = await there.deploy(job=two_stages())
        made = there.start(run_id, name, engine=DiskEngine(root=root), job=two_stages(), state_dir=root, **NEVER)
        disk_of(made).operators = ("counts by key",)
        return made, await acting(made.engine, 4)

    lineages, state = {}, {}
    async with place(home, **BACKED_UP) as there:
        for number in range(3):
            container, queries = await started(there, f"c{number}", "disk")
            disk = disk_of(container)
            await disk.runs(queries["Partition 0/first"], number, {0: 5 + number})
            if number == 0:
                await disk.runs(queries["Partition 1/first"], 0, {1: 7})
            for name in ("Partition 0/first", "Partition 1/first"):
                lineages[name], state[name] = queries[name].start.lineage, disk.state(queries[name].start)
            if number < 2:
                async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
                    run_id = queries["Partition 0/first"].start.first_run
                    assert (await http.post("/drain", json={"runId": run_id, "drainMode": "KEEP_STATE"})).status_code < 300
                assert (await container.ending()).exit_code == EXIT_OK
            else:
                await stopped(container)
    for number in range(2):
        for each in home.glob("coordinator.db*"):
            each.unlink()
        await rebuilt(home)
        async with place(home, **BACKED_UP) as there:
            there.clock.advance(36)  # leases of containers that are not in the database
            container, queries = await started(there, f"d{number}", f"disk{number}")
            disk = disk_of(container)
            for name, last in (("Partition 0/first", 2 + number), ("Partition 1/first", 0)):
                start = queries[name].start
                assert (start.lineage, start.reported, disk.state(start)) == (lineages[name], last, state[name])
            await disk.runs(queries["Partition 0/first"], 3 + number, {0: 9 + number})
            state["Partition 0/first"] = disk.state(queries["Partition 0/first"].start)
            await stopped(container)


async def test_a_run_shows_when_each_stage_was_last_backed_up(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await began(start(there, run_id, "c1", "disk1", **NEVER))
    await disk.runs(query, 0, {0: 1, 1: 0})
    assert [stage.snapshot_at for task in (await there.run(run_id)).tasks for stage in task.stages] == [None]
    there.clock.advance(5)
    await backup_of(query).commit()
    assert [stage.snapshot_at for task in (await there.run(run_id)).tasks for stage in task.stages] == [there.clock.now()]
