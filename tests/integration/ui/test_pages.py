"""The web pages, as a browser requests them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from coordinator.identity.sessions import MAX_SESSIONS_OF_A_TOKEN
from coordinator.runs.transactions import NAMED_AFTER
from sluice.core.access.roles import Role
from sluice.core.access.tokens import BAD_LOGINS, Grant, digest
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.support.api import Caller, calling, chained_body, offsets_json, run_body, snapshot
from tests.support.fakes import FakeClock
from tests.support.streams import BlockedReaders

HOSTILE = "<script>alert(1)</script>\"'&"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def caller(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    async with calling(tmp_path, clock) as found:
        found.log.create("flights", 2)
        yield found


async def text_of(caller: Caller, path: str, status: int = 200) -> str:
    answer = await caller.http.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    return answer.text


async def test_the_page_of_an_empty_coordinator_shows_how_to_start_a_first_job(caller: Caller) -> None:
    text = await text_of(caller, "/ui/")
    assert "There is no job yet" in text
    assert "sluice run job.py" in text


async def test_the_jobs_are_listed_with_their_problems(caller: Caller) -> None:
    await caller.deploy(chained_body())
    text = await text_of(caller, "/ui/")
    assert 'href="jobs/flight-delays"' in text
    assert "0 of 1 containers are live</a> and 1 more<br>Start the missing containers; their last exits are listed." in text


async def test_a_job_is_shown_with_its_tasks_containers_and_events(caller: Caller) -> None:
    run = await caller.deploy(chained_body())
    await caller.registered(run["runId"], "c-1")
    await caller.acquired(run["runId"], "c-1")
    text = await text_of(caller, "/ui/jobs/flight-delays")
    for expected in ("Partition 0", "c-1", "by-carrier", "was deployed", "container c-1 registered", "Stop…"):
        assert expected in text
    assert "without an owner" in text
    assert "A task waits until the lease of its former container has ended" in text


async def test_the_page_about_an_unknown_job_links_to_the_list(caller: Caller) -> None:
    text = await text_of(caller, "/ui/jobs/nobody", 404)
    assert "no job" in text
    assert 'href="../"' in text


async def test_an_unknown_page_is_not_found(caller: Caller) -> None:
    assert "start at /ui/" in await text_of(caller, "/ui/what/is/this", 404)


async def test_browsers_are_redirected_from_the_address_without_a_path_to_the_pages(caller: Caller) -> None:
    answer = await caller.http.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["location"]) == (307, "ui/")


async def test_pages_are_compressed_for_browsers_that_can_read_it(caller: Caller) -> None:
    await caller.deploy()
    for path in ("/ui/", "/ui/jobs/flight-delays", "/ui/static/page.js", "/ui/events?page=nothing"):
        compressed = await caller.http.get(path, headers={"Accept-Encoding": "gzip, br"})
        plain = await caller.http.get(path, headers={"Accept-Encoding": "identity;q=1, gzip;q=0"})
        assert (compressed.headers["content-encoding"], compressed.headers["vary"]) == ("gzip", "Accept-Encoding"), path
        assert "content-encoding" not in plain.headers
        assert compressed.text == plain.text


@pytest.mark.parametrize(
    "page", ["", "fleet", "garbage", "jobs/flight-delays", "jobs/flight-delays/state", "jobs/flight-delays/versions/1"]
)
async def test_no_page_loads_anything_from_another_host(caller: Caller, page: str) -> None:
    await caller.deploy()
    text = await text_of(caller, f"/ui/{page}")
    addresses = re.findall(r'(?:src|href|action)="([^"]*)"', text)
    assert addresses
    assert not [each for each in addresses if "//" in each]
    assert "style=" not in text
    assert not re.search(r"\son[a-z]+=", text)
    for each in addresses:
        if "static/" in each:
            answer = await caller.http.get(f"/ui/{page}".rsplit("/", 1)[0] + "/" + each)
            assert answer.status_code == 200, each


async def test_text_of_users_is_escaped(caller: Caller) -> None:
    run = await caller.deploy(run_body())
    await caller.registered(run["runId"], "c-1", host=HOSTILE)
    await caller.http.post("/containers/c-1/exit", json={"exitCode": 1, "reason": HOSTILE})
    text = await text_of(caller, "/ui/jobs/flight-delays")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    found = await text_of(caller, f"/ui/jobs/flight-delays?find={quote(HOSTILE)}")
    assert "<script>alert" not in found


async def test_a_drain_is_shown_with_what_it_waits_for(caller: Caller) -> None:
    run = await caller.deploy(chained_body())
    await caller.registered(run["runId"], "c-1", drainModes=["DEFAULT"])
    drain = (await caller.http.post("/drain", json={"runId": run["runId"]})).json()
    assert 'id="task-Partition_200"' not in await text_of(caller, f"/ui/drains/{drain['uuid']}?find=partition%201")
    text = await text_of(caller, f"/ui/drains/{drain['uuid']}")
    assert "Blocked by" in text
    assert "Cancel…" in text


async def test_an_action_shows_its_plan_before_it_is_done(caller: Caller) -> None:
    run = await caller.deploy(chained_body())
    subject = {"job": "flight-delays", "run": run["runId"], "containers": "2"}
    plan = await text_of(caller, f"/ui/actions/scale?job=flight-delays&run={run['runId']}&containers=2")
    assert "The run has 2 slots" in plan
    assert "sluice scale flight-delays 2" in plan
    assert (await caller.run(run["runId"]))["containers"] == 1
    answer = await caller.http.post("/ui/actions/scale", data=subject)
    assert "Version 2 of the job model is in force" in answer.text
    assert (await caller.run(run["runId"]))["containers"] == 2


async def test_the_page_of_a_refused_action_shows_the_reason(caller: Caller) -> None:
    run = await caller.deploy(chained_body())
    answer = await caller.http.get(f"/ui/actions/scale?job=flight-delays&run={run['runId']}&containers=100000")
    assert "It would be refused" in answer.text
    assert "<button>Scale" not in answer.text
    answer = await caller.http.post("/ui/actions/scale", data={"job": "flight-delays", "run": run["runId"], "containers": "x"})
    assert "The action failed" in answer.text


async def test_every_action_of_a_page_has_a_plan(caller: Caller) -> None:
    run = await caller.deploy(chained_body())
    links = set(
        re.findall(r'data-action="([^"]+)"', await text_of(caller, "/ui/jobs/flight-delays") + await text_of(caller, "/ui/garbage"))
    )
    assert len(links) == 6
    for link in links:
        assert 'id="dialog-title"' in await text_of(caller, f"/ui/{link.replace('&amp;', '&')}")
    await caller.http.post("/ui/actions/stop", data={"job": "flight-delays", "run": run["runId"]})
    assert (await caller.run(run["runId"]))["state"] == "STOPPED"
    text = await text_of(caller, "/ui/jobs/flight-delays")
    assert "Remove…" in text
    answer = await caller.http.post("/ui/actions/remove", data={"job": "flight-delays"})
    assert "was removed" in answer.text
    assert "There is no job yet" in await text_of(caller, "/ui/")


async def test_the_page_of_an_existing_script_offers_no_action_that_would_be_refused(caller: Caller) -> None:
    await caller.deploy({"job": "orders", "kind": "attached", "containers": 1, "inputs": [], "stages": []})
    assert re.findall(r'data-action="actions/(\w+)', await text_of(caller, "/ui/jobs/orders")) == ["stop"]


async def test_a_script_that_has_reported_queries_can_be_drained_on_its_page(caller: Caller) -> None:
    run = (await caller.deploy({"job": "orders", "kind": "attached", "containers": 1, "inputs": [], "stages": []}))["runId"]
    registered = await caller.registered(run, "c1")
    generation = (await caller.acquired(run, "c1", registered["epoch"], task="Driver"))["generation"]
    query = {"stage": "counts", "checkpoint": "s3a://states/counts", "queryId": "q", "undrainable": ["it reads rate"]}
    await caller.http.put(f"/runs/{run}/tasks/Driver/queries", json={"generation": generation, "queries": [query]})
    assert re.findall(r'data-action="actions/(\w+)', await text_of(caller, "/ui/jobs/orders")) == ["drain", "stop"]
    plan = (await caller.http.get("/ui/actions/drain", params={"job": "orders", "run": run})).text
    assert "these queries cannot be drained: counts (it reads rate)" in plan


async def test_a_page_of_another_site_cannot_act(caller: Caller) -> None:
    run = await caller.deploy()
    subject = {"job": "flight-delays", "run": run["runId"]}
    answer = await caller.http.post("/ui/actions/stop", data=subject, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert (await caller.run(run["runId"]))["state"] != "STOPPED"


async def test_more_tasks_than_a_page_holds_are_divided_into_pages(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        caller.log.create("flights", 150)
        await caller.deploy()
        first = await text_of(caller, "/ui/jobs/flight-delays")
        assert "1–100 of 150" in first
        second = await text_of(caller, "/ui/jobs/flight-delays?offset=100")
        assert "101–150 of 150" in second
        found = await text_of(caller, "/ui/jobs/flight-delays?find=partition%20149")
        assert "1–1 of 1" in found


async def test_jobs_are_filtered_by_name_and_state(caller: Caller) -> None:
    await caller.deploy(chained_body(job="weather"))
    await caller.stop((await caller.deploy(chained_body(job="wind")))["runId"])
    assert "1–2 of 2" in await text_of(caller, "/ui/?find=W")
    stopped = await text_of(caller, "/ui/?state=STOPPED")
    assert 'href="jobs/wind"' in stopped
    assert 'href="jobs/weather"' not in stopped
    assert "<option selected>STOPPED</option>" in stopped
    assert "No job matches the filter" in await text_of(caller, "/ui/?find=wind&state=RUNNING")


async def test_all_containers_of_a_job_are_listed_with_pages_and_filters(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        caller.log.create("flights", 120)
        run = await caller.deploy(run_body(containers=120))
        for slot in range(120):
            await caller.registered(run["runId"], f"c-{slot}", slot=str(slot), host=f"host-{slot % 2}")
        await caller.http.post("/containers/c-7/exit", json={"exitCode": 1, "reason": "out of memory"})
        job = await text_of(caller, "/ui/jobs/flight-delays")
        assert 'href="flight-delays/containers">All 120 containers' in job
        pages = "/ui/jobs/flight-delays/containers"
        assert "1–100 of 120" in await text_of(caller, pages)
        second = await text_of(caller, f"{pages}?offset=100")
        assert "101–120 of 120" in second
        assert "out of memory" in second, "containers that have ended come last"
        assert "1–60 of 60" in await text_of(caller, f"{pages}?find=host-0")
        ended = await text_of(caller, f"{pages}?state=EXITED")
        assert "1–1 of 1" in ended
        assert "c-7" in ended
        assert "No container matches the filter" in await text_of(caller, f"{pages}?find=c-119&state=EXITED")


async def test_the_events_of_a_job_have_pages_and_a_filter(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock) as caller:
        caller.log.create("flights", 2)
        run = await caller.deploy(chained_body())
        for number in range(110):
            clock.advance(1)
            await caller.http.patch(f"/runs/{run['runId']}", json={"containers": 1 + number % 2, "why": f"reason {number}"})
        events = "/ui/jobs/flight-delays/events"
        first = await text_of(caller, events)
        assert "reason 109" in first
        assert "was deployed" not in first
        assert re.search(r'href="\?offset=100"', first)
        assert "was deployed" in await text_of(caller, f"{events}?find=was%20deployed")
        assert 'href="../../jobs/flight-delays/versions/106"' in await text_of(caller, f"{events}?find=reason%20105")
        assert 'href="flight-delays/events"' in await text_of(caller, "/ui/jobs/flight-delays")


async def test_snapshots_have_filters_and_pages(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock(), keep_last=100) as caller:
        caller.log.create("flights", 2)
        run_id = (await caller.deploy(chained_body()))["runId"]
        await caller.registered(run_id, "c-1")
        for task in range(2):
            acquired = await caller.acquired(run_id, "c-1", task=f"Partition {task}")
            lineage = next(each["lineage"] for each in acquired["stages"] if each["stage"] == "hourly")
            for number in range(60 * task + 1, 60 * task + 61):
                await snapshot(caller, run_id, number, lineage, task, number - 1 if number > 60 * task + 1 else None)
        state = "/ui/jobs/flight-delays/state"
        first = await text_of(caller, state)
        assert len(re.findall(r'<tr id="snapshot-', first)) == 100
        [older] = re.findall(r'href="\?([^"]*)" rel="next"', first)
        second = await text_of(caller, f"{state}?{older.replace('&amp;', '&')}")
        assert len(re.findall(r'<tr id="snapshot-', second)) == 20
        one = await text_of(caller, f"{state}?task=Partition%201&stage=hourly")
        assert len(re.findall(r'<tr id="snapshot-', one)) == 60
        assert "Partition 0" not in one
        assert "No snapshot matches the filter" in await text_of(caller, f"{state}?task=Partition%201&stage=route")


async def test_the_state_page_counts_the_batches_that_a_lost_disk_would_repeat(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock(), keep_last=200) as caller:
        caller.log.create("flights", 2)
        run_id = (await caller.deploy(chained_body()))["runId"]
        await caller.registered(run_id, "c-1")
        lineages = {}
        for task in range(2):
            acquired = await caller.acquired(run_id, "c-1", task=f"Partition {task}")
            lineages[task] = {each["stage"]: each["lineage"] for each in acquired["stages"]}

        async def commit(task: int, batch: int) -> None:
            metrics = {"rows": 1, "rowsPerSecond": 1, "batchMillis": 20_000, "at": "2013-01-01T12:07:00Z"}
            keys = {"generation": 1, "stage": "hourly", "lineage": lineages[task]["hourly"]}
            body = {**keys, "batchId": batch, "offsets": [], "metrics": metrics}
            answer = await caller.http.post(f"/runs/{run_id}/tasks/Partition {task}/progress", json=body)
            assert answer.status_code == 204, answer.text

        for task, newest in ((0, 120), (1, 1)):
            await commit(task, 7 + newest - 1)
            for number in range(1, newest + 1):
                await snapshot(caller, run_id, number, lineages[task]["hourly"], task, number - 1 if number > 1 else None)
        state = "/ui/jobs/flight-delays/state"
        assert "If the disk of slot 0 were lost now: 0 batches." in await text_of(caller, f"{state}?stage=hourly")
        await commit(0, 7 + 119 + 3)
        await commit(1, 7 + 5)  # its snapshot is older than those that the page lists
        caller.coordinator.api.state.ui.live.expire()
        text = await text_of(caller, f"{state}?stage=hourly")
        assert "If the disk of slot 0 were lost now: 8 batches, about 1 min 40 s." in text
        rows = re.findall(r"<th scope=\"row\"><a [^>]*>(Partition \d)</a></th><td>hourly</td>.*?<td class=\"number\">(\d+)</td>", text)
        assert rows == [("Partition 1", "5"), ("Partition 0", "3")]


async def test_the_disks_with_the_largest_effect_are_first_and_one_without_a_snapshot_is_marked(caller: Caller) -> None:
    run_id = (await caller.deploy(chained_body()))["runId"]
    await caller.registered(run_id, "c-1")
    acquired = await caller.acquired(run_id, "c-1")
    lineage = next(each["lineage"] for each in acquired["stages"] if each["stage"] == "hourly")
    body = {"generation": 1, "stage": "hourly", "lineage": lineage, "batchId": 0, "offsets": []}
    committed = await caller.http.post(f"/runs/{run_id}/tasks/Partition 0/progress", json=body)
    assert committed.status_code == 204, committed.text
    text = await text_of(caller, "/ui/jobs/flight-delays/state")
    assert 'were lost now: 1 batch; <span class="bad">a stage has no snapshot</span>.' in text


async def test_the_jobs_of_the_fleet_have_a_filter(caller: Caller) -> None:
    await caller.deploy(chained_body())
    await caller.coordinator.api.state.parts.lag.run_once()
    assert 'href="jobs/flight-delays"' in await text_of(caller, "/ui/fleet?find=delays")
    assert "No job with this name has containers" in await text_of(caller, "/ui/fleet?find=wind")


async def test_a_version_links_to_the_one_before_and_the_one_after_it(caller: Caller) -> None:
    run = await caller.deploy(chained_body())
    for containers in (2, 1):
        await caller.http.patch(f"/runs/{run['runId']}", json={"containers": containers})
    text = await text_of(caller, "/ui/jobs/flight-delays/versions/2")
    assert 'href="1" rel="prev"' in text
    assert 'href="3" rel="next"' in text


async def test_problems_of_the_coordinator_are_shown_above_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "report.txt").write_text("of another program")
    async with calling(tmp_path, FakeClock()) as caller:
        text = await text_of(caller, "/ui/")
    assert '<section id="coordinator" aria-labelledby' in text
    assert "does not belong to Sluice" in text


async def test_a_task_shows_its_offsets_and_a_stage_that_works_again_its_last_error(caller: Caller) -> None:
    run_id = (await caller.deploy(chained_body()))["runId"]
    await caller.registered(run_id, "c-1")
    acquired = await caller.acquired(run_id, "c-1")
    lineage = next(each["lineage"] for each in acquired["stages"] if each["stage"] == "route")
    failure = {"generation": 1, "error": "job.py, line 12: KeyError: 'carrier'", "failures": 2, "retrySeconds": 3, "log": ""}
    path = f"/runs/{run_id}/tasks/Partition 0"
    assert (await caller.http.post(f"{path}/stages/route/failure", json=failure)).is_success
    text = await text_of(caller, "/ui/jobs/flight-delays")
    assert "Recovered" not in text
    offsets = offsets_json({("flights", 0): 0})
    caller.log.append(
        "flights", [Record(b"{}", partition=0)] * 1234, writer=Writer(Lineage("w"), "w", Generation(1)), batch=1, now_micros=1
    )
    body = {"generation": 1, "stage": "route", "lineage": lineage, "batchId": 0, "offsets": [{**offsets[0], "offset": 1234}]}
    assert (await caller.http.post(f"{path}/progress", json=body)).status_code == 204
    assert (await caller.http.post(f"{path}/stages/route/failure", json={**failure, "failures": 0, "retrySeconds": None})).is_success
    caller.coordinator.api.state.ui.live.expire()
    text = await text_of(caller, "/ui/jobs/flight-delays")
    assert "<summary>offsets</summary>read up to flights/0: 1,234 </details>" in text
    panel = text[text.index("Recovered within the last ten minutes") :]
    assert "job.py, line 12: KeyError: &#39;carrier&#39; (stage route of Partition 0)" in panel


async def test_a_job_shows_the_open_transactions_that_block_the_readers_of_its_streams(caller: Caller, clock: FakeClock) -> None:
    parts = caller.coordinator.api.state.parts
    parts.systems["log"] = BlockedReaders()
    await caller.deploy(chained_body(partitions=2))
    job = "/ui/jobs/flight-delays"
    assert '<section id="transactions" hidden' in await text_of(caller, job)
    await parts.transactions.run_once()
    clock.advance(NAMED_AFTER.total_seconds())
    await parts.transactions.run_once()
    text = await text_of(caller, job)
    panel = text[text.index('<section id="transactions" aria') :]
    assert '<th scope="row">log.delays</th><td class="number">0</td><td class="number">10 s</td>' in panel
    assert "<code>sluice/flight-delays/hourly/delays/Partition 0</code>" in panel


async def test_a_job_shows_which_task_holds_its_watermarks_and_how_it_writes(caller: Caller) -> None:
    run_id = (await caller.deploy(chained_body()))["runId"]
    await caller.registered(run_id, "c-1")
    acquired = await caller.acquired(run_id, "c-1")
    route = next(each for each in acquired["stages"] if each["stage"] == "route")
    report = {"task": "Partition 0", "generation": 1, "stage": "route", "eventTime": "2013-01-01T12:07:00Z", "source": "column"}
    reported = await caller.http.post(f"/runs/{run_id}/watermarks", json={"stages": [report]})
    assert reported.status_code == 200, reported.text
    metrics = {"rows": 1, "rowsPerSecond": 1, "batchMillis": 1, "at": "2013-01-01T12:07:00Z", "delivery": {"by-carrier": "at-least-once"}}
    body = {"generation": 1, "stage": "route", "lineage": route["lineage"], "batchId": 0, "offsets": [], "metrics": metrics}
    committed = await caller.http.post(f"/runs/{run_id}/tasks/Partition 0/progress", json=body)
    assert committed.status_code == 204, committed.text
    text = await text_of(caller, "/ui/jobs/flight-delays")
    panel = text[text.index('<section id="watermarks" aria') :]
    assert "log.by-carrier" in panel
    assert "Partition 1/route: " in panel
    assert "at-least-once" in text
    assert "waits for Partition 1/route" in await text_of(caller, "/ui/")


# --- with tokens --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def guarded(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    """A coordinator that needs tokens, with one job."""
    async with calling(tmp_path, clock, authentication=True) as found:
        found.log.create("flights", 2)
        found.http.headers["Authorization"] = f"Bearer {await token(found, *Role)}"
        await found.deploy(chained_body())
        del found.http.headers["Authorization"]
        yield found


async def token(caller: Caller, *roles: Role, jobs: tuple[str, ...] = ("*",)) -> str:
    return (await caller.coordinator.authentication.tokens.create("test", Grant(frozenset(roles), jobs), None, "test")).token


async def logged_in(caller: Caller, *roles: Role, jobs: tuple[str, ...] = ("*",)) -> None:
    answer = await caller.http.post("/ui/login", data={"token": await token(caller, *roles, jobs=jobs)})
    assert (answer.status_code, answer.headers["location"]) == (303, ".")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=" not in cookie, "behind a proxy the pages may have another path"


async def test_a_browser_without_a_token_is_shown_the_form_to_log_in(guarded: Caller) -> None:
    for page in ("", "fleet", "jobs/flight-delays", "events?page="):
        assert "Log in" in await text_of(guarded, f"/ui/{page}", 401)
    answer = await guarded.http.post("/ui/login", data={"token": "sluice-t.wrong"})
    assert answer.status_code == 401
    assert "the token is wrong" in answer.text


def sessions(home: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(home / "coordinator.db")) as database:
        return database.execute("SELECT digest, token_id FROM browser_sessions").fetchall()


async def test_the_cookie_is_a_session_and_not_the_token(guarded: Caller, tmp_path: Path) -> None:
    secret = await token(guarded, Role.VIEWER)
    answer = await guarded.http.post("/ui/login", data={"token": secret})
    cookie = answer.headers["set-cookie"]
    assert secret.split(".")[-1] not in cookie
    session_id = guarded.http.cookies["sluice_session"]
    [row] = sessions(tmp_path)
    assert session_id not in repr(row)
    assert row[0] == digest(session_id)


async def test_a_session_ends_when_it_expires(guarded: Caller, clock: FakeClock, tmp_path: Path) -> None:
    await logged_in(guarded, Role.VIEWER)
    clock.advance(12 * 3600 - 1)
    await text_of(guarded, "/ui/")
    clock.advance(1)
    await text_of(guarded, "/ui/", 401)
    await logged_in(guarded, Role.VIEWER)
    assert len(sessions(tmp_path)) == 1, "a login deletes expired sessions"


async def test_a_logout_ends_the_session_for_copies_of_its_cookie_too(guarded: Caller) -> None:
    await logged_in(guarded, Role.VIEWER)
    copied = {"Cookie": f"sluice_session={guarded.http.cookies['sluice_session']}"}
    assert "Log out" in await text_of(guarded, "/ui/")
    await guarded.http.post("/ui/logout")
    guarded.http.cookies.clear()
    assert (await guarded.http.get("/ui/", headers=copied)).status_code == 401


async def test_a_session_ends_with_its_token(guarded: Caller) -> None:
    await logged_in(guarded, Role.VIEWER)
    tokens = guarded.coordinator.authentication.tokens
    for row in tokens.all():
        await tokens.revoke(row.token_id, "admin")
    await text_of(guarded, "/ui/", 401)


async def test_a_session_survives_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock, authentication=True) as before:
        await logged_in(before, Role.VIEWER)
        session_id = before.http.cookies["sluice_session"]
    async with calling(tmp_path, clock, authentication=True) as after:
        after.http.cookies.set("sluice_session", session_id)
        await text_of(after, "/ui/")


async def test_the_oldest_session_of_a_token_ends_when_there_are_too_many(guarded: Caller, clock: FakeClock, tmp_path: Path) -> None:
    secret = await token(guarded, Role.VIEWER)
    await guarded.http.post("/ui/login", data={"token": secret})
    first = guarded.http.cookies["sluice_session"]
    for _ in range(MAX_SESSIONS_OF_A_TOKEN):
        clock.advance(1)
        await guarded.http.post("/ui/login", data={"token": secret})
    kept = {row[0] for row in sessions(tmp_path)}
    assert len(kept) == MAX_SESSIONS_OF_A_TOKEN
    assert digest(first) not in kept


async def test_logins_are_recorded_with_their_outcome(guarded: Caller, tmp_path: Path) -> None:
    await logged_in(guarded, Role.VIEWER)
    for _ in range(BAD_LOGINS + 5):
        await guarded.http.post("/ui/login", data={"token": "sluice-t.wrong"})
    with closing(sqlite3.connect(tmp_path / "coordinator.db")) as database:
        query = "SELECT actor, authenticated, status FROM audit_events WHERE action = 'POST /ui/login' ORDER BY seq"
        found = database.execute(query).fetchall()
    assert found[:2] == [("test", 1, 303), ("", 0, 401)]
    assert len(found) == 1 + BAD_LOGINS, "wrong tokens cannot fill the database"


async def test_the_audit_trail_is_for_administrators(guarded: Caller) -> None:
    await logged_in(guarded, Role.VIEWER, Role.OPERATOR, Role.DEPLOYER)
    assert "one of the roles admin is needed" in await text_of(guarded, "/ui/audit", 403)
    assert "deployment" not in (await guarded.http.get("/ui/events?page=audit")).text
    await logged_in(guarded, Role.ADMIN)
    text = await text_of(guarded, "/ui/audit")
    assert "POST /runs" in text
    assert 'href="jobs/flight-delays"' in text, "the event names the job, which was in the body of the request"
    assert "POST /ui/login" in text


async def test_the_audit_trail_has_pages_and_a_filter_for_a_job(guarded: Caller) -> None:
    guarded.http.headers["Authorization"] = f"Bearer {await token(guarded, *Role)}"
    await guarded.deploy(chained_body(job="weather"))
    for _ in range(101):
        await guarded.http.post("/drain", json={"runId": "none"})
    first = await text_of(guarded, "/ui/audit")
    [older] = re.findall(r'href="\?(before=\d+)"', first)
    assert "POST /runs" in await text_of(guarded, f"/ui/audit?{older}")
    found = await text_of(guarded, "/ui/audit?job=weather")
    assert len(re.findall(r'<tr id="event-', found)) == 1
    assert "No event is recorded" in await text_of(guarded, "/ui/audit?job=nobody")
    events = (await guarded.http.get("/audit-log?job=weather")).json()["events"]
    assert [(each["job"], each["action"]) for each in events] == [("weather", "POST /runs")]


async def test_each_event_names_the_user_who_requested_it(guarded: Caller) -> None:
    guarded.http.headers["Authorization"] = f"Bearer {await token(guarded, *Role)}"
    run_id = (await guarded.http.get("/runs?job=flight-delays")).json()["runs"][0]["runId"]
    await guarded.http.post("/ui/actions/pin", data={"job": "flight-delays", "days": "1"})
    await guarded.http.post(f"/runs/{run_id}/stop")
    text = await text_of(guarded, "/ui/jobs/flight-delays")
    assert "test requested a stop" in text
    assert "test requested a pin of snapshots, on the page: refused" in text


async def test_a_form_with_a_backslash_causes_no_internal_error(guarded: Caller) -> None:
    """`\\u` begins an escape sequence in JSON, but not in a form."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = await guarded.http.post("/ui/login", content=b"token=\\u0000", headers=form)
    assert answer.status_code == 401
    assert "the token is wrong" in answer.text


async def test_a_browser_that_has_logged_in_may_read_the_pages_and_nothing_else(guarded: Caller) -> None:
    await logged_in(guarded, Role.VIEWER)
    assert "flight-delays" in await text_of(guarded, "/ui/")
    assert (await guarded.http.get("/jobs")).status_code == 401, "the cookie is not for the API, which other sites may call"
    await guarded.http.post("/ui/logout")
    await text_of(guarded, "/ui/", 401)


async def test_a_viewer_may_see_plans_and_may_not_carry_them_out(guarded: Caller) -> None:
    await logged_in(guarded, Role.VIEWER)
    page = await text_of(guarded, "/ui/jobs/flight-delays")
    for link in re.findall(r'data-action="([^"]+)"', page):
        address, _, query = link.replace("&amp;", "&").partition("?")
        await text_of(guarded, f"/ui/{address}?{query}")
        answer = await guarded.http.post(f"/ui/{address}", data=dict(each.split("=") for each in query.split("&")))
        assert answer.status_code == 403, link
        assert "The action failed" in answer.text, "the answer is shown in a dialog of the page"
        assert "<html" not in answer.text


async def test_a_viewer_of_one_job_sees_no_other_job(guarded: Caller) -> None:
    await logged_in(guarded, *Role, jobs=("weather-*",))
    assert "There is no job yet" in await text_of(guarded, "/ui/")
    for page in ("jobs/flight-delays", "jobs/flight-delays/state", "jobs/flight-delays/versions/1", "fleet", "garbage"):
        await text_of(guarded, f"/ui/{page}", 403)
    events = await guarded.http.get("/ui/events?page=jobs/flight-delays&page=fleet")
    assert "flight-delays" not in events.text, "the stream ends at once, because it has no page to show"


async def test_an_operator_may_not_remove_a_job_or_collect_garbage(guarded: Caller) -> None:
    await logged_in(guarded, Role.OPERATOR)
    for name, subject in (("remove", {"job": "flight-delays"}), ("collect", {})):
        answer = await guarded.http.post(f"/ui/actions/{name}", data=subject)
        assert answer.status_code == 403, name


async def test_a_run_of_a_permitted_job_gives_no_access_to_another_job(guarded: Caller) -> None:
    guarded.http.headers["Authorization"] = f"Bearer {await token(guarded, *Role)}"
    own = await guarded.deploy(chained_body(job="weather"))
    del guarded.http.headers["Authorization"]
    await logged_in(guarded, *Role, jobs=("weather",))
    for name in ("remove", "pin", "restore", "rollback"):
        subject = {"job": "flight-delays", "run": own["runId"], "days": "1", "version": "1", "task": "t", "stage": "s", "checkpoint": "1-1"}
        answer = await guarded.http.post(f"/ui/actions/{name}", data=subject)
        assert answer.status_code == 403, (name, answer.text)


FORM = {"content-type": "application/x-www-form-urlencoded"}
NO_NUMBERS = ["9" * 5000, str(10**30), "-1", "1e400", "nan", "\u00b2"]


@pytest.mark.parametrize("number", NO_NUMBERS, ids=lambda text: text[:10])
async def test_a_number_of_any_length_in_an_address_or_a_form_causes_no_internal_error(caller: Caller, number: str) -> None:
    run = await caller.deploy(chained_body())
    for name, field in (("scale", "containers"), ("rollback", "version"), ("pin", "days")):
        subject = {"job": "flight-delays", "run": run["runId"], field: number}
        shown = await caller.http.get(f"/ui/actions/{name}", params=subject)
        done = await caller.http.post(f"/ui/actions/{name}", data=subject)
        assert (shown.status_code, done.status_code) == (422, 422), (name, shown.text, done.text)
    assert (await caller.http.get("/ui/jobs/flight-delays", params={"offset": number})).status_code == 200
    assert (await caller.http.get(f"/ui/jobs/flight-delays/versions/{quote(number)}")).status_code == 404


@pytest.mark.parametrize("text", ["%00", "%ff", "%ED%A0%80"], ids=["NUL", "not UTF-8", "a lone surrogate"])
async def test_a_form_with_text_that_cannot_be_stored_is_refused(guarded: Caller, text: str) -> None:
    await logged_in(guarded, *Role)
    for path, form in (("login", f"token=a{text}"), ("actions/pin", f"job=flight-delays&days=1&reason=a{text}")):
        answer = await guarded.http.post(f"/ui/{path}", content=form.encode(), headers=FORM)
        assert answer.status_code == 422, (path, answer.text)


async def test_a_session_that_began_under_a_clock_that_was_ahead_ends_when_the_clock_is_right(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock, authentication=True) as caller:
        clock.jump(timedelta(days=60))
        await logged_in(caller, Role.VIEWER)
        await text_of(caller, "/ui/")
        clock.jump(timedelta(minutes=-4))
        await text_of(caller, "/ui/")
        clock.jump(timedelta(days=-60))
        await text_of(caller, "/ui/", 401)
