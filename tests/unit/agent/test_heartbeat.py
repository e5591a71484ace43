from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.agent.heartbeat import LeaseEnd, LeaseExpired, LeaseKeeper, Replaced, RunEnded
from sluice.client.agents import Alive, NotValid
from sluice.core.errors import CoordinatorUnreachable
from sluice.core.ids import Epoch, ExecutionContainerId, Instant
from sluice.core.leases.lease import ContainerLease, next_heartbeat
from sluice.core.lifecycle import RunState
from tests.support.engines import soon
from tests.support.fakes import FakeClock

LEASE, MARGIN, INTERVAL = timedelta(seconds=30), timedelta(seconds=3), timedelta(seconds=5)
ALIVE = Alive(LEASE, INTERVAL, model_version=1)
REPLACED = NotValid(ended=None)
DOWN = CoordinatorUnreachable("connection refused")

Answer = Alive | NotValid | CoordinatorUnreachable


class Scene:
    """A LeaseKeeper with scripted answers of the coordinator; the last answer is repeated. Sleeping returns at once and advances the
    clock.
    """

    def __init__(self, *script: Answer | tuple[float, Answer], chance: Callable[[], float] = lambda: 0.0) -> None:
        self.clock = FakeClock(elapsed=0.0)
        self.script = list(script)
        self.sent: list[float] = []
        self.within: list[float] = []
        self.asked: list[tuple[str, int]] = []
        self.renewed: list[float] = []
        self.versions: list[int] = []
        trust = ContainerLease(self.clock.elapsed(), LEASE, MARGIN)
        self.heart = LeaseKeeper(
            *(self, ExecutionContainerId("c1"), Epoch(4), trust, INTERVAL, self.clock, chance, self.renewed.append, self.sleep),
            on_version=self.versions.append,
        )

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    async def heartbeat(self, execution_id: ExecutionContainerId, epoch: Epoch, within: timedelta) -> Alive | NotValid:
        self.sent.append(self.clock.elapsed())
        self.within.append(within.total_seconds())
        self.asked.append((execution_id, epoch))
        scripted = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        took, answer = scripted if isinstance(scripted, tuple) else (0.0, scripted)
        self.clock.advance(took)
        if isinstance(answer, CoordinatorUnreachable):
            raise answer
        return answer

    async def verdict(self) -> LeaseEnd:
        return await soon(self.heart.run())


# --- three answers ---------------------------------------------------------------------------------------------------


async def test_a_container_that_is_alive_continues_to_send_heartbeats_with_its_id_and_epoch() -> None:
    scene = Scene(ALIVE, ALIVE, ALIVE, REPLACED)
    await scene.verdict()
    assert scene.sent == [5, 10, 15, 20]
    assert set(scene.asked) == {("c1", 4)}


async def test_every_renewal_has_the_version_of_the_job_model() -> None:
    scene = Scene(ALIVE, Alive(LEASE, INTERVAL, model_version=2), DOWN, REPLACED)
    await scene.verdict()
    assert scene.versions == [1, 2]


async def test_a_container_that_is_no_longer_valid_stops_immediately() -> None:
    scene = Scene(REPLACED)
    assert await scene.verdict() == Replaced()
    assert scene.sent == [5]


@pytest.mark.parametrize("state", [RunState.STOPPED, RunState.FAILED, RunState.DRAINED])
async def test_a_container_whose_run_has_ended_gets_the_reason(state: RunState) -> None:
    assert await Scene(ALIVE, NotValid(ended=state)).verdict() == RunEnded(state)


async def test_a_container_continues_while_the_coordinator_is_unreachable() -> None:
    scene = Scene(DOWN, DOWN, DOWN, ALIVE, REPLACED)
    assert await scene.verdict() == Replaced()
    assert scene.sent == [5, 6, 7, 8, 13]


async def test_the_lease_ends_after_its_duration_less_the_margin_and_not_before() -> None:
    scene = Scene(CoordinatorUnreachable("no route"))
    assert await scene.verdict() == LeaseExpired("no route")
    assert scene.clock.elapsed() == Instant(27)
    assert scene.sent[-1] == 26


async def test_the_last_error_is_shown_and_not_the_first() -> None:
    assert await Scene(CoordinatorUnreachable("503"), CoordinatorUnreachable("refused")).verdict() == LeaseExpired("refused")


async def test_an_answer_shortly_before_the_end_renews_the_lease() -> None:
    scene = Scene(*[DOWN] * 21, ALIVE, REPLACED)
    assert await scene.verdict() == Replaced()
    assert scene.sent[-2:] == [26, 31]


async def test_a_process_that_slept_through_its_lease_sends_no_more_heartbeats() -> None:
    scene = Scene(ALIVE)

    async def suspended(seconds: float) -> None:
        scene.clock.advance(3600)

    trust = ContainerLease(scene.clock.elapsed(), LEASE, MARGIN)
    heart = LeaseKeeper(
        scene, ExecutionContainerId("c1"), Epoch(1), trust, INTERVAL, scene.clock, lambda: 0.0, scene.renewed.append, suspended
    )
    assert isinstance(await soon(heart.run()), LeaseExpired)
    assert scene.sent == []


# --- from when a lease counts ----------------------------------------------------------------------------------------


async def test_the_lease_counts_from_the_moment_of_sending() -> None:
    scene = Scene((4.5, ALIVE), DOWN)
    await scene.verdict()
    assert scene.renewed == [27, 5 + 27]
    assert scene.clock.elapsed() == Instant(5 + 27)


async def test_an_unanswered_heartbeat_renews_nothing() -> None:
    scene = Scene((5.0, DOWN))
    await scene.verdict()
    assert scene.renewed == [27]
    assert scene.clock.elapsed() >= 27


async def test_a_heartbeat_waits_no_longer_than_the_lease_for_its_answer() -> None:
    scene = Scene(DOWN)
    await scene.verdict()
    assert all(sent + within <= 27 for sent, within in zip(scene.sent, scene.within, strict=True))
    assert max(scene.within) == 5


async def test_every_renewal_is_passed_on_the_registration_first() -> None:
    scene = Scene(ALIVE, ALIVE, REPLACED)
    assert scene.renewed == [27]
    await scene.verdict()
    assert scene.renewed == [27, 32, 37]


async def test_the_remaining_lease_decreases_to_zero_and_not_below() -> None:
    scene = Scene(ALIVE)
    scene.clock.advance(20)
    assert scene.heart.left == timedelta(seconds=7)
    scene.clock.advance(20)
    assert scene.heart.left == timedelta(0)


async def test_longer_terms_are_adopted_with_the_same_margin() -> None:
    scene = Scene(Alive(timedelta(seconds=90), timedelta(seconds=15), 2), ALIVE, REPLACED)
    await scene.verdict()
    assert scene.sent == [5, 20, 25]
    assert scene.renewed == [27, 5 + 87, 20 + 27]


# --- jitter ----------------------------------------------------------------------------------------------------------


@given(st.floats(0.001, 3600), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_never_longer_than_the_interval_and_at_most_a_tenth_shorter(seconds: float, chance: float) -> None:
    interval = timedelta(seconds=seconds)
    assert 0.9 * interval - timedelta(microseconds=1) <= next_heartbeat(interval, chance) <= interval


async def test_each_pause_has_its_own_jitter() -> None:
    chances = iter([0.0, 0.5, 1.0])
    scene = Scene(ALIVE, ALIVE, REPLACED, chance=lambda: next(chances))
    await scene.verdict()
    assert scene.sent == pytest.approx([5, 9.75, 14.25])


async def test_a_container_does_not_sleep_through_a_lease_that_is_shorter_than_the_interval() -> None:
    clock = FakeClock(elapsed=0.0)
    scene = Scene(ALIVE)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    trust = ContainerLease(Instant(0.0), timedelta(seconds=4), MARGIN)
    heart = LeaseKeeper(scene, ExecutionContainerId("c1"), Epoch(1), trust, INTERVAL, clock, lambda: 0.0, scene.renewed.append, sleep)
    assert isinstance(await soon(heart.run()), LeaseExpired)
    assert slept == [1]
