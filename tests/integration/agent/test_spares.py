"""Spare containers: they open Spark, and take the slot of a container that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from containers.supervision.exit_report import EXIT_OK
from sluice.core.ids import ExecutionContainerId, RunId
from tests.support.agents import Incarnation, Place, place


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        yield made


async def waiting(there: Place, run_id: RunId, name: str = "spare") -> Incarnation:
    """A spare that has looked for a slot."""
    spare = there.start(run_id, name, spare=True)
    await spare.wire.after(run_id, 2)  # the run when it starts, and a look for slots
    return spare


async def test_a_spare_opens_spark_and_is_no_container_of_the_run_while_all_slots_have_one(there: Place) -> None:
    run_id = await there.deploy()
    first = there.start(run_id, "c1")
    await first.engine.all_started(4)
    spare = await waiting(there, run_id)
    assert spare.engine.opened
    assert [each.execution_container_id for each in (await there.run(run_id)).incarnations] == ["c1"]


async def test_a_spare_takes_the_slot_and_the_tasks_of_a_container_that_has_ended(there: Place) -> None:
    run_id = await there.deploy(containers=2)
    first, second = there.start(run_id, "c0", "0"), there.start(run_id, "c1", "1")
    await first.engine.all_started(2)
    await second.engine.all_started(2)
    spare = await waiting(there, run_id)
    second.agent.stop_requested()
    await second.ending()
    await spare.engine.all_started(2)
    assert set((await there.holders(run_id)).values()) == {"c0", "spare"}
    [taken] = [each for each in (await there.run(run_id)).incarnations if each.execution_container_id == "spare"]
    assert (taken.processor_id, taken.epoch) == ("1", 2)


async def test_one_of_two_spares_takes_the_slot_and_the_other_one_waits_on(there: Place) -> None:
    run_id = await there.deploy()
    first = there.start(run_id, "c1")
    await first.engine.all_started(4)
    spares = [await waiting(there, run_id, name) for name in ("spare-1", "spare-2")]
    first.agent.stop_requested()
    await first.ending()
    done, _ = await asyncio.wait(
        [asyncio.create_task(each.engine.all_started(4)) for each in spares], return_when=asyncio.FIRST_COMPLETED, timeout=30
    )
    assert len(done) == 1
    assert not any(each.life.done() for each in spares)
    assert sum(bool(each.engine.tries) for each in spares) == 1


async def test_a_registration_whose_answer_is_lost_is_repeated_for_the_same_slot(there: Place) -> None:
    run_id = await there.deploy()
    first = there.start(run_id, "c1")
    await first.engine.all_started(4)
    spare = await waiting(there, run_id)
    spare.wire.lose("/containers")
    first.agent.stop_requested()
    await first.ending()
    await spare.wire.held.wait()
    assert (await there.run(run_id)).incarnations[-1].execution_container_id == "spare"


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_spare_ends_when_the_run_is_stopped_or_the_container_is_and_reports_no_exit(there: Place, stopped: bool) -> None:
    run_id = await there.deploy()
    first = there.start(run_id, "c1")
    await first.engine.all_started(4)
    spare = await waiting(there, run_id)
    if stopped:
        await there.client.stop_run(run_id, "enough")
    else:
        spare.agent.stop_requested()
    assert (await spare.ending()).exit_code == EXIT_OK
    assert spare.wire.answered["exit"] == 0


async def test_a_spare_that_has_taken_a_slot_drains_with_the_run(there: Place) -> None:
    run_id = await there.deploy()
    first = there.start(run_id, "c1")
    await first.engine.all_started(4)
    spare = await waiting(there, run_id)
    await there.client.exited(ExecutionContainerId("c1"), 1, "killed")
    first.life.cancel()
    await spare.engine.all_started(4)
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        assert (await http.post("/drain", json={"runId": run_id})).is_success
    assert (await spare.ending()).exit_code == EXIT_OK
    assert await there.state(run_id) == "DRAINED"
