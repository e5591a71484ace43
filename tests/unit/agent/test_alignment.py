from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from containers.agent.alignment import Aligner
from containers.engine import StageStart
from sluice.client.agents import AgentClient
from sluice.core.errors import CoordinatorUnreachable, LeaseLost
from sluice.core.ids import Generation, Lineage, RunId, StageName, TaskName
from sluice.core.jobmodels.graph import Stage
from sluice.wire import agents as wire_agents
from tests.support.engines import soon

START = StageStart(
    Stage(StageName("route"), ("in",), ("mid",)),
    TaskName("Partition 0"),
    Generation(1),
    Lineage("l"),
    None,
    {},
    RunId("r"),
)
MARCH = datetime(2013, 3, 1, tzinfo=UTC)
APRIL = datetime(2013, 4, 1, tzinfo=UTC)


@dataclass
class FakeCoordinator:
    """Answers with `wait` or raises `trouble`, and records the reported event times."""

    wait: bool = True
    trouble: Exception | None = None
    reported: list[datetime | None] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def report_event_time(
        self, run_id: RunId, task: TaskName, generation: Generation, stage: str, event_time: datetime | None
    ) -> wire_agents.EventTimeReply:
        self.reported.append(event_time)
        self.asked.set()
        if self.trouble is not None:
            raise self.trouble
        return wire_agents.EventTimeReply(wait=self.wait, lead_seconds=None, waits_for=("Partition 1",) if self.wait else ())

    async def next(self) -> None:
        """Wait for the next request."""
        self.asked.clear()
        await soon(self.asked.wait())


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator()


@pytest.fixture
async def aligner(coordinator: FakeCoordinator) -> Aligner:
    return Aligner(cast("AgentClient", coordinator), RunId("r"), START, waiting_interval=timedelta(milliseconds=10))


def passes(aligner: Aligner, batch: int) -> asyncio.Task[None]:
    return asyncio.create_task(asyncio.to_thread(aligner.before_batch, batch))


async def test_no_batch_starts_before_the_coordinator_has_answered(aligner: Aligner, coordinator: FakeCoordinator) -> None:
    coordinator.wait = False
    first = passes(aligner, 0)
    await asyncio.sleep(0)
    assert not first.done()
    run = asyncio.create_task(aligner.run())
    await soon(first)
    run.cancel()


async def test_a_waiting_batch_starts_when_the_decision_changes(aligner: Aligner, coordinator: FakeCoordinator) -> None:
    run = asyncio.create_task(aligner.run())
    first = passes(aligner, 0)
    await coordinator.next()
    await coordinator.next()
    assert not first.done()
    coordinator.wait = False
    await soon(first)
    run.cancel()


async def test_the_next_batch_waits_until_the_one_before_it_was_reported(aligner: Aligner, coordinator: FakeCoordinator) -> None:
    coordinator.wait = False
    run = asyncio.create_task(aligner.run())
    await soon(passes(aligner, 0))
    second = passes(aligner, 1)
    coordinator.wait = True
    aligner.committed(0, MARCH)
    await coordinator.next()
    assert not second.done()
    assert coordinator.reported[-1] == MARCH
    coordinator.wait = False
    await soon(second)
    run.cancel()


async def test_a_batch_that_runs_again_after_a_restart_does_not_wait_for_itself(aligner: Aligner, coordinator: FakeCoordinator) -> None:
    coordinator.wait = False
    run = asyncio.create_task(aligner.run())
    await soon(passes(aligner, 7))
    await soon(passes(aligner, 7))
    run.cancel()


async def test_the_reported_event_time_is_the_newest_that_was_ever_committed(aligner: Aligner, coordinator: FakeCoordinator) -> None:
    coordinator.wait = False
    aligner.committed(0, APRIL)
    aligner.committed(1, MARCH)
    aligner.committed(2, None)
    run = asyncio.create_task(aligner.run())
    await coordinator.next()
    assert coordinator.reported == [APRIL]
    run.cancel()


async def test_while_the_coordinator_is_unreachable_its_last_decision_applies(aligner: Aligner, coordinator: FakeCoordinator) -> None:
    run = asyncio.create_task(aligner.run())
    first = passes(aligner, 0)
    await coordinator.next()
    coordinator.trouble = CoordinatorUnreachable("away")
    coordinator.wait = False
    await coordinator.next()
    assert not first.done()
    coordinator.trouble = None
    await soon(first)
    run.cancel()


async def test_when_the_container_stops_batches_that_have_begun_may_finish(aligner: Aligner, coordinator: FakeCoordinator) -> None:
    run = asyncio.create_task(aligner.run())
    first = passes(aligner, 0)
    await coordinator.next()
    aligner.open()
    await soon(first)
    run.cancel()


async def test_when_a_stage_has_failed_the_batch_that_waits_may_finish(aligner: Aligner, coordinator: FakeCoordinator) -> None:
    """The error of another part, such as its backup, has cancelled `run`."""
    run = asyncio.create_task(aligner.run())
    first = passes(aligner, 0)
    await coordinator.next()
    run.cancel()
    await asyncio.wait({run})
    assert not first.done()
    aligner.open()
    await soon(first)


async def test_a_lost_lease_ends_it(aligner: Aligner, coordinator: FakeCoordinator) -> None:
    coordinator.trouble = LeaseLost("another container owns it")
    with pytest.raises(LeaseLost):
        await soon(asyncio.ensure_future(aligner.run()))
