"""What a supervisor reads from a driver that ends."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from containers.attached import messages
from containers.attached.claim import Claim
from containers.attached.driver_link import DriverLink
from sluice.client.agents import AgentClient
from sluice.core.errors import CoordinatorUnreachable, LeaseLost
from sluice.core.ids import Epoch, Generation, Instant, JobName, RunId, TaskName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.wire import runs as wire_runs


@pytest.mark.parametrize("unread", [False, True])
async def test_the_end_of_a_script_is_read_although_a_renewal_finds_the_driver_gone(unread: bool) -> None:
    """`unread`: the driver has not read its messages, so that the kernel resets the connection."""
    coordinator = AgentClient("http://127.0.0.1:1")
    link = DriverLink(JobName("orders"), coordinator, lambda pid: True)
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=messages.LONGEST)
    serving = asyncio.create_task(link.serve(reader, writer))
    await asyncio.sleep(0)
    assert link.connected
    if unread:
        link.renewed(Instant(40.0))
    with ours:
        ours.sendall(messages.encode("ending", error="ValueError: no order"))
    link.renewed(Instant(50.0))  # before the event loop has read the message
    await serving
    assert link.error == "ValueError: no order"
    await coordinator.close()


async def test_messages_that_the_driver_does_not_read_are_sent_when_it_reads() -> None:
    coordinator = AgentClient("http://127.0.0.1:1")
    link = DriverLink(JobName("orders"), coordinator, lambda pid: True)
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=messages.LONGEST)
    serving = asyncio.create_task(link.serve(reader, writer))
    await asyncio.sleep(0)
    assert link.connected
    count = 20_000
    for each in range(count):
        link.renewed(Instant(float(each)))
    driver_reader, driver_writer = await asyncio.open_unix_connection(sock=ours)
    received = [messages.decode(await driver_reader.readline())["ends"] for _ in range(count)]
    assert received == [float(each) for each in range(count)]
    driver_writer.close()
    await serving
    await coordinator.close()


async def test_a_driver_that_asks_for_the_owner_of_its_job_gets_the_answer_of_the_coordinator_when_it_has_one() -> None:
    """The coordinator cannot be reached at first."""
    coordinator, claim = Owners(), Claim(RunId("run-1"), Epoch(1), Generation(3), asyncio.create_task(asyncio.sleep(3600)))  # type: ignore[arg-type]
    link = DriverLink(JobName("orders"), coordinator, lambda pid: True)
    await link.granted(claim)
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=messages.LONGEST)
    serving = asyncio.create_task(link.serve(reader, writer))
    driver_reader, driver_writer = await asyncio.open_unix_connection(sock=ours)
    assert messages.decode(await driver_reader.readline())["kind"] == "granted"
    for number in (7, 8):
        driver_writer.write(messages.encode("confirm", number=number))
        found = messages.decode(await driver_reader.readline())
        assert found == {"kind": "owner", "number": number, "lost": "" if number == 7 else "generation 4 owns it"}
    assert coordinator.asked == [("run-1", ATTACHED_TASK, 3)] * 3
    driver_writer.close()
    await serving
    claim.ends.cancel()
    await coordinator.close()


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


async def test_a_checkpoint_that_cannot_be_made_ready_is_refused_with_the_reason(tmp_path: Path) -> None:
    coordinator, claim = Owners(), Claim(RunId("run-1"), Epoch(1), Generation(3), asyncio.create_task(asyncio.sleep(3600)))  # type: ignore[arg-type]
    link = DriverLink(JobName("orders"), coordinator, lambda pid: True)
    await link.granted(claim)
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=messages.LONGEST)
    serving = asyncio.create_task(link.serve(reader, writer))
    driver_reader, driver_writer = await asyncio.open_unix_connection(sock=ours)
    assert messages.decode(await driver_reader.readline())["kind"] == "granted"
    wanted = {"state": str(tmp_path), "folder": "drain-0", "code": "", "replays": 1, "adopts": False}
    driver_writer.write(messages.encode("checkpoint", stage="counts", **wanted))
    assert messages.decode(await driver_reader.readline()) == {"kind": "ready", "stage": "counts", "failed": "generation 4 owns it"}
    driver_writer.write(messages.encode("plan", number=5, stage="counts", batch=2))  # it is not backed up
    assert messages.decode(await driver_reader.readline()) == {"kind": "kept", "number": 5, "failed": ""}
    driver_writer.close()
    await serving
    await link.close()
    claim.ends.cancel()
    await coordinator.close()
