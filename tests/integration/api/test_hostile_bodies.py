"""Bodies that would take long to refuse: with many wrong values, wide, or deeply nested. Their limits are in docs/limits.md."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from coordinator.api.bodies import MAX_DEPTH, MAX_FIELDS, MAX_FORM, MAX_VALUES
from tests.support.api import Caller, Json, problem_slug, report_body, run_body

RUN = "run-of-nothing"
TASK = f"/runs/{RUN}/tasks/Partition 0"
METRICS: Json = {"rows": 1, "rowsPerSecond": 1, "batchMillis": 1, "at": "2026-01-01T00:00:00Z"}
PROGRESS: Json = {"generation": 1, "stage": "hourly", "lineage": "l", "batchId": 1, "offsets": []}
QUERY: Json = {"stage": "a", "checkpoint": "a", "queryId": "a"}

LISTS: list[tuple[str, str, Json, tuple[str | int, ...]]] = [
    ("POST", "/runs/plan", run_body(), ("inputs",)),
    ("POST", "/runs/plan", run_body(), ("stages", 0, "reads")),
    ("POST", "/runs", run_body(), ("outputs",)),
    ("POST", f"/runs/{RUN}/containers", {"processorId": "0", "executionContainerId": "c"}, ("drainModes",)),
    ("POST", f"{TASK}/progress", PROGRESS, ("offsets",)),
    ("POST", f"{TASK}/progress", PROGRESS | {"metrics": METRICS}, ("metrics", "unflushable")),
    ("PUT", f"{TASK}/queries", {"generation": 1, "queries": []}, ("queries",)),
    ("PUT", f"{TASK}/queries", {"generation": 1, "queries": [QUERY]}, ("queries", 0, "offsets")),
    ("POST", f"/runs/{RUN}/watermarks", {"stages": []}, ("stages",)),
    ("POST", f"{TASK}/stages/hourly/drain", {"generation": 1, "uuid": "u", "step": "stopped", "batchId": 7, "offsets": []}, ("offsets",)),
    ("POST", f"{TASK}/stages/hourly/snapshots", report_body(1, "l"), ("offsets",)),
    ("PUT", f"/runs/{RUN}/backup", {"stores": [], "restoreFrom": []}, ("stores",)),
    ("POST", "/tokens", {"name": "n", "roles": ["viewer"]}, ("jobs",)),
]
"""Method, path, a body, and the place of a list in it: for the routes of clients, launchers, containers and agents."""


def changed(body: Json, place: tuple[str | int, ...], value: object) -> Json:
    made = json.loads(json.dumps(body))
    inside: Any = made
    for part in place[:-1]:
        inside = inside[part]
    inside[place[-1]] = value
    return dict(made)


@pytest.mark.parametrize(("method", "path", "body", "place"), LISTS, ids=[f"{each[1]} {each[3][-1]}" for each in LISTS])
async def test_of_a_list_only_the_first_wrong_element_is_validated(
    caller: Caller, method: str, path: str, body: Json, place: tuple[str | int, ...]
) -> None:
    answer = await caller.http.request(method, path, json=changed(body, place, [0] * 1000))
    assert problem_slug(answer) == (422, "invalid-request")
    assert answer.json()["detail"].count(f"{place[-1]}.") == 1, answer.json()["detail"]


@pytest.mark.parametrize(("method", "path", "body", "place"), LISTS, ids=[f"{each[1]} {each[3][-1]}" for each in LISTS])
async def test_a_body_with_more_values_than_the_limit_is_refused_before_it_is_validated(
    caller: Caller, method: str, path: str, body: Json, place: tuple[str | int, ...]
) -> None:
    answer = await caller.http.request(method, path, json=changed(body, place, [0] * (MAX_VALUES + 1)))
    assert problem_slug(answer) == (422, "invalid-request")
    assert answer.json()["detail"] == f"body: send at most {MAX_VALUES:,} values in a request"


@pytest.mark.parametrize("value", [[], {}, "", "\\", '"', "a,b", None], ids=repr)
async def test_all_kinds_of_values_count(caller: Caller, value: object) -> None:
    answer = await caller.http.post("/runs/plan", json=run_body(inputs=[value] * (MAX_VALUES + 1)))
    assert answer.json()["detail"] == f"body: send at most {MAX_VALUES:,} values in a request"


@pytest.mark.parametrize("text", [",", "[", '",', "\\", '\\",'])
async def test_text_with_commas_and_brackets_does_not_count(caller: Caller, text: str) -> None:
    answer = await caller.http.post("/runs/plan", json=run_body(config={"a": text * MAX_VALUES}))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("form", ['{"job": %s}', "[%s]", '{"config": {"a": %s}}'])
@pytest.mark.parametrize("path", ["/runs/plan", f"{TASK}/progress", f"/runs/{RUN}/containers"])
async def test_a_body_with_more_levels_than_the_limit_is_refused_before_it_is_validated(caller: Caller, path: str, form: str) -> None:
    for depth in (MAX_DEPTH, 800, 100_000):
        text = form % ("[" * depth + '"\\u0041"' + "]" * depth)
        answer = await caller.http.post(path, content=text, headers={"content-type": "application/json"})
        assert problem_slug(answer) == (422, "invalid-request")
        assert answer.json()["detail"] == f"body: nest at most {MAX_DEPTH} levels of arrays and objects"


@pytest.mark.parametrize("path", ["/runs/plan", f"{TASK}/progress", f"/runs/{RUN}/containers"])
async def test_an_object_with_more_fields_than_the_limit_is_refused_before_it_is_validated(caller: Caller, path: str) -> None:
    fields: Json = {f"a{number}": 0 for number in range(MAX_FIELDS + 1)}
    for body in (fields, {"config": fields}, {"metrics": [[fields]]}):
        answer = await caller.http.post(path, json=body)
        assert problem_slug(answer) == (422, "invalid-request")
        assert answer.json()["detail"] == f"body: send at most {MAX_FIELDS:,} fields in one object"


@pytest.mark.parametrize("path", ["/ui/login", "/ui/actions/stop"])
async def test_a_large_form_is_refused_before_it_is_decoded(caller: Caller, path: str) -> None:
    answer = await caller.http.post(path, content=b"a=b&" * (MAX_FORM // 4 + 1))
    assert answer.status_code == 413
    assert f"send at most {MAX_FORM} bytes in a form" in answer.text


async def test_the_number_of_markers_is_checked_before_the_markers(caller: Caller) -> None:
    markers = {f"s{number}": {f"a{each}": 0 for each in range(60)} for number in range(MAX_FIELDS)}
    answer = await caller.http.post(f"{TASK}/stages/hourly/snapshots", json=report_body(1, "l", markers=markers))
    assert answer.json()["detail"] == f"body.markers: Value error, it has {MAX_FIELDS} fields, and may have 20"


async def test_ten_thousand_offsets_and_a_config_of_a_thousand_entries_are_accepted(caller: Caller) -> None:
    offsets = [{"system": "log", "stream": "flights", "partition": number, "offset": number} for number in range(10_000)]
    answer = await caller.http.post(f"{TASK}/progress", json=PROGRESS | {"offsets": offsets})
    assert problem_slug(answer) == (404, "unknown-run")
    planned = await caller.http.post("/runs/plan", json=run_body(config={f"a{number}": "b" for number in range(1000)}))
    assert planned.status_code == 200, planned.text


async def test_the_place_of_text_that_cannot_be_stored_needs_little_memory(caller: Caller) -> None:
    depth, width = MAX_DEPTH - 2, 100_000
    text = '{"a": ' + "[" * depth + "0," * width + '"\\ud800"' + "]" * depth + "}"
    tracemalloc.start()
    try:
        answer = await caller.http.post("/runs/plan", content=text, headers={"content-type": "application/json"})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    place = ".".join(["body", "a", *["0"] * (depth - 1), str(width)])
    assert answer.json()["detail"] == f"{place}: NUL and lone surrogates are not allowed"
    assert peak < 20 * len(text), peak


@pytest.mark.parametrize("text", ["\\ud83d\\ude00", "\\\\u0000", "\\u0041"])
async def test_text_that_only_looks_like_a_lone_surrogate_or_nul_is_accepted(caller: Caller, text: str) -> None:
    body = json.dumps(run_body(config={"a": "TEXT"})).replace("TEXT", text)
    answer = await caller.http.post("/runs/plan", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
