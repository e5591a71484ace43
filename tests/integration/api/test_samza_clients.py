"""Clients of Apache Samza 1.8, by its wire formats: heartbeats, the job model, localities and drain notifications.

Samza itself is not used. `SamzaContainer` does what ContainerHeartbeatClient, HttpUtil.read and SamzaContainer.readJobModel do: it appends
names to the coordinator's URL, sends the id unescaped, and takes any answer but `{"alive": true}`, without further fields, as "not alive".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.core.access.roles import Role
from sluice.core.access.tokens import Grant
from sluice.status import overview
from sluice.wire.runs import RunDetail
from tests.support.api import UNSAVED, Caller, Drained, Json, calling, problem_slug, run_body, running
from tests.support.fakes import FakeClock

BEAT = 60
RETRIES = 93
EXIT = 120
CHOSEN = "0b5c8b6e-8f6e-4f0e-9d43-1f3f5a3c2b11"


@dataclass
class SamzaContainer:
    """`url` ends in a slash."""

    http: httpx.AsyncClient
    url: str
    execution_id: str = "container_1700000000000_0001_01_000002"

    async def alive(self) -> bool:
        answer = await self.http.get(f"{self.url}containerHeartbeat?executionContainerId={self.execution_id}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert list(answer.json()) == ["alive"]
        return answer.json()["alive"] is True

    async def model(self) -> Json:
        answer = await self.http.get(self.url)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        return dict(answer.json())


async def launched(caller: Caller, run_id: str, url: str = "/jobs/flight-delays/", slot: str = "0") -> SamzaContainer:
    """Its launcher registers it, as YARN's application master does for the containers that it starts."""
    made = SamzaContainer(caller.http, url)
    await caller.registered(run_id, made.execution_id, slot, bare=True)
    return made


async def expire(caller: Caller) -> None:
    await caller.run_chore("expire_leases")


async def other_job(caller: Caller) -> str:
    outputs = [{"name": "delays", "system": "log", "stream": "other"}]
    return str((await caller.deploy(run_body(job="other", outputs=outputs)))["runId"])


# --- heartbeats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["/", "/jobs/flight-delays/"])
async def test_a_container_that_sends_a_heartbeat_every_60_seconds_stays_alive(caller: Caller, clock: FakeClock, url: str) -> None:
    container = await launched(caller, str((await caller.deploy())["runId"]), url)
    for _ in range(5):
        assert await container.alive()
        clock.advance(BEAT)
        await expire(caller)
    clock.advance(RETRIES)
    await expire(caller)
    assert await container.alive()


async def test_the_tasks_of_a_samza_container_are_free_when_it_must_have_exited_and_not_before(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy())["runId"])
    container = await launched(caller, run_id)
    assert await container.alive()
    clock.advance(BEAT + RETRIES + EXIT)
    await expire(caller)
    assert [each["state"] for each in (await caller.run(run_id))["incarnations"]] == ["LIVE"]
    clock.advance(10)
    await expire(caller)
    assert [each["state"] for each in (await caller.run(run_id))["incarnations"]] == ["LOST"]
    assert not await container.alive()


async def test_the_tasks_of_a_live_samza_container_need_no_owner(caller: Caller, clock: FakeClock) -> None:
    async def unowned() -> int:
        await caller.run_chore("survey")
        lines = (await caller.http.get("/metrics")).text.splitlines()
        (line,) = [each for each in lines if each.startswith('sluice_job_tasks_unowned{sluice_job="flight-delays"}')]
        return int(float(line.split()[-1]))

    run_id = str((await caller.deploy(run_body(containers=2, **UNSAVED)))["runId"])
    container = await launched(caller, run_id)
    await caller.registered(run_id, "c1", slot="1")
    assert await unowned() == 1
    await caller.acquired(run_id, "c1", 1, task="Partition 1")
    assert await unowned() == 0
    shown = overview(RunDetail.model_validate(await caller.run(run_id)), clock.now())
    assert not [each for each in shown.problems if "without an owner" in each]
    await caller.http.post(f"/containers/{container.execution_id}/exit", json={"exitCode": 1, "terminated": True})
    assert await unowned() == 1


async def test_the_container_of_a_run_that_is_stopped_is_not_alive_and_the_run_ends(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy())["runId"])
    container = await launched(caller, run_id)
    assert await container.alive()
    await caller.stop(run_id)
    assert [await container.alive(), await container.alive()] == [False, False]
    assert (await caller.run(run_id))["state"] == "RUNNING"
    clock.advance(BEAT + RETRIES + EXIT + 10)
    await expire(caller)
    assert (await caller.run(run_id))["state"] == "STOPPED"


@pytest.mark.parametrize("url", ["/", "/jobs/flight-delays/"])
async def test_the_container_of_a_run_that_was_replaced_is_not_alive(caller: Caller, url: str) -> None:
    container = await launched(caller, str((await caller.deploy())["runId"]), url)
    assert await container.alive()
    await caller.deploy(run_body(containers=2))
    assert not await container.alive()


async def test_the_container_of_a_drained_run_is_not_alive(caller: Caller) -> None:
    run = Drained(caller, str((await caller.deploy(run_body(**UNSAVED)))["runId"]))
    container = await launched(caller, run.run_id)
    for task in (0, 1):
        await caller.acquired(run.run_id, container.execution_id, task=f"Partition {task}")
    await run.requested()
    await run.to_flushing()
    assert await container.alive()
    await run.all_take("flushed")
    await run.all_take("committed")
    assert not await container.alive()


async def test_a_restart_of_the_coordinator_makes_no_stopped_container_valid(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as caller:
        caller.log.create("flights", 2)
        run_id = str((await caller.deploy())["runId"])
        await launched(caller, run_id)
        await caller.stop(run_id)
    async with calling(home, clock) as caller:
        assert not await SamzaContainer(caller.http, "/").alive()


async def test_a_container_of_another_job_is_not_alive_under_a_jobs_url(caller: Caller) -> None:
    container = await launched(caller, str((await caller.deploy())["runId"]))
    await other_job(caller)
    assert await container.alive()
    for job in ("other", "unknown"):
        assert not await SamzaContainer(caller.http, f"/jobs/{job}/").alive()


async def test_a_container_with_an_epoch_may_use_the_url_of_its_job(caller: Caller) -> None:
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "c1")
    path = "/jobs/flight-delays/containerHeartbeat?executionContainerId=c1"
    answers = [await caller.http.get(path, headers={"Sluice-Epoch": epoch}) for epoch in ("1", "2")]
    assert [answer.json() for answer in answers] == [{"alive": True}, {"alive": False}]
    assert answers[0].headers["sluice-lease-seconds"] == "30"


async def test_the_registration_of_a_samza_container_answers_with_its_lease_terms(caller: Caller) -> None:
    run_id = str((await caller.deploy())["runId"])
    reply = await caller.registered(run_id, "c1", bare=True)
    assert (reply["leaseSeconds"], reply["heartbeatSeconds"]) == (160, 60)


# --- one container for each task ---------------------------------------------------------------------------------------


async def ended(caller: Caller, execution_id: str) -> None:
    answer = await caller.http.post(f"/containers/{execution_id}/exit", json={"exitCode": 1, "terminated": True})
    assert answer.status_code == 200, answer.text


async def waits(caller: Caller, run_id: str, execution_id: str, epoch: int, task: str = "Partition 0") -> float:
    """How long the agent has to wait for the task, according to the answer."""
    answer = await caller.acquire(run_id, execution_id, epoch, task)
    assert answer.status_code == 202, answer.text
    return float(answer.json()["waitSeconds"])


async def test_an_agent_gets_the_tasks_of_a_samza_container_in_its_slot_when_that_must_have_exited(
    caller: Caller, clock: FakeClock
) -> None:
    run_id = str((await caller.deploy())["runId"])
    container = await launched(caller, run_id)
    clock.advance(BEAT)
    assert await container.alive()
    epoch = (await caller.registered(run_id, "agent"))["epoch"]
    assert await waits(caller, run_id, "agent", epoch) == 280
    assert not await container.alive()
    for _ in range(28):
        clock.advance(9.9)
        assert await caller.alive("agent", epoch)
        await expire(caller)
    assert 0 < await waits(caller, run_id, "agent", epoch) < 3
    clock.advance(2.9)
    await expire(caller)
    await caller.acquired(run_id, "agent", epoch)


async def test_an_agent_gets_the_tasks_at_once_when_the_end_of_the_samza_container_is_confirmed(caller: Caller) -> None:
    run_id = str((await caller.deploy())["runId"])
    container = await launched(caller, run_id)
    epoch = (await caller.registered(run_id, "agent"))["epoch"]
    body = {"executionContainerId": "agent", "epoch": epoch}
    asked = asyncio.create_task(caller.http.post(f"/runs/{run_id}/tasks/Partition 0/acquire?wait=60", json=body))
    waiters = caller.coordinator.task_waiters
    while not waiters.total:  # noqa: ASYNC110 – nothing is notified when a poll begins
        await asyncio.sleep(0)
    await ended(caller, container.execution_id)
    assert (await asyncio.wait_for(asked, 10)).status_code == 200


async def test_tasks_of_a_samza_container_that_move_with_the_next_run_are_granted_when_it_must_have_exited(
    caller: Caller, clock: FakeClock
) -> None:
    container = await launched(caller, str((await caller.deploy())["runId"]))
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    await caller.registered(run_id, "agent", slot="1")
    assert await waits(caller, run_id, "agent", 1, "Partition 1") == 280
    assert not await container.alive()
    await ended(caller, container.execution_id)
    await caller.acquired(run_id, "agent", task="Partition 1")


async def test_tasks_that_move_to_another_slot_of_the_run_are_granted_when_the_samza_container_has_exited(caller: Caller) -> None:
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    container = await launched(caller, run_id, slot="1")
    await caller.registered(run_id, "agent")
    scaled = await caller.http.patch(f"/runs/{run_id}", json={"containers": 1, "why": "fewer"})
    assert scaled.status_code == 200, scaled.text
    await caller.acquired(run_id, "agent")
    assert await waits(caller, run_id, "agent", 1, "Partition 1") == 280
    await ended(caller, container.execution_id)
    await caller.acquired(run_id, "agent", task="Partition 1")


async def test_tasks_of_other_slots_do_not_wait_for_a_samza_container(caller: Caller) -> None:
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    await launched(caller, run_id)
    await caller.registered(run_id, "agent", slot="1")
    await caller.acquired(run_id, "agent", task="Partition 1")


async def test_after_a_restart_of_the_coordinator_tasks_still_wait_for_a_samza_container_that_was_replaced(
    home: Path, clock: FakeClock
) -> None:
    async with calling(home, clock) as caller:
        caller.log.create("flights", 2)
        run_id = str((await caller.deploy())["runId"])
        await launched(caller, run_id)
        epoch = (await caller.registered(run_id, "agent"))["epoch"]
    async with calling(home, clock) as caller:
        assert await waits(caller, run_id, "agent", epoch) == 280


async def test_a_samza_container_is_not_registered_while_an_agent_may_run_its_tasks(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "agent")
    await caller.acquired(run_id, "agent")
    refused = await caller.register(run_id, "samza", bare=True)
    assert problem_slug(refused) == (409, "slot-in-use")
    assert "agent" in refused.json()["detail"]
    assert await caller.alive("agent", 1), "a refused registration changes nothing"
    await ended(caller, "agent")
    await caller.registered(run_id, "samza", bare=True)
    assert (await caller.register(run_id, "samza", bare=True)).status_code == 201, "a repeated registration has the same answer"


async def test_a_samza_container_is_not_registered_while_a_former_run_may_run_its_tasks(caller: Caller) -> None:
    first = str((await caller.deploy())["runId"])
    await caller.registered(first, "agent")
    await caller.acquired(first, "agent", task="Partition 1")
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    assert problem_slug(await caller.register(run_id, "samza", slot="1", bare=True)) == (409, "slot-in-use")
    await caller.release(first, 1, "Partition 1")
    await caller.registered(run_id, "samza", slot="1", bare=True)


async def test_a_samza_container_is_not_registered_while_another_one_may_run_its_tasks(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy())["runId"])
    container = await launched(caller, run_id)
    refused = await caller.register(run_id, "next", bare=True)
    assert problem_slug(refused) == (409, "slot-in-use")
    assert "280 s" in refused.json()["detail"]
    assert "terminated" in refused.json()["detail"]
    invalid = await caller.http.post(f"/containers/{container.execution_id}/invalidate", json={"reason": "its node is gone"})
    assert invalid.status_code == 200, invalid.text
    assert not await container.alive()
    assert problem_slug(await caller.register(run_id, "next", bare=True)) == (409, "slot-in-use")
    clock.advance(280)
    await expire(caller)
    await caller.registered(run_id, "next", bare=True)


# --- the job model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [{}, {"Accept": "application/json"}, {"Accept": "*/*"}])
async def test_the_model_is_read_from_the_url_that_a_container_is_given(caller: Caller, accept: dict[str, str]) -> None:
    await caller.deploy()
    expected = (await caller.http.get("/jobModel?job=flight-delays")).json()
    caller.http.headers.pop("accept")
    for url in ("/", "/jobs/flight-delays/", "/jobModel"):
        answer = await caller.http.get(url, headers=accept)
        assert (answer.json(), answer.headers["content-type"]) == (expected, "application/json"), url
        etag = answer.headers["etag"]
        assert (await caller.http.get(url, headers={"If-None-Match": etag})).status_code == 304


async def test_with_several_jobs_each_is_read_from_its_own_url(caller: Caller) -> None:
    await caller.deploy()
    await other_job(caller)
    for path in ("/", "/jobModel", "/locality", "/drains"):
        refused = await caller.http.get(path)
        assert problem_slug(refused) == (422, "bad-request"), path
        assert "/jobs/NAME/" in refused.json()["detail"]
    for job in ("other", "flight-delays"):
        assert (await SamzaContainer(caller.http, f"/jobs/{job}/").model())["config"]["job.name"] == job


async def test_without_a_job_there_is_no_model(caller: Caller) -> None:
    assert problem_slug(await caller.http.get("/")) == (404, "unknown-job")
    assert problem_slug(await caller.http.get("/jobs/flight-delays/")) == (404, "no-job-model")


# --- localities ------------------------------------------------------------------------------------------------------


async def hosts(caller: Caller, path: str = "/jobs/flight-delays/locality") -> list[str]:
    return [each["host"] for each in (await caller.http.get(path)).json()["processor-localities"].values()]


async def test_a_new_run_keeps_the_hosts_of_the_slots_of_the_runs_before(caller: Caller) -> None:
    first = str((await caller.deploy(run_body(containers=2)))["runId"])
    await caller.registered(first, "a0", "0")
    await caller.registered(first, "a1", "1")
    second = str((await caller.deploy(run_body(containers=2)))["runId"])
    assert await hosts(caller) == ["host-of-a0", "host-of-a1"]
    await caller.registered(second, "b1", "1")
    assert await hosts(caller, "/locality") == ["host-of-a0", "host-of-b1"]
    await caller.deploy(run_body(containers=1))
    assert await hosts(caller) == ["host-of-a0"]
    await caller.deploy(run_body(containers=2))
    assert await hosts(caller) == ["host-of-a0", "host-of-b1"]
    one = await caller.http.get("/jobs/flight-delays/locality?processorId=1")
    assert one.json() == {"id": "1", "host": "host-of-b1", "jmx-url": "", "jmx-tunneling-url": ""}


# --- drains ----------------------------------------------------------------------------------------------------------


def notification(run_id: str, uuid: str = CHOSEN) -> Json:
    return {"uuid": uuid, "runId": run_id, "drainMode": "DEFAULT"}


async def test_a_drain_notification_starts_the_drain_that_it_names(caller: Caller) -> None:
    run = await running(caller)
    first = await caller.http.post("/drain", json=notification(run.run_id, CHOSEN.upper()))
    assert (first.status_code, first.json()["uuid"]) == (202, CHOSEN)
    again = await caller.http.post("/drain", json=notification(run.run_id))
    assert (again.status_code, again.json()["uuid"]) == (200, CHOSEN)
    assert (await caller.http.get(f"/drain/{CHOSEN}")).json()["phase"] == "STOPPING"
    assert [each["uuid"] for each in (await caller.http.get("/drains")).json()["drains"]] == [CHOSEN]


async def test_a_notification_that_is_repeated_after_its_drain_was_cancelled_starts_no_other(caller: Caller) -> None:
    run = await running(caller)
    await caller.http.post("/drain", json=notification(run.run_id))
    await caller.http.delete(f"/drain/{CHOSEN}")
    again = await caller.http.post("/drain", json=notification(run.run_id))
    assert (again.status_code, again.json()["phase"]) == (200, "CANCELLED")
    assert (await caller.run(run.run_id))["state"] == "RUNNING"


async def test_a_run_that_drains_keeps_its_drain_when_another_notification_arrives(caller: Caller) -> None:
    run = await running(caller)
    await run.requested()
    other = await caller.http.post("/drain", json=notification(run.run_id))
    assert (other.status_code, other.json()["uuid"]) == (200, run.uuid)
    assert (await caller.http.get(f"/drain/{CHOSEN}")).status_code == 404


async def test_the_id_of_another_runs_drain_is_refused(caller: Caller) -> None:
    run = await running(caller)
    await caller.http.post("/drain", json=notification(run.run_id))
    answer = await caller.http.post("/drain", json=notification(await other_job(caller)))
    assert problem_slug(answer) == (409, "drain-id-in-use")


@pytest.mark.parametrize("uuid", ["", "1", "../x", 7, [CHOSEN]])
async def test_an_id_that_is_not_a_uuid_is_refused(caller: Caller, uuid: Any) -> None:
    run = await running(caller)
    answer = await caller.http.post("/drain", json={**notification(run.run_id), "uuid": uuid})
    assert problem_slug(answer) == (422, "invalid-request")
    assert (await caller.run(run.run_id))["state"] == "RUNNING"


# --- broadcast partitions --------------------------------------------------------------------------------------------


async def test_single_partitions_of_an_input_are_broadcast(caller: Caller) -> None:
    caller.log.create("flags", 3)
    inputs = [{"name": "flights", "system": "log"}, {"name": "flags", "system": "log", "broadcast": "#0,#[1-1]"}]
    stages = [{"name": "hourly", "reads": ["flights", "flags"], "writes": ["delays"]}]
    body = run_body(inputs=inputs, stages=stages, config={"backup.stores": ""})
    refused = await caller.http.post("/runs", json=body)
    assert problem_slug(refused)[1] == "not-co-partitioned"  # flights has two partitions
    body["stages"] = [{"name": "hourly", "reads": ["flights"], "writes": ["delays"]}, {"name": "marks", "reads": ["flags"]}]
    run = await caller.deploy(body)
    assert [(each["broadcast"], each["broadcastPartitions"]) for each in run["streams"][:2]] == [(False, []), (False, [0, 1])]
    tasks = (await SamzaContainer(caller.http, "/").model())["containers"]["0"]["tasks"]
    read = {
        name: sorted((s["stream"], s["partition"]) for s in task["system-stream-partitions"] if s["stream"] == "flags")
        for name, task in tasks.items()
    }
    both = [("flags", 0), ("flags", 1)]
    assert read == {"Partition 0": both, "Partition 1": both, "Partition 2": [*both, ("flags", 2)]}
    request = (await caller.http.get(f"/runs/{run['runId']}/request")).json()
    assert request["inputs"][1]["broadcast"] == "#[0-1]"


@pytest.mark.parametrize("text", ["#", "0", "#[3-1]", "#[0-", "#0#1", "#1000000", "flags#0"])
async def test_an_invalid_spelling_of_partitions_is_refused(caller: Caller, text: str) -> None:
    answer = await caller.http.post("/runs", json=run_body(inputs=[{"name": "flights", "system": "log", "broadcast": text}]))
    assert problem_slug(answer) == (422, "invalid-request")


async def test_a_partition_that_the_stream_does_not_have_is_refused(caller: Caller) -> None:
    answer = await caller.http.post("/runs", json=run_body(inputs=[{"name": "flights", "system": "log", "broadcast": "#2"}]))
    assert problem_slug(answer) == (422, "bad-grouping")
    assert "has 2 partitions" in answer.json()["detail"]


# --- snapshots -------------------------------------------------------------------------------------------------------


async def test_a_checkpoint_id_as_samza_spells_it_is_accepted(caller: Caller) -> None:
    run = await running(caller, config={})
    lineage = (await caller.run(run.run_id))["tasks"][0]["stages"][0]["lineage"]
    index = "jobs/flight-delays/Partition_0/hourly/snapshots/1700000000001-00000000000000aa"
    body = {
        "generation": 1,
        "lineage": lineage,
        "batchId": 7,
        "offsets": [],
        "checkpointId": "1700000002000-24880",
        "markers": {"local": {"index": index, "previous": None}},
    }
    answer = await caller.http.post(f"/runs/{run.run_id}/tasks/Partition 0/stages/hourly/snapshots", json=body)
    assert (answer.status_code, answer.json()["checkpointId"]) == (200, "1700000002000-24880")
    detail = await caller.http.get("/jobs/flight-delays/snapshots/1700000002000-24880", params={"task": "Partition 0", "stage": "hourly"})
    assert detail.status_code == 200


# --- changelog partitions --------------------------------------------------------------------------------------------


async def test_the_changelog_partition_of_a_task_that_vanished_is_not_given_to_another(caller: Caller) -> None:
    await caller.deploy()
    model = await SamzaContainer(caller.http, "/").model()
    assert changelogs(model) == {"Partition 0": 0, "Partition 1": 1}
    for grouper, expected in (
        ("AllSspToSingleTask", {"Task-0": 2}),
        ("GroupByPartition", {"Partition 0": 3, "Partition 1": 4}),
        ("AllSspToSingleTask", {"Task-0": 5}),
    ):
        await caller.deploy(run_body(grouper=grouper, start="latest"))
        model = await SamzaContainer(caller.http, "/").model()
        assert (changelogs(model), model["max-change-log-stream-partitions"]) == (expected, 1 + max(expected.values()))


def changelogs(model: Json) -> dict[str, int]:
    return {name: task["changelog-partition"] for each in model["containers"].values() for name, task in each["tasks"].items()}


# --- tokens ------------------------------------------------------------------------------------------------------------


BEARER = "Authorization"


@pytest.fixture
async def guarded(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    """A coordinator that needs tokens, except from this machine for the job flight-delays."""
    networks = {"flight-*": ["127.0.0.0/8"], "other": ["10.0.0.0/8"]}
    async with calling(tmp_path, clock, authentication=True, samza_networks=networks) as made:
        made.log.create("flights", 2)
        yield made


async def use(caller: Caller, *roles: Role) -> None:
    """Send a token with these roles with all further requests; none without roles."""
    caller.http.headers.pop(BEARER, None)
    if roles:
        token = (await caller.coordinator.authentication.tokens.create("test", Grant(frozenset(roles)), None, "test")).token
        caller.http.headers[BEARER] = f"Bearer {token}"


async def test_a_container_in_an_open_network_needs_no_token(guarded: Caller) -> None:
    await use(guarded, Role.ADMIN, Role.LAUNCHER)
    run_id = str((await guarded.deploy())["runId"])
    await launched(guarded, run_id)
    await use(guarded)
    for url in ("/", "/jobs/flight-delays/"):
        named = SamzaContainer(guarded.http, url)
        assert await named.alive()
        assert (await named.model())["config"]
        assert (await guarded.http.get(f"{url}locality")).status_code == 200
        assert not await SamzaContainer(guarded.http, url, "unknown").alive()
    assert (await guarded.http.get("/jobModel")).status_code == 200
    for path in (f"/runs/{run_id}", "/jobs", "/jobs/flight-delays/models", "/metrics"):
        assert (await guarded.http.get(path)).status_code == 401, path
    assert (await guarded.register(run_id, "c2", bare=True)).status_code == 401
    await use(guarded, Role.AGENT)
    assert (await guarded.register(run_id, "c2", bare=True)).status_code == 403, "only a launcher registers bare containers"
    guarded.http.headers[BEARER] = "Bearer wrong"
    assert (await guarded.http.get("/jobModel")).status_code == 401, "a wrong token is not the same as none"


async def test_only_bare_containers_of_the_named_jobs_need_no_token(guarded: Caller) -> None:
    await use(guarded, Role.ADMIN, Role.LAUNCHER, Role.AGENT)
    run_id = str((await guarded.deploy())["runId"])
    await guarded.registered(run_id, "ours")
    other = await other_job(guarded)
    await guarded.registered(other, "theirs", bare=True)
    await use(guarded)
    for execution_id in ("ours", "theirs"):
        for url in ("/", "/jobs/flight-delays/", "/jobs/other/"):
            answer = await guarded.http.get(f"{url}containerHeartbeat?executionContainerId={execution_id}", headers={"Sluice-Epoch": "1"})
            assert answer.status_code == 401, (url, execution_id)
    for path in ("/jobs/other/", "/jobs/other/locality", "/jobModel?job=other", "/locality?job=other"):
        assert (await guarded.http.get(path)).status_code == 401, path
    assert (await guarded.http.get("/jobModel?job=flight-delays")).status_code == 200


async def test_no_network_is_open_by_default(tmp_path: Path, clock: FakeClock) -> None:
    async with calling(tmp_path, clock, authentication=True) as caller:
        for path in ("/", "/jobModel", "/locality", "/jobs/x/", "/containerHeartbeat?executionContainerId=c"):
            assert (await caller.http.get(path)).status_code == 401


@pytest.mark.parametrize("url", ["/", "/jobs/flight-delays/", "/jobs/other/"])
async def test_two_ids_in_one_heartbeat_renew_no_lease(guarded: Caller, clock: FakeClock, url: str) -> None:
    await use(guarded, Role.ADMIN, Role.LAUNCHER, Role.AGENT)
    run_id = str((await guarded.deploy())["runId"])
    await guarded.registered(run_id, "ours")  # has a token of its own
    other = await other_job(guarded)
    await guarded.registered(other, "theirs", bare=True)  # of a job for whose heartbeats 127.0.0.1 is not admitted
    await use(guarded)
    leases = guarded.coordinator.api.state.parts.leases
    clock.advance(20)
    found = {}
    for name, headers in (("ours", {"Sluice-Epoch": "1"}), ("theirs", {})):
        before = leases.left(name)
        query = f"executionContainerId=unknown&executionContainerId={name}"
        answer = await guarded.http.get(f"{url}containerHeartbeat?{query}", headers=headers)
        found[name] = (answer.status_code, answer.text, leases.left(name) > before)
    assert not any(renewed for _, _, renewed in found.values()), found
