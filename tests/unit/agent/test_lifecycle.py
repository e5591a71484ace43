"""The first reason to exit. An error that follows from the end of the lease is not one."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from containers.agent.failures import StageFailed
from containers.agent.lifecycle import EXPIRED, ContainerLifecycle, ExitReason
from containers.errors import OffsetsTrimmed
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK
from sluice.core.ids import Instant
from tests.support.fakes import FakeClock

LEASE = timedelta(seconds=27)


class Bench:
    """A lifecycle whose lease has just been renewed."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.lost: list[str] = []
        self.lifecycle = ContainerLifecycle(self.clock, timedelta(seconds=60), self.lost.append)
        self.lifecycle.renewed(Instant(self.clock.elapsed() + LEASE.total_seconds()))

    async def fails(self, error: Exception) -> ExitReason:
        """Why the container exits after this error of its work."""

        async def work() -> None:
            raise error

        self.lifecycle.in_background(work(), "tasks")
        return await self.lifecycle.exit_reason


ERRORS = (OffsetsTrimmed("records 3 to 34 are needed and were deleted"), StageFailed("boom", repeated=True), ZeroDivisionError("by zero"))


@pytest.mark.parametrize("error", ERRORS)
async def test_an_error_after_the_end_of_the_lease_is_the_lost_lease_and_is_not_logged_as_a_fault(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.clock.advance(LEASE.total_seconds())
    with caplog.at_level(logging.WARNING):
        assert await bench.fails(error) == ExitReason(EXIT_LEASE_LOST, EXPIRED)
    assert bench.lost == [EXPIRED]
    assert not caplog.records


@pytest.mark.parametrize("error", ERRORS)
async def test_an_error_while_the_lease_lasts_is_the_reason_to_exit(error: Exception) -> None:
    bench = Bench()
    bench.clock.advance(LEASE.total_seconds() - 1)
    reason = await bench.fails(error)
    assert reason.exit_code not in (EXIT_OK, EXIT_LEASE_LOST)
    assert str(error) in reason.reason
    assert bench.lost == []


async def test_before_its_registration_a_container_has_no_lease_to_lose() -> None:
    lifecycle = ContainerLifecycle(FakeClock(), timedelta(seconds=60), lambda reason: None)
    lifecycle.exit(ExitReason(EXIT_FAILED, "no such run"))
    assert lifecycle.exit_reason.result() == ExitReason(EXIT_FAILED, "no such run")


async def test_a_container_that_is_asked_to_stop_after_the_end_of_its_lease_ends_at_once() -> None:
    bench = Bench()
    bench.clock.advance(LEASE.total_seconds())
    bench.lifecycle.exit(ExitReason(EXIT_OK, "stop requested"))
    assert bench.lost == [EXPIRED]
    assert bench.lifecycle.exit_reason.result().exit_code == EXIT_LEASE_LOST
