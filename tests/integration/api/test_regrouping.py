"""Stateless jobs whose partitions move to other tasks in a deployment: each partition is read from where it was committed last."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coordinator.runs.trim import TrimStreams
from tests.support.api import Caller, Json, appended, calling, chained_body, offsets_of, run_body
from tests.support.fakes import FakeClock


@pytest.fixture
async def caller(home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    async with calling(home, clock) as made:
        made.log.create("flights", 4)
        for partition in range(4):
            appended(made, "flights", partition=partition, records=100)
        yield made


def body(**changes: Any) -> Json:
    return run_body(stateful=False, **changes)


async def begun(caller: Caller, request: Json, execution_id: str) -> tuple[str, dict[str, Json]]:
    """A run whose only container has acquired all tasks. Returns its id, and the answer to each acquire."""
    run_id = str((await caller.deploy(request))["runId"])
    await caller.registered(run_id, execution_id)
    tasks = [each["task"] for each in (await caller.run(run_id))["tasks"]]
    return run_id, {task: await caller.acquired(run_id, execution_id, task=task) for task in tasks}


async def reads(caller: Caller, run_id: str, acquired: Json, to: Mapping[int, int], batch: int = 5, stage: str = "hourly") -> None:
    """Report that the stage has read these partitions up to these offsets."""
    (found,) = (each for each in acquired["stages"] if each["stage"] == stage)
    stream = found["starts"][0]["stream"]
    offsets = [{"system": "log", "stream": stream, "partition": p, "offset": offset} for p, offset in to.items()]
    report = {"generation": acquired["generation"], "stage": stage, "lineage": found["lineage"], "batchId": batch, "offsets": offsets}
    answer = await caller.http.post(f"/runs/{run_id}/tasks/{acquired['task']}/progress", json=report)
    assert answer.status_code == 204, answer.text


def starts(acquired: Json, stage: str = "hourly") -> dict[int, int]:
    (found,) = (each for each in acquired["stages"] if each["stage"] == stage)
    return {partition: offset for (_, partition), offset in offsets_of(found["starts"]).items()}


async def four_tasks(caller: Caller, **changes: Any) -> str:
    """A run with one task per partition p, which has read p up to 10 + p."""
    run_id, acquired = await begun(caller, body(**changes), "c1")
    for p in range(4):
        await reads(caller, run_id, acquired[f"Partition {p}"], {p: 10 + p})
    return run_id


async def test_fewer_tasks_continue_where_the_former_tasks_stopped_and_keep_their_lineages(caller: Caller) -> None:
    run_id = await four_tasks(caller)
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    await caller.exited("c1")
    run_id, acquired = await begun(caller, body(maxTasks=2), "c2")
    assert {task: starts(each)[int(task[-1]) + 2] for task, each in acquired.items()} == {"Partition 0": 12, "Partition 1": 13}
    (stage,) = acquired["Partition 0"]["stages"]
    assert (stage["lineage"], stage["batchId"]) == (lineage, 5)
    assert await caller.acquired(run_id, "c2") == acquired["Partition 0"]


async def test_more_tasks_begin_new_lineages_where_the_former_tasks_stopped(caller: Caller) -> None:
    run_id, acquired = await begun(caller, body(maxTasks=1), "c1")
    await reads(caller, run_id, acquired["Partition 0"], {0: 10, 1: 11, 2: 12})
    await caller.exited("c1")
    _, after = await begun(caller, body(), "c2")
    assert [starts(each) for each in after.values()] == [{0: 10}, {1: 11}, {2: 12}, {3: 0}]
    assert {each["stages"][0]["batchId"] for each in after.values()} == {None}
    assert after["Partition 0"]["stages"][0]["lineage"] != acquired["Partition 0"]["stages"][0]["lineage"]


async def test_tasks_that_return_continue_where_the_tasks_in_between_stopped(caller: Caller) -> None:
    await four_tasks(caller)
    await caller.exited("c1")
    run_id, acquired = await begun(caller, body(maxTasks=2), "c2")
    await reads(caller, run_id, acquired["Partition 0"], {0: 20, 2: 22}, batch=6)
    await caller.exited("c2")
    _, after = await begun(caller, body(), "c3")
    assert [starts(each) for each in after.values()] == [{0: 20}, {1: 11}, {2: 22}, {3: 13}]


async def test_partitions_of_a_task_that_has_reported_nothing_are_read_from_where_it_started(caller: Caller) -> None:
    await four_tasks(caller)
    await caller.exited("c1")
    await begun(caller, body(maxTasks=2), "c2")
    await caller.exited("c2")
    _, after = await begun(caller, body(), "c3")
    assert [starts(each) for each in after.values()] == [{0: 10}, {1: 11}, {2: 12}, {3: 13}]


async def test_no_task_is_granted_while_a_container_of_the_former_run_may_commit(caller: Caller, clock: FakeClock) -> None:
    former = await four_tasks(caller)
    run_id = str((await caller.deploy(body(maxTasks=2)))["runId"])
    await caller.registered(run_id, "c2")
    await caller.release(former, 1)  # "Partition 0" alone is free
    answer = await caller.acquire(run_id, "c2")
    assert (answer.status_code, answer.json()) == (202, {"waitSeconds": 35.0, "former": "c1"})
    held = await caller.run(former)
    (stage,) = held["tasks"][2]["stages"]
    late = {"task": "Partition 2", "generation": 1, "stages": [{**stage, "starts": [{"stream": "flights"}]}]}
    await reads(caller, former, late, {2: 50}, batch=9)
    clock.advance(35)
    await caller.registered(run_id, "c3")
    assert starts(await caller.acquired(run_id, "c3", 2))[2] == 50


async def test_the_same_tasks_wait_only_for_their_own_former_owners(caller: Caller) -> None:
    former = await four_tasks(caller)
    run_id = str((await caller.deploy(body()))["runId"])
    await caller.registered(run_id, "c2")
    await caller.release(former, 1)
    assert (await caller.acquired(run_id, "c2"))["stages"][0]["batchId"] == 5


async def test_the_lag_and_the_end_of_a_drain_are_counted_from_the_start_of_a_task(caller: Caller) -> None:
    await four_tasks(caller)
    await caller.exited("c1")
    run_id, _ = await begun(caller, body(maxTasks=1, config={"backup.stores": ""}), "c2")
    await caller.coordinator.api.state.parts.lag.run_once()
    (task,) = (await caller.run(run_id))["tasks"]
    assert task["stages"][0]["lag"] == 400 - 46
    uuid = (await caller.http.post("/drain", json={"runId": run_id})).json()["uuid"]
    for step in ("stopped", "flushed", "committed"):
        report = {"generation": 2, "uuid": uuid, "step": step, "batchId": None, "offsets": []}
        answer = await caller.http.post(f"/runs/{run_id}/tasks/Partition 0/stages/hourly/drain", json=report)
        assert answer.status_code == 200, answer.text
    await caller.exited("c2")
    _, after = await begun(caller, body(maxTasks=1), "c3")
    assert starts(after["Partition 0"]) == {0: 10, 1: 11, 2: 12, 3: 13}


async def test_tasks_that_no_longer_exist_do_not_hold_back_trimming(caller: Caller, clock: FakeClock) -> None:
    chained = chained_body(4, stateful=False)
    run_id, acquired = await begun(caller, chained, "c1")
    for partition in range(4):
        appended(caller, "by-carrier", partition=partition, records=10)
        await reads(caller, run_id, acquired[f"Partition {partition}"], {partition: 3}, stage="hourly")
    await caller.exited("c1")
    run_id, acquired = await begun(caller, {**chained, "maxTasks": 1}, "c2")
    await reads(caller, run_id, acquired["Partition 0"], dict.fromkeys(range(4), 8), batch=6)
    clock.advance(7200)
    parts = caller.coordinator.api.state.parts
    chore = TrimStreams(parts.health.store, parts.systems, clock, timedelta(seconds=60), parts.models.decoded)
    await chore.run_once()
    assert set(caller.log.earliest("by-carrier").values()) == {8}


async def test_each_task_continues_a_broadcast_partition_at_its_own_offset(caller: Caller) -> None:
    request = body(inputs=[{"name": "flights", "system": "log", "broadcast": "#0"}])
    run_id, acquired = await begun(caller, request, "c1")
    for p in (1, 2, 3):
        await reads(caller, run_id, acquired[f"Partition {p}"], {0: 10 * p, p: 10 + p})
    await caller.exited("c1")
    _, after = await begun(caller, request, "c2")
    assert [starts(each) for each in after.values()] == [starts(each) for each in acquired.values()]
    assert [stage["lineage"] for each in after.values() for stage in each["stages"]] == [
        stage["lineage"] for each in acquired.values() for stage in each["stages"]
    ]
