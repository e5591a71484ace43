"""Ownership of tasks: acquire, wait, progress, release."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from sqlalchemy import event

from coordinator.fleet.expiry import ExpireLeases
from sluice.core.ids import JobName, TaskName
from tests.support.api import Caller, appended, chained_body, problem_slug, run_body
from tests.support.fakes import FakeClock


@pytest.fixture
async def run_id(caller: Caller) -> str:
    """A run whose slot 0 is c1, which owns "Partition 0" under generation 1."""
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "c1")
    return run_id


async def test_the_first_owner_gets_generation_lineage_and_starts(caller: Caller, run_id: str) -> None:
    reply = await caller.acquired(run_id, "c1")
    (stage,) = reply["stages"]
    assert (reply["task"], reply["generation"], stage["stage"], stage["batchId"]) == ("Partition 0", 1, "hourly", None)
    assert stage["starts"] == [{"system": "log", "stream": "flights", "partition": 0, "offset": 0}]


async def test_acquiring_again_gives_the_same_answer(caller: Caller, run_id: str) -> None:
    assert await caller.acquired(run_id, "c1") == await caller.acquired(run_id, "c1")


async def test_what_all_tasks_of_a_run_need_is_read_once_and_not_with_each_acquire(caller: Caller) -> None:
    run = await caller.deploy(chained_body(partitions=2))
    await caller.registered(run["runId"], "c1")
    await caller.acquired(run["runId"], "c1", task="Partition 0")
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    engine = caller.coordinator.api.state.parts.health.store.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        await caller.acquired(run["runId"], "c1", task="Partition 1")
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert [each for each in statements if "FROM containers" in each]
    assert not [each for each in statements if "FROM starts" in each or "FROM assignments" in each]


async def test_every_task_and_stage_has_its_own_lineage(caller: Caller) -> None:
    run = await caller.deploy(chained_body(partitions=2))
    await caller.registered(run["runId"], "c1")
    reply = [await caller.acquired(run["runId"], "c1", task=f"Partition {p}") for p in (0, 1)]
    assert len({stage["lineage"] for each in reply for stage in each["stages"]}) == 4


async def test_concurrent_acquires_of_one_container_get_one_generation(caller: Caller, run_id: str) -> None:
    answers = await asyncio.gather(*(caller.acquired(run_id, "c1") for _ in range(10)))
    assert [each["generation"] for each in answers] == [1] * 10
    assert len({each["stages"][0]["lineage"] for each in answers}) == 1


async def test_a_replacement_waits_until_the_lease_and_grace_of_the_former_owner_have_passed(
    caller: Caller, clock: FakeClock, run_id: str
) -> None:
    await caller.acquired(run_id, "c1")
    clock.advance(10)
    await caller.registered(run_id, "c2")
    answer = await caller.acquire(run_id, "c2", 2)
    assert (answer.status_code, answer.json()) == (202, {"waitSeconds": 25.0, "former": "c1"})
    assert int(answer.headers["retry-after"]) >= 25
    clock.advance(24.5)
    assert (await caller.acquire(run_id, "c2", 2)).status_code == 202
    clock.advance(0.5)
    assert (await caller.acquired(run_id, "c2", 2))["generation"] == 2


async def test_a_replacement_does_not_wait_if_the_exit_of_the_former_owner_was_reported(caller: Caller, run_id: str) -> None:
    await caller.acquired(run_id, "c1")
    await caller.registered(run_id, "c2")
    await caller.exited("c1")
    assert (await caller.acquired(run_id, "c2", 2))["generation"] == 2


async def test_a_replacement_does_not_wait_if_the_former_owner_has_released_the_task(caller: Caller, run_id: str) -> None:
    await caller.acquired(run_id, "c1")
    await caller.registered(run_id, "c2")
    assert (await caller.release(run_id, 1)).status_code == 204
    assert (await caller.acquired(run_id, "c2", 2))["generation"] == 2


async def test_a_release_may_be_repeated_but_not_under_another_generation(caller: Caller, run_id: str) -> None:
    await caller.acquired(run_id, "c1")
    assert [(await caller.release(run_id, 1)).status_code for _ in range(2)] == [204, 204]
    assert problem_slug(await caller.release(run_id, 2)) == (409, "lease-lost")


async def test_a_replaced_incarnation_acquires_nothing(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c2")
    assert problem_slug(await caller.acquire(run_id, "c1", 1)) == (409, "lease-lost")


@pytest.mark.parametrize(("execution_id", "epoch"), [("c1", 2), ("stranger", 1)])
async def test_only_the_valid_incarnation_with_its_epoch_acquires(caller: Caller, run_id: str, execution_id: str, epoch: int) -> None:
    assert problem_slug(await caller.acquire(run_id, execution_id, epoch)) == (409, "lease-lost")


async def test_a_task_that_the_model_does_not_have_is_unknown(caller: Caller, run_id: str) -> None:
    for task in ("Partition 9", "../x", "é", "a/b"):
        assert (await caller.acquire(run_id, "c1", 1, task)).status_code == 404
    assert problem_slug(await caller.acquire(run_id, "c1", 1, "Partition 9")) == (404, "unknown-task")


async def test_the_task_of_another_slot_is_refused(caller: Caller) -> None:
    run = await caller.deploy(run_body(containers=2))
    await caller.registered(run["runId"], "c1", "0")
    assert problem_slug(await caller.acquire(run["runId"], "c1", 1, "Partition 1")) == (409, "task-not-yours")


async def test_tasks_with_brackets_and_commas_in_their_names_can_be_acquired(caller: Caller) -> None:
    run = await caller.deploy(run_body(grouper="GroupBySystemStreamPartition"))
    await caller.registered(run["runId"], "c1")
    name = "SystemStreamPartition [log, flights, 1]"
    assert (await caller.acquired(run["runId"], "c1", task=name))["task"] == name


async def committed(caller: Caller, run_id: str) -> tuple[int | None, list[int]]:
    (stage,) = (await caller.run(run_id))["tasks"][0]["stages"]
    return stage["batchId"], [each["offset"] for each in stage["offsets"]]


async def test_progress_is_recorded_once_and_an_older_batch_changes_nothing(caller: Caller, run_id: str) -> None:
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    for batch, offset in ((4, 40), (4, 99), (3, 30)):
        assert (await caller.progress(run_id, 1, lineage, batch, [("flights", 0, offset)])).status_code == 204
    assert await committed(caller, run_id) == (4, [40])
    await caller.progress(run_id, 1, lineage, 2**53, [("flights", 0, 2**62)])
    assert await committed(caller, run_id) == (2**53, [2**62])


@pytest.mark.parametrize(
    ("batch", "offsets", "reason"),
    [
        (5, [("flights", 1, 40)], "foreign-partition"),
        (5, [("flights", 0, 50), ("delays", 0, 1)], "foreign-partition"),
        (5, [("flights", 0, 39)], "offset-backwards"),
        (2**53 + 1, [("flights", 0, 41)], "batch-too-large"),
        (2**62, [], "batch-too-large"),
        (4, [("flights", 1, 40)], "foreign-partition"),
    ],
)
async def test_impossible_progress_is_refused_and_counted_and_changes_nothing(
    caller: Caller, run_id: str, batch: int, offsets: list[tuple[str, int, int]], reason: str
) -> None:
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    await caller.progress(run_id, 1, lineage, 4, [("flights", 0, 40)])
    assert problem_slug(await caller.progress(run_id, 1, lineage, batch, offsets)) == (422, "false-report")
    assert await committed(caller, run_id) == (4, [40])
    metrics = (await caller.http.get("/metrics")).text
    assert f'sluice_reports_refused_total{{reason="{reason}",sluice_job="flight-delays"}} 1.0' in metrics
    assert (await caller.progress(run_id, 1, lineage, 5, [("flights", 0, 41)])).status_code == 204


async def test_a_partition_that_a_report_leaves_out_keeps_its_offset(caller: Caller, run_id: str) -> None:
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    await caller.progress(run_id, 1, lineage, 4, [("flights", 0, 40)])
    await caller.progress(run_id, 1, lineage, 5)
    assert await committed(caller, run_id) == (5, [40])


async def test_the_next_owner_may_continue_from_an_older_snapshot(caller: Caller, run_id: str) -> None:
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    await caller.progress(run_id, 1, lineage, 4, [("flights", 0, 40)])
    await caller.release(run_id, 1)
    assert (await caller.acquired(run_id, "c1"))["generation"] == 2
    assert (await caller.progress(run_id, 2, lineage, 5, [("flights", 0, 30)])).status_code == 204
    assert await committed(caller, run_id) == (5, [30])


async def test_a_report_beyond_the_end_of_a_partition_does_not_prevent_later_reports(caller: Caller, clock: FakeClock, run_id: str) -> None:
    appended(caller, "flights", partition=0, records=50)
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    assert (await caller.progress(run_id, 1, lineage, 4, [("flights", 0, 60)])).status_code == 204
    assert problem_slug(await caller.progress(run_id, 1, lineage, 5, [("flights", 0, 45)])) == (422, "false-report")
    clock.advance(1)
    await caller.coordinator.api.state.parts.lag.run_once()
    assert 'sluice_job_offsets_unconfirmed{sluice_job="flight-delays"} 1.0' in (await caller.http.get("/metrics")).text
    assert (await caller.progress(run_id, 1, lineage, 5, [("flights", 0, 45)])).status_code == 204
    clock.advance(1)
    await caller.coordinator.api.state.parts.lag.run_once()
    assert 'sluice_job_offsets_unconfirmed{sluice_job="flight-delays"} 0.0' in (await caller.http.get("/metrics")).text


async def test_progress_of_a_history_that_was_given_up_changes_nothing(caller: Caller, run_id: str) -> None:
    await caller.acquired(run_id, "c1")
    assert (await caller.progress(run_id, 1, "another lineage", 4, [("flights", 0, 40)])).status_code == 204
    assert await committed(caller, run_id) == (None, [])


async def test_progress_under_an_older_generation_is_refused(caller: Caller, run_id: str) -> None:
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    await caller.registered(run_id, "c2")
    await caller.exited("c1")
    await caller.acquired(run_id, "c2", 2)
    assert problem_slug(await caller.progress(run_id, 1, lineage, 4)) == (409, "lease-lost")
    assert await committed(caller, run_id) == (None, [])
    assert (await caller.progress(run_id, 2, lineage, 4)).status_code == 204


async def test_only_the_owner_is_confirmed(caller: Caller, run_id: str) -> None:
    async def confirmed(generation: int, task: str = "Partition 0") -> httpx.Response:
        return await caller.http.get(f"/runs/{run_id}/tasks/{task}/owner", params={"generation": generation})

    assert problem_slug(await confirmed(1)) == (404, "unknown-task")
    await caller.acquired(run_id, "c1")
    assert (await confirmed(1)).status_code == 204
    assert problem_slug(await confirmed(2)) == (409, "lease-lost")
    await caller.release(run_id, 1)
    assert problem_slug(await confirmed(1)) == (409, "lease-lost")
    await caller.registered(run_id, "c2")
    await caller.acquired(run_id, "c2", 2)
    assert problem_slug(await confirmed(1)) == (409, "lease-lost")
    assert (await confirmed(2)).status_code == 204


async def test_progress_after_the_task_was_released_is_refused(caller: Caller, run_id: str) -> None:
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    await caller.release(run_id, 1)
    assert problem_slug(await caller.progress(run_id, 1, lineage, 4)) == (409, "lease-lost")


async def test_progress_of_a_task_that_never_had_an_owner_is_refused_as_unknown(caller: Caller, run_id: str) -> None:
    assert problem_slug(await caller.progress(run_id, 1, "l", 0)) == (404, "unknown-task")


@pytest.mark.parametrize(
    "changes",
    [{"generation": 0}, {"batchId": -1}, {"batchId": 2**63}, {"lineage": "\x00"}, {"stage": "../x"}, {"offsets": [{"offset": 1}]}],
)
async def test_progress_with_numbers_or_names_out_of_bounds_is_refused(caller: Caller, run_id: str, changes: dict[str, object]) -> None:
    body = {"generation": 1, "stage": "hourly", "lineage": "l", "batchId": 0, "offsets": [], **changes}
    answer = await caller.http.post(f"/runs/{run_id}/tasks/Partition 0/progress", json=body)
    assert problem_slug(answer) == (422, "invalid-request")


async def test_a_container_that_sends_heartbeats_keeps_its_task_until_it_ends_after_a_redeployment(
    caller: Caller, clock: FakeClock, run_id: str
) -> None:
    await caller.acquired(run_id, "c1")
    second = (await caller.deploy())["runId"]
    await caller.registered(second, "d1")
    for _ in range(5):
        clock.advance(20)
        assert await caller.alive("c1", 1)
        assert await caller.alive("d1", 1)
        assert (await caller.acquire(second, "d1", 1)).status_code == 202
    await caller.exited("c1")
    assert (await caller.acquired(second, "d1"))["generation"] == 2


async def test_a_heartbeat_after_lease_and_grace_does_not_make_a_container_valid_beside_its_successor(
    caller: Caller, clock: FakeClock, run_id: str
) -> None:
    await caller.acquired(run_id, "c1")
    second = (await caller.deploy())["runId"]
    clock.advance(35)
    await caller.registered(second, "d1")
    assert (await caller.acquired(second, "d1"))["generation"] == 2
    assert not await caller.alive("c1", 1)


async def test_a_task_of_a_run_that_is_stopping_cannot_be_acquired(caller: Caller, run_id: str) -> None:
    await caller.stop(run_id)
    assert problem_slug(await caller.acquire(run_id, "c1", 1)) == (409, "stale-run")


# --- waiting for a task ----------------------------------------------------------------------------------------------


async def waiting(caller: Caller, run_id: str, execution_id: str = "c2", epoch: int = 2) -> asyncio.Task[httpx.Response]:
    """An acquire that waits, of the task that c1 owns."""
    body = {"executionContainerId": execution_id, "epoch": epoch}
    asking = asyncio.create_task(caller.http.post(f"/runs/{run_id}/tasks/Partition 0/acquire", json=body, params={"wait": 30}))
    task_waiters = caller.coordinator.task_waiters
    while not task_waiters.waiting((JobName("flight-delays"), TaskName("Partition 0"))):  # noqa: ASYNC110 – nothing is notified when a poll begins
        await asyncio.sleep(0)
    return asking


async def soon(asking: asyncio.Task[httpx.Response]) -> httpx.Response:
    """The answer to a waiting acquire, long before its wait ends."""
    return await asyncio.wait_for(asking, 10)


async def test_a_waiting_container_acquires_a_task_as_soon_as_it_is_released(caller: Caller, run_id: str) -> None:
    await caller.acquired(run_id, "c1")
    await caller.registered(run_id, "c2")
    asking = await waiting(caller, run_id)
    await caller.release(run_id, 1)
    assert (await soon(asking)).json()["generation"] == 2


async def test_a_waiting_container_acquires_a_task_as_soon_as_its_owner_s_exit_is_reported(caller: Caller, run_id: str) -> None:
    await caller.acquired(run_id, "c1")
    await caller.registered(run_id, "c2")
    asking = await waiting(caller, run_id)
    await caller.exited("c1")
    assert (await soon(asking)).json()["generation"] == 2


async def test_a_waiting_container_acquires_a_task_as_soon_as_its_owner_s_lease_and_grace_have_passed(
    caller: Caller, clock: FakeClock, run_id: str
) -> None:
    await caller.acquired(run_id, "c1")
    second = (await caller.deploy())["runId"]
    clock.advance(30)
    await caller.registered(second, "d1")
    asking = await waiting(caller, second, "d1", 1)
    clock.advance(5)
    parts = caller.coordinator.api.state.parts
    await ExpireLeases(parts.health.store, parts.leases, parts.notices, clock, caller.coordinator.task_waiters).run_once()
    assert (await soon(asking)).json()["generation"] == 2


async def test_a_container_that_waits_for_a_task_gets_an_answer_when_the_coordinator_stops(caller: Caller, run_id: str) -> None:
    await caller.acquired(run_id, "c1")
    await caller.registered(run_id, "c2")
    asking = await waiting(caller, run_id)
    caller.coordinator.task_waiters.close()
    assert (await soon(asking)).status_code == 202


async def test_a_container_whose_wait_ends_without_the_task_gets_the_remaining_time(caller: Caller, run_id: str) -> None:
    await caller.acquired(run_id, "c1")
    await caller.registered(run_id, "c2")
    body = {"executionContainerId": "c2", "epoch": 2}
    answer = await caller.http.post(f"/runs/{run_id}/tasks/Partition 0/acquire", json=body, params={"wait": 0.01})
    assert (answer.status_code, answer.json()) == (202, {"waitSeconds": 35.0, "former": "c1"})
    assert not caller.coordinator.task_waiters.waiting((JobName("flight-delays"), TaskName("Partition 0")))
