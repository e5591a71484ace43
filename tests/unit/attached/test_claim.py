"""What the agent of a script does without a coordinator."""

from __future__ import annotations

import pytest

from containers.attached.claim import Claims, Request
from sluice.client.agents import AgentClient
from sluice.core.errors import CoordinatorUnreachable
from sluice.core.ids import ExecutionContainerId, JobName
from tests.support.fakes import FakeClock


class GaveUp(Exception):
    """The test waits no longer."""


async def test_a_script_without_a_coordinator_is_told_how_to_start_one(caplog: pytest.LogCaptureFixture) -> None:
    async def no_sleep(_: float) -> None:
        raise GaveUp

    coordinator = AgentClient("http://127.0.0.1:1")
    claims = Claims(coordinator, FakeClock(), lambda _: None, lambda _: None, lambda: None, no_sleep)
    with pytest.raises(GaveUp):
        await claims.claim(Request(JobName("orders"), ExecutionContainerId("c1"), "here"))
    (message,) = (each.message for each in caplog.records if each.message.startswith("waiting"))
    assert message.endswith("; start one with `sluice coordinator`, or set SLUICE_COORDINATOR_URL")
    await coordinator.close()


async def test_a_script_that_must_not_wait_ends_without_a_coordinator() -> None:
    coordinator = AgentClient("http://127.0.0.1:1")
    claims = Claims(coordinator, FakeClock(), lambda _: None, lambda _: None, lambda: None)
    with pytest.raises(CoordinatorUnreachable):
        await claims.claim(Request(JobName("orders"), ExecutionContainerId("c1"), "here", wait=False))
    await coordinator.close()
