"""Streams that a job stops reading and reads again: they return to the tasks that may have the state of their keys."""

from __future__ import annotations

import pytest

from tests.support.api import Caller, Json, appended, check_partitions, partitions_of, problem_slug, roll_back, run_body, watched
from tests.support.fakes import FakeClock

RA, RB = {"name": "ra", "system": "log"}, {"name": "rb", "system": "log"}
OF_RA, OF_RB = {"name": "of-ra", "reads": ["ra"]}, {"name": "of-rb", "reads": ["rb"]}
BOTH = run_body(inputs=[RA, RB], stages=[OF_RA, OF_RB], outputs=[])
RB_ALONE = run_body(inputs=[RB], stages=[OF_RB], outputs=[])


@pytest.fixture(autouse=True)
def _streams(caller: Caller) -> None:
    for stream in ("ra", "rb"):
        caller.log.create(stream, 2)


async def worked(caller: Caller, body: Json, execution_id: str) -> str:
    """A run whose tasks were acquired by a container, so that they may have state, and released."""
    run_id = str((await caller.deploy(body))["runId"])
    await caller.registered(run_id, execution_id)
    for task in await partitions_of(caller):
        await caller.acquired(run_id, execution_id, task=task)
    await caller.exited(execution_id)
    return run_id


async def readers_of(caller: Caller, stream: str = "ra") -> dict[int, str]:
    served = (await caller.http.get("/jobModel", params={"job": "flight-delays"})).json()
    return {
        ssp["partition"]: name
        for each in served["containers"].values()
        for name, task in each["tasks"].items()
        for ssp in task["system-stream-partitions"]
        if ssp["stream"] == stream
    }


async def test_an_input_that_grew_and_was_left_out_for_a_while_returns_to_the_tasks_that_have_its_keys(caller: Caller) -> None:
    await worked(caller, BOTH, "c1")
    caller.log.grow("ra", 4)
    await worked(caller, BOTH, "c2")
    await worked(caller, RB_ALONE, "c3")
    await caller.deploy(BOTH)
    assert await readers_of(caller) == {0: "Partition 0", 1: "Partition 1", 2: "Partition 0", 3: "Partition 1"}


async def test_an_input_that_grew_while_it_was_left_out_is_divided_by_its_first_count(caller: Caller) -> None:
    await worked(caller, BOTH, "c1")
    await worked(caller, RB_ALONE, "c2")
    caller.log.grow("ra", 4)
    await worked(caller, RB_ALONE, "c3")
    await caller.deploy(BOTH)
    assert await readers_of(caller) == {0: "Partition 0", 1: "Partition 1", 2: "Partition 0", 3: "Partition 1"}


async def test_growth_and_its_roll_back_keep_the_record_of_a_stream_that_is_left_out(caller: Caller, clock: FakeClock) -> None:
    await worked(caller, BOTH, "c1")
    caller.log.grow("ra", 4)
    await worked(caller, BOTH, "c2")
    run_id = str((await caller.deploy(RB_ALONE))["runId"])
    version = (await caller.run(run_id))["jobModelVersion"]
    caller.log.grow("rb", 4)
    clock.advance(1)
    await check_partitions(caller)
    assert (await roll_back(caller, version)).status_code == 200
    await caller.deploy(BOTH)
    assert await readers_of(caller) == {0: "Partition 0", 1: "Partition 1", 2: "Partition 0", 3: "Partition 1"}


async def test_an_input_that_returns_with_fewer_partitions_is_refused_while_its_state_may_return(caller: Caller) -> None:
    await worked(caller, BOTH, "c1")
    await worked(caller, RB_ALONE, "c2")
    (caller.log.directory / "ra.db").unlink()
    caller.log.create("ra", 1)
    answer = await caller.http.post("/runs", json=BOTH)
    assert problem_slug(answer) == (422, "incompatible-expansion")
    assert "log.ra had 2 partitions and now has 1" in answer.json()["detail"]


async def test_an_input_may_return_with_fewer_partitions_when_its_history_has_ended(caller: Caller) -> None:
    await worked(caller, BOTH, "c1")
    await worked(caller, RB_ALONE, "c2")
    (caller.log.directory / "ra.db").unlink()
    caller.log.create("ra", 1)
    await worked(caller, {**RB_ALONE, "start": "earliest"}, "c3")
    await caller.deploy(BOTH)
    assert await readers_of(caller) == {0: "Partition 0"}


async def test_an_input_that_no_task_has_begun_to_read_may_return_with_fewer_partitions(caller: Caller) -> None:
    await caller.deploy(BOTH)
    await worked(caller, RB_ALONE, "c1")
    (caller.log.directory / "ra.db").unlink()
    caller.log.create("ra", 1)
    await worked(caller, RB_ALONE, "c2")
    await caller.deploy(BOTH)
    assert await readers_of(caller) == {0: "Partition 0"}


async def test_an_input_that_returns_begins_where_its_history_began_if_it_was_never_read(caller: Caller, clock: FakeClock) -> None:
    appended(caller, "ra", partition=0, records=5)
    await worked(caller, {**BOTH, "start": "latest"}, "c1")
    await worked(caller, RB_ALONE, "c2")
    run_id = str((await caller.deploy(BOTH))["runId"])
    await caller.registered(run_id, "c3")
    stages = (await caller.acquired(run_id, "c3"))["stages"]
    (of_ra,) = (each for each in stages if each["stage"] == "of-ra")
    assert [each["offset"] for each in of_ra["starts"]] == [5]


async def test_an_input_that_was_created_again_while_it_was_left_out_is_reported(caller: Caller) -> None:
    await worked(caller, BOTH, "c1")
    await worked(caller, RB_ALONE, "c2")
    (caller.log.directory / "ra.db").unlink()
    caller.log.create("ra", 2)
    run_id = str((await caller.deploy(BOTH))["runId"])
    await check_partitions(caller)
    assert "was deleted and created again" in watched(await caller.run(run_id), "ra")["reason"]
