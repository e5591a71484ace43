"""What an agent does without a coordinator, and with the notices of its run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from containers.attached.claim import Claims, Request, stop_requested
from sluice.client.agents import AgentClient
from sluice.core.errors import CoordinatorUnreachable
from sluice.core.ids import ExecutionContainerId, JobName, RunId
from sluice.wire import body as wire_body
from sluice.wire.drains import DrainNotice
from tests.support.fakes import FakeClock


class Coordinator(AgentClient):
    """Answers each poll with the next of these notices: kinds and the drain that they are about."""

    def __init__(self, *polls: Sequence[tuple[str, str]]) -> None:
        super().__init__("http://127.0.0.1:1")
        self._polls = list(polls)
        self._seq = 0

    async def notices(self, run_id: str, after: int = 0, wait: timedelta = timedelta(0)) -> Sequence[wire_body.Notice]:
        assert after == self._seq
        found = []
        for kind, uuid in self._polls.pop(0):
            self._seq += 1
            notice = {"seq": self._seq, "kind": kind, "at": datetime(2026, 3, 1, tzinfo=UTC), "detail": {"uuid": uuid, "phase": "STOPPING"}}
            found.append(wire_body.Notice.model_validate(notice))
        return found


async def test_each_drain_is_passed_on_also_one_that_was_cancelled_when_the_next_one_was_requested() -> None:
    """The agent was cut off meanwhile, so that it gets the notices in one poll."""
    coordinator = Coordinator([("DRAIN", "d-1")], [("DRAIN", "d-1"), ("DRAIN", "d-2"), ("DRAIN", "d-2")], [("STOP", "")])
    drains, stores, lost = list[str](), list[str](), list[object]()

    def on_drain(notice: DrainNotice) -> None:
        drains.append(notice.uuid)

    async def on_stores() -> None:
        stores.append("new")

    await stop_requested(coordinator, RunId("run-1"), FakeClock(), on_drain, on_stores, lost.append)
    assert (drains, stores, lost) == (["d-1", "d-1", "d-2", "d-2"], [], [])
    await coordinator.close()


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
