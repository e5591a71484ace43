"""The audit log: who requested which change, and who was refused."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from coordinator.identity.audit_log import AuditLog, Began, PruneAuditLog
from coordinator.waits import DeletionHold
from sluice.core.access.roles import Role
from sluice.core.access.tokens import Grant
from sluice.core.errors import StoreUnavailable
from tests.support.api import Caller, Json, calling, problem_slug
from tests.support.fakes import FakeClock


async def events(caller: Caller, **headers: str) -> list[Json]:
    """Oldest first."""
    answer = await caller.http.get("/audit-log", headers=headers)
    assert answer.status_code == 200, answer.text
    return list(reversed(answer.json()["events"]))


async def bearer(caller: Caller, name: str, *roles: Role) -> dict[str, str]:
    made = await caller.coordinator.authentication.tokens.create(name, Grant(frozenset(roles)), None, "test")
    return {"Authorization": f"Bearer {made.token}"}


async def test_changes_are_recorded_with_the_principal_and_the_outcome(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock(), authentication=True) as caller:
        caller.log.create("flights", 2)
        admin, ci = await bearer(caller, "root", Role.ADMIN), await bearer(caller, "ci", Role.DEPLOYER)
        viewer = await bearer(caller, "eve", Role.VIEWER)
        caller.http.headers.update(ci)
        run = await caller.deploy()
        stop = f"/runs/{run['runId']}/stop"
        assert (await caller.http.post(stop, headers={**viewer, "Sluice-Actor": "root"})).status_code == 403
        stopped = await caller.http.post(stop)
        assert (await caller.http.post("/runs/none/stop")).status_code == 404
        assert (await caller.http.post("/drain", json={})).status_code == 422
        assert (await caller.http.get("/jobs")).status_code == 200
        assert (await caller.http.get("/audit-log")).status_code == 403
        found = await events(caller, **admin)
        assert [(each["actor"], each["action"], each["subject"], each["status"], each["authenticated"]) for each in found] == [
            ("ci", "POST /runs", "/runs", 201, True),
            ("eve", "POST /runs/{runId}/stop", stop, 403, True),
            ("ci", "POST /runs/{runId}/stop", stop, 202, True),
            ("ci", "POST /runs/{runId}/stop", "/runs/none/stop", 404, True),
            ("ci", "POST /drain", "/drain", 422, True),
            ("ci", "GET /audit-log", "/audit-log", 403, True),
        ]
        assert found[3]["reason"] == "unknown-run"
        assert found[2]["requestId"] == stopped.headers["sluice-request-id"]
        assert all(each["source"] == "127.0.0.1" and each["at"] for each in found)


async def test_refused_requests_of_one_principal_do_not_fill_the_database(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock, authentication=True) as caller:
        admin, viewer, other = (
            await bearer(caller, "root", Role.ADMIN),
            await bearer(caller, "eve", Role.VIEWER),
            await bearer(caller, "ann"),
        )
        for _ in range(30):
            assert (await caller.http.post("/runs/none/stop", headers=viewer)).status_code == 403
        assert (await caller.http.post("/runs/none/stop", headers=other)).status_code == 403
        assert [each["actor"] for each in await events(caller, **admin)] == ["eve"] * 20 + ["ann"]
        clock.advance(61)
        assert (await caller.http.post("/runs/none/stop", headers=viewer)).status_code == 403
        assert len(await events(caller, **admin)) == 22


async def test_without_authentication_the_name_is_taken_from_the_request(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        await caller.http.post("/runs/none/stop", headers={"Sluice-Actor": "ann"})
        [found] = await events(caller)
        assert (found["actor"], found["authenticated"]) == ("ann", False)


async def test_pages_are_newest_first(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        for n in range(5):
            await caller.http.post(f"/runs/r{n}/stop")
        first = (await caller.http.get("/audit-log?limit=3")).json()
        assert [each["seq"] for each in first["events"]] == [5, 4, 3]
        rest = (await caller.http.get(f"/audit-log?limit=3&before={first['next']}")).json()
        assert ([each["seq"] for each in rest["events"]], rest["next"]) == ([2, 1], None)


async def test_a_change_that_cannot_be_recorded_is_refused_and_heartbeats_continue(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        caller.log.create("flights", 2)
        run = await caller.deploy()
        await caller.registered(run["runId"], "c1")
        access = caller.coordinator.api.state.access
        access.audit_log = Full(access.audit_log)
        answer: httpx.Response = await caller.stop(run["runId"])
        assert problem_slug(answer) == (503, "store-unavailable")
        assert (await caller.run(run["runId"]))["stopRequestedAt"] is None
        assert await caller.alive("c1", 1)


class Full(AuditLog):
    """An audit log that cannot be written."""

    def __init__(self, _: AuditLog) -> None: ...

    async def begin(self, attempt: object, before: object) -> Began:
        raise StoreUnavailable("the disk is full")


@pytest.mark.parametrize(("age", "left"), [(timedelta(days=29), 3), (timedelta(days=31), 1)])
async def test_old_events_are_deleted_except_the_last_one_which_has_the_number_for_the_next(
    tmp_path: Path, age: timedelta, left: int
) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock) as caller:
        for n in range(3):
            await caller.http.post(f"/runs/r{n}/stop")
        clock.advance(age.total_seconds())
        access = caller.coordinator.api.state.access
        chore = PruneAuditLog(access._store, clock, DeletionHold(clock, timedelta(days=1)), timedelta(days=30), rows=1)
        assert await chore.run_once() == ({"deleted": 3 - left} if left < 3 else {})
        assert [each["seq"] for each in await events(caller)] == list(range(4 - left, 4))
        await caller.http.post("/runs/again/stop")
        assert (await events(caller))[-1]["seq"] == 4


async def test_no_event_is_deleted_while_the_clock_may_have_jumped(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock) as caller:
        for n in range(3):
            await caller.http.post(f"/runs/r{n}/stop")
        chores = caller.coordinator.api.state.parts.health.maintenance._chores
        (chore,) = [each for each in chores if isinstance(each, PruneAuditLog)]
        clock.jump(timedelta(days=40))
        assert await chore.run_once() == {"held_back": 1}
        assert len(await events(caller)) == 3


# --- before and after --------------------------------------------------------------------------------------------------


async def test_an_event_has_the_fields_that_changed_with_their_values_before_and_after(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock(), authentication=True) as caller:
        caller.log.create("flights", 2)
        caller.http.headers.update(await bearer(caller, "root", Role.ADMIN))
        run = (await caller.deploy())["runId"]
        assert (await caller.http.patch(f"/runs/{run}", json={"containers": 2})).status_code == 200
        assert (await caller.http.patch(f"/runs/{run}", json={"containers": 100_000_000})).status_code == 422
        made = (await caller.http.post("/tokens", json={"name": "ci", "roles": ["deployer"], "jobs": ["team-*"]})).json()
        await caller.http.delete(f"/tokens/{made['tokenId']}")
        assert (await caller.stop(run)).status_code == 202
        deployed, scaled, refused, created, revoked, stopped = await events(caller)
        assert deployed["before"] == {}
        assert (deployed["after"]["run"], deployed["after"]["containers"]) == (run, "1")
        assert scaled["before"] == {"containers": "1", "job model version": "1"}
        assert scaled["after"] == {"containers": "2", "job model version": "2"}
        assert (refused["before"], refused["after"]) == ({}, {})
        token = f"token {made['tokenId']}"
        assert (created["before"], created["after"]) == ({}, {token: "ci: deployer for team-*"})
        assert (revoked["before"], revoked["after"]) == ({token: "ci: deployer for team-*"}, {})
        assert stopped["before"]["stop requested"] == "no"
        assert stopped["after"]["stop requested"] == "yes"
        assert made["token"].split(".")[2] not in repr(await events(caller))


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"job=\xff", b'{"job": 7}', b'{"runId": "\\ud800"}', b'{"job": "\\u0000"}', b"[" * 50])
async def test_a_body_that_names_no_job_is_recorded_without_one(tmp_path: Path, body: bytes) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        answer = await caller.http.post("/drain", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422)
        assert [each["job"] for each in await events(caller)] == [""]


# --- lines of JSON -----------------------------------------------------------------------------------------------------


def lines(file: Path) -> list[Json]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_events_are_appended_to_a_file_before_and_after_the_change(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with calling(tmp_path, FakeClock(), audit_file=file) as caller:
        caller.log.create("flights", 2)
        run = (await caller.deploy())["runId"]
        before, after = lines(file)
        assert (before["seq"], before["status"], before["action"]) == (1, None, "POST /runs")
        [event] = await events(caller)
        assert after == event
        assert after["after"]["run"] == run
        file.rename(tmp_path / "audit.jsonl.1")
        await caller.stop(run)
        assert [each["status"] for each in lines(file)] == [None, 202]


async def test_a_change_that_cannot_be_written_to_the_file_is_refused_and_heartbeats_continue(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "audit.jsonl"
    file.parent.mkdir()
    async with calling(tmp_path, FakeClock(), audit_file=file) as caller:
        caller.log.create("flights", 2)
        run = (await caller.deploy())["runId"]
        await caller.registered(run, "c1")
        file.unlink()
        file.parent.rmdir()
        assert problem_slug(await caller.stop(run)) == (503, "audit-unavailable")
        assert (await caller.run(run))["stopRequestedAt"] is None
        assert await caller.alive("c1", 1)
        file.parent.mkdir()
        assert (await caller.stop(run)).status_code == 202


async def test_events_are_written_to_standard_output(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    async with calling(tmp_path, FakeClock(), audit_file="-") as caller:
        await caller.http.post("/runs/none/stop")
    found = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [each["status"] for each in found] == [None, 404]
