"""Tokens and roles: who may send which request, and that there is no way around it."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter

from coordinator.api import all_routers, new_api
from coordinator.api.access import OPEN, RULES, GuardedRoute, JobSource
from coordinator.identity.tokens import PruneTokens
from coordinator.ui import routes as ui
from sluice.core.access.roles import Role
from sluice.core.access.tokens import BAD_LOGINS, Grant, TokenId
from tests.support.api import Caller, calling, problem_slug, run_body
from tests.support.fakes import FakeClock
from tests.support.processes import ROOT

IN_PATHS = {"executionContainerId:path": "c1", "version": "1", "path:path": "", "later": "1", "uuid": "no-drain", "file": "start.js"}


@dataclass(frozen=True)
class Guarded:
    """A coordinator that needs tokens, with one job."""

    caller: Caller
    clock: FakeClock
    run_id: str

    @property
    def http(self) -> httpx.AsyncClient:
        return self.caller.http

    async def token(self, *roles: Role, jobs: tuple[str, ...] = ("*",), lasts: timedelta | None = None) -> str:
        name = f"{'-'.join(roles)} of {jobs[0]}"
        return (await self.caller.coordinator.authentication.tokens.create(name, Grant(frozenset(roles), jobs), lasts, "test")).token

    async def request(self, request: str, token: str, **more: Any) -> httpx.Response:
        """`request`: an entry of the table."""
        method, path = request.split(" ")
        for name, value in {**IN_PATHS, "runId": self.run_id, "job": "flight-delays"}.items():
            path = path.replace("{" + name + "}", value)
        path = path.replace("{", "").replace("}", "")
        query = {"executionContainerId": "c1"} if path.endswith("containerHeartbeat") else {}
        query |= {"job": "flight-delays"} if RULES[request].job is JobSource.QUERY else {}
        query |= {"wait": "0"} if path.endswith("notices") else {}
        query |= {RULES[request].unless_query: "1"} if RULES[request].unless_query else {}
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await self.http.request(method, path, params=query, headers=headers, **more)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    clock = FakeClock()
    async with calling(tmp_path, clock, authentication=True) as caller:
        caller.log.create("flights", 2)
        made = await caller.coordinator.authentication.tokens.create("setup", Grant(frozenset(Role)), None, "test")
        caller.http.headers["Authorization"] = f"Bearer {made.token}"
        run = await caller.deploy()
        await caller.registered(run["runId"], "c1")
        del caller.http.headers["Authorization"]
        yield Guarded(caller, clock, run["runId"])


def test_the_table_has_an_entry_for_every_route_and_no_others() -> None:
    routes = [each for router in (*all_routers(), ui.router) for each in router.routes]
    assert all(isinstance(each, GuardedRoute) for each in routes)
    assert {f"{method} {each.path}" for each in routes if isinstance(each, GuardedRoute) for method in each.methods or ()} == set(RULES)
    assert len(new_api().routes) == len(all_routers())


def test_a_route_without_an_entry_in_the_table_cannot_be_added() -> None:
    router = APIRouter(route_class=GuardedRoute)
    with pytest.raises(KeyError, match="GET /open"):
        router.add_api_route("/open", lambda: None)


def test_an_administrator_may_send_every_request_that_an_operator_or_a_deployer_may() -> None:
    for rule in RULES.values():
        assert not rule.roles & {Role.VIEWER, Role.OPERATOR, Role.DEPLOYER} or Role.ADMIN in rule.roles


def test_requests_that_need_no_token_show_and_change_nothing() -> None:
    assert {request for request, rule in RULES.items() if rule == OPEN} == {
        *("GET /livez", "HEAD /livez", "GET /docs", "GET /docs/{file}", "GET /openapi.json"),
        *("GET /ui", "GET /ui/static/{file}", "POST /ui/login", "POST /ui/logout"),
        *("GET /ui/login/{provider}", "GET /ui/login/{provider}/callback", "GET /identity-providers"),
    }


def test_the_page_about_roles_agrees_with_the_table() -> None:
    subprocess.run([sys.executable, "scripts/roles.py", "--check"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


LOGIN_CALLBACK = "GET /ui/login/{provider}/callback"


async def test_each_role_may_send_the_requests_in_the_table_and_no_others(guarded: Guarded) -> None:
    tokens = {role: await guarded.token(role) for role in Role}
    for request, rule in RULES.items():
        if not rule.is_open:
            assert (await guarded.request(request, "")).status_code == 401, request
        for role, token in tokens.items():
            answer = await guarded.request(request, token)
            if request == LOGIN_CALLBACK:
                assert answer.status_code == 401, "the login was begun by nobody"
            elif not rule.is_open and role not in rule.roles:
                assert answer.status_code == 403, (request, role)
            else:
                assert answer.status_code not in (401, 403, 429), (request, role, answer.text)
                assert answer.status_code < 500, (request, role, answer.text)


BODIES: dict[str, Any] = {
    "POST /runs": run_body(),
    "POST /runs/plan": run_body(),
    "POST /jobModel/plan": {"job": "flight-delays", "containers": 2},
}


async def test_a_deployer_sets_a_spark_setting_that_names_code_only_to_the_value_that_an_administrator_set(guarded: Guarded) -> None:
    deployer, admin = [await guarded.token(role) for role in (Role.DEPLOYER, Role.ADMIN)]

    async def status(request: str, token: str, **config: str) -> int:
        return (await guarded.request(request, token, json=run_body() | {"config": config})).status_code

    jars = {"spark.jars": "/opt/library.jar", "spark.executor.memory": "2g"}
    assert await status("POST /runs/plan", deployer, **jars) == 403
    refused = await guarded.request("POST /runs", deployer, json=run_body() | {"config": jars})
    assert refused.status_code == 403
    assert "spark.jars: such a setting can run code" in refused.text
    assert await status("POST /runs", admin, **jars) == 201
    assert await status("POST /runs", deployer, **jars | {"spark.executor.memory": "3g"}) == 201
    assert await status("POST /runs", deployer, **{"spark.jars": "/opt/other.jar"}) == 403


async def test_a_role_is_for_the_jobs_of_its_token_only(guarded: Guarded) -> None:
    ours, theirs = [await guarded.token(*Role, jobs=jobs) for jobs in (("flight-*",), ("flights", "weather-*"))]
    bodies = BODIES | {"POST /drain": {"runId": guarded.run_id}, "POST /drain/plan": {"run_id": guarded.run_id}}
    drain = await guarded.request("POST /drain", ours, json=bodies["POST /drain"])
    assert drain.status_code == 202
    for request, rule in RULES.items():
        if rule.job is not JobSource.ANY and rule.roles:
            content = {"json": bodies[request]} if request in bodies else {}
            path = request.replace("{uuid}", "no-drain")
            answer = await guarded.request(request, theirs, **content)
            assert answer.status_code == 403, (path, answer.text)
            answer = await guarded.request(request, ours, **content)
            refused = rule.job is JobSource.ALL or "{uuid}" in request
            assert (answer.status_code == 403) == refused, (path, answer.text)
    found = f"/drain/{drain.json()['uuid']}"
    assert (await guarded.http.get(found, headers=bearer(ours))).status_code == 200
    assert (await guarded.http.get(found, headers=bearer(theirs))).status_code == 403


async def test_jobs_that_a_token_is_not_for_are_not_listed(guarded: Guarded) -> None:
    ours, theirs = [await guarded.token(Role.VIEWER, jobs=jobs) for jobs in (("flight-*",), ("weather-*",))]
    assert [each["job"] for each in (await guarded.request("GET /jobs", ours)).json()["jobs"]] == ["flight-delays"]
    assert (await guarded.request("GET /jobs", theirs)).json()["jobs"] == []
    assert (await guarded.http.get("/runs", headers=bearer(ours))).status_code == 403
    assert (await guarded.http.get("/drains", headers=bearer(ours))).status_code == 403


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def wrong(token: str) -> Iterator[str]:
    prefix, token_id, secret = token.split(".")
    yield from ("", "x", "Bearer", f"Basic {token}", f"Bearer {token[:-1]}", f"Bearer {token}x", f"Bearer {token} {token}", token)
    yield from (f"Bearer {prefix}.{token_id}.", f"Bearer {prefix}..{secret}", f"Bearer {prefix}.{'0' * len(token_id)}.{secret}")
    yield from (
        f"Bearer {token.swapcase()}",
        f"Bearer {'x' * 10_000}",
        "Bearer \u00e9",
        "Bearer eyJhbGciOiJub25lIn0.eyJyb2xlcyI6WyJhZG1pbiJdfQ.",
    )


async def test_a_token_that_is_not_exactly_right_is_refused(guarded: Guarded) -> None:
    token = await guarded.token(Role.ADMIN)
    for value in wrong(token):
        answer = await guarded.http.get("/jobs", headers=[(b"authorization", value.encode("latin-1"))])
        assert problem_slug(answer) == (401, "not-authenticated"), value
        assert answer.headers["www-authenticate"] == "Bearer"
    both = [(b"authorization", f"Bearer {token}".encode())] * 2
    assert (await guarded.http.get("/jobs", headers=both)).status_code == 401
    assert (await guarded.http.get("/jobs", headers={"Authorization": f"bearer {token}"})).status_code == 200


async def test_an_expired_token_is_refused(guarded: Guarded) -> None:
    token = await guarded.token(Role.VIEWER, lasts=timedelta(hours=1))
    guarded.clock.advance(59 * 60)
    assert (await guarded.request("GET /jobs", token)).status_code == 200
    guarded.clock.advance(120)
    assert (await guarded.request("GET /jobs", token)).status_code == 401


async def test_a_revoked_token_is_refused_and_its_long_polls_end(guarded: Guarded) -> None:
    admin, viewer = await guarded.token(Role.ADMIN), await guarded.token(Role.VIEWER)
    poll = asyncio.create_task(guarded.http.get(f"/runs/{guarded.run_id}/notices?wait=300", headers=bearer(viewer)))
    async with asyncio.timeout(10):
        while not guarded.caller.coordinator.notices.polls:  # noqa: ASYNC110
            await asyncio.sleep(0)
    answer = await guarded.http.delete(f"/tokens/{viewer.split('.')[1]}", headers=bearer(admin))
    assert answer.json()["revokedAt"] is not None
    assert problem_slug(await poll) == (401, "not-authenticated")
    assert (await guarded.request("GET /jobModel", viewer)).status_code == 401
    assert (await guarded.http.delete("/tokens/0000", headers=bearer(admin))).status_code == 404


@pytest.mark.long
async def test_roles_that_change_under_load_hold_from_the_answer_on(guarded: Guarded) -> None:
    """A token is replaced by one with another role while requests with it are sent all the time."""
    admin, metrics = await guarded.token(Role.ADMIN), await guarded.token(Role.METRICS)
    for _ in range(2):
        viewer = await guarded.token(Role.VIEWER)
        revoked, seen = False, set[tuple[str, bool, int]]()

        async def send(name: str, token: str, seen: set[tuple[str, bool, int]]) -> None:
            after = 0
            while after < 2:
                began_after = revoked  # noqa: B023 — of this round, which awaits all of them
                after += began_after
                answer = await guarded.http.get("/jobs", headers=bearer(token))
                seen.add((name, began_after, answer.status_code))
                await asyncio.sleep(0)

        senders = [asyncio.create_task(send(name, token, seen)) for name, token in (("viewer", viewer), ("metrics", metrics)) * 10]
        while not seen:  # noqa: ASYNC110
            await asyncio.sleep(0)
        answer = await guarded.http.delete(f"/tokens/{viewer.split('.')[1]}", headers=bearer(admin))
        assert answer.status_code == 200
        revoked = True
        await asyncio.gather(*senders)
        refused = {status for name, after, status in seen if name == "viewer" and after}
        assert refused
        assert refused <= {401, 429}
        assert {status for name, after, status in seen if name == "viewer" and not after} <= {200, 401, 429}
        assert {status for name, _, status in seen if name == "metrics"} == {403}
        guarded.clock.advance(120)


async def test_wrong_tokens_are_limited_by_address_and_right_ones_are_not(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    token = await guarded.token(Role.VIEWER)
    answers = [await guarded.request("GET /jobs", f"{token[:-8]}{n:08}") for n in range(BAD_LOGINS + 5)]
    assert [each.status_code for each in answers] == [401] * BAD_LOGINS + [429] * 5
    assert problem_slug(answers[-1])[1] == "too-many-bad-tokens"
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60
    assert (await guarded.request("GET /jobs", token)).status_code == 200
    assert len([each for each in caplog.records if "wrong token" in each.message]) == BAD_LOGINS
    assert token.split(".")[2][:8] not in caplog.text
    guarded.clock.advance(120)
    assert (await guarded.request("GET /jobs", "wrong")).status_code == 401


async def test_a_token_in_a_url_is_refused_and_not_repeated(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sluice")
    caplog.set_level(logging.DEBUG, "coordinator")
    token = await guarded.token(Role.ADMIN)
    secret = token.split(".")[2]
    for url in (f"/jobs?access_token={token}", f"/jobs/{token}/pins", f"/nothing/{token}", f"/jobs?x={token.replace('-', '%2D')}"):
        answer = await guarded.http.get(url, headers=bearer(token))
        assert problem_slug(answer) == (400, "token-in-url")
        assert "evoke" in answer.json()["detail"]
        assert secret not in answer.text
    assert secret not in "".join(record.getMessage() for record in caplog.records if record.name != "httpx")


async def test_no_form_of_a_request_avoids_the_table(guarded: Guarded) -> None:
    viewer = await guarded.token(Role.VIEWER)
    stop = f"/runs/{guarded.run_id}/stop"
    for path in (
        stop,
        f"{stop}/",
        f"/{stop}",
        stop.upper(),
        stop.replace("s", "%73"),
        f"/runs/../runs/{guarded.run_id}/stop",
        f"{stop}?verbose",
    ):
        for method in ("POST", "post", "HEAD", "OPTIONS", "PUT"):
            for headers in ({}, bearer(viewer), {**bearer(viewer), "X-HTTP-Method-Override": "POST", "X-Original-URL": stop}):
                answer = await guarded.http.request(method, path, headers=headers)
                assert answer.status_code in (401, 403, 404, 405), (method, path, answer.text)
    for path in ("/metrics", "/readyz?verbose", "/readyz?verbose=", "/readyz?x=1&verbose"):
        for method in ("GET", "HEAD"):
            assert (await guarded.http.request(method, path)).status_code == 401
    admin = await guarded.token(Role.ADMIN)
    assert (await guarded.http.get(f"/runs/{guarded.run_id}", headers=bearer(admin))).json()["stopRequestedAt"] is None


async def test_probes_need_no_token(guarded: Guarded) -> None:
    assert (await guarded.http.get("/livez")).text == "ok"
    assert (await guarded.http.get("/readyz")).text == "ready\n"


async def test_changes_are_recorded_under_the_name_of_the_principal_and_not_under_one_in_the_request(guarded: Guarded) -> None:
    headers = {**bearer(await guarded.token(Role.OPERATOR)), "Sluice-Actor": "somebody else"}
    answer = await guarded.http.patch(f"/runs/{guarded.run_id}", json={"containers": 2}, headers=headers)
    assert answer.status_code == 200, answer.text
    versions = await guarded.request("GET /jobs/{job}/models", await guarded.token(Role.VIEWER))
    assert versions.json()["models"][0]["actor"] == "operator of *"


async def test_the_database_has_no_token(guarded: Guarded, tmp_path: Path) -> None:
    token = await guarded.token(Role.ADMIN)
    content = b"".join(file.read_bytes() for file in tmp_path.glob("coordinator.db*"))  # noqa: ASYNC240
    assert token.split(".")[1].encode() in content
    assert token.split(".")[2].encode() not in content


async def test_tokens_are_listed_page_by_page_and_deleted_long_after_they_expired(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock, authentication=True) as caller:
        tokens = caller.coordinator.authentication.tokens
        made = [await tokens.create(f"t{n}", Grant(frozenset({Role.VIEWER})), timedelta(hours=1) if n % 2 else None, "") for n in range(4)]
        admin = bearer((await tokens.create("root", Grant(frozenset({Role.ADMIN})), None, "")).token)
        await tokens.revoke(made[2].row.token_id, "test")
        listed: list[int] = []
        after: dict[str, str] = {}
        for _ in range(3):
            page = (await caller.http.get("/tokens", params={"limit": 2, **after}, headers=admin)).json()
            listed.append(len(page["tokens"]))
            after = {"after": page["next"]}
        assert (listed, page["next"]) == ([2, 2, 1], None)
        assert problem_slug(await caller.http.get("/tokens?after=none", headers=admin)) == (404, "unknown-token")
        (chore,) = [each for each in caller.coordinator.api.state.parts.health.maintenance._chores if isinstance(each, PruneTokens)]
        clock.advance(timedelta(days=30, minutes=1).total_seconds())
        assert await chore.run_once() == {"deleted": 1}, "the one that was revoked"
        clock.advance(timedelta(days=1).total_seconds())
        assert await chore.run_once() == {"deleted": 2}
        assert await chore.run_once() == {}
        assert {each.name for each in tokens.all()} == {"t0", "root"}
        clock.jump(timedelta(days=40))
        assert await chore.run_once() == {"held_back": 1}
    async with calling(tmp_path, clock, authentication=True) as caller:
        assert {each.name for each in caller.coordinator.authentication.tokens.all()} == {"t0", "root"}


async def test_tokens_are_created_listed_and_kept_over_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock, authentication=True) as caller:
        first = await caller.coordinator.authentication.first_token()
        assert first is not None
        assert await caller.coordinator.authentication.first_token() is None
        clock.advance(1)
        body = {"name": "ci", "roles": ["deployer"], "jobs": ["team-*"], "expiresSeconds": 3600}
        made = (await caller.http.post("/tokens", json=body, headers=bearer(first))).json()
        listed = (await caller.http.get("/tokens", headers=bearer(first))).json()["tokens"]
        assert [(each["name"], each["createdBy"]) for each in listed] == [("first-admin", ""), ("ci", "first-admin")]
        assert made["token"] not in str(listed)
    async with calling(tmp_path, clock, authentication=True) as caller:
        assert await caller.coordinator.authentication.first_token() is None
        assert (await caller.http.get("/jobs", headers=bearer(made["token"]))).status_code == 200
        assert (await caller.http.get("/tokens", headers=bearer(made["token"]))).status_code == 403
        await caller.coordinator.authentication.tokens.revoke(TokenId(first.split(".")[1]), "test")
        assert await caller.coordinator.authentication.first_token() is not None


async def test_without_authentication_no_token_is_needed_or_made(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        assert await caller.coordinator.authentication.first_token() is None
        assert (await caller.http.get("/jobs")).status_code == 200
