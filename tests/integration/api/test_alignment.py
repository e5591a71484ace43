"""Watermark alignment over HTTP: the answers to reports of event time."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from sluice.streams.port import Offsets
from tests.support.api import Caller, chained_body, problem_slug
from tests.support.fakes import FakeClock
from tests.support.streams import TwoPartitions

DAY = 86_400


@pytest.fixture
async def run_id(caller: Caller) -> str:
    """Two tasks on two containers, each with ten records to read; only the first container has started and owns its task."""
    records = [Record(b"x", partition=n % 2) for n in range(20)]
    caller.log.append("flights", records, writer=Writer(Lineage("f"), "f", Generation(1)), batch=0, now_micros=1)
    body = chained_body(partitions=2, containers=2, maxEventSkewSeconds=3 * DAY, start="earliest")
    run_id = str((await caller.deploy(body))["runId"])
    await caller.registered(run_id, "c0")
    await caller.acquired(run_id, "c0")
    return run_id


async def the_other_starts(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1", slot="1")
    await caller.acquired(run_id, "c1", task="Partition 1")


async def say(caller: Caller, run_id: str, partition: int, day: int | None, stage: str = "route", generation: int = 1) -> httpx.Response:
    body = {"generation": generation, "stage": stage, "eventTime": None if day is None else f"2013-01-{day:02}T00:00:00Z"}
    return await caller.http.post(f"/runs/{run_id}/tasks/Partition {partition}/event-time", json=body)


async def said(caller: Caller, run_id: str, partition: int, day: int | None) -> Any:
    answer = await say(caller, run_id, partition, day)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_task_waits_for_a_task_whose_container_has_not_started(caller: Caller, run_id: str) -> None:
    assert await said(caller, run_id, 0, None) == {"wait": True, "hold": True, "leadSeconds": None, "waitsFor": ["Partition 1"]}


async def test_tasks_begin_once_all_have_reported(caller: Caller, clock: FakeClock, run_id: str) -> None:
    await said(caller, run_id, 0, None)
    await the_other_starts(caller, run_id)
    clock.advance(2)
    assert not (await said(caller, run_id, 1, None))["wait"]
    assert not (await said(caller, run_id, 0, None))["wait"]


async def test_a_task_too_far_ahead_waits_until_the_other_one_is_near(caller: Caller, run_id: str) -> None:
    await the_other_starts(caller, run_id)
    await said(caller, run_id, 0, 1)
    assert not (await said(caller, run_id, 1, 2))["wait"]
    ahead = await said(caller, run_id, 0, 9)
    assert ahead == {"wait": True, "hold": True, "leadSeconds": 7 * DAY, "waitsFor": ["Partition 1"]}
    assert not (await said(caller, run_id, 1, 7))["wait"]
    assert (await said(caller, run_id, 0, 9))["wait"], "it goes on only when its lead is half of what is allowed"
    await said(caller, run_id, 1, 8)
    assert not (await said(caller, run_id, 0, 9))["wait"]


async def test_no_task_waits_for_one_that_has_read_everything(caller: Caller, clock: FakeClock, run_id: str) -> None:
    await the_other_starts(caller, run_id)
    lineage = {stage["stage"]: stage["lineage"] for stage in (await caller.acquired(run_id, "c1", task="Partition 1"))["stages"]}["route"]
    offsets = [{"system": "log", "stream": "flights", "partition": 1, "offset": 10}]
    body = {"generation": 1, "stage": "route", "lineage": lineage, "batchId": 0, "offsets": offsets}
    assert (await caller.http.post(f"/runs/{run_id}/tasks/Partition 1/progress", json=body)).status_code == 204
    clock.advance(2)
    assert not (await said(caller, run_id, 0, 30))["wait"]


async def test_a_task_whose_container_has_ended_is_waited_for(caller: Caller, clock: FakeClock, run_id: str) -> None:
    await the_other_starts(caller, run_id)
    for partition in (0, 1):
        await said(caller, run_id, partition, 5)
    await caller.exited("c1")
    clock.advance(2)
    assert await said(caller, run_id, 0, 5) == {"wait": True, "hold": True, "leadSeconds": None, "waitsFor": ["Partition 1"]}


async def test_event_time_never_decreases_and_is_kept_through_a_restart_of_the_stage(caller: Caller, run_id: str) -> None:
    await the_other_starts(caller, run_id)
    await said(caller, run_id, 1, 2)
    await said(caller, run_id, 0, 9)
    assert (await said(caller, run_id, 0, None))["leadSeconds"] == 7 * DAY
    assert (await said(caller, run_id, 0, 3))["leadSeconds"] == 7 * DAY


async def test_a_run_shows_which_task_waits_for_which(caller: Caller, run_id: str) -> None:
    await said(caller, run_id, 0, 3)
    stages = (await caller.run(run_id))["tasks"][0]["stages"]
    pace = {stage["stage"]: stage["alignment"] for stage in stages}
    assert pace["hourly"] is None
    assert (pace["route"]["waiting"], pace["route"]["waitsFor"], pace["route"]["eventTime"]) == (
        True,
        ["Partition 1"],
        "2013-01-03T00:00:00Z",
    )


async def test_a_container_that_does_not_own_the_task_is_refused(caller: Caller, run_id: str) -> None:
    assert problem_slug(await say(caller, run_id, 0, 1, generation=2)) == (409, "lease-lost")
    assert problem_slug(await say(caller, run_id, 1, 1)) == (404, "unknown-task")


async def test_an_unknown_stage_and_a_run_that_is_not_aligned_are_refused(caller: Caller, run_id: str) -> None:
    assert problem_slug(await say(caller, run_id, 0, 1, stage="lost")) == (422, "not-aligned")
    plain = str((await caller.deploy(chained_body(partitions=2, job="plain")))["runId"])
    await caller.registered(plain, "p0")
    await caller.acquired(plain, "p0")
    assert problem_slug(await say(caller, plain, 0, 1)) == (422, "not-aligned")


@pytest.mark.parametrize("seconds", [0, -1, 1e300, "soon"])
async def test_an_invalid_skew_is_refused(caller: Caller, seconds: object) -> None:
    answer = await caller.http.post("/runs", json=chained_body(maxEventSkewSeconds=seconds))
    assert answer.status_code == 422


async def test_the_error_names_a_system_that_was_removed_from_the_settings_and_it_can_be_added_again(caller: Caller, run_id: str) -> None:
    systems: dict[str, Any] = caller.coordinator.api.state.parts.systems
    log = systems.pop("log")
    answer = await say(caller, run_id, 0, 1)
    assert problem_slug(answer) == (503, "stream-unavailable")
    assert "configure it again" in answer.json()["detail"]
    systems["log"] = log
    assert (await say(caller, run_id, 0, 1)).status_code == 200


class Hanging(TwoPartitions):
    """A system that does not answer until it is released."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = asyncio.Event()

    async def latest(self, stream: str) -> Offsets:
        self.asked += 1
        await self.go.wait()
        return {0: 10, 1: 10}


async def test_a_system_that_does_not_answer_holds_no_connection_to_the_database(caller: Caller, clock: FakeClock, run_id: str) -> None:
    """A pool has 15 connections."""
    hanging = Hanging()
    caller.coordinator.api.state.parts.systems["log"] = hanging
    reports = [asyncio.create_task(say(caller, run_id, 0, 1)) for _ in range(20)]
    for _ in range(20):
        assert (await caller.run(run_id))["runId"] == run_id
    assert hanging.asked == 1, "once for all"
    hanging.go.set()
    assert {each.status_code for each in await asyncio.gather(*reports)} == {200}
