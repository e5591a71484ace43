"""Jobs of the kind attached: one slot and one task for a command that the coordinator does not know."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.api import Caller, problem_slug, run_body
from tests.support.fakes import FakeClock


def attached(**changes: Any) -> dict[str, Any]:
    return {"job": "orders", "kind": "attached", "containers": 1, "inputs": [], "stages": [], **changes}


async def test_an_attached_job_has_one_task_in_one_slot(caller: Caller) -> None:
    run = await caller.deploy(attached())
    detail = await caller.run(run["runId"])
    assert (detail["kind"], detail["slots"]) == ("attached", ["0"])
    assert [(each["task"], each["processorId"], each["assignedStages"]) for each in detail["tasks"]] == [("Driver", "0", [])]


async def test_other_jobs_are_of_the_kind_stages(caller: Caller) -> None:
    assert (await caller.deploy(run_body()))["kind"] == "stages"


async def test_deploying_an_attached_job_again_answers_with_its_present_run(caller: Caller) -> None:
    first, second = await asyncio.gather(caller.deploy(attached()), caller.deploy(attached()))
    assert first["runId"] == second["runId"]
    assert first["stopRequestedAt"] is None


async def test_a_deployment_after_a_stop_creates_another_run(caller: Caller) -> None:
    first = await caller.deploy(attached())
    await caller.stop(first["runId"])
    assert (await caller.deploy(attached()))["runId"] != first["runId"]


async def test_the_request_of_an_attached_job_can_be_sent_again(caller: Caller) -> None:
    run = await caller.deploy(attached())
    request = (await caller.http.get(f"/runs/{run['runId']}/request")).json()
    assert (request["kind"], request["stages"]) == ("attached", [])


async def test_an_attached_job_with_streams_or_several_containers_is_refused(caller: Caller) -> None:
    for wrong in (attached(containers=2), run_body(kind="attached")):
        assert problem_slug(await caller.http.post("/runs", json=wrong)) == (422, "bad-graph")


async def test_an_attached_job_cannot_be_scaled(caller: Caller) -> None:
    run = await caller.deploy(attached())
    assert problem_slug(await caller.http.patch(f"/runs/{run['runId']}", json={"containers": 2})) == (422, "bad-placement")


async def test_a_drain_of_a_command_without_queries_is_refused(caller: Caller) -> None:
    run = await caller.deploy(attached())
    assert problem_slug(await caller.http.post("/drain", json={"runId": run["runId"]})) == (409, "attached-job")
    assert (await caller.run(run["runId"]))["state"] == "CREATED"


async def test_a_registration_that_requires_a_free_slot_is_refused_while_the_slot_is_in_use(caller: Caller) -> None:
    run = (await caller.deploy(attached()))["runId"]
    await caller.registered(run, "c1", onlyIfFree=True)
    assert problem_slug(await caller.register(run, "c2", onlyIfFree=True)) == (409, "slot-in-use")
    assert await caller.alive("c1", 1)
    await caller.exited("c1")
    assert (await caller.registered(run, "c3", onlyIfFree=True))["epoch"] == 2


async def test_a_repeated_registration_keeps_the_slot_that_it_has(caller: Caller) -> None:
    run = (await caller.deploy(attached()))["runId"]
    first = await caller.registered(run, "c1", onlyIfFree=True)
    again = await caller.registered(run, "c1", onlyIfFree=True)
    assert again | {"token": None} == first | {"token": None}


async def test_one_of_two_concurrent_registrations_gets_the_slot(caller: Caller) -> None:
    run = (await caller.deploy(attached()))["runId"]
    answers = await asyncio.gather(*(caller.register(run, f"c{n}", onlyIfFree=True) for n in range(5)))
    assert sorted(each.status_code for each in answers) == [201, 409, 409, 409, 409]


async def test_a_container_that_replaces_the_owner_gets_the_task_when_the_owner_has_ended(caller: Caller) -> None:
    run = (await caller.deploy(attached()))["runId"]
    await caller.registered(run, "c1")
    await caller.acquired(run, "c1", task="Driver")
    await caller.registered(run, "c2")
    assert (await caller.acquire(run, "c2", 2, task="Driver")).status_code == 202
    await caller.exited("c1")
    assert (await caller.acquired(run, "c2", 2, task="Driver"))["generation"] == 2


# --- queries of a script ---------------------------------------------------------------------------------------------


METRICS = {"rows": 20, "rowsPerSecond": 5.0, "batchMillis": 300, "lag": 7, "stateRows": 3, "at": "2013-01-01T00:00:00Z"}


def query(stage: str, **changes: Any) -> dict[str, Any]:
    return {"stage": stage, "checkpoint": f"s3a://states/{stage}", "queryId": f"id of {stage}", **changes}


async def started(caller: Caller, job: str) -> tuple[str, int]:
    """A run of the job with a container, and the generation under which it has the task."""
    run = (await caller.deploy(attached(job=job)))["runId"]
    registered = await caller.registered(run, f"container of {job}".replace(" ", "-"))
    acquired = await caller.acquired(run, f"container-of-{job}", registered["epoch"], task="Driver")
    return run, acquired["generation"]


async def report(caller: Caller, run: str, generation: int, *queries: dict[str, Any]) -> Any:
    body = {"generation": generation, "queries": queries}
    return await caller.http.put(f"/runs/{run}/tasks/Driver/queries", json=body)


async def test_the_queries_of_a_script_are_stages_of_its_task(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    offsets = [{"system": "kafka", "stream": "orders", "partition": 0, "offset": 40}]
    answer = await report(caller, run, generation, query("counts", batchId=4, offsets=offsets, metrics=METRICS), query("alerts"))
    assert (answer.status_code, answer.json()) == (200, {"refused": []})
    detail = await caller.run(run)
    assert [each["name"] for each in detail["stages"]] == ["counts", "alerts"]
    (task,) = detail["tasks"]
    assert task["assignedStages"] == ["counts", "alerts"]
    counts, alerts = task["stages"]
    assert (counts["batchId"], counts["offsets"], counts["checkpoint"]) == (4, offsets, "s3a://states/counts")
    assert (counts["metrics"]["lag"], counts["metrics"]["stateRows"], counts["metrics"]["rowsPerSecond"]) == (7, 3, 5.0)
    assert (alerts["batchId"], alerts["metrics"]) == (None, None)


async def test_a_report_replaces_the_one_before(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts"), query("alerts"))
    await report(caller, run, generation, query("alerts"))
    assert [each["name"] for each in (await caller.run(run))["stages"]] == ["alerts"]


async def test_a_query_that_failed_is_shown_with_its_error_until_it_runs_again(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    failed = {"error": "ValueError: no such currency", "failures": 2}
    await report(caller, run, generation, query("counts", active=False, **failed))
    (stage,) = (await caller.run(run))["tasks"][0]["stages"]
    assert (stage["failure"]["error"], stage["failure"]["failures"], stage["failure"]["over"]) == ("ValueError: no such currency", 2, False)
    await report(caller, run, generation, query("counts", **failed))
    (stage,) = (await caller.run(run))["tasks"][0]["stages"]
    assert stage["failure"]["over"]


async def test_the_lag_of_a_query_is_a_metric(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts", metrics=METRICS))
    await caller.coordinator.api.state.parts.lag.run_once()
    page = (await caller.http.get("/metrics")).text
    assert 'sluice_job_lag_records{sluice_job="orders",stage="counts"} 7.0' in page


async def test_a_checkpoint_that_another_job_uses_is_refused_until_that_job_has_ended(caller: Caller) -> None:
    orders, first = await started(caller, "orders")
    copy, second = await started(caller, "copy-of-orders")
    await report(caller, orders, first, query("counts"))
    refused = (await report(caller, copy, second, query("counts"), query("other"))).json()["refused"]
    assert refused == [{"stage": "counts", "why": "job orders uses the checkpoint now; a checkpoint has one query at a time"}]
    assert [each["name"] for each in (await caller.run(copy))["stages"]] == ["other"]
    await caller.exited("container-of-orders")
    assert (await report(caller, copy, second, query("counts"))).json()["refused"] == []


async def test_a_query_that_has_ended_does_not_use_its_checkpoint(caller: Caller) -> None:
    orders, first = await started(caller, "orders")
    copy, second = await started(caller, "copy-of-orders")
    await report(caller, orders, first, query("counts", active=False))
    assert (await report(caller, copy, second, query("counts"))).json()["refused"] == []


async def test_what_a_script_writes_to_kafka_is_in_the_metrics(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    writes = {"topic": "_counts", "delivery": "exactly-once", "commits": 3, "commitSeconds": 0.5, "fenced": 1, "aborted": 2, "repeated": 4}
    assert (await report(caller, run, generation, query("counts", writes=[writes]))).status_code == 200
    lines = (await caller.http.get("/metrics")).text.splitlines()
    labels = '{sluice_job="orders",stage="counts",topic="_counts"}'
    for name, value in {
        "transaction_commit_seconds_count": 3.0,
        "transaction_commit_seconds_sum": 0.5,
        "transactions_aborted_total": 2.0,
        "transactions_fenced_total": 1.0,
        "markers_renewed_total": 0.0,
        "batches_not_repeated_total": 4.0,
    }.items():
        assert f"sluice_script_{name}{labels} {value}" in lines


async def test_only_the_owner_of_the_task_reports_queries(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    assert problem_slug(await report(caller, run, generation + 1, query("counts"))) == (409, "lease-lost")
    assert (await caller.run(run))["stages"] == []


async def test_a_job_of_a_job_file_has_no_queries_to_report(caller: Caller) -> None:
    run = (await caller.deploy(run_body()))["runId"]
    registered = await caller.registered(run, "c1")
    generation = (await caller.acquired(run, "c1", registered["epoch"]))["generation"]
    answer = await caller.http.put(f"/runs/{run}/tasks/Partition 0/queries", json={"generation": generation, "queries": []})
    assert problem_slug(answer) == (409, "not-attached")


async def test_more_queries_than_a_script_may_have_are_refused(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    answer = await report(caller, run, generation, *(query(f"q{n}") for n in range(51)))
    assert answer.status_code == 422


# --- drains of a script ----------------------------------------------------------------------------------------------


OFFSETS = [{"system": "kafka", "stream": "orders", "partition": 0, "offset": 40}]


async def step(caller: Caller, run: str, generation: int, drain: str, stage: str, taken: str, **more: Any) -> Any:
    body = {"generation": generation, "uuid": drain, "step": taken, "batchId": 4, "offsets": OFFSETS, **more}
    return await caller.http.post(f"/runs/{run}/tasks/Driver/stages/{stage}/drain", json=body)


async def test_a_drain_of_a_script_waits_for_each_of_its_running_queries(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts"), query("alerts"), query("ended", active=False))
    drain = (await caller.http.post("/drain", json={"runId": run})).json()["uuid"]
    for taken, after in (("stopped", "FLUSHING"), ("flushed", "COMMITTING"), ("committed", "DRAINED")):
        assert (await step(caller, run, generation, drain, "counts", taken)).json()["phase"] != after
        assert (await step(caller, run, generation, drain, "alerts", taken, leftoverRows=0)).json()["phase"] == after
    detail = (await caller.http.get(f"/drain/{drain}")).json()
    assert (detail["phase"], detail["drained"]) == ("DRAINED", OFFSETS)
    assert (await caller.run(run))["state"] == "DRAINED"


async def test_a_query_that_the_script_has_started_since_its_last_report_is_drained_too(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts"))
    drain = (await caller.http.post("/drain", json={"runId": run})).json()["uuid"]
    assert (await step(caller, run, generation, drain, "alerts", "stopped")).json()["phase"] == "STOPPING"
    assert (await step(caller, run, generation, drain, "counts", "stopped")).json()["phase"] == "FLUSHING"
    assert problem_slug(await step(caller, run, generation, drain, "unknown", "flushed")) == (404, "unknown-task")


async def test_a_drain_is_refused_with_the_queries_that_cannot_be_drained(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts"), query("rates", undrainable=["it reads rate"]))
    refused = await caller.http.post("/drain", json={"runId": run})
    assert problem_slug(refused) == (409, "queries-not-drainable")
    assert "rates (it reads rate)" in refused.json()["detail"]
    assert (await caller.run(run))["state"] == "RUNNING"
    plan = (await caller.http.post("/drain/plan", json={"runId": run})).json()
    assert {each["stage"]: each["operators"] for each in plan["stages"]} == {"counts": [], "rates": ["it reads rate"]}
    assert plan["refused"] == "these queries cannot be drained: rates (it reads rate)"


async def test_a_drain_that_keeps_the_state_of_a_script_is_a_stop(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts"))
    refused = await caller.http.post("/drain", json={"runId": run, "drainMode": "KEEP_STATE"})
    assert problem_slug(refused) == (409, "attached-job")
    assert "sluice stop" in refused.json()["detail"]


async def test_a_drain_that_must_empty_all_state_is_refused_if_an_operator_keeps_rows(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts", metrics=METRICS | {"unflushable": ["distinct: it has no watermark"]}))
    refused = await caller.http.post("/drain", json={"runId": run, "requireEmpty": True})
    assert problem_slug(refused) == (409, "not-emptied")
    assert (await caller.http.post("/drain", json={"runId": run})).status_code == 202


# --- checkpoints of a script -----------------------------------------------------------------------------------------


async def opened(caller: Caller, run: str, generation: int, name: str = "counts", **more: Any) -> Any:
    body = {"generation": generation, **more}
    return await caller.http.put(f"/runs/{run}/tasks/Driver/stages/{name}/checkpoint", json=body)


async def backed_up(caller: Caller, run: str, generation: int, lineage: str, batch: int = 4) -> str:
    """Report a snapshot of the checkpoint counts."""
    index = "jobs/orders/Driver/counts/snapshots/1700000000001-00000000000000aa"
    body = {
        "generation": generation,
        "lineage": lineage,
        "batchId": batch,
        "offsets": [],
        "checkpointId": "1700000000000-100001",
        "markers": {"local": {"index": index}},
    }
    answer = await caller.http.post(f"/runs/{run}/tasks/Driver/stages/counts/snapshots", json=body)
    assert answer.status_code in (200, 201), answer.text
    return str(body["checkpointId"])


async def test_a_checkpoint_has_the_lineage_that_its_machine_has_until_there_is_a_snapshot(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    unknown = (await opened(caller, run, generation, create=False)).json()
    assert (unknown["new"], unknown["lineage"]) == (True, None)
    first = (await opened(caller, run, generation)).json()
    assert (first["new"], first["snapshot"]) == (True, None)
    assert (await opened(caller, run, generation)).json() == first | {"new": False}
    here = (await opened(caller, run, generation, lineage="q-1")).json()
    assert here["lineage"] == "q-1"
    checkpoint = await backed_up(caller, run, generation, "q-1")
    elsewhere = (await opened(caller, run, generation, lineage="q-2")).json()
    assert (elsewhere["lineage"], elsewhere["batchId"], elsewhere["snapshot"]["checkpointId"]) == ("q-1", 4, checkpoint)


async def test_the_status_of_a_query_has_the_batch_of_its_last_snapshot(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    await opened(caller, run, generation, lineage="q-1")
    await backed_up(caller, run, generation, "q-1")
    await report(caller, run, generation, query("counts", batchId=6, queryId="q-1", metrics=METRICS))
    (stage,) = (await caller.run(run))["tasks"][0]["stages"]
    assert (stage["batchId"], stage["snapshotBatchId"], stage["snapshotAt"] is not None) == (6, 4, True)
    await report(caller, run, generation, query("counts", batchId=6, queryId="another"))
    (stage,) = (await caller.run(run))["tasks"][0]["stages"]
    assert (stage["snapshotBatchId"], stage["snapshotAt"]) == (None, None)


async def test_only_the_owner_of_the_task_of_a_script_opens_its_checkpoints(caller: Caller) -> None:
    run, generation = await started(caller, "orders")
    assert problem_slug(await opened(caller, run, generation + 1)) == (409, "lease-lost")
    assert problem_slug(await opened(caller, run, generation, name="my counts")) == (422, "bad-name")
    other = (await caller.deploy(run_body()))["runId"]
    registered = await caller.registered(other, "c1")
    generation = (await caller.acquired(other, "c1", registered["epoch"]))["generation"]
    answer = await caller.http.put(f"/runs/{other}/tasks/Partition 0/stages/hourly/checkpoint", json={"generation": generation})
    assert problem_slug(answer) == (409, "not-attached")


async def test_snapshots_of_a_script_that_did_not_run_for_long_are_kept(caller: Caller, clock: FakeClock) -> None:
    run, generation = await started(caller, "orders")
    await opened(caller, run, generation, lineage="q-1")
    await backed_up(caller, run, generation, "q-1")
    await caller.exited("container-of-orders")
    clock.advance(30 * 86_400)
    await caller.run_chore("retire_stores")
    listed = (await caller.http.get("/jobs/orders/snapshots")).json()["snapshots"]
    assert [each["batchId"] for each in listed] == [4]
