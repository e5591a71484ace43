"""A request that uses a deprecated name is answered as before, with a `Deprecation` header."""

from __future__ import annotations

import httpx

from tests.support.api import Caller, problem_slug, run_body

AT = "2026-03-01T12:00:00Z"


def is_marked(answer: httpx.Response) -> bool:
    marked = answer.headers.get("deprecation")
    assert marked in (None, "@1795392000")
    assert ("link" in answer.headers) == (marked is not None)
    return marked is not None


async def test_old_and_new_routes_give_the_same_answer(caller: Caller) -> None:
    old, new = await caller.http.get("/errands/x"), await caller.http.get("/operations/x")
    assert problem_slug(old) == problem_slug(new) == (404, "unknown-errand")
    assert (is_marked(old), is_marked(new)) == (True, False)


async def test_old_and_new_fields_of_a_request_mean_the_same(caller: Caller) -> None:
    run_id = (await caller.deploy())["runId"]
    await caller.registered(run_id, "c1")
    lineage = (await caller.acquired(run_id, "c1"))["stages"][0]["lineage"]
    measured = {"rows": 1, "rowsPerSecond": 1, "batchMillis": 1, "at": AT}
    for batch, (field, lag, old) in enumerate((("measures", "offsetsBehind", True), ("metrics", "lag", False))):
        body = {"generation": 1, "stage": "hourly", "lineage": lineage, "batchId": batch, "offsets": []}
        answer = await caller.http.post(
            f"/runs/{run_id}/tasks/Partition 0/progress", json=body | {field: measured | {lag: 7, "rows": batch}}
        )
        assert (answer.status_code, is_marked(answer)) == (204, old)
        stage = (await caller.run(run_id))["tasks"][0]["stages"][0]
        assert stage["metrics"] == stage["measures"]
        assert (stage["metrics"]["rows"], stage["lag"] == stage["offsetsBehind"]) == (batch, True)


async def test_old_and_new_headers_name_the_user(caller: Caller) -> None:
    found = []
    for containers, headers in ((1, {"Sluice-Who": "ann"}), (2, {"Sluice-Actor": "bob"}), (1, {"Sluice-Actor": "cleo", "Sluice-Who": "x"})):
        answer = await caller.http.post("/runs", json=run_body(containers=containers), headers=headers)
        found.append(is_marked(answer))
    models = (await caller.http.get("/jobs/flight-delays/models")).json()["models"]
    assert [(each["actor"], each["who"]) for each in models][::-1] == [("ann", "ann"), ("bob", "bob"), ("cleo", "cleo")]
    assert found == [True, False, False]


async def test_a_metric_has_both_names(caller: Caller) -> None:
    text = (await caller.http.get("/metrics")).text
    assert "# TYPE sluice_chore_runs_total counter" in text
    assert "# HELP sluice_chore_turns_total Deprecated: use sluice_chore_runs." in text
