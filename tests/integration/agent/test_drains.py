"""Agents in a drain, with a real coordinator and real blob stores, and a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.engine import StageStart
from containers.errors import EXIT_REPEATED_FAILURE
from containers.supervision.exit_report import EXIT_FAILED, EXIT_OK
from sluice import Job
from sluice.core.ids import RunId
from sluice.status import overview
from tests.support.agents import Place, place
from tests.support.backups import BACKED_UP, began, disk_of, one_stage, start
from tests.support.engines import DiskEngine, soon
from tests.support.fakes import FakeClock
from tests.support.virtual_time import Gate

NEVER: dict[str, Any] = {"commit_interval_seconds": 3600, "max_replay": 1000}


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **BACKED_UP) as made:
        yield made


async def request(there: Place, method: str, path: str, **body: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.request(method, path, json=body or None)
        assert answer.status_code < 300, answer.text
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found


async def drained(there: Place, run_id: RunId, **more: Any) -> dict[str, Any]:
    return await request(there, "POST", "/drain", **{"runId": run_id, "drainMode": "DEFAULT", **more})


async def until_failed(there: Place, run_id: RunId) -> None:
    """Wait until the run's drain has failed."""
    seq, phase = 0, ""
    while phase != "FAILED":
        for notice in await there.client.notices(run_id, seq, timedelta(seconds=20)):
            seq, phase = notice.seq, str(notice.detail.get("phase", phase))


def problem(status: int, slug: str) -> httpx.Response:
    return httpx.Response(status, json={"type": f"urn:sluice:{slug}", "title": slug, "status": status, "detail": "so it is"})


def last_output(disk: DiskEngine, query: str) -> tuple[int, str]:
    return disk.outputs[query][-1]


async def test_the_status_shows_that_a_drain_waits_for_a_coordinator_that_answers_500(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 1, 1: 7})
    container.wire.foreign["/drain"] = [problem(500, "bug")] * 10_000
    uuid = (await drained(there, run_id))["uuid"]
    await container.wire.after("failure")
    (failing,) = overview(await there.run(run_id), there.clock.now()).failing
    assert failing.error.startswith(f"drain {uuid} waits: The coordinator answers, but cannot carry out the request now. ")
    assert failing.error.endswith("500 so it is")
    container.wire.foreign.clear()
    assert (await container.ending()).exit_code == EXIT_OK


@pytest.mark.parametrize("held", [True, False])
async def test_a_drain_stops_flushes_commits_and_ends_the_run_and_the_next_run_begins_at_the_drained_offsets(
    there: Place, held: bool
) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    container.engine.on_pause = lambda query, forced: held
    disk, query = await began(container)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch + 1, 1: 7})
    uuid = (await drained(there, run_id))["uuid"]
    assert (await container.ending()).exit_code == EXIT_OK
    batch, text = last_output(disk, query.start.query)
    assert batch == 3
    assert uuid in text
    assert await there.state(run_id) == "DRAINED"
    detail = await request(there, "GET", f"/drain/{uuid}")
    assert {each["partition"]: each["offset"] for each in detail["drained"]} == {0: 3, 1: 7}
    again = await there.deploy(job=one_stage())
    _, after = await began(start(there, again, "c2", "disk1", **NEVER))
    assert {ssp.partition: offset for ssp, offset in after.start.starts.items()} == {0: 3, 1: 7}
    assert after.start.lineage != query.start.lineage
    assert after.start.reported is None


async def test_a_container_that_starts_under_a_drain_runs_no_query(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    await drained(there, run_id)
    container = start(there, run_id, "c1", "disk1", **NEVER)
    assert (await container.ending()).exit_code == EXIT_OK
    assert container.engine.queries == []
    assert await there.state(run_id) == "DRAINED"


async def test_a_container_killed_in_a_drain_restarts_on_an_empty_disk_and_completes_the_drain(there: Place) -> None:
    run_id = await there.deploy(job=one_stage(), containers=1)
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 5, 1: 5})
    held = first.wire.hold("/drain")  # the answer to its first step
    await drained(there, run_id)
    await soon(first.wire.held.wait())
    first.life.cancel()
    held.set()
    there.clock.advance(60)
    second = start(there, run_id, "c2", "disk2", **NEVER)
    assert (await second.ending()).exit_code == EXIT_OK
    assert second.engine.queries == []
    assert [batch for batch, _ in disk_of(second).outputs[query.start.query]] == [1]
    assert await there.state(run_id) == "DRAINED"


async def test_queries_continue_when_a_drain_is_cancelled_in_time(there: Place) -> None:
    run_id = await there.deploy(job=one_stage(), containers=1)
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 5, 1: 5})
    held = first.wire.hold(f"/runs/{run_id}")  # the request that it sends after the notice of the drain
    uuid = (await drained(there, run_id))["uuid"]
    await soon(first.wire.held.wait())
    await request(there, "DELETE", f"/drain/{uuid}")
    held.set()
    assert await disk.resumed() is query
    await disk.runs(query, 1, {0: 9, 1: 9})
    assert len(disk.queries) == 1
    assert await there.state(run_id) == "RUNNING"
    first.agent.stop_requested()
    assert (await first.ending()).exit_code == EXIT_OK


def one_stage_over_two_tasks() -> Job:
    job = Job("delays")
    read, out = job.input("in"), job.output("out")
    job.stage(reads=read, writes=out, name="only")(lambda task: None)  # type: ignore[arg-type, return-value]
    return job


async def test_a_task_whose_batch_ends_after_the_drain_was_cancelled_continues(there: Place) -> None:
    run_id, root = await there.deploy(job=one_stage_over_two_tasks()), there.home.parent / "disk1"
    container = there.start(run_id, "c1", engine=DiskEngine(root=root), job=one_stage_over_two_tasks(), state_dir=root, **NEVER)
    disk, batch_ends = disk_of(container), Gate()
    queries = await disk.all_started(2)
    disk.on_pause = lambda query, forced: query is queries["Partition 0/only"] or batch_ends.wait()
    held = container.wire.hold("/stages/only/drain")  # the step of the task whose query was paused at once
    uuid = (await drained(there, run_id))["uuid"]
    await soon(container.wire.held.wait())
    await request(there, "DELETE", f"/drain/{uuid}")
    held.set()
    assert await disk.resumed() is queries["Partition 0/only"]
    batch_ends.open()
    assert await disk.resumed() is queries["Partition 1/only"]


@pytest.mark.parametrize("mode", ["DEFAULT", "KEEP_STATE"])
async def test_the_tasks_of_a_container_are_flushed_side_by_side(there: Place, mode: str) -> None:
    run_id, root = await there.deploy(job=one_stage_over_two_tasks()), there.home.parent / "disk1"
    container = there.start(run_id, "c1", engine=DiskEngine(root=root), job=one_stage_over_two_tasks(), state_dir=root, **NEVER)
    disk, both_flush, flushing = disk_of(container), Gate(), list[str]()
    for query in (await disk.all_started(2)).values():
        await disk.runs(query, 0, {ssp.partition: 5 for ssp in query.start.starts})

    def flushes(start: StageStart) -> None:
        flushing.append(start.task)
        if len(flushing) == 2:
            both_flush.open()
        both_flush.wait()

    disk.on_empty = flushes
    await drained(there, run_id, drainMode=mode)
    assert (await container.ending()).exit_code == EXIT_OK
    assert await there.state(run_id) == "DRAINED"


# --- unexpected states of a drain -------------------------------------------------------------------------------------


async def test_queries_continue_when_a_drain_fails_before_anything_was_flushed(there: Place) -> None:
    run_id = await there.deploy(job=one_stage(), containers=1)
    container = start(there, run_id, "c1", "disk1", **NEVER)
    go = Gate()
    container.engine.on_pause = lambda query, forced: go.wait()
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 5, 1: 5})
    await drained(there, run_id, hardDeadlineSeconds=5)
    await soon(go.reached())
    there.clock.advance(6)
    await until_failed(there, run_id)
    go.open()
    assert await disk.resumed() is query
    await disk.runs(query, 1, {0: 9, 1: 9})
    assert await there.state(run_id) == "RUNNING"


async def test_a_step_that_is_refused_is_repeated_for_the_present_phase_of_the_drain(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 5, 1: 5})
    container.wire.foreign["/stages/only/drain"] = [problem(409, "drain-too-early"), problem(422, "checkpoint-needed")]
    await drained(there, run_id)
    assert (await container.ending()).exit_code == EXIT_OK
    assert await there.state(run_id) == "DRAINED"


async def test_a_drain_that_the_coordinator_no_longer_has_is_cancelled(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    go = Gate()
    container.engine.on_pause = lambda query, forced: go.wait()
    uuid = (await drained(there, run_id))["uuid"]
    await soon(go.reached())
    container.wire.foreign["/stages/only/drain"] = [problem(409, "unknown-drain")]
    container.wire.foreign[uuid] = [problem(404, "unknown-drain")]
    go.open()
    assert await disk.resumed() is query


NONSENSE: list[dict[str, Any]] = [{}, {"uuid": "some"}, {"uuid": "some", "phase": "MELTING"}, {"uuid": "some", "phase": "STOPPING"}]


async def test_invalid_notices_of_drains_and_those_of_other_runs_are_ignored(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    wire = there.new_wire()
    notices = [{"seq": 0, "kind": "DRAIN", "at": "2026-01-01T00:00:00Z", "detail": detail} for detail in NONSENSE]
    wire.foreign["/notices"] = [httpx.Response(200, json={"notices": notices}), problem(400, "bad-request"), httpx.Response(200, text="?")]
    container = start(there, run_id, "c1", "disk1", wire=wire, **NEVER)
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 5, 1: 5})
    await wire.after("foreign", 3)
    assert not query.held
    await drained(there, run_id)
    assert (await container.ending()).exit_code == EXIT_OK
    assert await there.state(run_id) == "DRAINED"


# --- what is read and written under a drain ---------------------------------------------------------------------------


def two_readers() -> Job:
    job = Job("delays", max_tasks=1)
    read = job.input("in")
    for name in ("ahead", "behind"):
        job.stage(reads=read, name=name)(lambda task: None)  # type: ignore[arg-type, return-value]
    return job


async def test_a_stage_that_has_read_less_of_an_input_than_another_continues_up_to_where_the_other_stopped(there: Place) -> None:
    run_id = await there.deploy(job=two_readers())
    root = there.home.parent / "disk1"
    container = there.start(run_id, "c1", engine=DiskEngine(root=root), job=two_readers(), state_dir=root, **NEVER)
    disk = disk_of(container)
    queries = {name.rpartition("/")[2]: query for name, query in (await disk.all_started(2)).items()}
    await disk.runs(queries["ahead"], 0, {0: 9, 1: 4})
    await disk.runs(queries["behind"], 0, {0: 3, 1: 4})
    uuid = (await drained(there, run_id))["uuid"]
    assert (await container.ending()).exit_code == EXIT_OK
    detail = await request(there, "GET", f"/drain/{uuid}")
    assert {each["partition"]: each["offset"] for each in detail["drained"]} == {0: 9, 1: 4}


async def test_batches_of_a_drain_wait_until_overdue_commits_are_made(there: Place) -> None:
    run_id = await there.deploy(job=two_readers())
    root, clock = there.home.parent / "disk1", FakeClock()
    settings: dict[str, Any] = {"commit_interval_seconds": 10, "commit_max_delay_seconds": 0}
    container = there.start(run_id, "c1", engine=DiskEngine(root=root), job=two_readers(), state_dir=root, clock=clock, **settings)
    disk = disk_of(container)
    queries = {name.rpartition("/")[2]: query for name, query in (await disk.all_started(2)).items()}
    await disk.runs(queries["ahead"], 0, {0: 9, 1: 4})
    await disk.runs(queries["behind"], 0, {0: 3, 1: 4})
    loop = asyncio.get_running_loop()

    def takes_long() -> None:
        beats = container.wire.answered["containerHeartbeat"]
        renewed = container.wire.after("containerHeartbeat", beats + 2)  # the lease, since three batches take longer than a lease
        asyncio.run_coroutine_threadsafe(renewed, loop).result()  # the agent has received the report of the batch
        clock.advance(11)

    disk.on_emptying = takes_long
    await drained(there, run_id)
    assert (await container.ending()).exit_code == EXIT_OK
    assert await there.state(run_id) == "DRAINED"


async def test_a_container_that_is_stopped_does_not_give_a_task_back_while_its_store_is_flushed(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 5, 1: 5})
    go = Gate()
    disk.on_empty = lambda start: (go.wait(), None)[1]
    await drained(there, run_id)
    await soon(go.reached())
    container.agent.stop_requested()
    await container.wire.after("progress", container.wire.answered["progress"])
    assert await there.holders(run_id) == {"Partition 0": "c1"}
    go.open()
    assert (await container.ending()).exit_code == EXIT_OK
    assert disk.outputs[query.start.query][-1][0] == 1
    assert await there.holders(run_id) == {"Partition 0": None}


# --- without backups --------------------------------------------------------------------------------------------------


@pytest.fixture
async def unsaved(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home") as made:
        yield made


async def test_without_backups_a_container_killed_in_a_flush_continues_the_flush_on_its_disk(unsaved: Place) -> None:
    run_id = await unsaved.deploy(job=one_stage())
    first = start(unsaved, run_id, "c1", "disk1")
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 5, 1: 5})
    go = Gate()

    def dies(start: StageStart) -> None:
        disk.on_empty = lambda start: None
        disk.empty(start, {})
        go.wait()
        raise RuntimeError("killed")

    disk.on_empty = dies
    await drained(unsaved, run_id)
    await soon(go.reached())
    first.life.cancel()
    go.open()
    unsaved.clock.advance(60)
    second = start(unsaved, run_id, "c2", "disk1")
    assert (await second.ending()).exit_code == EXIT_OK
    assert await unsaved.state(run_id) == "DRAINED"


async def test_without_backups_a_store_that_a_failed_drain_has_emptied_is_not_started_again(unsaved: Place) -> None:
    run_id = await unsaved.deploy(job=one_stage())
    first = start(unsaved, run_id, "c1", "disk1")
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 5, 1: 5})
    go = Gate()

    def takes_too_long(start: StageStart) -> None:
        disk.on_empty = lambda start: None
        disk.empty(start, {})
        go.wait()

    disk.on_empty = takes_too_long
    uuid = (await drained(unsaved, run_id, hardDeadlineSeconds=5))["uuid"]
    await soon(go.reached())
    unsaved.clock.advance(6)
    await until_failed(unsaved, run_id)
    go.open()
    assert (await first.ending()).exit_code == EXIT_OK
    again = await unsaved.deploy(job=one_stage())
    second = start(unsaved, again, "c2", "disk1")
    ending = await second.ending()
    assert ending.exit_code == EXIT_FAILED
    assert f"was flushed after batch 0 by the drain {uuid}" in ending.reason
    restarted = await unsaved.deploy(job=one_stage(), start="earliest")
    await began(start(unsaved, restarted, "c3", "disk1"))


# --- drains that keep the state ---------------------------------------------------------------------------------------


async def test_a_drain_that_keeps_the_state_empties_nothing_and_a_container_on_an_empty_disk_continues_with_it(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    disk.operators = ("counts by key",)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch + 1, 1: 7})
    uuid = (await drained(there, run_id, drainMode="KEEP_STATE"))["uuid"]
    assert (await container.ending()).exit_code == EXIT_OK
    assert [batch for batch, _ in disk.outputs[query.start.query]] == [0, 1, 2]
    detail = await request(there, "GET", f"/drain/{uuid}")
    (stage,) = detail["containers"][0]["tasks"][0]["stages"]
    assert (stage["keptOperators"], stage["batchId"]) == (["counts by key"], 2)

    again = await there.deploy(job=one_stage())
    other = start(there, again, "c2", "disk2", **NEVER)
    ending = await other.ending()
    assert ending.exit_code == EXIT_REPEATED_FAILURE
    assert "the kept state belongs to counts by key, and this version has no stateful operator" in ending.reason
    assert other.engine.queries == []

    third = start(there, again, "c3", "disk3", **NEVER)
    disk_of(third).operators = ("counts by key",)
    disk, after = await began(third)
    assert (after.start.lineage, after.start.reported) == (query.start.lineage, 2)
    assert sorted(disk.state(after.start)) == [0, 1, 2]
    await disk.runs(after, 3, {0: 9, 1: 9})
    assert sorted(disk.state(after.start)) == [0, 1, 2, 3]


async def test_a_query_continues_when_a_drain_that_keeps_the_state_is_cancelled_after_its_stage_has_caught_up(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 5, 1: 5})
    go = Gate()
    disk.on_empty = lambda start: (go.wait(), None)[1]
    uuid = (await drained(there, run_id, drainMode="KEEP_STATE"))["uuid"]
    await soon(go.reached())
    assert (await request(there, "DELETE", f"/drain/{uuid}"))["phase"] == "CANCELLED"
    go.open()
    assert await disk.resumed() is query
    await disk.runs(query, 1, {0: 9, 1: 9})
    assert await there.state(run_id) == "RUNNING"


async def test_a_drain_that_keeps_the_state_fails_at_its_deadline_and_the_query_continues(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 5, 1: 5})
    go = Gate()
    disk.on_empty = lambda start: (go.wait(), None)[1]
    await drained(there, run_id, drainMode="KEEP_STATE", hardDeadlineSeconds=5)
    await soon(go.reached())
    there.clock.advance(6)
    await until_failed(there, run_id)
    go.open()
    assert await disk.resumed() is query
    assert await there.state(run_id) == "RUNNING"
