"""A drain is cancelled, and another one is requested or the job is scaled, before all containers have dealt with the end of the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from containers.supervision.exit_report import EXIT_OK
from tests.integration.agent.test_adoption import four_tasks, passing, patched
from tests.integration.agent.test_adoption import start as start_counting
from tests.integration.agent.test_drains import NEVER, drained, request
from tests.support.agents import Place, acting, place
from tests.support.backups import BACKED_UP, began, one_stage, start
from tests.support.engines import soon
from tests.support.virtual_time import Gate


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **BACKED_UP) as made:
        yield made


async def test_a_drain_that_is_requested_while_a_batch_of_the_cancelled_one_is_awaited_is_taken_part_in(there: Place) -> None:
    run_id = await there.deploy(job=one_stage(), containers=1)
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    await disk.runs(query, 0, {0: 5, 1: 5})
    batch_ends = Gate()
    disk.on_pause = lambda query, forced: batch_ends.wait()  # a long batch must finish first
    uuid = (await drained(there, run_id))["uuid"]
    await soon(batch_ends.reached())
    await request(there, "DELETE", f"/drain/{uuid}")  # the operator meant --keep-state
    second = (await drained(there, run_id, drainMode="KEEP_STATE"))["uuid"]
    await asyncio.sleep(1)  # the container has read all notices
    batch_ends.open()
    phases = []
    for _ in range(10):
        await asyncio.sleep(1)
        phases.append((await request(there, "GET", f"/drain/{second}"))["phase"])
    assert phases[-1] == "DRAINED", phases
    assert (await container.ending()).exit_code == EXIT_OK


@pytest.mark.parametrize("drain", [False, True])
async def test_a_container_without_tasks_whose_slot_is_removed_after_a_cancelled_drain_ends(tmp_path: Path, drain: bool) -> None:
    """Without the drain it ends."""
    async with place(tmp_path / "home", **{**BACKED_UP, "failover_after_seconds": 60}) as there:
        run_id = await four_tasks(there, containers=2)
        zero, one = start_counting(there, run_id, "c0"), start_counting(there, run_id, "c1", "1")
        await acting(zero.engine, 2)
        await acting(one.engine, 2)
        one.life.cancel()
        while len(zero.engine.acting) < 4:
            await passing(there, 10, zero)
        await zero.wire.after("adopted")
        back = start_counting(there, run_id, "c1b", "1")
        await back.wire.after("containerHeartbeat", 2)
        assert back.engine.queries == []
        if drain:
            batch_ends = Gate()
            zero.engine.on_pause = lambda query, forced: batch_ends.wait()
            uuid = (await drained(there, run_id))["uuid"]
            for _ in range(200):
                if back.agent._drains.active:
                    break
                await asyncio.sleep(0.1)
            await request(there, "DELETE", f"/drain/{uuid}")
            batch_ends.open()
            await zero.engine.resumed()
            await asyncio.sleep(1)
        assert await patched(there, run_id, containers=1)
        ended, _ = await asyncio.wait({back.life}, timeout=10)
        assert ended, "the container still takes part in the cancelled drain"
