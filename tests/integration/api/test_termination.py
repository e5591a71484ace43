"""Exits that a launcher reports, and containers that it declares invalid: when their tasks are free."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from sluice.core.access.roles import Role
from sluice.core.access.tokens import Grant
from tests.support.api import Caller, calling, problem_slug
from tests.support.fakes import FakeClock

LONG = 3600
"""Seconds after which every lease and grace period has expired."""


@dataclass
class Held:
    """A coordinator that needs tokens, with a task that container c1 owns."""

    caller: Caller
    run_id: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    """By role; c1 and c2 are those of containers."""

    async def post(self, who: str, path: str, **body: object) -> httpx.Response:
        return await self.caller.http.post(path, json=body, headers={"Authorization": f"Bearer {self.tokens[who]}"})

    async def exit(self, who: str, **body: object) -> httpx.Response:
        return await self.post(who, "/containers/c1/exit", exitCode=137, reason="out of memory", **body)

    async def invalidate(self, who: str = "launcher", name: str = "c1") -> httpx.Response:
        return await self.post(who, f"/containers/{name}/invalidate", reason="its node was drained")

    async def register(self, name: str) -> None:
        body = {"processorId": "0", "executionContainerId": name, "host": "h"}
        answer = await self.post("agent", f"/runs/{self.run_id}/containers", **body)
        assert answer.status_code == 201, answer.text
        self.tokens[name] = answer.json()["token"]

    async def acquire(self, name: str, epoch: int) -> int:
        """The status of the answer: 200 if the task is free, 202 if the container must wait."""
        path = f"/runs/{self.run_id}/tasks/Partition 0/acquire"
        return (await self.post(name, path, executionContainerId=name, epoch=epoch)).status_code

    async def alive(self) -> bool:
        """Whether the heartbeat of c1 is answered with true."""
        headers = {"Authorization": f"Bearer {self.tokens['c1']}", "Sluice-Epoch": "1"}
        answer = await self.caller.http.get("/containerHeartbeat?executionContainerId=c1", headers=headers)
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["alive"])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def there(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Held]:
    async with calling(tmp_path, clock, authentication=True, allowed_hosts=("c",)) as caller:
        held, tokens = Held(caller), caller.coordinator.authentication.tokens
        for role in Role:
            held.tokens[role.value] = (await tokens.create(role.value, Grant(frozenset({role})), None, "test")).token
        caller.http.headers["Authorization"] = f"Bearer {held.tokens['admin']}"
        caller.log.create("flights", 2)
        held.run_id = str((await caller.deploy())["runId"])
        await held.register("c1")
        assert await held.acquire("c1", 1) == 200
        assert await held.alive()
        yield held


async def test_an_exit_that_a_launcher_confirms_frees_the_tasks_at_once(there: Held) -> None:
    answer = await there.exit("launcher", terminated=True)
    assert (answer.status_code, answer.json()["state"]) == (200, "EXITED")
    await there.register("c2")
    assert await there.acquire("c2", 2) == 200


@pytest.mark.parametrize("who", ["launcher", "admin"])
async def test_an_exit_that_nobody_confirms_frees_the_tasks_after_lease_and_grace_only(there: Held, clock: FakeClock, who: str) -> None:
    answer = await there.exit(who)
    assert (answer.status_code, answer.json()["state"]) == (200, "REPLACED")
    assert not await there.alive()
    await there.register("c2")
    assert await there.acquire("c2", 2) == 202
    clock.advance(LONG)
    await there.register("c3")
    assert await there.acquire("c3", 3) == 200


async def test_an_exit_is_confirmed_after_it_was_reported(there: Held) -> None:
    await there.exit("launcher")
    answer = await there.exit("launcher", terminated=True)
    assert (answer.status_code, answer.json()["exitCode"]) == (200, 137)
    await there.register("c2")
    assert await there.acquire("c2", 2) == 200


async def test_a_container_confirms_its_own_exit(there: Held) -> None:
    assert (await there.exit("c1")).json()["state"] == "EXITED"
    await there.register("c2")
    assert await there.acquire("c2", 2) == 200


async def test_an_invalid_container_is_told_by_its_next_heartbeat_and_keeps_its_tasks_until_its_exit(there: Held) -> None:
    answer = await there.invalidate()
    assert (answer.status_code, answer.json()["state"], answer.json()["reason"]) == (200, "REPLACED", "its node was drained")
    assert not await there.alive()
    assert await there.acquire("c1", 1) == 409
    await there.register("c2")
    assert await there.acquire("c2", 2) == 202
    assert (await there.exit("c1")).status_code == 200
    assert await there.acquire("c2", 2) == 200


async def test_an_invalid_container_without_an_exit_loses_its_tasks_after_lease_and_grace(there: Held, clock: FakeClock) -> None:
    await there.invalidate("admin")
    clock.advance(LONG)
    assert not await there.alive()
    await there.register("c2")
    assert await there.acquire("c2", 2) == 200


async def test_an_invalid_container_is_invalid_after_a_restart_of_the_coordinator(tmp_path: Path, clock: FakeClock) -> None:
    async with calling(tmp_path, clock) as caller:
        caller.log.create("flights", 2)
        run_id = str((await caller.deploy())["runId"])
        await caller.registered(run_id, "c1")
        await caller.acquired(run_id, "c1")
        assert (await caller.http.post("/containers/c1/invalidate", json={"reason": "its node was drained"})).status_code == 200
    async with calling(tmp_path, clock) as caller:
        assert not await caller.alive("c1", 1)
        await caller.registered(run_id, "c2")
        assert (await caller.acquire(run_id, "c2", 2)).status_code == 202


async def test_a_container_that_has_ended_does_not_change(there: Held) -> None:
    await there.exit("launcher", terminated=True)
    for again in (await there.exit("launcher"), await there.invalidate()):
        assert (again.status_code, again.json()["state"], again.json()["reason"]) == (200, "EXITED", "out of memory")


async def test_only_launchers_and_administrators_declare_containers_invalid(there: Held) -> None:
    for who in ("viewer", "operator", "deployer", "agent", "metrics", "c1"):
        assert problem_slug(await there.invalidate(who)) == (403, "forbidden"), who
    assert await there.alive()
    assert problem_slug(await there.invalidate(name="unknown")) == (404, "unknown-container")


async def test_the_audit_log_has_who_declared_a_container_invalid(there: Held) -> None:
    await there.invalidate()
    events = (await there.caller.http.get("/audit-log")).json()["events"]
    found = [(each["actor"], each["job"], each["status"]) for each in events if each["action"].endswith("/invalidate")]
    assert found == [("launcher", "flight-delays", 200)]


async def test_without_authentication_every_report_of_an_exit_frees_the_tasks(tmp_path: Path, clock: FakeClock) -> None:
    async with calling(tmp_path, clock) as caller:
        caller.log.create("flights", 2)
        run_id = str((await caller.deploy())["runId"])
        await caller.registered(run_id, "c1")
        await caller.acquired(run_id, "c1")
        await caller.exited("c1")
        await caller.registered(run_id, "c2")
        await caller.acquired(run_id, "c2", 2)
