"""Agents that back their stores up and restore them, against the real coordinator and blob stores; only Spark is not real."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers import Job
from containers.agent import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK
from containers.backups import PlanReplaced
from containers.planlog import PlanLog
from coordinator.blobs.locations import open_blob_store
from coordinator.core.ids import Generation, JobName, RunId, StageName
from coordinator.core.recovery import Plan
from tests.agents import Incarnation, Place, place
from tests.disk_engine import DiskEngine, plan
from tests.fake_engine import FakeQuery, soon
from tests.faultyblobs import Fault, FaultyBlobs, every, healthy

BACKED_UP = {"backup_stores": None, "restore_from": None}
EVERY_BATCH = {"commit_interval_seconds": 0}
NEVER = {"commit_interval_seconds": 3600, "max_replay": 1000}


def one_stage() -> Job:
    job = Job("delays", max_tasks=1)
    read, out = job.input("in"), job.output("out")
    job.stage(reads=read, writes=out, name="only")(lambda task: None)  # type: ignore[arg-type, return-value]
    return job


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **BACKED_UP) as made:
        yield made


def start(there: Place, run_id: RunId, name: str, disk: str, **settings: Any) -> Incarnation:
    """A container with a disk of its own."""
    root = there.home.parent / disk
    return there.start(run_id, name, engine=DiskEngine(root=root), job=one_stage(), state_dir=root, **settings)


def disk_of(container: Incarnation) -> DiskEngine:
    assert isinstance(container.engine, DiskEngine)
    return container.engine


async def began(container: Incarnation) -> tuple[DiskEngine, FakeQuery]:
    return disk_of(container), await container.engine.started()


async def snapshots(there: Place) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.get("/jobs/delays/snapshots")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["snapshots"]
        return found


async def stopped(container: Incarnation) -> None:
    container.agent.stop_requested()
    assert (await container.ending()).exit_code == EXIT_OK


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


async def test_with_no_interval_a_batch_begins_when_the_one_before_is_durable(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await began(start(there, run_id, "c1", "disk1", **EVERY_BATCH))
    for batch in range(3):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
        assert [each["batchId"] for each in await snapshots(there)] == list(range(batch - 1, -1, -1))


async def test_what_ran_after_the_snapshot_runs_again_on_the_new_disk_as_it_was_planned(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
    disk, query = await began(first)
    for batch in range(4):
        await disk.runs(query, batch, {0: 10 * batch, 1: 0}, note=f"planned by c1: {batch}")
    before = disk.state(query.start)
    first.life.cancel()  # a kill: nothing is told, the lease ends
    there.clock.advance(60)
    second = start(there, run_id, "c2", "disk2", **EVERY_BATCH)
    disk2, query2 = await began(second)
    assert [batch for batch, _ in disk2.outputs[query2.start.query]] == [3]
    assert disk2.state(query2.start) == before


async def test_a_disk_that_was_lost_before_the_first_commit_runs_everything_again(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch, 1: 0})
    first.life.cancel()
    there.clock.advance(60)
    disk2, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
    assert disk2.outputs[query2.start.query] == disk.outputs[query.start.query]


async def test_a_container_on_its_own_disk_goes_on_without_restoring(there: Place) -> None:
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


async def test_a_batch_that_another_holder_has_planned_runs_as_that_one_planned_it(there: Place) -> None:
    """Such as one whose lease has ended, and whose batch was on its way."""
    run_id = await there.deploy(job=one_stage())
    disk, query = await began(start(there, run_id, "c1", "disk1", **NEVER))
    await disk.runs(query, 0, {0: 1, 1: 0})
    theirs = plan({0: 5, 1: 0}, note="theirs")
    blobs = open_blob_store((there.home / "blobs").as_uri())
    log = PlanLog(blobs, JobName("delays"), query.start.task, StageName("only"), query.start.lineage)
    await log.settle(Plan(1, theirs, Generation(7), strict=True, code=""))
    with pytest.raises(PlanReplaced, match="generation 7"):
        await disk.runs(query, 1, {0: 9, 1: 0}, note="ours")
    assert [batch for batch, _ in disk.outputs[query.start.query]] == [0]
    await query.ends("the batch was replaced")
    again = await disk.started()
    await disk.runs(again, 1, {0: 9, 1: 0}, note="ours")
    assert disk.outputs[query.start.query][1:] == [(1, theirs)]


async def test_state_of_which_no_snapshot_can_be_read_is_never_begun_anew(there: Place) -> None:
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
    """The notice is a poll's answer, after which the agent asks for the run."""
    for _ in range(1000):
        if list(container.agent.backing_up_to) == names:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"backed up to {container.agent.backing_up_to}, not to {names}")


async def test_while_the_blob_store_is_away_batches_wait_and_go_on_when_it_is_back(there: Place) -> None:
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


async def test_state_that_cannot_be_backed_up_for_too_long_ends_the_container_and_says_why(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    settings = {"commit_interval_seconds": 0.05, "commit_max_delay_seconds": 0.1, "commit_timeout_seconds": 0.2}
    blobs = FaultyBlobs(open_blob_store((there.home / "blobs").as_uri()))
    container = start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs, **settings)
    disk, query = await began(container)
    blobs.plan = every("put", Fault.FAIL)
    await disk.runs(query, 0, {0: 1, 1: 0})
    ending = await container.ending()
    assert ending.exit_code == EXIT_FAILED
    assert "backed up" in ending.reason


async def test_a_report_under_an_older_generation_ends_the_container_as_one_whose_lease_is_lost(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", commit_interval_seconds=0.05)
    disk, query = await began(container)
    there.clock.advance(60)  # its task is given away before it hears of that
    await container.wire.after("containerHeartbeat", container.wire.answered["containerHeartbeat"] + 1)
    with suppress(Exception):
        await disk.runs(query, 0, {0: 1, 1: 0})
    assert (await container.ending()).exit_code == EXIT_LEASE_LOST
    assert await snapshots(there) == []


async def test_a_stop_in_the_middle_of_a_restore_leaves_the_store_alone(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 1, 1: 0})
    await stopped(first)
    blobs, away = there.home / "blobs", there.home / "blobs.away"
    second = start(there, run_id, "c2", "disk2", **NEVER)
    await second.wire.after("jobModel")
    blobs.rename(away)  # from here on it waits for the blob store
    await asyncio.wait({second.life}, timeout=0.3)
    second.agent.stop_requested()
    await second.ending()
    assert second.engine.tries == []
    shutil.rmtree(blobs, ignore_errors=True)
    away.rename(blobs)
    disk3, query3 = await began(start(there, run_id, "c3", "disk2", **NEVER))
    assert disk3.state(query3.start) == disk.state(query.start)
