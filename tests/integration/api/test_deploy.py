from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.support.api import INPUT, Caller, Json, chained_body, problem_slug, run_body
from tests.support.fakes import FakeClock


def fill(caller: Caller, clock: FakeClock, counts: dict[int, int], batch: int = 0, stream: str = "flights") -> None:
    records = [Record(b"x", partition=p) for p, n in counts.items() for _ in range(n)]
    micros = int(clock.now().timestamp() * 1_000_000)
    writer = Writer(Lineage("producer"), "producer", Generation(1))
    caller.log.append(stream, records, writer=writer, batch=batch, now_micros=micros)


async def starts(caller: Caller, run_id: str, execution_id: str, stage: str = "hourly") -> dict[tuple[str, int], int]:
    """The start offsets of a stage over all tasks, which the container acquires."""
    found: dict[tuple[str, int], int] = {}
    epoch = (await caller.registered(run_id, execution_id))["epoch"]
    for task in (await caller.run(run_id))["tasks"]:
        for each in (await caller.acquired(run_id, execution_id, epoch, task["task"]))["stages"]:
            if each["stage"] == stage:
                found |= {(s["stream"], s["partition"]): s["offset"] for s in each["starts"]}
    await caller.exited(execution_id)
    return found


async def test_a_config_with_a_secret_is_refused_and_a_reference_to_one_is_stored_unchanged(caller: Caller) -> None:
    for path in ("/runs", "/runs/plan"):
        answer = await caller.http.post(path, json=run_body() | {"config": {"db.password": "hunter2hunter2"}})
        assert problem_slug(answer) == (422, "bad-config")
        assert "secret:env:NAME" in answer.text
        assert "hunter2" not in answer.text
    assert (await caller.http.get("/runs")).json()["runs"] == []
    run = await caller.http.post("/runs", json=run_body() | {"config": {"db.password": "secret:env:DB_PASSWORD"}})
    assert run.json()["config"] == {"db.password": "secret:env:DB_PASSWORD"}


async def test_a_deployed_run_shows_everything_that_was_decided(caller: Caller) -> None:
    run = await caller.deploy(chained_body(config={"a": "b"}))
    assert (run["job"], run["state"], run["jobModelVersion"], run["firstRun"]) == ("flight-delays", "CREATED", 1, run["runId"])
    assert [(s["name"], s["role"], s["partitions"]) for s in run["streams"]] == [
        ("flights", "input", 2),
        ("by-carrier", "intermediate", 4),
        ("delays", "output", 1),
    ]
    assert run["config"] == {"a": "b"}
    assert run["systems"] == {"log": {"type": "log", "path": str(caller.log.directory)}}


async def test_a_deployment_creates_the_intermediate_and_output_streams(caller: Caller) -> None:
    await caller.deploy(chained_body(outputs=[{"name": "delays", "system": "log", "partitions": 3}]))
    assert {name: caller.log.partitions(name) for name in caller.log.streams()} == {"flights": 2, "by-carrier": 4, "delays": 3}


async def test_an_output_that_exists_is_used_unchanged(caller: Caller) -> None:
    caller.log.create("delays", 7)
    run = await caller.deploy()
    assert [s["partitions"] for s in run["streams"] if s["name"] == "delays"] == [7]


async def test_a_stream_may_have_another_name_in_the_job(caller: Caller) -> None:
    caller.log.create("raw.flights", 3)
    run = await caller.deploy(run_body(inputs=[{"name": "flights", "system": "log", "stream": "raw.flights"}]))
    assert len((await caller.run(run["runId"]))["tasks"]) == 3


async def test_a_run_lists_its_tasks_with_their_slots(caller: Caller) -> None:
    run = await caller.deploy(run_body(containers=2))
    tasks = (await caller.run(run["runId"]))["tasks"]
    assert [(t["task"], t["processorId"], t["generation"], t["holder"]) for t in tasks] == [
        ("Partition 0", "0", None, None),
        ("Partition 1", "1", None, None),
    ]


async def test_jobs_show_their_current_run_and_the_number_of_runs(caller: Caller) -> None:
    await caller.deploy()
    second = await caller.deploy()
    assert (await caller.http.get("/jobs")).json() == {
        "jobs": [{"job": "flight-delays", "currentRun": second["runId"], "state": "CREATED", "runs": 2}],
        "next": None,
    }


async def test_an_equal_deployment_keeps_the_version_of_the_model(caller: Caller) -> None:
    versions = [(await caller.deploy(run_body(containers=n)))["jobModelVersion"] for n in (1, 1, 2, 1)]
    assert versions == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("checkpoint", {0: 0, 1: 0}), ("earliest", {0: 0, 1: 0}), ("latest", {0: 3, 1: 1})],
)
async def test_the_start_of_a_first_run_is_resolved_to_offsets(
    caller: Caller, clock: FakeClock, start: str, expected: dict[int, int]
) -> None:
    fill(caller, clock, {0: 3, 1: 1})
    run = await caller.deploy(run_body(start=start))
    fill(caller, clock, {0: 5, 1: 5}, batch=1)
    assert await starts(caller, run["runId"], "c1") == {("flights", p): offset for p, offset in expected.items()}


async def test_a_start_time_may_be_given_in_any_time_zone(caller: Caller, clock: FakeClock) -> None:
    fill(caller, clock, {0: 3, 1: 1})
    clock.advance(3600)
    fill(caller, clock, {0: 2}, batch=1)
    at = (clock.now() + timedelta(hours=5)).replace(tzinfo=None).isoformat() + "+05:00"
    run = await caller.deploy(run_body(start=at))
    assert await starts(caller, run["runId"], "c1") == {("flights", 0): 3, ("flights", 1): 1}


async def test_a_start_from_the_earliest_begins_at_the_first_record_after_trimming(caller: Caller, clock: FakeClock) -> None:
    fill(caller, clock, {0: 3, 1: 1})
    caller.log.trim("flights", {0: 2})
    run = await caller.deploy(run_body(start="earliest"))
    assert await starts(caller, run["runId"], "c1") == {("flights", 0): 2, ("flights", 1): 0}


async def test_a_run_from_the_checkpoint_continues_the_history_of_the_run_before(caller: Caller, clock: FakeClock) -> None:
    fill(caller, clock, {0: 3})
    first = await caller.deploy(run_body(start="latest"))
    await caller.registered(first["runId"], "c1")
    held = await caller.acquired(first["runId"], "c1")
    lineage = held["stages"][0]["lineage"]
    await caller.progress(first["runId"], 1, lineage, 7, [("flights", 0, 5)])
    await caller.exited("c1")
    second = await caller.deploy()
    await caller.registered(second["runId"], "c2")
    again = (await caller.acquired(second["runId"], "c2"))["stages"][0]
    assert (second["firstRun"], again["lineage"], again["batchId"]) == (first["runId"], lineage, 7)
    assert [s["offset"] for s in again["starts"]] == [3]


async def test_a_run_with_an_explicit_start_begins_a_new_history_with_empty_state(caller: Caller, clock: FakeClock) -> None:
    first = await caller.deploy()
    await caller.registered(first["runId"], "c1")
    lineage = (await caller.acquired(first["runId"], "c1"))["stages"][0]["lineage"]
    await caller.progress(first["runId"], 1, lineage, 7, [("flights", 0, 5)])
    await caller.exited("c1")
    second = await caller.deploy(run_body(start="earliest"))
    await caller.registered(second["runId"], "c2")
    fresh = (await caller.acquired(second["runId"], "c2"))["stages"][0]
    assert second["firstRun"] == second["runId"]
    assert fresh["lineage"] != lineage
    assert fresh["batchId"] is None


async def test_a_new_history_begins_intermediate_streams_at_their_end(caller: Caller, clock: FakeClock) -> None:
    caller.log.create("by-carrier", 4)
    fill(caller, clock, {0: 2, 3: 1}, stream="by-carrier")
    run = await caller.deploy(chained_body(start="earliest"))
    assert await starts(caller, run["runId"], "c1") == {
        ("by-carrier", 0): 2,
        ("by-carrier", 1): 0,
        ("by-carrier", 2): 0,
        ("by-carrier", 3): 1,
    }


async def test_partitions_added_since_the_last_run_are_read_from_their_beginning(caller: Caller, clock: FakeClock) -> None:
    fill(caller, clock, {0: 3, 1: 3})
    await caller.deploy(run_body(start="latest"))
    caller.log.grow("flights", 4)
    fill(caller, clock, {2: 5}, batch=1)
    run = await caller.deploy()
    found = await starts(caller, run["runId"], "c1")
    assert found == {("flights", 0): 3, ("flights", 1): 3, ("flights", 2): 0, ("flights", 3): 0}


async def test_a_grown_input_keeps_its_tasks_through_a_chain_of_deployments(caller: Caller) -> None:
    for partitions in (2, 4, 8):
        caller.log.grow("flights", partitions)
        run = await caller.deploy()
        assert [t["task"] for t in (await caller.run(run["runId"]))["tasks"]] == ["Partition 0", "Partition 1"]


@pytest.mark.parametrize("stateful", [True, False])
async def test_growth_that_separates_keys_from_their_state_is_refused_unless_the_job_is_stateless(caller: Caller, stateful: bool) -> None:
    before = await caller.deploy(run_body(stateful=stateful))
    caller.log.grow("flights", 3)
    answer = await caller.http.post("/runs", json=run_body(stateful=stateful))
    if stateful:
        assert problem_slug(answer) == (422, "incompatible-expansion")
        assert "log.flights began with 2 partitions, had 2 and now has 3" in answer.json()["detail"]
        assert (await caller.run(before["runId"]))["stopRequestedAt"] is None
    else:
        assert answer.status_code == 201


async def test_a_new_history_may_regroup_what_expansion_refuses(caller: Caller) -> None:
    await caller.deploy()
    caller.log.grow("flights", 3)
    run = await caller.deploy(run_body(start="earliest"))
    assert len((await caller.run(run["runId"]))["tasks"]) == 3


async def test_the_tasks_of_a_scaled_job_keep_their_slots_where_possible(caller: Caller) -> None:
    caller.log.create("wide", 6)
    body = run_body(inputs=[{**INPUT, "stream": "wide"}])
    placements: list[Json] = []
    for containers in (2, 3):
        run = await caller.deploy({**body, "containers": containers})
        placements.append({t["task"]: t["processorId"] for t in (await caller.run(run["runId"]))["tasks"]})
    assert sum(1 for task, slot in placements[1].items() if placements[0][task] != slot) == 2


@pytest.mark.parametrize(
    "changes", [{"containers": True}, {"containers": "1"}, {"config": {"a": "é\u2028"}}, {"maxTasks": 50}, {"start": "2024-01-01T00:00:00"}]
)
async def test_unusual_but_valid_bodies_are_accepted(caller: Caller, changes: dict[str, Any]) -> None:
    assert (await caller.http.post("/runs", json=run_body(**changes))).status_code == 201
