"""The events of a job: what has happened, in pages."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from sluice.core.access.roles import Role
from sluice.core.access.tokens import Grant
from tests.support.api import Caller, Json, calling, problem_slug
from tests.support.fakes import FakeClock

EVENTS = "/jobs/flight-delays/events"


async def deployed(caller: Caller) -> str:
    caller.log.create("flights", 2)
    return str((await caller.deploy())["runId"])


async def events(caller: Caller, **query: str | int) -> Json:
    answer = await caller.http.get(EVENTS, params=query)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def changed(caller: Caller, clock: FakeClock, run_id: str, times: int) -> None:
    for number in range(times):
        clock.advance(1)
        (await caller.http.patch(f"/runs/{run_id}", json={"containers": 2 - number % 2, "why": f"reason {number}"})).raise_for_status()


async def test_the_events_of_a_job_are_those_of_its_runs_versions_containers_drains_and_requests(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock) as caller:
        caller.http.headers["Sluice-Actor"] = "ann"
        run_id = await deployed(caller)
        clock.advance(1)
        await caller.registered(run_id, "c1")
        clock.advance(1)
        drain = (await caller.http.post("/drain", json={"runId": run_id})).json()["uuid"]
        clock.advance(1)
        assert (await caller.http.delete(f"/drain/{drain}")).status_code == 200
        clock.advance(1)
        await caller.http.post("/containers/c1/exit", json={"exitCode": 1, "reason": "out of memory"})
        found = await events(caller)
        assert (found["job"], found["next"]) == ("flight-delays", None)
        listed = [(each["kind"], each["what"], each["detail"], each["tone"]) for each in found["events"]]
        assert listed[0] == ("container", "container c1 exited with code 1", "out of memory", "bad")
        assert listed[1][:2] == ("drain", "the drain ended as CANCELLED")
        assert listed[2] == ("request", "ann requested the end of the drain", "", "quiet")
        assert listed[3] == ("drain", "a drain was requested", "mode DEFAULT", "busy")
        assert listed[4] == ("request", "ann requested a drain", "", "quiet")
        assert listed[5][:2] == ("container", "container c1 registered for slot 0 on host-of-c1")
        assert [each[0] for each in listed[6:]] == ["run", "version", "request"]
        subjects = {each["kind"]: each["subject"] for each in found["events"]}
        assert (subjects["run"], subjects["version"], subjects["container"], subjects["drain"]) == (run_id, "1", "c1", drain)


async def test_events_have_pages_older_and_newer_than_an_event(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock) as caller:
        await changed(caller, clock, await deployed(caller), 4)
        whole = [each["id"] for each in (await events(caller))["events"]]
        assert whole == sorted(set(whole), reverse=True)
        assert len(whole) == 11, "the run, its first version, and two events for each request"
        paged: list[str] = []
        page = await events(caller, limit=4)
        while page["next"] is not None:
            assert len(page["events"]) == 4
            paged += [each["id"] for each in page["events"]]
            page = await events(caller, limit=4, before=page["next"])
        assert [*paged, *(each["id"] for each in page["events"])] == whole
        assert [each["id"] for each in (await events(caller, after=whole[3]))["events"]] == whole[:3]
        between = await events(caller, after=whole[6], before=whole[1], limit=3)
        assert ([each["id"] for each in between["events"]], between["next"]) == (whole[2:5], whole[4])
        assert (await events(caller, after=whole[0]))["events"] == []
        assert (await events(caller, after=whole[0], before=whole[5]))["events"] == []


async def test_the_id_of_an_event_never_changes_and_outlives_the_event(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock) as caller:
        run_id = await deployed(caller)
        before = [each["id"] for each in (await events(caller))["events"]]
        gone = before[0].replace(run_id, "a-former-run")
        clock.advance(1)
        await caller.stop(run_id)
        assert [each["id"] for each in (await events(caller))["events"]][-len(before) :] == before
        assert all(each["id"] not in before for each in (await events(caller, after=gone, limit=1))["events"])


@pytest.mark.long
async def test_the_list_has_the_newest_three_hundred_of_a_kind(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock) as caller:
        await changed(caller, clock, await deployed(caller), 305)
        page = await events(caller, limit=200)
        versions = [each["subject"] for each in page["events"] if each["kind"] == "version"]
        while page["next"] is not None:
            page = await events(caller, limit=200, before=page["next"])
            versions += [each["subject"] for each in page["events"] if each["kind"] == "version"]
        assert versions == [str(version) for version in range(306, 6, -1)]


async def test_an_unknown_job_has_no_events(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        assert problem_slug(await caller.http.get("/jobs/nothing/events")) == (404, "unknown-job")


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=many", "before=12", f"after={quote('2026-03-01T12:00:00Z')}", "before=", f"after={'1' * 500}"]
)
async def test_wrong_parameters_are_refused_with_their_names(tmp_path: Path, query: str) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        await deployed(caller)
        answer = await caller.http.get(f"{EVENTS}?{query}")
        assert answer.status_code == 422
        assert query.partition("=")[0] in answer.text


async def test_a_viewer_sees_the_events_of_its_jobs_only(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock(), authentication=True) as caller:

        async def bearer(*roles: Role, jobs: tuple[str, ...] = ("*",)) -> dict[str, str]:
            made = await caller.coordinator.authentication.tokens.create(
                "-".join((*roles, *jobs)), Grant(frozenset(roles), jobs), None, "t"
            )
            return {"Authorization": f"Bearer {made.token}"}

        caller.http.headers.update(await bearer(Role.ADMIN))
        await deployed(caller)
        del caller.http.headers["Authorization"]
        assert (await caller.http.get(EVENTS)).status_code == 401
        assert (await caller.http.get(EVENTS, headers=await bearer(Role.VIEWER, jobs=("flight-*",)))).status_code == 200
        assert (await caller.http.get(EVENTS, headers=await bearer(Role.VIEWER, jobs=("weather-*",)))).status_code == 403
        assert (await caller.http.get(EVENTS, headers=await bearer(Role.AGENT))).status_code == 403
