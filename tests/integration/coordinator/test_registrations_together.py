"""A fleet that starts or ends at once: registrations in one transaction get the same answers as separate ones."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.api import Caller, problem_slug, run_body


@pytest.fixture
async def run_id(caller: Caller) -> str:
    caller.log.grow("flights", 60)
    return str((await caller.deploy(run_body(containers=60)))["runId"])


async def test_a_fleet_that_registers_at_once_is_registered(caller: Caller, run_id: str) -> None:
    found = await asyncio.gather(*(caller.registered(run_id, f"c{slot}", str(slot)) for slot in range(60)))
    assert {(each["epoch"], each["jobModelVersion"]) for each in found} == {(1, 1)}
    assert all(await asyncio.gather(*(caller.alive(f"c{slot}", 1) for slot in range(60))))
    described = await caller.run(run_id)
    assert (described["state"], len(described["incarnations"])) == ("RUNNING", 60)


async def test_refused_registrations_do_not_affect_the_others(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "taken", "7")
    good, slot, run, taken, more = await asyncio.gather(
        caller.register(run_id, "c0", "0"),
        caller.register(run_id, "c60", "60"),
        caller.register("lost", "c1", "1"),
        caller.register(run_id, "taken", "8"),
        caller.register(run_id, "c2", "2"),
    )
    assert [good.status_code, more.status_code] == [201, 201]
    assert [problem_slug(each) for each in (slot, run, taken)] == [(404, "unknown-slot"), (404, "unknown-run"), (409, "id-in-use")]
    assert {each["executionContainerId"] for each in (await caller.run(run_id))["incarnations"]} == {"taken", "c0", "c2"}


async def test_the_last_of_several_concurrent_incarnations_of_a_slot_is_valid(caller: Caller, run_id: str) -> None:
    found = await asyncio.gather(*(caller.registered(run_id, f"c{n}", "5") for n in range(4)))
    assert [each["epoch"] for each in found] == [1, 2, 3, 4]
    assert [await caller.alive(f"c{n}", n + 1) for n in range(4)] == [False, False, False, True]
    states = {each["executionContainerId"]: each["state"] for each in (await caller.run(run_id))["incarnations"]}
    assert states == {"c0": "REPLACED", "c1": "REPLACED", "c2": "REPLACED", "c3": "LIVE"}


async def test_a_registration_that_is_repeated_concurrently_gets_the_same_answer(caller: Caller, run_id: str) -> None:
    assert [each["epoch"] for each in await asyncio.gather(*(caller.registered(run_id, "c1", "5") for _ in range(3)))] == [1, 1, 1]
    assert await caller.alive("c1", 1)


async def test_a_fleet_that_ends_at_once_ends_its_run_once(caller: Caller, run_id: str) -> None:
    await asyncio.gather(*(caller.registered(run_id, f"c{slot}", str(slot)) for slot in range(60)))
    await caller.stop(run_id)
    found = await asyncio.gather(*(caller.exited(f"c{slot}") for slot in [*range(60), 0, 1]))
    assert {each["state"] for each in found} == {"EXITED"}
    assert (await caller.run(run_id))["state"] == "STOPPED"
    assert [each["kind"] for each in await caller.notices(run_id)] == ["STOP", "ENDED"]


async def test_an_exit_of_an_unknown_container_does_not_affect_the_exits_of_others(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1", "1")
    stranger, known = await asyncio.gather(
        caller.http.post("/containers/stranger/exit", json={"exitCode": 0}), caller.http.post("/containers/c1/exit", json={"exitCode": 0})
    )
    assert problem_slug(stranger) == (404, "unknown-container")
    assert known.json()["state"] == "EXITED"
    assert not await caller.alive("c1", 1)
