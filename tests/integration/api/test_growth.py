"""Inputs that grow while their job runs: what the partition monitor finds, and the resulting job model."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from sluice.core.errors import StreamUnavailable
from sluice.core.ids import Generation, Lineage, RunId
from sluice.streams.log import LogSystem, Record, Writer
from tests.support.api import (
    UNSAVED,
    Caller,
    adopted,
    calling,
    chained_body,
    check_partitions,
    history,
    offsets_json,
    partitions_of,
    patched,
    problem_slug,
    run_body,
    run_with_both_tasks,
    running,
    versioning,
    watched,
)
from tests.support.fakes import FakeClock

TWO_INPUTS = {
    "inputs": [{"name": "flights", "system": "log"}, {"name": "weather", "system": "log", "stream": "weather.hourly"}],
    "stages": [{"name": "hourly", "reads": ["flights"], "writes": ["delays"]}, {"name": "warn", "reads": ["weather"], "writes": []}],
}


def append(caller: Caller, stream: str, partition: int, records: int) -> None:
    writer = Writer(Lineage(f"{stream} {partition}"), "producer", Generation(1))
    caller.log.append(stream, [Record(b"x", partition=partition)] * records, writer=writer, batch=0, now_micros=1)


@pytest.fixture
async def run_id(caller: Caller) -> str:
    """A run whose only container c1 holds its two tasks."""
    return await run_with_both_tasks(caller)


async def test_a_stream_that_has_not_changed_changes_nothing(caller: Caller, run_id: str) -> None:
    assert await check_partitions(caller) == {"changed": 1}
    assert await check_partitions(caller) == {}
    run = await caller.run(run_id)
    assert run["jobModelVersion"] == 1
    assert {**watched(run), "since": ""} == {
        **{"name": "flights", "system": "log", "stream": "flights", "known": 2, "seen": 2},
        **{"verdict": "UNCHANGED", "reason": "", "since": ""},
    }


async def test_a_registration_that_is_repeated_after_a_growth_returns_the_version_of_the_first(caller: Caller, run_id: str) -> None:
    """Otherwise the container would not report the new version, which it runs from its start."""
    caller.log.grow("flights", 4)
    await check_partitions(caller)
    assert (await caller.registered(run_id, "c1"))["jobModelVersion"] == 1
    assert (await caller.beat("c1", 1)).headers["sluice-job-model-version"] == "2"


async def test_a_doubled_stream_gives_each_task_another_partition_and_the_containers_are_notified(caller: Caller, run_id: str) -> None:
    before = await caller.http.get("/jobModel?job=flight-delays")
    caller.log.grow("flights", 4)
    assert (await check_partitions(caller))["grown"] == 1
    assert await partitions_of(caller) == {"Partition 0": [0, 2], "Partition 1": [1, 3]}
    run = await caller.run(run_id)
    assert (run["jobModelVersion"], run["streams"][0]["partitions"]) == (2, 4)
    reported = watched(run)
    assert (reported["known"], reported["seen"], reported["verdict"]) == (4, 4, "SAFE")
    (notice,) = await caller.notices(run_id)
    assert notice["kind"] == "MODEL"
    assert notice["detail"] == {"version": 2, "containers": 1, "why": "log.flights grew from 2 to 4 partitions"}
    assert (await caller.beat("c1", 1)).headers["sluice-job-model-version"] == "2"
    after = await caller.http.get("/jobModel?job=flight-delays", headers={"If-None-Match": before.headers["etag"]})
    assert (after.status_code, after.headers["sluice-job-model-version"]) == (200, "2")
    assert [(each["version"], each["actor"], each["current"]) for each in await history(caller)] == [
        (2, "partition monitor", True),
        (1, "", False),
    ]


async def test_a_waiting_poll_gets_the_new_version_at_once(caller: Caller, run_id: str) -> None:
    waiting = asyncio.create_task(caller.notices(run_id, wait=20))
    while not caller.coordinator.notices.waiting(RunId(run_id)):  # noqa: ASYNC110 – nothing is notified when a poll begins
        await asyncio.sleep(0)
    caller.log.grow("flights", 4)
    await check_partitions(caller)
    assert [each["kind"] for each in await waiting] == ["MODEL"]


async def test_an_owner_that_acquires_again_gets_the_new_partitions_from_their_beginnings_under_its_generation(
    caller: Caller, run_id: str
) -> None:
    append(caller, "flights", 0, 5)
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    await caller.progress(run_id, 1, lineage, 3, [("flights", 0, 4)])
    caller.log.grow("flights", 4)
    append(caller, "flights", 2, 7)
    caller.log.trim("flights", {2: 2})
    await check_partitions(caller)
    assert (await caller.progress(run_id, 1, lineage, 4, [("flights", 0, 5)])).status_code == 204
    again = await caller.acquired(run_id, "c1")
    (stage,) = again["stages"]
    assert (again["generation"], stage["lineage"], stage["batchId"]) == (1, lineage, 4)
    assert {each["partition"]: each["offset"] for each in stage["starts"]} == {0: 0, 2: 2}


async def test_the_lag_of_new_partitions_is_counted_from_their_beginnings(caller: Caller, run_id: str) -> None:
    survey = caller.coordinator.api.state.parts.lag
    await survey.run_once()
    caller.log.grow("flights", 4)
    append(caller, "flights", 2, 7)
    caller.log.trim("flights", {2: 2})
    await check_partitions(caller)
    await survey.run_once()
    assert [task["stages"][0]["lag"] for task in (await caller.run(run_id))["tasks"]] == [5, 0]
    metrics = (await caller.http.get("/metrics")).text
    assert 'sluice_job_model_version{sluice_job="flight-delays"} 2.0' in metrics
    assert 'sluice_job_containers_outdated{sluice_job="flight-delays"} 1.0' in metrics
    assert 'sluice_job_slots_failed_over{sluice_job="flight-delays"} 0.0' in metrics


async def test_a_chain_of_growths_keeps_every_partition_where_it_was(caller: Caller, run_id: str) -> None:
    for count in (4, 8):
        caller.log.grow("flights", count)
        await check_partitions(caller)
    assert await partitions_of(caller) == {"Partition 0": [0, 2, 4, 6], "Partition 1": [1, 3, 5, 7]}
    assert (await caller.run(run_id))["jobModelVersion"] == 3
    next_run = await caller.deploy()
    assert (await partitions_of(caller))["Partition 1"] == [1, 3, 5, 7]
    assert next_run["jobModelVersion"] == 3


@pytest.mark.parametrize("more", [1, 3])
async def test_growth_to_a_count_that_is_no_multiple_is_refused_and_shown_and_the_job_continues_unchanged(
    caller: Caller, run_id: str, more: int, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caller.log.grow("flights", 2 + more)
    with caplog.at_level(logging.WARNING):
        await check_partitions(caller)
        clock.advance(60)
        await check_partitions(caller)
    reply = watched(await caller.run(run_id))
    assert (reply["known"], reply["seen"], reply["verdict"]) == (2, 2 + more, "REFUSED")
    assert f"had 2 and now has {2 + more}, which is not a multiple of 2: keys would be separated from their state" in reply["reason"]
    assert reply["since"] == "2026-03-01T12:00:00Z"
    assert sum("does not grow with log.flights" in each.message for each in caplog.records) == 1
    assert (await caller.run(run_id))["jobModelVersion"] == 1
    metrics = (await caller.http.get("/metrics")).text
    assert 'sluice_stream_growth_refused{sluice_job="flight-delays",stream="flights",system="log"} 1.0' in metrics
    assert f'sluice_stream_partitions{{sluice_job="flight-delays",stream="flights",system="log"}} {2.0 + more}' in metrics
    assert 'sluice_stream_partitions_known{sluice_job="flight-delays",stream="flights",system="log"} 2.0' in metrics
    caller.log.grow("flights", 8)
    await check_partitions(caller)
    assert (await caller.run(run_id))["streams"][0]["partitions"] == 8


async def test_streams_that_grow_at_the_same_time_cause_one_version(caller: Caller) -> None:
    caller.log.create("weather.hourly", 2)
    run = await caller.deploy(run_body(**{**TWO_INPUTS, "stages": [{"name": "join", "reads": ["flights", "weather"]}]}, stateful=False))
    caller.log.grow("flights", 4)
    caller.log.grow("weather.hourly", 4)
    assert (await check_partitions(caller))["grown"] == 2
    (notice,) = await caller.notices(run["runId"])
    assert notice["detail"]["why"] == "log.flights grew from 2 to 4 partitions; log.weather.hourly grew from 2 to 4 partitions"
    assert await partitions_of(caller) == {f"Partition {p}": [p, p] for p in range(4)}


async def test_a_broadcast_stream_grows_for_every_task(caller: Caller) -> None:
    caller.log.create("weather.hourly", 1)
    inputs = [{"name": "flights", "system": "log"}, {"name": "weather", "system": "log", "stream": "weather.hourly", "broadcast": True}]
    run = await caller.deploy(run_body(inputs=inputs, stages=[{"name": "join", "reads": ["flights", "weather"]}]))
    await caller.registered(run["runId"], "c1")
    caller.log.grow("weather.hourly", 3)
    await check_partitions(caller)
    for p in (0, 1):
        (stage,) = (await caller.acquired(run["runId"], "c1", task=f"Partition {p}"))["stages"]
        assert sorted((each["stream"], each["partition"]) for each in stage["starts"]) == [
            ("flights", p),
            *(("weather.hourly", each) for each in range(3)),
        ]


async def test_a_stream_that_cannot_grow_and_has_a_dot_in_its_name_does_not_block_others(caller: Caller) -> None:
    caller.log.create("weather.hourly", 2)
    run = await caller.deploy(run_body(**TWO_INPUTS))
    caller.log.grow("flights", 4)
    caller.log.grow("weather.hourly", 3)
    await check_partitions(caller)
    reply = await caller.run(run["runId"])
    assert {each["name"]: (each["verdict"], each["known"], each["seen"]) for each in reply["watched"]} == {
        "flights": ("SAFE", 4, 4),
        "weather": ("REFUSED", 2, 3),
    }


async def test_a_stream_that_vanishes_does_not_block_others_and_may_return(caller: Caller) -> None:
    caller.log.create("weather.hourly", 2)
    run = await caller.deploy(run_body(**TWO_INPUTS))
    away = caller.log.directory / "weather.hourly.db"
    away.rename(away.with_suffix(".away"))
    caller.log.grow("flights", 4)
    await check_partitions(caller)
    reply = await caller.run(run["runId"])
    assert (watched(reply)["verdict"], watched(reply, "weather")["verdict"], watched(reply, "weather")["seen"]) == ("SAFE", "UNKNOWN", None)
    assert "log.weather.hourly no longer exists" in watched(reply, "weather")["reason"]
    away.with_suffix(".away").rename(away)
    await check_partitions(caller)
    assert watched(await caller.run(run["runId"]), "weather")["verdict"] == "UNCHANGED"


@pytest.mark.parametrize("partitions", [2, 4])
async def test_a_stream_that_was_deleted_and_created_again_is_noticed_with_any_count(caller: Caller, run_id: str, partitions: int) -> None:
    for file in caller.log.directory.glob("flights.db*"):
        file.unlink()
    caller.log.create("flights", partitions)
    await check_partitions(caller)
    run = await caller.run(run_id)
    assert watched(run)["verdict"] == "REFUSED"
    assert "log.flights was deleted and created again" in watched(run)["reason"]
    assert (run["jobModelVersion"], run["streams"][0]["partitions"]) == (1, 2)
    again = (await caller.deploy(run_body(start="earliest")))["runId"]
    await check_partitions(caller)
    assert watched(await caller.run(again))["verdict"] == "UNCHANGED"


async def test_a_run_that_continues_with_a_stream_created_again_between_runs_is_reported(caller: Caller, run_id: str) -> None:
    await caller.stop(run_id)
    for file in caller.log.directory.glob("flights.db*"):
        file.unlink()
    caller.log.create("flights", 2)
    again = (await caller.deploy())["runId"]
    await check_partitions(caller)
    assert "was deleted and created again" in watched(await caller.run(again))["reason"]


async def test_a_stream_that_shrinks_is_refused(caller: Caller, run_id: str) -> None:
    caller.log.grow("flights", 4)
    await check_partitions(caller)
    with caller.log._open("flights", write=True) as connection:  # Kafka cannot do this, but another system might
        connection.execute("DELETE FROM partitions WHERE partition > 1")
    await check_partitions(caller)
    reply = watched(await caller.run(run_id))
    assert (reply["verdict"], reply["known"], reply["seen"]) == ("REFUSED", 4, 2)
    assert "a running job cannot give partitions up" in reply["reason"]


async def test_systems_that_fail_or_do_not_answer_are_reported_and_the_others_are_checked(home: Path, clock: FakeClock) -> None:
    class Silent(LogSystem):
        async def identity(self, stream: str) -> str | None:
            if stream == "weather.hourly" and self.silent:
                await asyncio.Event().wait()
            if stream == "flights" and self.failing:
                raise StreamUnavailable("the cluster is away")
            return await super().identity(stream)

        silent = failing = False

    async with calling(home, clock) as caller:
        systems = versioning(caller).watch.systems
        system = systems["log"] = Silent(home / "log")  # type: ignore[index]
        versioning(caller).watch.check_timeout = versioning(caller).watch.check_timeout / 200
        caller.log.create("flights", 2)
        caller.log.create("weather.hourly", 2)
        run = await caller.deploy(run_body(**TWO_INPUTS))
        caller.log.grow("flights", 4)
        caller.log.grow("weather.hourly", 4)
        system.silent = True
        await check_partitions(caller)
        reply = await caller.run(run["runId"])
        assert (watched(reply)["verdict"], watched(reply, "weather")["reason"]) == ("SAFE", "log.weather.hourly: no answer within 0.05 s")
        system.silent, system.failing = False, True
        await check_partitions(caller)
        reply = await caller.run(run["runId"])
        assert (watched(reply)["reason"], watched(reply, "weather")["verdict"]) == ("log.flights: the cluster is away", "SAFE")
        clock.advance(100)
        metrics = (await caller.http.get("/metrics")).text
        assert 'sluice_stream_count_age_seconds{sluice_job="flight-delays",stream="flights",system="log"} 100.0' in metrics


async def test_intermediate_streams_are_not_watched(caller: Caller) -> None:
    run = await caller.deploy(chained_body(partitions=2))
    caller.log.grow("by-carrier", 4)
    await check_partitions(caller)
    reply = await caller.run(run["runId"])
    assert ([each["name"] for each in reply["watched"]], reply["jobModelVersion"]) == (["flights"], 1)


async def test_a_run_that_drains_does_not_grow_and_the_next_run_reads_the_new_partitions(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    caller.log.grow("flights", 6)
    assert "grown" not in await check_partitions(caller)
    reply = await caller.run(run.run_id)
    assert (reply["jobModelVersion"], watched(reply)["known"], watched(reply)["seen"]) == (1, 2, 6)
    assert watched(reply)["reason"] == "log.flights has 6 partitions; the run is draining, and the next run reads them"
    for step in ("stopped", "flushing", "flushed", "committed"):
        await run.all_take(step, ["hourly"])
    assert (await caller.run(run.run_id))["state"] == "DRAINED"
    after = await caller.deploy()
    assert len(await partitions_of(caller)) == 6
    await check_partitions(caller)
    assert watched(await caller.run(after["runId"]))["verdict"] == "UNCHANGED"


async def test_growth_while_the_coordinator_was_down_is_found(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as caller:
        caller.log.create("flights", 2)
        run_id = (await caller.deploy())["runId"]
        await caller.registered(run_id, "c1")
    caller.log.grow("flights", 4)
    async with calling(home, clock) as caller:
        await check_partitions(caller)  # or the first run of the monitor has done it
        assert (await caller.run(run_id))["jobModelVersion"] == 2
        assert (await caller.beat("c1", 1)).headers["sluice-job-model-version"] == "2"
    async with calling(home, clock) as caller:
        assert await partitions_of(caller) == {"Partition 0": [0, 2], "Partition 1": [1, 3]}
        assert (await caller.beat("c1", 1)).headers["sluice-job-model-version"] == "2"


async def test_new_partitions_of_a_stateless_job_get_new_tasks(caller: Caller) -> None:
    run = await caller.deploy(run_body(stateful=False, containers=2))
    caller.log.grow("flights", 3)
    await check_partitions(caller)
    assert await partitions_of(caller) == {"Partition 0": [0], "Partition 1": [1], "Partition 2": [2]}
    assert (await caller.run(run["runId"]))["jobModelVersion"] == 2


async def test_an_operator_can_request_growth_before_the_monitor_finds_it(caller: Caller, run_id: str) -> None:
    caller.log.grow("flights", 4)
    reply = await patched(caller, run_id, {"grow": True, "why": "now"}, Sluice_Actor="ops")
    assert (reply["former"], reply["version"], reply["tasksAffected"]) == (1, 2, ["Partition 0", "Partition 1"])
    newest = (await history(caller))[0]
    assert (newest["actor"], newest["why"]) == ("ops", "log.flights grew from 2 to 4 partitions; now")
    reply = await patched(caller, run_id, {"grow": True})
    assert (reply["former"], reply["version"], reply["verdict"]) == (2, 2, "UNCHANGED")


# --- adoption --------------------------------------------------------------------------------------------------------


async def test_a_task_whose_container_never_got_the_answer_to_its_acquire_is_released_when_it_adopts_a_version_without_it(
    caller: Caller, run_id: str
) -> None:
    """The container does not know that it owns the task, so it cannot release it."""
    answer = await caller.http.patch(f"/runs/{run_id}", json={"containers": 2})
    assert answer.status_code == 200, answer.text
    epoch = (await caller.registered(run_id, "c2", "1"))["epoch"]
    answers = {task: await caller.acquire(run_id, "c1", task=task) for task in ("Partition 0", "Partition 1")}
    (moved,) = (task for task, answer in answers.items() if answer.status_code == 409)
    assert (await caller.acquire(run_id, "c2", epoch, moved)).status_code == 202
    await adopted(caller, run_id, "c1", 2)
    assert (await caller.acquired(run_id, "c2", epoch, moved))["generation"] == 2


async def test_containers_report_their_versions_and_the_run_shows_when_all_have_adopted_one(caller: Caller, clock: FakeClock) -> None:
    run_id = (await caller.deploy(run_body(containers=2)))["runId"]
    for slot in ("0", "1"):
        await caller.registered(run_id, f"c/{slot}", slot)
    assert (await caller.run(run_id))["adoption"]["allOn"] == 1
    clock.advance(10)
    caller.log.grow("flights", 4)
    await check_partitions(caller)
    adoption = (await caller.run(run_id))["adoption"]
    assert (adoption["version"], adoption["since"], adoption["allOn"]) == (2, "2026-03-01T12:00:10Z", 1)
    assert await adopted(caller, run_id, "c/0", 2) == {"version": 2, "current": 2, "allOn": None}
    clock.advance(5)
    run = await caller.run(run_id)
    assert run["adoption"]["allOn"] is None
    assert run["adoption"]["outdated"] == [
        {"executionContainerId": "c/1", "processorId": "1", "version": 1, "since": "2026-03-01T12:00:10Z"}
    ]
    assert [(each["jobModelVersion"], each["adoptedAt"]) for each in run["incarnations"]] == [
        (2, "2026-03-01T12:00:10Z"),
        (1, "2026-03-01T12:00:00Z"),
    ]
    assert (await adopted(caller, run_id, "c/1", 2))["allOn"] == 2
    assert (await caller.run(run_id))["adoption"]["outdated"] == []
    assert (await adopted(caller, run_id, "c/1", 1))["version"] == 2


async def test_every_adoption_of_a_fleet_that_adopts_at_once_is_recorded(caller: Caller) -> None:
    caller.log.grow("flights", 40)
    run_id = (await caller.deploy(run_body(containers=40)))["runId"]
    await asyncio.gather(*(caller.registered(run_id, f"c{slot}", str(slot)) for slot in range(40)))
    caller.log.grow("flights", 80)
    await check_partitions(caller)
    reply = await asyncio.gather(*(adopted(caller, run_id, f"c{slot}", 2) for slot in range(40)))
    assert {each["version"] for each in reply} == {2}
    assert reply[-1]["allOn"] == 2
    assert (await caller.run(run_id))["adoption"]["allOn"] == 2


async def test_a_container_that_registers_later_has_adopted_the_version_of_its_registration(caller: Caller, run_id: str) -> None:
    caller.log.grow("flights", 4)
    await check_partitions(caller)
    assert (await caller.registered(run_id, "c2"))["jobModelVersion"] == 2
    assert (await caller.run(run_id))["adoption"]["allOn"] == 2


async def test_an_unknown_version_and_a_report_of_another_incarnation_are_refused(caller: Caller, run_id: str) -> None:
    async def adopted_by(execution_id: str, version: int, epoch: int, run: str = run_id) -> tuple[int, str]:
        answer = await caller.http.post(f"/runs/{run}/containers/{execution_id}/adopted", json={"version": version, "epoch": epoch})
        return problem_slug(answer)

    assert await adopted_by("c1", 2, 1) == (404, "unknown-version")
    assert await adopted_by("c1", 1, 2) == (409, "lease-lost")
    assert await adopted_by("stranger", 1, 1) == (404, "unknown-container")
    assert await adopted_by("c1", 1, 1, "lost") == (404, "unknown-run")
    await caller.registered(run_id, "c2")
    assert await adopted_by("c1", 1, 1) == (409, "lease-lost")


# --- more tasks than at first -----------------------------------------------------------------------------------------


async def test_after_a_drain_a_grown_stream_has_a_task_for_each_partition_and_grows_from_there(caller: Caller) -> None:
    run = await running(caller)
    caller.log.grow("flights", 4)
    await check_partitions(caller)
    assert await partitions_of(caller) == {"Partition 0": [0, 2], "Partition 1": [1, 3]}
    await run.requested()
    for step in ("stopped", "flushed"):
        await run.all_take(step)
    offsets = [offsets_json({("flights", task): 70 + task, ("flights", task + 2): 10}) for task in (0, 1)]
    for task in (0, 1):
        phase = await run.phase_after("committed", task, offsets=offsets[task])
    assert phase == "DRAINED"
    await caller.exited("c1")
    again = str((await caller.deploy(run_body(**UNSAVED)))["runId"])
    assert await partitions_of(caller) == {f"Partition {partition}": [partition] for partition in range(4)}
    await caller.registered(again, "c2")
    found = [(await caller.acquired(again, "c2", task=f"Partition {p}"))["stages"][0]["starts"][0]["offset"] for p in range(4)]
    assert found == [70, 71, 10, 10]
    caller.log.grow("flights", 6)
    await check_partitions(caller)
    assert "began with 4 partitions, had 4 and now has 6" in watched(await caller.run(again))["reason"]
    caller.log.grow("flights", 8)
    await check_partitions(caller)
    assert await partitions_of(caller) == {f"Partition {partition}": [partition, partition + 4] for partition in range(4)}


async def test_an_input_of_a_stage_without_state_may_grow_to_any_number(caller: Caller) -> None:
    caller.log.grow("flights", 6)
    route, hourly = chained_body()["stages"]
    body = chained_body() | {"stages": [{**route, "stateful": False}, hourly]}
    run_id = (await caller.deploy(body))["runId"]
    caller.log.grow("flights", 8)
    assert (await check_partitions(caller))["grown"] == 1
    reply = watched(await caller.run(run_id))
    assert (reply["known"], reply["verdict"]) == (8, "SAFE")
    assert [task for task, read in (await partitions_of(caller)).items() if len(read) > 2] == ["Partition 0", "Partition 1"]
    assert (await caller.deploy(body))["streams"][0]["partitions"] == 8


async def test_the_same_growth_is_refused_if_the_stage_may_have_state_and_the_error_names_the_declaration(caller: Caller) -> None:
    caller.log.grow("flights", 6)
    run_id = (await caller.deploy(chained_body()))["runId"]
    caller.log.grow("flights", 8)
    await check_partitions(caller)
    reply = watched(await caller.run(run_id))
    assert reply["verdict"] == "REFUSED"
    assert "declare them with stateful=False" in reply["reason"]


async def test_stages_have_the_new_field_only_if_they_use_it_so_that_containers_of_older_releases_can_read_them(caller: Caller) -> None:
    stages = (await caller.deploy(chained_body()))["stages"]
    assert [sorted(each) for each in stages] == [["name", "reads", "writes"]] * 2
