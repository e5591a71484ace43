"""Agents that drain, against the real coordinator and blob stores; only Spark is not real."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.agent import EXIT_OK
from coordinator.core.ids import RunId
from tests.agents import Place, place
from tests.disk_engine import DiskEngine
from tests.fake_engine import soon
from tests.integration.test_agent_backups import BACKED_UP, began, disk_of, one_stage, start

NEVER = {"commit_interval_seconds": 3600, "max_replay": 1000}


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **BACKED_UP) as made:
        yield made


async def ask(there: Place, method: str, path: str, **body: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.request(method, path, json=body or None)
        assert answer.status_code < 300, answer.text
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found


async def drained(there: Place, run_id: RunId) -> dict[str, Any]:
    return await ask(there, "POST", "/drain", runId=run_id, drainMode="DEFAULT")


def last_output(disk: DiskEngine, query: str) -> tuple[int, str]:
    return disk.outputs[query][-1]


async def test_a_drain_stops_flushes_commits_and_ends_the_run_and_the_next_one_begins_at_the_drained_offsets(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch + 1, 1: 7})
    uuid = (await drained(there, run_id))["uuid"]
    assert (await container.ending()).exit_code == EXIT_OK
    batch, text = last_output(disk, query.start.query)
    assert batch == 3
    assert uuid in text
    assert await there.state(run_id) == "DRAINED"
    detail = await ask(there, "GET", f"/drain/{uuid}")
    assert {each["partition"]: each["offset"] for each in detail["drained"]} == {0: 3, 1: 7}
    again = await there.deploy(job=one_stage())
    _, after = await began(start(there, again, "c2", "disk1", **NEVER))
    assert {ssp.partition: offset for ssp, offset in after.start.starts.items()} == {0: 3, 1: 7}
    assert after.start.lineage != query.start.lineage
    assert after.start.reported is None


async def test_a_container_that_starts_under_a_drain_runs_no_query(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    await drained(there, run_id)
    container = start(there, run_id, "c1", "disk1", **NEVER)
    assert (await container.ending()).exit_code == EXIT_OK
    assert container.engine.queries == []
    assert await there.state(run_id) == "DRAINED"


async def test_a_container_killed_in_a_drain_comes_back_on_an_empty_disk_and_completes_it(there: Place) -> None:
    run_id = await there.deploy(job=one_stage(), containers=1)
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 5, 1: 5})
    held = first.wire.hold("/drain")  # the answer to its first step
    await drained(there, run_id)
    await soon(first.wire.held.wait())
    first.life.cancel()
    held.set()
    there.clock.advance(60)
    second = start(there, run_id, "c2", "disk2", **NEVER)
    assert (await second.ending()).exit_code == EXIT_OK
    assert second.engine.queries == []
    assert [batch for batch, _ in disk_of(second).outputs[query.start.query]] == [1]
    assert await there.state(run_id) == "DRAINED"


async def test_a_drain_that_is_cancelled_in_time_lets_the_queries_start_again(there: Place) -> None:
    run_id = await there.deploy(job=one_stage(), containers=1)
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    await disk.runs(query, 0, {0: 5, 1: 5})
    held = first.wire.hold("/stages/only/drain")
    uuid = (await drained(there, run_id))["uuid"]
    await ask(there, "DELETE", f"/drain/{uuid}")
    held.set()
    again = await disk.started()
    await disk.runs(again, 1, {0: 9, 1: 9})
    assert await there.state(run_id) == "RUNNING"
    first.agent.stop_requested()
    assert (await first.ending()).exit_code == EXIT_OK
