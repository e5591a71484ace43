"""Text that a database cannot store, or that no answer can contain: NUL, lone surrogates, bytes that are not UTF-8. On both databases."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.api import new_api
from tests.support.api import Caller, Json, calling, problem_slug, run_body
from tests.support.fakes import FakeClock

pytestmark = pytest.mark.real_time

NUL, SURROGATE = "a\0b", "a\ud800b"
PERCENT = {"NUL": "a%00b", "a lone surrogate": "%ED%A0%80", "half of a character": "%C3"}
DOCUMENT = new_api().openapi()


@pytest.fixture(params=["sqlite", "postgresql"])
async def on_both(request: pytest.FixtureRequest, home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    more = {"database_url": request.getfixturevalue("postgres_server").new_database()} if request.param == "postgresql" else {}
    async with calling(home, clock, **more) as made:
        made.log.create("flights", 2)
        yield made


def operations() -> Iterator[tuple[str, str, Json]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


@pytest.mark.parametrize("text", PERCENT.values(), ids=PERCENT)
async def test_a_path_with_such_text_is_refused_on_every_route(on_both: Caller, text: str) -> None:
    asked = 0
    for method, path, operation in operations():
        names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
        for name in names:
            filled = path.replace(f"{{{name}}}", text)
            for other in names:
                filled = filled.replace(f"{{{other}}}", "1")
            answer = await on_both.http.request(method, filled, json={})
            assert problem_slug(answer) == (422, "invalid-request"), (method, filled, answer.text)
            asked += 1
    assert asked > 30


@pytest.mark.parametrize("text", PERCENT.values(), ids=PERCENT)
async def test_a_query_with_such_text_is_refused_on_every_route(on_both: Caller, text: str) -> None:
    asked = 0
    for method, path, operation in operations():
        for name in (each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"):
            answer = await on_both.http.request(method, f"{path.replace('{', '').replace('}', '')}?{name}={text}", json={})
            assert problem_slug(answer) == (422, "invalid-request"), (method, path, name, answer.text)
            asked += 1
    assert asked > 10


def with_text(body: Any, text: str) -> Iterator[tuple[str, Any]]:
    """The body with the text in place of each string in it, and of each key of a free-form object; with the name of the field."""
    match body:
        case Mapping():
            for name, value in body.items():
                for where, changed in with_text(value, text):
                    yield f"{name}.{where}", {**body, name: changed}
            yield "key", {**body, text: "x"}
        case list():
            for number, value in enumerate(body):
                for where, changed in with_text(value, text):
                    yield f"{number}.{where}", [*body[:number], changed, *body[number + 1 :]]
        case str():
            yield "", text


BODIES: list[tuple[str, str, Json]] = [
    ("POST", "/runs", run_body(config={"team": "a"}, grouper="GroupByPartition")),
    ("POST", "/runs/plan", run_body(config={"team": "a"}, grouper="GroupByPartition")),
    ("POST", "/runs/{run}/stop", {"reason": "a"}),
    ("PATCH", "/runs/{run}", {"why": "a", "grow": True}),
    ("POST", "/jobModel/plan", {"job": "flight-delays", "streams": {"flights": 4}}),
    ("POST", "/jobs/flight-delays/models/1/rollback", {"why": "a"}),
    ("POST", "/runs/{run}/containers", {"processorId": "0", "executionContainerId": "c2", "host": "h", "metricsAddress": "h:1"}),
    ("POST", "/containers/c1/exit", {"exitCode": 0, "reason": "a"}),
    ("POST", "/containers/c1/invalidate", {"reason": "a"}),
    ("POST", "/runs/{run}/tasks/Partition 0/acquire", {"executionContainerId": "c1", "epoch": 1}),
    ("POST", "/runs/{run}/tasks/Partition 0/progress", {"generation": 1, "stage": "hourly", "lineage": "l", "batchId": 0, "offsets": []}),
    ("POST", "/jobs/flight-delays/pins", {"pinId": "p", "task": "Partition 0", "stage": "hourly", "reason": "a"}),
    ("POST", "/drain", {"runId": "{run}"}),
]


@pytest.mark.parametrize("text", [NUL, SURROGATE], ids=["NUL", "a lone surrogate"])
async def test_a_body_with_such_text_in_any_field_is_refused_and_nothing_is_written(on_both: Caller, text: str) -> None:
    run_id = (await on_both.deploy())["runId"]
    await on_both.registered(run_id, "c1")
    await on_both.acquired(run_id, "c1")
    before = await on_both.run(run_id)
    for method, path, body in BODIES:
        for where, changed in with_text(body, text):
            content = json.dumps(changed).replace("{run}", run_id)
            answer = await on_both.http.request(
                method, path.replace("{run}", run_id), content=content, headers={"Content-Type": "application/json"}
            )
            assert problem_slug(answer) == (422, "invalid-request"), (path, where, answer.text)
    assert await on_both.run(run_id) == before
    assert [each["runId"] for each in (await on_both.http.get("/runs")).json()["runs"]] == [run_id]


@pytest.mark.parametrize("encoded", [b'"\xed\xa0\x80"', b'"\xff"', '"x"'.encode("utf-16")], ids=["a surrogate", "not UTF-8", "UTF-16"])
async def test_a_body_that_is_not_utf_8_is_refused(on_both: Caller, encoded: bytes) -> None:
    content = json.dumps(run_body(config={"team": "here"})).encode().replace(b'"here"', encoded)
    answer = await on_both.http.post("/runs", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await on_both.http.get("/jobs")).json()["jobs"] == []


async def test_the_refusal_names_the_field(caller: Caller) -> None:
    answer = await caller.http.post(
        "/runs", content=json.dumps(run_body(config={"team": SURROGATE})), headers={"Content-Type": "application/json"}
    )
    assert "body.config.team: " in answer.json()["detail"]


async def test_text_beyond_the_basic_plane_is_accepted_escaped_and_unescaped(on_both: Caller) -> None:
    for job, ascii_only in (("one", True), ("two", False)):
        content = json.dumps(run_body(job=job, config={"mood": "\U0001f600"}), ensure_ascii=ascii_only)
        outputs = content.replace('"delays"', f'"delays-{job}"')
        answer = await on_both.http.post("/runs", content=outputs.encode(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 201, answer.text
        assert answer.json()["config"] == {"mood": "\U0001f600"}


async def test_a_deeply_nested_body_is_refused_like_any_other_malformed_body(caller: Caller) -> None:
    for depth in (100, 900, 950, 100_000):
        content = '{"config": ' + "[" * depth + '"\\u0061"' + "]" * depth + "}"
        answer = await caller.http.post("/runs", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), (depth, answer.text)
