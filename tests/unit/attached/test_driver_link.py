"""What an agent does with what a driver tells and asks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from containers.attached.claim import Claim
from containers.attached.driver_link import DriverLink
from containers.attached.port import NotGranted, Wanted
from containers.rpc.socket_link import SocketLink
from sluice.client.agents import AgentClient
from sluice.core.drain import Phase
from sluice.core.errors import CoordinatorUnreachable, LeaseLost
from sluice.core.ids import Epoch, Generation, Instant, JobName, RunId, StageName, TaskName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs
from tests.support.script_peers import DriverPeer

COUNTS = StageName("counts")


class Owners(AgentClient):
    """Cannot be reached first, then confirms, then does not."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.asked: list[tuple[str, str, int]] = []

    async def basic_run(self, run_id: RunId) -> wire_runs.BasicRun:
        raise LeaseLost("generation 4 owns it")

    async def confirm_owner(self, run_id: RunId, task: TaskName, generation: Generation) -> None:
        self.asked.append((run_id, task, generation))
        match len(self.asked):
            case 1:
                raise CoordinatorUnreachable("connection refused")
            case 3:
                raise LeaseLost("generation 4 owns it")


@asynccontextmanager
async def linked(coordinator: AgentClient | None = None) -> AsyncIterator[tuple[DriverLink, DriverPeer]]:
    """A link whose claim was granted, and its driver."""
    client = coordinator or Owners()
    claim = Claim(RunId("run-1"), Epoch(1), Generation(3), asyncio.create_task(asyncio.sleep(3600)))  # type: ignore[arg-type]
    link = DriverLink(JobName("orders"), client)
    link.granted(claim)
    ours, theirs = socket.socketpair()
    link.connect(SocketLink(theirs))
    driver = DriverPeer(ours)
    try:
        yield link, driver
    finally:
        await link.close()
        driver.connection.close()
        claim.ends.cancel()
        await client.close()


async def test_a_script_that_its_command_starts_again_after_a_drain_may_not_run() -> None:
    """The run has ended: another container may have the job as soon as it is started."""
    async with linked() as (link, driver):
        drains = link._drains
        assert drains is not None
        drains.begin(wire_runs.DrainOfRun(uuid="d-1", phase=Phase.FLUSHING, mode="DEFAULT", pinned=()))
        drains.advance(wire_drains.DrainNotice(uuid="d-1", phase=Phase.DRAINED))
        with pytest.raises(NotGranted, match="a drain has ended run run-1 of job orders: `sluice start orders` starts it"):
            await asyncio.to_thread(driver.connection.call, "attach", "orders")


async def test_what_the_driver_told_is_taken_before_its_end() -> None:
    async with linked() as (link, driver):
        driver.tell("stopped", ("s3a://states/counts",))
        driver.tell("ending", "ValueError: no order")
        driver.connection.close()
        link.renewed(Instant(50.0))  # to a driver that is gone
        await link.driver_ended()
        assert link.error == "ValueError: no order"
        assert not link.connected


async def test_a_driver_gets_the_renewals_of_the_lease_in_order() -> None:
    async with linked() as (link, driver):
        for each in range(20_000):
            link.renewed(Instant(float(each)))
        assert [driver.next("renewed") for _ in range(20_000)] == [float(each) for each in range(20_000)]


async def test_a_driver_that_asks_for_the_owner_of_its_job_gets_the_answer_of_the_coordinator_when_it_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator cannot be reached at first."""
    coordinator = Owners()
    async with linked(coordinator) as (_, driver):
        await asyncio.to_thread(driver.connection.call, "confirm")
        with pytest.raises(LeaseLost, match="generation 4 owns it"):
            await asyncio.to_thread(driver.connection.call, "confirm")
    assert coordinator.asked == [("run-1", ATTACHED_TASK, 3)] * 3


async def test_a_checkpoint_that_cannot_be_made_ready_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with linked() as (_, driver):
        with pytest.raises(LeaseLost, match="generation 4 owns it"):
            await asyncio.to_thread(driver.connection.call, "prepare", Wanted(COUNTS, tmp_path, "drain-0"))
        assert await asyncio.to_thread(driver.connection.call, "keep_plan", COUNTS, 2) == ""  # it is not backed up


async def test_a_script_that_is_attached_as_another_job_than_its_command_is_refused() -> None:
    async with linked() as (_, driver):
        with pytest.raises(NotGranted, match="runs this command as job orders, and the script is attached as invoices"):
            await asyncio.to_thread(driver.attach, "invoices")


@pytest.mark.parametrize("attached", [False, True])
async def test_a_process_may_attach_if_it_descends_from_the_command_and_no_other_one_is_attached(attached: bool) -> None:
    async with linked() as (link, driver):
        if not attached:
            driver.connection.close()
            await link.driver_ended()
        name = f"sluice-{uuid4().hex}"
        link.listen(name, lambda pid: attached)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.connect(f"\0{name}")
        other = DriverPeer(connected)
        why = await asyncio.to_thread(other.next, "refused")
        assert why == ("another driver of this command is attached" if attached else "it is not a process of this command")
        await asyncio.to_thread(other.ended.wait)
        other.connection.close()
