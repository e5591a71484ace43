"""Numbers and nesting that a database, a clock or a parser cannot handle, in every field of every request, on both databases."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.api import new_api
from tests.support.api import INPUT, OUTPUT, Caller, Json, calling, chained_body
from tests.support.fakes import FakeClock

pytestmark = pytest.mark.real_time

NOT_FINITE = ("NaN", "Infinity", "-1e400")
HUGE = (str(-(10**30)), "9" * 5000, str(2**63), "1e308", "0.5")
LARGEST = (str(2**63 - 1), str(2**31 - 1), "1e-320")
TIMES = ('"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"')
MARK = "@@"

OFFSETS = [{"system": "log", "stream": "flights", "partition": 0, "offset": 0}]
METRICS = {
    "rows": 1,
    "rowsPerSecond": 1.0,
    "batchMillis": 1,
    "batchMillisByPart": {"addBatch": 1},
    "lag": 1,
    "stateRows": 1,
    "stateBytes": 1,
    "watermark": "2026-01-01T00:00:00Z",
    "eventTimeMax": "2026-01-01T00:00:00Z",
    "lateRows": 1,
    "lateRowsAt": "2026-01-01T00:00:00Z",
    "at": "2026-01-01T00:00:00Z",
}
RUN = chained_body(
    job="other",
    inputs=[{**INPUT, "broadcast": False}],
    outputs=[{**OUTPUT, "name": "others", "partitions": 1}],
    maxTasks=2,
    start="2026-01-01T00:00:00Z",
    config={"a": "b"},
)
TASK, STAGE = "/runs/{runId}/tasks/{task}", "/runs/{runId}/tasks/{task}/stages/{stage}"

BODIES: dict[str, Json] = {
    "POST /runs": RUN | {"stages": [{**RUN["stages"][0]}, {**RUN["stages"][1], "writes": ["others"]}]},
    "PATCH /runs/{runId}": {"containers": 1, "grow": True, "why": "a"},
    "POST /runs/{runId}/containers": {"processorId": "0", "executionContainerId": "c2", "host": "h", "metricsAddress": "h:1"},
    "POST /containers/{executionContainerId}/exit": {"exitCode": 0, "reason": "a"},
    "POST /containers/{executionContainerId}/invalidate": {"reason": "a"},
    f"POST {TASK}/acquire": {"executionContainerId": "c1", "epoch": 1},
    f"POST {TASK}/progress": {
        "generation": 1,
        "stage": "hourly",
        "lineage": "l",
        "batchId": 0,
        "offsets": OFFSETS,
        "metrics": {**METRICS, "operators": [{"operator": "o", "effect": "EMPTIES"}], "unflushable": ["o"]},
    },
    f"PUT {TASK}/queries": {
        "generation": 1,
        "queries": [
            {
                "stage": "counts",
                "checkpoint": "s3a://states/counts",
                "name": "counts",
                "queryId": "q",
                "batchId": 0,
                "offsets": OFFSETS,
                "metrics": METRICS,
                "writes": [{"topic": "t", "delivery": "exactly-once", "commits": 1, "commitSeconds": 0.5, "fenced": 1}],
                "active": True,
                "error": "a",
                "failures": 1,
            }
        ],
    },
    f"POST {STAGE}/failure": {"generation": 1, "error": "a", "failures": 1, "retrySeconds": 1.0},
    "POST /runs/{runId}/watermarks": {
        "stages": [
            {
                "task": "Partition 0",
                "generation": 1,
                "stage": "hourly",
                "eventTime": "2026-01-01T00:00:00Z",
                "delaySeconds": 1.0,
                "source": "watermark",
                "pending": True,
                "watermark": "2026-01-01T00:00:00Z",
                "partitions": 1,
            }
        ]
    },
    f"POST {STAGE}/snapshots": {
        "generation": 1,
        "lineage": "l",
        "batchId": 0,
        "offsets": OFFSETS,
        "checkpointId": "0-0",
        "markers": {"local": {"index": "i", "files": 1, "bytes": 1, "uploadedFiles": 1, "uploadedBytes": 1, "puts": 1}},
    },
    f"PUT {STAGE}/snapshots/{{checkpointId}}/index": {"generation": 1, "blobStore": "local", "previous": "i", "index": "j"},
    f"POST {STAGE}/lineage": {"generation": 1, "lineage": "l", "why": "a", "checkpointId": "0-0"},
    f"PUT {STAGE}/checkpoint": {"generation": 1, "lineage": "l", "create": True},
    f"POST {STAGE}/drain": {
        "generation": 1,
        "uuid": "u",
        "step": "stopped",
        "batchId": 0,
        "offsets": OFFSETS,
        "checkpointId": "0-0",
        "leftoverRows": 1,
    },
    f"POST {TASK}/release": {"generation": 1},
    "PUT /runs/{runId}/backup": {"stores": ["local"], "restoreFrom": ["local"]},
    "POST /jobs/{job}/snapshots/verify": {"blobStore": "local"},
    "POST /jobs/{job}/snapshots/{checkpointId}/verify": {"task": "Partition 0", "stage": "hourly"},
    "POST /jobs/{job}/snapshots/{checkpointId}/restore": {"task": "Partition 0", "stage": "hourly"},
    "POST /jobs/{job}/pins": {"pinId": "p", "task": "Partition 0", "stage": "hourly", "checkpointId": "0-0", "expiresSeconds": 1.0},
    "POST /drain/plan": {"runId": "{runId}"},
    "POST /jobModel/plan": {"job": "flight-delays", "streams": {"flights": 4}, "containers": 1},
    "POST /jobs/{job}/models/{version}/rollback": {"why": "a"},
    "POST /runs/{runId}/containers/{executionContainerId}/adopted": {"version": 1, "epoch": 1},
    "POST /tokens": {"name": "n", "roles": ["viewer"], "jobs": ["*"], "expiresSeconds": 1.0},
    "POST /runs/{runId}/stop": {"reason": "a", "failed": False},
    "POST /drain": {
        "runId": "{runId}",
        "softDeadlineSeconds": 1.0,
        "hardDeadlineSeconds": 2.0,
        "budgetSeconds": {"stopping": 1.0, "flushing": 1.0, "committing": 1.0},
    },
}
BODIES["POST /runs/plan"] = BODIES["POST /runs"]
DOCUMENT = new_api().openapi()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
async def on_both(request: pytest.FixtureRequest, home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    more = {"database_url": request.getfixturevalue("postgres_server").new_database()} if request.param == "postgresql" else {}
    async with calling(home, clock, **more) as made:
        made.log.create("flights", 2)
        yield made


def test_every_request_with_a_body_is_tested() -> None:
    with_body = {
        f"{method.upper()} {path}"
        for path, methods in DOCUMENT["paths"].items()
        for method, each in methods.items()
        if "requestBody" in each
    }
    assert with_body == BODIES.keys()


def with_mark(body: Any, *, everywhere: bool = False) -> Iterator[Any]:
    """The body with MARK in place of each number or time in it, or of each value."""
    match body:
        case dict():
            for name, value in body.items():
                yield from ({**body, name: changed} for changed in with_mark(value, everywhere=everywhere))
        case list():
            for number, value in enumerate(body):
                yield from ([*body[:number], changed, *body[number + 1 :]] for changed in with_mark(value, everywhere=everywhere))
        case bool():
            return
        case int() | float():
            yield MARK
        case str() if everywhere or body.startswith("2026-"):
            yield MARK


async def send(caller: Caller, request: str, run_id: str, content: str) -> httpx.Response:
    method, path = request.split(" ")
    for name, value in {
        "runId": run_id,
        "task": "Partition 0",
        "stage": "hourly",
        "job": "flight-delays",
        "version": "1",
        "executionContainerId": "c1",
        "checkpointId": "0-0",
    }.items():
        path, content = path.replace(f"{{{name}}}", value), content.replace(f'"{{{name}}}"', f'"{value}"')
    return await caller.http.request(method, path, content=content, headers={"Content-Type": "application/json"})


async def test_a_number_or_time_of_any_size_in_a_body_is_stored_or_refused(on_both: Caller) -> None:
    run_id = (await on_both.deploy())["runId"]
    await on_both.registered(run_id, "c1")
    await on_both.acquired(run_id, "c1")
    found = []
    for request, body in BODIES.items():
        for marked in with_mark(body):
            text = json.dumps(marked)
            for value in (*NOT_FINITE, *HUGE, *LARGEST, *TIMES):
                answer = await send(on_both, request, run_id, text.replace(f'"{MARK}"', value))
                if answer.status_code >= 500 or (value in NOT_FINITE and answer.status_code not in (400, 422)):
                    found.append((request, text[:200], value[:40], answer.status_code, answer.text[:100]))
    assert found == []
    assert (await on_both.http.get("/jobs")).status_code == 200
    assert (await on_both.http.get("/metrics")).status_code == 200


@pytest.mark.long
async def test_a_number_or_time_of_any_size_in_the_queries_of_a_script_is_shown_or_refused(caller: Caller) -> None:
    run_id = (await caller.deploy({"job": "orders", "kind": "attached", "containers": 1, "inputs": [], "stages": []}))["runId"]
    await caller.registered(run_id, "c1")
    await caller.acquired(run_id, "c1", task="Driver")
    accepted, found = 0, []
    for marked in with_mark(BODIES[f"PUT {TASK}/queries"]):
        for value in (*NOT_FINITE, *HUGE, *LARGEST, *TIMES):
            text = json.dumps(marked).replace(f'"{MARK}"', value)
            answers = [
                await send(caller, f"PUT {TASK.replace('{task}', 'Driver')}/queries", run_id, text),
                await caller.http.get(f"/runs/{run_id}"),
                await caller.http.get("/metrics"),
            ]
            accepted += answers[0].status_code == 200
            found += [(text[:200], value[:40], each.text[:100]) for each in answers if each.status_code >= 500]
    assert found == []
    assert accepted


async def test_a_number_of_any_size_in_a_path_a_query_or_a_header_is_answered_or_refused(on_both: Caller) -> None:
    run_id = (await on_both.deploy())["runId"]
    usual = {
        "runId": run_id,
        "task": "Partition 0",
        "stage": "hourly",
        "job": "flight-delays",
        "version": "1",
        "later": "1",
        "checkpointId": "0-0",
    }
    found, asked = [], 0
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            parameters = operation.get("parameters", ())
            required = {each["name"] for each in parameters if each["in"] == "query" and each.get("required")}
            for parameter in parameters:
                for value in ("9" * 300, str(2**63), f"{2**63}-999999", "1e400", "nan"):
                    name, where = parameter["name"], parameter["in"]
                    filled = {each["name"]: usual.get(each["name"], "1") for each in parameters if each["in"] == "path"}
                    filled |= {name: value} if where == "path" else {}
                    query = {each: usual.get(each, "1") for each in required} | ({name: value} if where == "query" else {})
                    answer = await on_both.http.request(
                        method, path.format(**filled), params=query, headers={name: value} if where == "header" else {}, json={}
                    )
                    asked += 1
                    if answer.status_code >= 500:
                        found.append((method, path, where, name, value[:40], answer.status_code, answer.text[:100]))
    assert found == []
    assert asked > 400


def nested(depth: int, leaf: str) -> Iterator[str]:
    yield "[" * depth + leaf + "]" * depth
    yield '{"a":' * depth + leaf + "}" * depth


@pytest.mark.parametrize("leaf", ["1", '"\\u0061"'], ids=["plain", "escaped"])
async def test_a_deeply_nested_body_is_refused_on_every_route_and_in_every_field(caller: Caller, leaf: str) -> None:
    run_id = (await caller.deploy())["runId"]
    found = []
    for request, body in BODIES.items():
        places = [f'"{MARK}"', *(json.dumps(marked) for marked in with_mark(body, everywhere=True))]
        for place in places:
            for depth in (100, 100_000) if place == places[0] else (980,):
                for text in nested(depth, leaf):
                    answer = await send(caller, request, run_id, place.replace(f'"{MARK}"', text))
                    if answer.status_code not in (400, 422):
                        found.append((request, place[:200], depth, answer.status_code, answer.text[:100]))
    assert found == []
