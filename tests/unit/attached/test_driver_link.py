"""What a supervisor reads from a driver that ends."""

from __future__ import annotations

import asyncio
import socket

import pytest

from containers.attached import messages
from containers.attached.driver_link import DriverLink
from sluice.client.agents import AgentClient
from sluice.core.ids import Instant, JobName


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
