"""Reports of containers about their stages, measurements of the coordinator, and where Prometheus finds them."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from coordinator.runs.lag import LagMonitor
from coordinator.store.sql import ReadTransaction
from sluice.core.errors import StreamUnavailable
from sluice.core.ids import Generation, Lineage, RunId
from sluice.streams.log import LogSystem, Record, Writer
from sluice.streams.port import Offsets
from tests.support.api import Caller, Json, calling, chained_body, problem_slug, run_with_both_tasks
from tests.support.fakes import FakeClock

NOON = "2026-03-01T12:00:00Z"
MEASURES: Json = {
    "rows": 500,
    "rowsPerSecond": 250.5,
    "batchMillis": 1996,
    "batchMillisByPart": {"addBatch": 1800, "walCommit": 20},
    "lag": 0,
    "stateRows": 12,
    "stateBytes": 4096,
    "watermark": "2026-03-01T11:00:00Z",
    "eventTimeMax": "2026-03-01T11:10:00Z",
    "unflushable": ["Aggregate"],
    "delivery": {"delays": "exactly-once"},
    "at": NOON,
}


@pytest.fixture
async def run_id(caller: Caller) -> str:
    """A run whose slot 0 is c1, which owns "Partition 0" and "Partition 1" under generation 1."""
    return await run_with_both_tasks(caller)


async def lineage_of(caller: Caller, run_id: str) -> str:
    return str((await stage_of(caller, run_id))["lineage"])


async def stage_of(caller: Caller, run_id: str, task: str = "Partition 0") -> Json:
    tasks = (await caller.run(run_id))["tasks"]
    stage: Json = next(each["stages"][0] for each in tasks if each["task"] == task)
    return stage


async def tell(
    caller: Caller, run_id: str, batch: int, measures: Json | None, generation: int = 1, offset: int = 0, lineage: str | None = None
) -> httpx.Response:
    body: Json = {
        "generation": generation,
        "stage": "hourly",
        "lineage": lineage or await lineage_of(caller, run_id),
        "batchId": batch,
        "offsets": [{"system": "log", "stream": "flights", "partition": 0, "offset": offset}] if offset else [],
        "metrics": measures,
    }
    return await caller.http.post(f"/runs/{run_id}/tasks/Partition 0/progress", json=body)


async def survey(caller: Caller) -> None:
    await caller.coordinator.api.state.parts.lag.run_once()


def feed(caller: Caller, count: int, batch: int = 0, stream: str = "flights") -> None:
    records = [Record(b"x", partition=0) for _ in range(count)]
    caller.log.append(stream, records, writer=Writer(Lineage("f"), "f", Generation(1)), batch=batch, now_micros=1)


async def series(caller: Caller) -> dict[str, float]:
    """The samples of `/metrics`, by name and labels."""
    lines = (await caller.http.get("/metrics")).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


# --- measures --------------------------------------------------------------------------------------------------------


async def test_measures_are_shown_with_their_stage(caller: Caller, run_id: str) -> None:
    assert (await tell(caller, run_id, 3, MEASURES)).status_code == 204
    stage = await stage_of(caller, run_id)
    assert stage["batchId"] == 3
    assert stage["metrics"] == MEASURES
    assert (await stage_of(caller, run_id, "Partition 1"))["metrics"] is None


async def test_late_rows_of_a_job_without_intermediate_streams_are_counted(caller: Caller, run_id: str) -> None:
    await survey(caller)
    first = 'sluice_job_late_rows_total{cause="late",sluice_job="flight-delays",stage="hourly"}'
    assert (await series(caller))[first] == 0, "so that the first row is an increase"
    for batch, rows in ((3, 2), (4, 5), (4, 5)):
        await tell(caller, run_id, batch, MEASURES | {"lateRows": rows, "lateRowsAt": NOON})
    stage = await stage_of(caller, run_id)
    assert (stage["lateRows"], stage["lateRowsGivenUp"], stage["lateRowsAt"]) == (5, 0, NOON)
    await caller.exited("c1")
    await caller.registered(run_id, "c2")
    await caller.acquired(run_id, "c2", epoch=2)
    await tell(caller, run_id, 5, MEASURES | {"lateRows": 1, "lateRowsAt": NOON}, generation=2)
    await survey(caller)
    assert (await stage_of(caller, run_id))["lateRows"] == 6
    assert (await series(caller))[first] == 6


@pytest.mark.parametrize("clock_is", ["three days ahead", "two hours behind"])
async def test_late_rows_are_a_problem_for_an_hour_regardless_of_the_clock_of_their_container(
    caller: Caller, run_id: str, clock: FakeClock, clock_is: str
) -> None:
    theirs = (clock.now() + (timedelta(days=3) if clock_is == "three days ahead" else -timedelta(hours=2))).isoformat()
    await tell(caller, run_id, 3, MEASURES | {"lateRows": 2, "lateRowsAt": theirs})
    assert (await stage_of(caller, run_id))["lateRowsAt"] == NOON
    clock.advance(10)
    await tell(caller, run_id, 3, MEASURES | {"lateRows": 2, "lateRowsAt": theirs})
    assert (await stage_of(caller, run_id))["lateRowsAt"] == NOON, "the same rows"


async def test_measures_from_a_clock_that_is_ahead_do_not_hide_that_a_stage_is_silent(
    caller: Caller, run_id: str, clock: FakeClock
) -> None:
    for batch in (3, 3):
        ahead = (clock.now() + timedelta(days=3)).isoformat()
        await tell(caller, run_id, batch, MEASURES | {"at": ahead})
        assert (await stage_of(caller, run_id))["metrics"]["at"] == clock.now().isoformat().replace("+00:00", "Z")
        clock.advance(10)


async def test_a_report_without_measures_is_accepted(caller: Caller, run_id: str) -> None:
    assert (await tell(caller, run_id, 3, None)).status_code == 204
    stage = await stage_of(caller, run_id)
    assert (stage["batchId"], stage["metrics"]) == (3, None)


async def test_the_same_batch_again_updates_the_metrics_and_writes_nothing(caller: Caller, clock: FakeClock, run_id: str) -> None:
    await tell(caller, run_id, 3, MEASURES, offset=40)
    before = await stage_of(caller, run_id)
    clock.advance(10)
    assert (await tell(caller, run_id, 3, MEASURES | {"rows": 0, "rowsPerSecond": 0, "at": "2026-03-01T12:00:10Z"})).status_code == 204
    after = await stage_of(caller, run_id)
    assert (after["metrics"]["rows"], after["metrics"]["rowsPerSecond"]) == (0, 0)
    assert after["metrics"]["at"] == "2026-03-01T12:00:10Z"
    assert {**after, "metrics": None} == {**before, "metrics": None}


async def test_measures_of_an_older_batch_or_another_history_are_not_kept(caller: Caller, run_id: str) -> None:
    await tell(caller, run_id, 3, MEASURES)
    await tell(caller, run_id, 2, MEASURES | {"rows": 1})
    await tell(caller, run_id, 4, MEASURES | {"rows": 2}, lineage="given up")
    assert (await stage_of(caller, run_id))["metrics"] == MEASURES


async def test_a_former_owner_is_refused_with_a_batch_that_it_has_reported_before(caller: Caller, run_id: str) -> None:
    await tell(caller, run_id, 3, MEASURES)
    await caller.exited("c1")
    assert problem_slug(await tell(caller, run_id, 3, MEASURES | {"rows": 1})) == (409, "lease-lost")
    assert (await stage_of(caller, run_id))["metrics"]["batchMillis"] == 1996


async def test_a_task_without_an_owner_reads_nothing(caller: Caller, run_id: str) -> None:
    await tell(caller, run_id, 3, MEASURES)
    await caller.exited("c1")
    measures = (await stage_of(caller, run_id))["metrics"]
    assert (measures["rows"], measures["rowsPerSecond"], measures["stateRows"]) == (0, 0, 12)


async def test_the_measures_of_the_next_owner_replace_those_of_the_former_one(caller: Caller, run_id: str) -> None:
    await tell(caller, run_id, 3, MEASURES)
    await caller.exited("c1")
    await caller.registered(run_id, "c2")
    await caller.acquired(run_id, "c2", epoch=2)
    assert (await tell(caller, run_id, 3, MEASURES | {"rows": 9}, generation=2)).status_code == 204
    assert (await stage_of(caller, run_id))["metrics"]["rows"] == 9


async def test_measures_are_lost_in_a_restart_of_the_coordinator_and_return_with_the_next_report(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as first:
        first.log.create("flights", 2)
        run_id = (await first.deploy())["runId"]
        await first.registered(run_id, "c1")
        await first.acquired(run_id, "c1")
        await tell(first, run_id, 3, MEASURES)
    async with calling(home, clock) as second:
        stage = await stage_of(second, run_id)
        assert (stage["batchId"], stage["metrics"]) == (3, None)
        await tell(second, run_id, 3, MEASURES)
        assert (await stage_of(second, run_id))["metrics"] == MEASURES


async def test_measures_of_a_run_that_has_ended_are_forgotten(caller: Caller, run_id: str) -> None:
    await tell(caller, run_id, 3, MEASURES)
    await caller.exited("c1")
    await caller.stop(run_id)
    await survey(caller)
    assert (await stage_of(caller, run_id))["metrics"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        '"rows": -1',
        '"rows": 1e300',
        '"rows": 9223372036854775808',
        '"rowsPerSecond": NaN',
        '"rowsPerSecond": Infinity',
        '"rowsPerSecond": -0.5',
        '"rowsPerSecond": 1e300',
        '"batchMillis": 99999999999999999999',
        '"batchMillisByPart": {"addBatch": -1}',
        '"batchMillisByPart": {"a b": 1}',
        '"batchMillisByPart": {' + ", ".join(f'"p{n}": 1' for n in range(51)) + "}",
        '"stateBytes": -1',
        '"watermark": "soon"',
        '"watermark": 1e300',
        '"at": null',
        '"more": 1',
    ],
)
async def test_impossible_measures_are_refused(caller: Caller, run_id: str, wrong: str) -> None:
    fields = '"rows": 1, "rowsPerSecond": 1, "batchMillis": 1, "at": "2026-03-01T12:00:00Z"'
    reported = f'{{"generation": 1, "stage": "hourly", "lineage": "l", "batchId": 0, "offsets": [], "metrics": {{{fields}, {wrong}}}}}'
    headers = {"Content-Type": "application/json"}
    answer = await caller.http.post(f"/runs/{run_id}/tasks/Partition 0/progress", content=reported, headers=headers)
    assert problem_slug(answer) == (422, "invalid-request")
    assert (await stage_of(caller, run_id))["batchId"] is None


# --- lag -------------------------------------------------------------------------------------------------------------


async def test_the_lag_of_a_stage_is_counted_from_its_last_batch(caller: Caller, run_id: str) -> None:
    feed(caller, 100)
    await tell(caller, run_id, 3, MEASURES, offset=40)
    await survey(caller)
    stage = await stage_of(caller, run_id)
    assert (stage["lag"], stage["metrics"]["lag"]) == (60, 60)


async def test_the_lag_of_a_stage_does_not_count_offsets_that_have_no_record(caller: Caller, run_id: str) -> None:
    feed(caller, 100)
    await tell(caller, run_id, 3, MEASURES | {"recordsPerOffset": 0.9}, offset=40)
    await survey(caller)
    stage = await stage_of(caller, run_id)
    assert (stage["lag"], stage["metrics"]["lag"]) == (54, 54)
    assert (await series(caller))['sluice_job_lag_records{sluice_job="flight-delays",stage="hourly"}'] == 54


async def test_the_lag_of_tasks_without_an_owner_and_without_a_report_is_known(caller: Caller) -> None:
    run_id = (await caller.deploy())["runId"]
    feed(caller, 100)
    await survey(caller)
    behind = (await series(caller))['sluice_job_lag_records{sluice_job="flight-delays",stage="hourly"}']
    await caller.registered(run_id, "c1")
    await caller.acquired(run_id, "c1")
    await caller.exited("c1")
    stage = await stage_of(caller, run_id)
    assert (behind, stage["lag"], stage["metrics"]) == (100, 100, None)


async def test_the_lag_is_known_at_once_after_a_restart_of_the_coordinator(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as first:
        first.log.create("flights", 2)
        run_id = (await first.deploy())["runId"]
        await first.registered(run_id, "c1")
        await first.acquired(run_id, "c1")
        await tell(first, run_id, 3, MEASURES, offset=40)
        feed(first, 100)
    async with calling(home, clock) as second:
        await survey(second)
        assert (await stage_of(second, run_id))["lag"] == 60
        await tell(second, run_id, 3, MEASURES)
        await survey(second)
        assert (await stage_of(second, run_id))["lag"] == 60


async def test_the_lag_of_a_run_that_continues_is_counted_from_where_the_former_run_ended(caller: Caller, run_id: str) -> None:
    feed(caller, 100)
    next_run = (await caller.deploy())["runId"]
    await survey(caller)
    await tell(caller, run_id, 3, MEASURES, offset=40)
    await caller.exited("c1")
    await survey(caller)
    assert (await stage_of(caller, next_run))["lag"] == 60


async def test_each_stage_has_the_lag_of_the_streams_that_it_reads(caller: Caller) -> None:
    await caller.deploy(chained_body(partitions=2))
    feed(caller, 100)
    feed(caller, 7, stream="by-carrier")
    await survey(caller)
    found = await series(caller)
    assert {stage: found[f'sluice_job_lag_records{{sluice_job="flight-delays",stage="{stage}"}}'] for stage in ("route", "hourly")} == {
        "route": 100,
        "hourly": 7,
    }


async def test_the_lag_of_a_stream_whose_system_does_not_answer_is_unknown(caller: Caller, run_id: str) -> None:
    class Gone(LogSystem):
        async def latest(self, stream: str) -> Offsets:
            raise StreamUnavailable("gone")

    await tell(caller, run_id, 3, MEASURES | {"lag": 70})
    systems: dict[str, Any] = caller.coordinator.api.state.parts.systems
    systems["log"] = Gone(caller.log.directory)
    await survey(caller)
    stage = await stage_of(caller, run_id)
    assert (stage["lag"], stage["metrics"]["lag"]) == (None, 70)
    assert not [name for name in await series(caller) if name.startswith("sluice_job_lag_records")]


async def test_lag_is_not_shown_when_it_was_measured_more_than_a_minute_ago(caller: Caller, clock: FakeClock, run_id: str) -> None:
    parts = caller.coordinator.api.state.parts
    made = LagMonitor(parts.health.store, parts.systems, parts.stage_metrics, clock, parts.models.decoded)
    assert (made.jobs, made.of_run(RunId(run_id))) == ((), {})
    await made.run_once()
    clock.advance(60)
    assert [job.job for job in made.jobs] == ["flight-delays"]
    assert set(made.of_run(RunId(run_id)).values()) == {0}
    clock.advance(1)
    assert (made.jobs, made.of_run(RunId(run_id))) == ((), {})


async def test_lag_is_measured_although_stored_offsets_change_meanwhile(caller: Caller, clock: FakeClock, run_id: str) -> None:
    parts = caller.coordinator.api.state.parts

    class Store:
        @asynccontextmanager
        async def read(self) -> AsyncIterator[ReadTransaction]:
            async with parts.health.store.read() as tx:
                yield tx
            made.forget(RunId(run_id))

    made = LagMonitor(cast("Any", Store()), parts.systems, parts.stage_metrics, clock, parts.models.decoded)
    await made.run_once()
    assert set(made.of_run(RunId(run_id)).values()) == {0}


# --- the coordinator's metrics ---------------------------------------------------------------------------------------


async def test_a_job_is_counted_by_state_slots_containers_and_tasks(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c2")
    await survey(caller)
    found, job = await series(caller), 'sluice_job="flight-delays"'
    states = [f'sluice_job_state{{{job},state="{state}"}}' for state in ("CREATED", "RUNNING", "FAILED")]
    assert [found[name] for name in states] == [0, 1, 0]
    assert found[f"sluice_job_slots{{{job}}}"] == 1
    containers = [f'sluice_job_containers{{{job},state="{state}"}}' for state in ("LIVE", "EXITED", "LOST", "REPLACED")]
    assert [found[name] for name in containers] == [1, 0, 0, 1]
    assert (found[f"sluice_job_tasks_owned{{{job}}}"], found[f"sluice_job_tasks_unowned{{{job}}}"]) == (2, 0)


async def test_no_container_of_an_idle_script_is_missing(caller: Caller) -> None:
    async def needed() -> tuple[float, float]:
        await survey(caller)
        found = await series(caller)
        return found['sluice_job_slots{sluice_job="orders"}'], found['sluice_job_tasks_unowned{sluice_job="orders"}']

    run = (await caller.deploy({"job": "orders", "kind": "attached", "containers": 1, "inputs": [], "stages": []}))["runId"]
    assert await needed() == (1, 1)
    await caller.registered(run, "c1")
    assert await needed() == (1, 1)
    await caller.exited("c1", 0)
    assert await needed() == (0, 0)
    await caller.registered(run, "c2")
    await caller.exited("c2", 1)
    assert await needed() == (1, 1)


async def test_tasks_without_an_owner_are_counted_unless_the_run_is_stopping(caller: Caller, run_id: str) -> None:
    await caller.release(run_id, 1)
    await survey(caller)
    unheld = 'sluice_job_tasks_unowned{sluice_job="flight-delays"}'
    assert (await series(caller))[unheld] == 1
    await caller.stop(run_id)
    await survey(caller)
    assert (await series(caller))[unheld] == 0


async def test_a_job_whose_run_has_failed_shows_its_state_and_nothing_else(caller: Caller, run_id: str) -> None:
    await caller.exited("c1")
    await caller.stop(run_id, failed=True, reason="no reason")
    await survey(caller)
    found = {name: value for name, value in (await series(caller)).items() if name.startswith("sluice_job_") and "flight" in name}
    assert found['sluice_job_state{sluice_job="flight-delays",state="FAILED"}'] == 1
    assert {name.partition("{")[0] for name in found} == {"sluice_job_state"}


async def test_the_versions_of_sluice_and_python_are_shown(caller: Caller) -> None:
    found = await series(caller)
    assert found[f'sluice_build_info{{python="{platform.python_version()}",version="{version("sluice-spark")}"}}'] == 1


async def test_requests_are_counted_by_route_and_answer_with_how_long_they_took(caller: Caller, run_id: str) -> None:
    for path in (f"/runs/{run_id}", "/runs/none", "/runs/neither"):
        await caller.http.get(path)
    found = await series(caller)
    route = 'method="GET",route="/runs/{runId}"'
    assert (found[f'sluice_http_requests_total{{{route},status="200"}}'], found[f'sluice_http_requests_total{{{route},status="404"}}']) == (
        1,
        2,
    )
    assert found[f"sluice_http_request_duration_seconds_count{{{route}}}"] == 3
    assert found[f'sluice_http_request_duration_seconds_bucket{{le="+Inf",{route}}}'] == 3


async def test_requests_for_unknown_paths_make_one_series(caller: Caller) -> None:
    for number in range(20):
        await caller.http.get(f"/scan/{number}")
        await caller.http.request(f"M{number}", f"/scan/{number}")
    found = [name for name in await series(caller) if name.startswith("sluice_http_requests_total")]
    assert sorted(found) == [
        'sluice_http_requests_total{method="GET",route="unknown",status="404"}',
        'sluice_http_requests_total{method="unknown",route="unknown",status="404"}',
    ]


async def test_answers_that_a_job_model_has_not_changed_are_counted_separately(caller: Caller, run_id: str) -> None:
    etag = (await caller.http.get("/jobModel", params={"job": "flight-delays"})).headers["etag"]
    await caller.http.get("/jobModel", params={"job": "flight-delays"}, headers={"If-None-Match": etag})
    assert (await series(caller))["sluice_models_unchanged_total"] == 1


async def test_a_database_that_fails_is_counted(caller: Caller, home: Path) -> None:
    assert (await series(caller))["sluice_database_errors_total"] == 0
    store = caller.coordinator.api.state.parts.health.store
    async with store.engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE runs RENAME TO walked_away")
    assert problem_slug(await caller.http.get("/runs")) == (503, "store-unavailable")
    assert (await series(caller))["sluice_database_errors_total"] >= 1


# --- targets for Prometheus ------------------------------------------------------------------------------------------


async def targets(caller: Caller) -> list[Json]:
    answer = await caller.http.get("/prometheus/targets")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    found: list[Json] = answer.json()
    return found


async def test_live_containers_with_metrics_are_listed_with_their_job_run_and_slot(caller: Caller) -> None:
    run_id = (await caller.deploy({**chained_body(), "containers": 2}))["runId"]
    await caller.registered(run_id, "c1", metricsAddress="127.0.0.1:9464")
    await caller.registered(run_id, "c2", slot="1")
    labels = {"sluice_job": "flight-delays", "run": run_id, "processor": "0", "container": "c1"}
    assert await targets(caller) == [{"targets": ["127.0.0.1:9464"], "labels": labels}]
    assert [each["metricsAddress"] for each in (await caller.run(run_id))["incarnations"]] == ["127.0.0.1:9464", None]


async def test_a_container_that_was_replaced_or_has_ended_is_no_longer_listed(caller: Caller, run_id: str) -> None:
    assert await targets(caller) == []
    await caller.registered(run_id, "c2", metricsAddress="[::1]:2")
    await caller.registered(run_id, "c3", metricsAddress="node-7.example:3")
    assert [each["targets"] for each in await targets(caller)] == [["127.0.0.1:3"]]
    await caller.exited("c3")
    assert await targets(caller) == []


@pytest.mark.parametrize(
    "address", ["", "9464", "host", "host:", "host:123456", "http://host:1", "host:1/metrics", "a b:1", "host:1\n", "::1:80"]
)
async def test_an_invalid_metrics_address_is_refused(caller: Caller, run_id: str, address: str) -> None:
    assert problem_slug(await caller.register(run_id, "c2", metricsAddress=address)) == (422, "invalid-request")
