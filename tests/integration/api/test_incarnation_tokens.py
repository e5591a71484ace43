"""What a container may do with the token that it got when it registered, and what others may not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from sluice.client.agents import AgentClient
from sluice.core.access.roles import Role
from sluice.core.access.tokens import SECRET_BYTES, Grant, new_incarnation_token
from sluice.core.ids import ExecutionContainerId, RunId
from sluice.wire.agents import RegisterRequest
from tests.integration.api.test_containers import chosen_token
from tests.support.api import Caller, calling, problem_slug, run_body
from tests.support.fakes import FakeClock
from tests.support.servers import Postgres

FIRST, SECOND = "Partition 0", "Partition 1"


@dataclass
class Guarded:
    """A coordinator that needs tokens, with a run of two slots."""

    caller: Caller
    run_id: str = ""
    roles: dict[str, str] = field(default_factory=dict)
    """Identity tokens by name."""

    def use(self, token: str) -> None:
        self.caller.http.headers["Authorization"] = f"Bearer {token}"

    async def register(self, execution_id: str, slot: str = "0", who: str = "agent", **more: object) -> httpx.Response:
        self.use(self.roles[who])
        return await self.caller.register(self.run_id, execution_id, slot, **more)

    async def registered(self, execution_id: str, slot: str = "0", who: str = "agent") -> str:
        """The token of the new incarnation, which is used from now on."""
        answer = await self.register(execution_id, slot, who)
        assert answer.status_code == 201, answer.text
        token: str = answer.json()["token"]
        self.use(token)
        return token

    async def exit(self, execution_id: str) -> httpx.Response:
        return await self.caller.http.post(f"/containers/{execution_id}/exit", json={"exitCode": 0})


@asynccontextmanager
async def serving(home: Path, clock: FakeClock, **settings: object) -> AsyncIterator[Guarded]:
    async with calling(home, clock, authentication=True, allowed_hosts=("c",), **settings) as caller:
        found = Guarded(caller)
        tokens = caller.coordinator.authentication.tokens
        for name, roles in {"admin": set(Role), "agent": {Role.AGENT}, "other": {Role.AGENT}, "launcher": {Role.LAUNCHER}}.items():
            found.roles[name] = (await tokens.create(name, Grant(frozenset(roles)), None, "test")).token
        found.use(found.roles["admin"])
        jobs = (await caller.http.get("/jobs")).json()["jobs"]
        if jobs:
            found.run_id = jobs[0]["currentRun"]
        else:
            caller.log.create("flights", 2)
            found.run_id = (await caller.deploy(run_body(containers=2)))["runId"]
        yield found


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with serving(tmp_path, FakeClock()) as made:
        yield made


async def test_a_container_works_with_its_own_token(there: Guarded) -> None:
    await there.registered("c1")
    caller, run = there.caller, there.run_id
    assert (await caller.http.get(f"/runs/{run}?view=basic")).status_code == 200
    assert (await caller.http.get("/jobModel?job=flight-delays")).status_code == 200
    assert await caller.alive("c1", 1)
    held = await caller.acquired(run, "c1")
    lineage = held["stages"][0]["lineage"]
    assert (await caller.progress(run, held["generation"], lineage, 0)).status_code == 204
    assert (await caller.release(run, held["generation"])).status_code == 204
    assert (await there.exit("c1")).status_code == 200


async def test_an_identity_cannot_send_the_requests_of_a_container(there: Guarded) -> None:
    await there.registered("c1")
    generation = (await there.caller.acquired(there.run_id, "c1"))["generation"]
    for who in ("agent", "admin"):
        there.use(there.roles[who])
        assert (await there.caller.beat("c1", 1)).status_code == 403
        assert (await there.caller.acquire(there.run_id, "c1")).status_code == 403
        assert (await there.caller.release(there.run_id, generation)).status_code == 403
    there.use(there.roles["agent"])
    assert (await there.exit("c1")).status_code == 403


async def test_a_container_cannot_act_for_another_one(there: Guarded) -> None:
    mine = await there.registered("c1", "0")
    generation = (await there.caller.acquired(there.run_id, "c1"))["generation"]
    await there.registered("c2", "1")
    caller, run = there.caller, there.run_id
    assert problem_slug(await caller.beat("c1", 1)) == (403, "forbidden")
    assert problem_slug(await caller.acquire(run, "c1")) == (403, "forbidden")
    assert problem_slug(await caller.release(run, generation)) == (409, "lease-lost")
    assert problem_slug(await there.exit("c1")) == (403, "forbidden")
    adopted = await caller.http.post(f"/runs/{run}/containers/c1/adopted", json={"version": 1, "epoch": 1})
    assert problem_slug(adopted) == (403, "forbidden")
    assert problem_slug(await caller.stop(run)) == (403, "forbidden")
    assert problem_slug(await caller.http.get("/runs/another/notices")) == (403, "forbidden")
    there.use(mine)
    assert await caller.alive("c1", 1)
    assert (await caller.release(run, generation)).status_code == 204


async def test_a_replaced_container_is_refused_although_its_generation_is_the_newest(there: Guarded) -> None:
    old = await there.registered("old")
    generation = (await there.caller.acquired(there.run_id, "old"))["generation"]
    new = await there.registered("new")
    there.use(old)
    assert not await there.caller.alive("old", 1)
    assert problem_slug(await there.caller.progress(there.run_id, generation, "x", 0)) == (409, "lease-lost")
    assert problem_slug(await there.caller.acquire(there.run_id, "old")) == (409, "lease-lost")
    assert problem_slug(await there.exit("new")) == (403, "forbidden")
    assert (await there.exit("old")).status_code == 200
    there.use(new)
    assert await there.caller.alive("new", 2)


async def test_only_the_same_principal_may_repeat_a_registration_and_it_gets_a_new_token(there: Guarded) -> None:
    first = await there.registered("c1")
    second = await there.registered("c1")
    assert first != second
    assert await there.caller.alive("c1", 1)
    there.use(first)
    assert (await there.caller.beat("c1", 1)).status_code == 401
    assert problem_slug(await there.register("c1", who="other")) == (403, "forbidden")
    there.use(second)
    assert await there.caller.alive("c1", 1)


async def test_a_registration_that_arrives_a_second_time_does_not_change_the_token(there: Guarded) -> None:
    """A proxy repeats it, or it was delayed, and the container has sent it again in the meantime."""
    way, identity = httpx.ASGITransport(there.caller.coordinator.api), there.roles["agent"]
    client, request = AgentClient("http://c", way, token=lambda: identity), RegisterRequest(processor_id="0", execution_container_id="c1")
    first = await client.register(RunId(there.run_id), request)
    assert await client.register(RunId(there.run_id), request) == first
    there.use(str(first.token))
    assert await there.caller.alive("c1", 1)


async def test_a_registration_without_a_token_does_not_replace_a_chosen_one(there: Guarded) -> None:
    """Another process has the id of the container, and the agent token of its job."""
    token = chosen_token("c1")
    assert (await there.register("c1", token=token)).status_code == 201
    assert problem_slug(await there.register("c1")) == (409, "id-in-use")
    assert problem_slug(await there.register("c1", token=chosen_token("c1", b"2" * SECRET_BYTES))) == (409, "id-in-use")
    assert (await there.register("c1", token=token)).status_code == 201, "it repeats its registration"
    there.use(token)
    assert await there.caller.alive("c1", 1)


async def test_a_container_that_was_given_a_token_may_choose_it(there: Guarded) -> None:
    token = await there.registered("c1")
    assert problem_slug(await there.register("c1", token=chosen_token("c1"))) == (409, "id-in-use")
    assert (await there.register("c1", token=token)).json()["token"] == token
    assert problem_slug(await there.register("c1")) == (409, "id-in-use")
    there.use(token)
    assert await there.caller.alive("c1", 1)


async def test_a_restarted_coordinator_knows_that_a_token_was_chosen(tmp_path: Path) -> None:
    clock, token = FakeClock(), chosen_token("c1")
    async with serving(tmp_path, clock) as there:
        assert (await there.register("c1", token=token)).status_code == 201
    async with serving(tmp_path, clock) as there:
        assert problem_slug(await there.register("c1")) == (409, "id-in-use")
        there.use(token)
        assert await there.caller.alive("c1", 1)


async def test_no_other_token_renews_a_lease(there: Guarded) -> None:
    token = await there.registered("c1")
    http = there.caller.http
    del http.headers["Authorization"]
    url, answered = "/containerHeartbeat?executionContainerId=c1", there.caller.coordinator.api.state.parts.leases.answered_alive
    prefix, secret, name = token.split(".")
    wrong = ["", "Bearer", f"Bearer {token[:-1]}", f"Bearer {token}.", f"Bearer {prefix}.{secret[::-1]}.{name}", f"Bearer {prefix}..{name}"]
    wrong += [f"Bearer {prefix}.{secret}.", f"Bearer {prefix}.{secret}.!!!", token, f"Bearer {'i' * 20_00}"]
    for value in wrong:
        assert (await http.get(url, headers={"Authorization": value, "Sluice-Epoch": "1"})).status_code == 401, value
    doubled = [(b"authorization", f"Bearer {token}".encode())] * 2
    assert (await http.get(url, headers=doubled)).status_code == 401
    assert there.caller.coordinator.api.state.parts.leases.answered_alive == answered


@pytest.mark.real_time
async def test_a_name_that_cannot_be_stored_is_refused_before_it_is_looked_up(tmp_path: Path, postgres_server: Postgres) -> None:
    async with serving(tmp_path, FakeClock(), database_url=postgres_server.new_database()) as there:
        await there.registered("c1")
        http, run = there.caller.http, there.run_id
        for action in ("progress", "release", "stages/s/failure", "stages/s/snapshots"):
            answer = await http.post(f"/runs/{run}/tasks/a%00b/{action}", json={})
            assert problem_slug(answer) == (422, "invalid-request"), answer.text
        for path in ("/runs/a%00b?view=basic", "/jobs/a%00b/snapshots", "/containerHeartbeat?executionContainerId=c1%00"):
            assert problem_slug(await http.get(path)) == (422, "invalid-request"), path
        there.use(new_incarnation_token(ExecutionContainerId("a\0b"), b"x" * SECRET_BYTES))
        assert problem_slug(await http.get(f"/runs/{run}")) == (401, "not-authenticated")


async def test_a_token_is_valid_after_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    clock = FakeClock()
    async with serving(tmp_path, clock) as there:
        token = await there.registered("c1")
    async with serving(tmp_path, clock) as there:
        there.use(token)
        assert await there.caller.alive("c1", 1)
        assert (await there.caller.acquire(there.run_id, "c1")).status_code == 200
        content = b"".join(file.read_bytes() for file in tmp_path.glob("coordinator.db*"))  # noqa: ASYNC240
        assert token.split(".")[1].encode() not in content


async def test_only_a_launcher_registers_containers_that_send_no_tokens_and_reports_exits_of_others(there: Guarded) -> None:
    assert problem_slug(await there.register("bare", bare=True)) == (403, "forbidden")
    assert (await there.register("bare", who="launcher", bare=True)).status_code == 201
    assert (await there.exit("bare")).status_code == 200


async def test_no_answer_shows_the_token_of_a_container(there: Guarded) -> None:
    token = await there.registered("c1")
    there.use(there.roles["admin"])
    for path in (f"/runs/{there.run_id}", f"/runs/{there.run_id}/containers", "/jobs", "/metrics", "/prometheus/targets"):
        text = (await there.caller.http.get(path)).text
        assert token.split(".")[1] not in text
        assert '"token"' not in text
    assert '"token"' not in (await there.exit("c1")).text


async def test_without_authentication_containers_of_the_previous_release_need_no_token(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        caller.log.create("flights", 2)
        run = await caller.deploy()
        await caller.registered(run["runId"], "c1")
        assert await caller.alive("c1", 1)
        await caller.acquired(run["runId"], "c1")
        await caller.exited("c1")


async def test_only_a_running_container_gets_the_credentials_of_blob_stores_for_its_own_run(there: Guarded) -> None:
    mine = await there.registered("c1")
    path = f"/runs/{there.run_id}/blob-stores/local/credentials"
    assert problem_slug(await there.caller.http.get(path)) == (409, "no-store-role"), "it is admitted"
    for who in there.roles.values():
        there.use(who)
        assert problem_slug(await there.caller.http.get(path)) == (403, "forbidden")
    there.use(there.roles["admin"])
    there.caller.log.create("trains", 1)
    other = await there.caller.deploy(run_body(job="trains", inputs=[{"name": "trains", "system": "log"}], stages=OF_TRAINS))
    there.use(mine)
    refused = await there.caller.http.get(f"/runs/{other['runId']}/blob-stores/local/credentials")
    assert problem_slug(refused) == (403, "forbidden")
    await there.registered("c2")
    there.use(mine)
    assert problem_slug(await there.caller.http.get(path)) == (409, "lease-lost")
    del there.caller.http.headers["Authorization"]
    assert problem_slug(await there.caller.http.get(path)) == (401, "not-authenticated")


OF_TRAINS = [{"name": "hourly", "reads": ["trains"], "writes": ["delays"]}]
