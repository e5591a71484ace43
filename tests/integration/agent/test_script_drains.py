"""A drain of a script with two queries, with a real coordinator. The driver is this test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from containers.agent.lifecycle import ContainerLifecycle
from containers.agent.notices import events
from containers.attached.driver_link import follow
from containers.attached.port import Flushed
from containers.attached.script_drains import ScriptDrains
from containers.engine import Position
from sluice.client import OperatorClient
from sluice.core.drain import Phase
from sluice.core.ids import StageName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.core.snapshots.snapshot import CommitId
from sluice.wire import agents as wire_agents
from sluice.wire import drains as wire_drains
from tests.integration.agent.test_script_backups import SOON, script
from tests.support.agents import place
from tests.support.virtual_time import LoopClock

TENS, MINUTES = StageName("tens"), StageName("minutes")


class Driver:
    """A `Connection` to a driver whose query `minutes` reads what `tens` writes."""

    def __init__(self) -> None:
        self.journal: list[str] = []

    def tell(self, method: str, *values: object) -> None: ...

    def request(self, method: str, *values: Any) -> futures.Future[Any]:
        answer = futures.Future[Any]()
        answer.set_result(self._answer(method, values))
        return answer

    def _answer(self, method: str, values: tuple[Any, ...]) -> Any:
        answers: Mapping[str, Any] = {
            "pause_queries": {TENS: Position(4, {}), MINUTES: Position(2, {})},
            "feeders": {TENS: (), MINUTES: (TENS,)},
            "flush": Flushed(Position(5, {})),
            "leave": None,
        }
        if method in ("flush", "leave"):
            self.journal.append(f"{method} {values[1]}")
        return answers[method]


async def no_backup(stage: StageName) -> CommitId | None:
    return None


@pytest.mark.parametrize("feeder_is_flushed", [False, True])
async def test_a_query_is_flushed_after_the_one_that_writes_its_input(tmp_path: Path, feeder_is_flushed: bool) -> None:
    """`feeder_is_flushed`: by an earlier start of the script, in which the driver was killed then."""
    async with place(tmp_path / "home") as there, script(there, tmp_path / "one", "c1") as machine:
        run, generation = machine.claim.run, machine.claim.generation
        queries = tuple(wire_agents.QueryBody(stage=each, checkpoint=f"s3a://states/{each}", query_id=each) for each in (TENS, MINUTES))
        body = wire_agents.QueriesRequest(generation=generation, queries=queries)
        await machine.client.report_queries(run, ATTACHED_TASK, body)
        operator, clock = OperatorClient("http://c", there.app), LoopClock()
        uuid = (await operator.request_drain(wire_drains.DrainRequest(run_id=run))).uuid
        if feeder_is_flushed:
            for stage, step in ((TENS, "stopped"), (MINUTES, "stopped"), (TENS, "flushing"), (TENS, "flushed")):
                taken = wire_drains.DrainStepRequest(generation=generation, uuid=uuid, step=step, batch_id=4, offsets=())
                await machine.client.drain_step(run, ATTACHED_TASK, stage, taken)
        drains = ScriptDrains(machine.client, run, generation, ContainerLifecycle(clock, SOON, lambda reason: None), no_backup)
        driver: Any = Driver()
        drains.begin((await machine.client.basic_run(run)).drain)
        drains.attached(driver)
        following = follow(events(machine.client, run, clock), lambda: drains, lambda: None)
        works = [asyncio.create_task(drains.run()), asyncio.create_task(following)]
        for _ in range(1_000):
            await asyncio.sleep(0.02)
            if (await operator.drain(uuid)).phase is Phase.DRAINED:
                break
        for each in works:
            each.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await operator.close()
        assert driver.journal == ["flush tens", "flush minutes", "leave True"]
