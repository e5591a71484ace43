"""The liveness probe of Spark's JVM: answers that arrive, do not arrive, or arrive after a jump of the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from containers.agent.liveness import SLICES, LivenessProbe
from containers.errors import SparkStopped
from tests.support.engines import soon

SHORT = timedelta(seconds=0.05)
NEVER = timedelta(hours=1)
AT_ONCE = timedelta(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can jump, as after a process was stopped or a machine slept."""

    jumped = 0.0

    def time(self) -> float:
        return super().time() + self.jumped


def on_a_jumping_loop(test: Callable[[JumpingLoop], object]) -> None:
    loop = JumpingLoop()
    try:
        loop.run_until_complete(test(loop))  # type: ignore[arg-type]
    finally:
        loop.close()


async def test_spark_is_probed_again_and_again_while_it_answers() -> None:
    asked = 0

    async def answers() -> None:
        nonlocal asked
        asked += 1
        if asked == 5:
            raise SparkStopped("it was ended by SIGKILL")

    assert await soon(LivenessProbe(answers, NEVER, AT_ONCE).run()) == "it was ended by SIGKILL"
    assert asked == 5


async def test_a_probe_that_is_answered_late_hangs_until_the_answer() -> None:
    answered = asyncio.get_running_loop().create_future()
    probe = LivenessProbe(lambda: answered, SHORT)
    probing = asyncio.create_task(probe.run())
    while probe.hangs is None:  # noqa: ASYNC110 — nothing is called when it changes
        await asyncio.sleep(0.01)
    assert probe.hangs == "the driver has not answered for 0.05 s"
    answered.set_exception(SparkStopped("it was ended by SIGKILL"))
    assert await soon(probing) == "it was ended by SIGKILL"
    assert probe.hangs is None


async def test_an_answer_within_the_time_limit_counts_however_late() -> None:
    asked = 0

    async def answers_late() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.2)
        if asked == 3:
            raise SparkStopped("enough")

    assert await soon(LivenessProbe(answers_late, timedelta(seconds=10), AT_ONCE).run()) == "enough"


def test_a_clock_that_jumps_by_hours_uses_up_one_turn_and_the_others_are_still_waited() -> None:
    async def test(loop: JumpingLoop) -> None:
        answered = loop.create_future()
        pulse = asyncio.create_task(LivenessProbe(lambda: answered, timedelta(hours=2), NEVER).run())
        for _ in range(SLICES - 1):
            await asyncio.sleep(0.01)
            loop.jumped += 24 * 3600
        await asyncio.sleep(0.01)
        assert not pulse.done()
        answered.set_result(None)
        await asyncio.sleep(0.01)
        assert not pulse.done()
        pulse.cancel()

    on_a_jumping_loop(test)


def test_the_probe_fails_when_all_turns_have_passed_however_fast() -> None:
    async def test(loop: JumpingLoop) -> None:
        probe = LivenessProbe(loop.create_future, timedelta(hours=2), NEVER)
        pulse = asyncio.create_task(probe.run())
        for _ in range(SLICES):
            assert probe.hangs is None
            await asyncio.sleep(0.01)
            loop.jumped += 24 * 3600
        await asyncio.sleep(0.01)
        assert probe.hangs == "the driver has not answered for 7200 s"
        pulse.cancel()

    on_a_jumping_loop(test)


async def test_a_cancelled_probe_leaves_nothing_running() -> None:
    pulse = asyncio.create_task(LivenessProbe(asyncio.Event().wait, NEVER).run())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    pulse.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulse
