"""What `POST /runs` refuses, without leaving anything behind."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.remedies import KIND_OF, REMEDIES, plain
from tests.support.api import INPUT, OUTPUT, Caller, Json, chained_body, problem_slug, run_body

STAGE = {"name": "hourly", "reads": ["flights"], "writes": ["delays"]}
SECOND = {"name": "rules", "system": "log"}


def stages(*listed: tuple[str, list[str], list[str]]) -> list[Json]:
    return [{"name": name, "reads": reads, "writes": writes} for name, reads, writes in listed]


REFUSED: dict[str, tuple[Json, str]] = {
    "unknown system of an input": (run_body(inputs=[{"name": "flights", "system": "mars"}]), "unknown-system"),
    "unknown system of an output": (run_body(outputs=[{"name": "delays", "system": "mars"}]), "unknown-system"),
    "no inputs": (run_body(inputs=[]), "bad-graph"),
    "no stages": (run_body(stages=[]), "bad-graph"),
    "an input that does not exist": (run_body(inputs=[{**INPUT, "stream": "lost"}]), "unknown-stream"),
    "zero containers": (run_body(containers=0), "bad-placement"),
    "less than zero containers": (run_body(containers=-1), "bad-placement"),
    "more containers than tasks": (chained_body(containers=5), "bad-placement"),
    "a cycle": (
        chained_body() | {"stages": stages(("a", ["flights", "by-carrier"], ["by-carrier"]), ("b", ["by-carrier"], ["delays"]))},
        "bad-graph",
    ),
    "two writers": (run_body(stages=stages(("a", ["flights"], ["delays"]), ("b", ["flights"], ["delays"]))), "bad-graph"),
    "an undeclared stream": (run_body(stages=stages(("a", ["lost"], ["delays"]))), "bad-graph"),
    "a stream declared twice": (run_body(inputs=[INPUT, INPUT]), "bad-graph"),
    "two names for one stream": (run_body(inputs=[INPUT, {"name": "again", "system": "log", "stream": "flights"}]), "bad-graph"),
    "an intermediate stream with another count": (
        chained_body() | {"intermediates": [{"name": "by-carrier", "system": "log", "partitions": 4, "stream": "taken"}]},
        "stream-conflict",
    ),
    "an unknown grouper": (run_body(grouper="ByMoon"), "bad-grouping"),
    "a fold to nothing": (run_body(maxTasks=0), "bad-grouping"),
    "a fold of a grouper that has none": (run_body(grouper="AllSspToSingleTask", maxTasks=2), "bad-grouping"),
    "only broadcast inputs": (run_body(inputs=[{**INPUT, "broadcast": True}]), "bad-grouping"),
    "streams that are not co-partitioned": (
        run_body(inputs=[INPUT, SECOND], stages=stages(("a", ["flights", "rules"], ["delays"]))),
        "not-co-partitioned",
    ),
    "a job name that leaves its directory": (run_body(job="../x"), "invalid-request"),
    "a stream name that leaves its directory": (run_body(inputs=[{**INPUT, "stream": "../../x"}]), "invalid-request"),
    "a stage name that leaves its directory": (run_body(stages=stages(("../x", ["flights"], ["delays"]))), "invalid-request"),
    "an output too long for a file's name": (run_body(outputs=[{**OUTPUT, "stream": "x" * 249}]), "bad-request"),
    "words for a number": (run_body(containers="two"), "invalid-request"),
    "a fraction of a container": (run_body(containers=1.5), "invalid-request"),
    "a number too large for anything": (run_body(containers=10**30), "invalid-request"),
    "null for a number": (run_body() | {"containers": None}, "invalid-request"),
    "a list for a job": (run_body(job=["x"]), "invalid-request"),
    "an object for a list": (run_body(inputs={}), "invalid-request"),
    "a config that is not text": (run_body(config={"a": {"b": 1}}), "invalid-request"),
    "an unknown field": (run_body(contaners=1), "invalid-request"),
    "an event skew, as releases before had": (run_body(maxEventSkewSeconds=60), "invalid-request"),
    "no job": (run_body(job=None), "invalid-request"),
    "an intermediate stream without partitions": (
        chained_body() | {"intermediates": [{"name": "by-carrier", "system": "log", "partitions": 0}]},
        "invalid-request",
    ),
    "a start that is no time": (run_body(start="yesterday"), "invalid-request"),
    "a start outside the years that there are": (run_body(start="0001-01-01T00:00:00+14:00"), "invalid-request"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
async def test_an_impossible_run_is_refused_and_nothing_is_left_of_it(caller: Caller, case: str) -> None:
    body, slug = REFUSED[case]
    caller.log.create("rules", 3)
    caller.log.create("taken", 3)
    before = caller.log.streams()
    answer = await caller.http.post("/runs", json=body)
    assert problem_slug(answer) == (422, slug), answer.text
    assert (await caller.http.get("/jobs")).json()["jobs"] == []
    assert (await caller.http.get("/jobModel?job=flight-delays")).status_code == 404
    assert caller.log.streams() == before


async def test_a_refused_deployment_does_not_change_the_live_run(caller: Caller) -> None:
    run = await caller.deploy()
    before = await caller.run(run["runId"])
    assert (await caller.http.post("/runs", json=run_body(containers=9))).status_code == 422
    assert await caller.run(run["runId"]) == before
    assert await caller.notices(run["runId"]) == []


@pytest.mark.parametrize(
    ("content", "statuses"),
    [
        (b"", {422}),
        (b"{", {422}),
        (b"null", {422}),
        (b"[]", {422}),
        (b"\xff\xfe", {400, 422}),
        (b"[" * 100_000, {400, 422}),
        (b'{"job": ' + b"9" * 5_000 + b"}", {400, 422}),
        (b'{"job": NaN}', {422}),
        (b'{"\\ud800": 1}', {422}),
        (b'{"job": "\\ud800"}', {422}),
        (b'{"job": "a\\u0000b"}', {422}),
    ],
)
async def test_a_body_that_is_not_a_request_is_refused_with_a_problem(caller: Caller, content: bytes, statuses: set[int]) -> None:
    answer = await caller.http.post("/runs", content=content, headers={"Content-Type": "application/json"})
    assert problem_slug(answer)[0] in statuses, answer.text


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/runs/lost", None, (404, "unknown-run")),
        ("GET", "/runs/%00", None, (422, "invalid-request")),
        ("GET", "/runs/%ED%A0%80", None, (422, "invalid-request")),
        ("GET", "/runs/" + "x" * 5000, None, (422, "invalid-request")),
        ("GET", "/runs/lost/notices", None, (404, "unknown-run")),
        ("POST", "/runs/lost/stop", {}, (404, "unknown-run")),
        ("POST", "/runs/lost/containers", {"processorId": "0", "executionContainerId": "c"}, (404, "unknown-run")),
        ("POST", "/runs/lost/tasks/Partition 0/acquire", {"executionContainerId": "c", "epoch": 1}, (404, "unknown-run")),
        ("POST", "/runs/lost/tasks/Partition 0/release", {"generation": 1}, (404, "unknown-run")),
        ("POST", "/containers/lost/exit", {"exitCode": 0}, (404, "unknown-container")),
        ("POST", "/containers/lo%2Fst/exit", {"exitCode": 0}, (404, "unknown-container")),
        ("GET", "/jobModel?job=lost", None, (404, "no-job-model")),
        ("GET", "/jobModel", None, (404, "unknown-job")),
        ("GET", "/jobModel?job=", None, (422, "invalid-request")),
        ("GET", "/locality", None, (404, "unknown-job")),
        ("GET", "/locality?job=lost", None, (404, "unknown-job")),
        ("GET", "/containerHeartbeat", None, (422, "invalid-request")),
        ("GET", "/containerHeartbeat?executionContainerId=", None, (422, "invalid-request")),
        ("GET", "/nowhere", None, (404, "http-404")),
        ("DELETE", "/runs", None, (405, "http-405")),
        ("DELETE", "/jobs", None, (405, "http-405")),
        ("POST", "/containerHeartbeat?executionContainerId=c", None, (405, "http-405")),
    ],
)
async def test_each_refused_request_is_answered_with_its_problem_type(
    caller: Caller, method: str, path: str, body: Any, expected: tuple[int, str]
) -> None:
    assert problem_slug(await caller.http.request(method, path, json=body)) == expected


@pytest.mark.parametrize(
    ("method", "path", "content", "slug", "named"),
    [
        ("GET", "/runs/lost", None, "unknown-run", "`sluice jobs runs JOB`"),
        ("POST", "/runs", b"{}", "invalid-request", "`/docs`"),
        ("POST", "/runs", b"1" * 5000, "http-400", "valid JSON"),
        ("GET", "/nowhere", None, "http-404", "`/docs`"),
        ("GET", "/jobs/lost", None, "http-405", "`/docs`"),
    ],
)
async def test_a_refusal_says_what_to_do_and_is_in_the_table_of_errors(
    caller: Caller, method: str, path: str, content: bytes | None, slug: str, named: str
) -> None:
    answer = await caller.http.request(method, path, content=content, headers={"Content-Type": "application/json"})
    kind = KIND_OF[slug]
    assert problem_slug(answer) == (kind.status, slug)
    body = answer.json()
    assert body["title"] == kind.title()
    assert body["remedy"] == plain(REMEDIES[kind.__name__])
    assert named in body["remedy"]


async def test_the_refusal_of_an_unknown_path_or_method_names_the_request(caller: Caller) -> None:
    assert (await caller.http.get("/nowhere")).json()["detail"] == "there is no request GET at this path"
    assert (await caller.http.get("/jobs/lost")).json()["detail"] == "there is no request GET at this path"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_the_refusal_of_a_body_that_is_not_sent_as_json_names_the_header(caller: Caller, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await caller.http.post("/runs", content=b'{"job":"x"}', headers=headers)
    assert problem_slug(answer) == (422, "invalid-request")
    assert answer.json()["detail"] == "body: send the header Content-Type: application/json"


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b'{"job": x}', "body: it is not valid JSON at character 8: Expecting value"),
        (b"[" * 100_000, "body: nest at most 50 levels of arrays and objects"),
        (b"[" * 3_000_000, "body: send at most 150,000 values in a request"),
    ],
    ids=["no value", "nested", "many values"],
)
async def test_the_refusal_of_a_malformed_body_says_what_is_wrong_with_it(caller: Caller, content: bytes, detail: str) -> None:
    answer = await caller.http.post("/runs", content=content, headers={"Content-Type": "application/json"})
    assert answer.json()["detail"] == detail


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"start": "yesterday"}, "body.start"),
        ({"start": {"literal": 1}}, "body.start"),
        ({"inputs": [{**INPUT, "broadcast": "x"}]}, "body.inputs.0.broadcast"),
        ({"config": {"a[b-c]": {"d": 1}}}, "body.config.a[b-c]"),
        ({"contaners": 1}, "body.contaners"),
        ({"inputs": [{"name": "flights"}]}, "body.inputs.0.system"),
    ],
)
async def test_a_refusal_names_the_field_as_the_request_has_it(caller: Caller, changed: Json, field: str) -> None:
    detail = (await caller.http.post("/runs", json=run_body() | changed)).json()["detail"]
    assert {part.partition(": ")[0] for part in detail.split("; ")} == {field}, detail


@pytest.mark.parametrize("query", ["after=-1", "after=99999999999999999999", "after=x", "wait=-1", "wait=1e9", "wait=nan", "wait=inf"])
async def test_a_poll_for_notices_with_numbers_out_of_bounds_is_refused(caller: Caller, query: str) -> None:
    run = await caller.deploy()
    assert problem_slug(await caller.http.get(f"/runs/{run['runId']}/notices?{query}")) == (422, "invalid-request")
