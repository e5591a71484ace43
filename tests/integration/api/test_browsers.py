"""Requests that a page of another site makes the browser of a user send."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from coordinator.api import docs
from tests.support.api import Caller, calling, problem_slug, run_body
from tests.support.fakes import FakeClock

REBOUND = {"Host": "attacker.example:8180"}


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    async with calling(tmp_path, FakeClock()) as made:
        made.log.create("flights", 2)
        yield made


async def test_a_request_under_a_rebound_host_name_reads_nothing(caller: Caller) -> None:
    await caller.deploy()
    for path in ("/jobs", "/", "/metrics", "/docs", "/openapi.json", "/readyz?verbose", "/jobModel?job=flight-delays", "/nothing"):
        answer = await caller.http.get(path, headers=REBOUND)
        assert problem_slug(answer) == (421, "host-not-allowed")
        assert "allowed_hosts" in answer.json()["detail"]


async def test_the_fast_paths_refuse_a_request_under_a_rebound_host_name(caller: Caller) -> None:
    run = await caller.deploy()
    await caller.registered(run["runId"], "c1")
    for _ in range(2):
        answer = await caller.http.get("/containerHeartbeat?executionContainerId=c1", headers={**REBOUND, "Sluice-Epoch": "1"})
        assert answer.status_code == 421
        assert await caller.alive("c1", 1)
    etag = (await caller.http.get("/jobModel?job=flight-delays")).headers["etag"]
    assert (await caller.http.get("/jobModel?job=flight-delays", headers={**REBOUND, "If-None-Match": etag})).status_code == 421


async def test_a_request_with_two_host_headers_is_refused(caller: Caller) -> None:
    headers = httpx.Headers([("Host", "localhost"), ("Host", "attacker.example")])
    assert (await caller.http.get("/jobs", headers=headers)).status_code == 421


async def test_probes_may_use_any_host(caller: Caller) -> None:
    for path in ("/livez", "/readyz"):
        assert (await caller.http.get(path, headers={"Host": "10-1-2-3.default.pod.cluster.local:8180"})).status_code == 200


async def test_a_configured_host_name_is_accepted(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock(), allowed_hosts=["Sluice.internal"]) as caller:
        assert (await caller.http.get("/jobs", headers={"Host": "sluice.internal:8180"})).status_code == 200
        assert (await caller.http.get("/jobs", headers={"Host": "c"})).status_code == 421


CHANGES = [
    ("POST", "/runs/{run}/stop"),
    ("POST", "/gc/run"),
    ("POST", "/drain"),
    ("DELETE", "/jobs/flight-delays"),
    ("PATCH", "/runs/{run}"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Origin": "http://localhost:3000"},
    ],
    ids=str,
)
async def test_a_page_of_another_site_changes_nothing(caller: Caller, method: str, path: str, headers: dict[str, str]) -> None:
    run = await caller.deploy()
    answer = await caller.http.request(method, path.format(run=run["runId"]), headers={"Host": "localhost:8180", **headers})
    assert problem_slug(answer) == (403, "cross-site-request")
    assert (await caller.run(run["runId"]))["stopRequestedAt"] is None


async def test_a_page_of_another_site_renews_no_lease(caller: Caller) -> None:
    run = await caller.deploy()
    await caller.registered(run["runId"], "c1")
    assert await caller.alive("c1", 1)
    headers = {"Host": "localhost:8180", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    answer = await caller.http.get("/containerHeartbeat?executionContainerId=c1", headers={**headers, "Sluice-Epoch": "1"})
    assert problem_slug(answer) == (403, "cross-site-request")
    etag = (await caller.http.get("/jobModel?job=flight-delays")).headers["etag"]
    answer = await caller.http.get("/jobModel?job=flight-delays", headers={**headers, "If-None-Match": etag})
    assert problem_slug(answer) == (403, "cross-site-request")


async def test_a_page_of_the_coordinator_may_make_changes(caller: Caller) -> None:
    headers = {"Host": "localhost:8180", "Origin": "http://localhost:8180", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert (await caller.http.post("/runs", json=run_body(), headers=headers)).status_code == 201


async def test_no_answer_may_be_framed_or_run_scripts_of_other_sites(caller: Caller) -> None:
    for path in ("/jobs", "/metrics", "/livez", "/docs", "/docs/start.js", "/nothing", "/openapi.json"):
        headers = (await caller.http.get(path)).headers
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"


async def test_the_page_of_the_api_loads_its_scripts_from_the_coordinator(caller: Caller) -> None:
    page = await caller.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"<script(?! src=)|<style|style=|https?://|//cdn", page.text)
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert files
    for file in files:
        found = await caller.http.get(file)
        assert (found.status_code, found.headers["content-type"].split(";")[0]) == (200, docs.TYPES[file.removeprefix("/docs/")])
        assert found.content
    assert (await caller.http.get("/docs/../settings.py")).status_code == 404
    assert (await caller.http.get("/docs/nothing.js")).status_code == 404
    assert (await caller.http.get("/openapi.json")).json()["openapi"].startswith("3.1")
