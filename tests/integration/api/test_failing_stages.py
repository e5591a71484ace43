"""What the coordinator reports about failing stages, silent containers, and tasks that have no part in a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import UNSAVED, Caller, Json, calling, chained_body, problem_slug
from tests.support.fakes import FakeClock

ERROR = "/jobs/delays.py:12 in write: ZeroDivisionError: division by zero"


@pytest.fixture
async def run_id(caller: Caller) -> str:
    """A run whose slot 0 is c1, which holds "Partition 0" under generation 1."""
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "c1")
    await caller.acquired(run_id, "c1")
    return run_id


async def fails(caller: Caller, run_id: str, failures: int = 2, stage: str = "hourly", generation: int = 1, **more: Any) -> httpx.Response:
    body = {"generation": generation, "error": ERROR, "failures": failures, "retrySeconds": 30, "log": "/logs/c0.log", **more}
    return await caller.http.post(f"/runs/{run_id}/tasks/Partition 0/stages/{stage}/failure", json=body)


async def stage_of(caller: Caller, run_id: str) -> Json:
    tasks = (await caller.run(run_id))["tasks"]
    found: Json = next(each["stages"][0] for each in tasks if each["task"] == "Partition 0")
    return found


async def survey(caller: Caller) -> str:
    """The lines of `/metrics` about failing tasks."""
    await caller.coordinator.api.state.parts.lag.run_once()
    lines = (await caller.http.get("/metrics")).text.splitlines()
    return "\n".join(line for line in lines if line.startswith("sluice_job_tasks_failing"))


async def test_a_failure_is_shown_with_its_error_the_log_and_the_time_of_the_next_attempt(caller: Caller, run_id: str) -> None:
    assert (await stage_of(caller, run_id))["failure"] is None
    assert (await fails(caller, run_id)).status_code == 204
    assert (await stage_of(caller, run_id))["failure"] == {
        **{"error": ERROR, "failures": 2, "log": "/logs/c0.log", "over": False},
        **{"at": "2026-03-01T12:00:00Z", "retryAt": "2026-03-01T12:00:30Z"},
    }
    assert await survey(caller) == 'sluice_job_tasks_failing{sluice_job="flight-delays",stage="hourly"} 1.0'


async def test_progress_ends_a_failure_even_if_the_next_owner_reports_it(caller: Caller, run_id: str) -> None:
    await fails(caller, run_id, retrySeconds=None)
    await caller.exited("c1", 4)
    assert (await stage_of(caller, run_id))["failure"]["over"] is False
    await caller.registered(run_id, "c2")
    lineage = (await caller.acquired(run_id, "c2", epoch=2))["stages"][0]["lineage"]
    assert (await caller.progress(run_id, 2, lineage, 0)).status_code == 204
    assert (await stage_of(caller, run_id))["failure"]["over"] is True
    assert await survey(caller) == 'sluice_job_tasks_failing{sluice_job="flight-delays",stage="hourly"} 0.0'


async def test_a_report_of_zero_failures_ends_a_failure(caller: Caller, run_id: str) -> None:
    await fails(caller, run_id)
    assert (await fails(caller, run_id, failures=0)).status_code == 204
    assert (await stage_of(caller, run_id))["failure"]["over"] is True


async def test_only_the_owner_of_the_task_may_report_a_failure_and_only_of_a_stage_of_the_run(caller: Caller, run_id: str) -> None:
    assert problem_slug(await fails(caller, run_id, generation=7)) == (409, "lease-lost")
    assert problem_slug(await fails(caller, run_id, stage="daily")) == (404, "unknown-task")
    assert problem_slug(await fails(caller, run_id, failures=-1)) == (422, "invalid-request")
    assert (await stage_of(caller, run_id))["failure"] is None


# --- silence ---------------------------------------------------------------------------------------------------------


async def seen(caller: Caller, run_id: str) -> tuple[str, float | None, bool]:
    (found,) = (await caller.run(run_id))["incarnations"]
    return found["state"], found["heartbeatAgeSeconds"], found["silent"]


async def test_a_container_that_has_missed_three_heartbeats_is_live_and_silent(caller: Caller, run_id: str, clock: FakeClock) -> None:
    clock.advance(15)
    assert await seen(caller, run_id) == ("LIVE", 15, False)
    clock.advance(1)
    assert await seen(caller, run_id) == ("LIVE", 16, True)
    assert await caller.alive("c1", 1)
    assert await seen(caller, run_id) == ("LIVE", 0, False)


async def test_after_a_restart_the_silence_is_as_old_as_the_last_heartbeat_that_was_written(tmp_path: Path, clock: FakeClock) -> None:
    async with calling(tmp_path, clock) as caller:
        caller.log.create("flights", 2)
        run_id = str((await caller.deploy())["runId"])
        await caller.registered(run_id, "c1")
    clock.advance(60)
    async with calling(tmp_path, clock) as caller:
        assert await seen(caller, run_id) == ("LIVE", 60, False)  # it may return within three heartbeats
        clock.advance(16)
        assert await seen(caller, run_id) == ("LIVE", 76, True)


# --- tasks without a part in a stage ---------------------------------------------------------------------------------


async def test_a_task_beyond_the_partitions_of_an_intermediate_stream_is_assigned_the_first_stage_only(caller: Caller) -> None:
    run_id = (await caller.deploy(chained_body(partitions=1, **UNSAVED)))["runId"]
    assigned = {each["task"]: each["assignedStages"] for each in (await caller.run(run_id))["tasks"]}
    assert assigned == {"Partition 0": ["route", "hourly"], "Partition 1": ["route"]}
