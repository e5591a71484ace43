"""How late the coordinator's event loop is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from coordinator.waits import EventLoopLag

OFTEN = timedelta(seconds=0.01)


class Watch:
    """A monotonic clock that only moves when it is told to."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - no event tells of a timer that was late
            await asyncio.sleep(0.005)


async def test_a_call_that_blocks_the_loop_is_seen_before_and_after_its_end() -> None:
    watch = Watch()
    lag = EventLoopLag(watch, OFTEN)
    lag.start()
    watch.seconds = 0.3
    assert lag.longest() == 0.3 - OFTEN.total_seconds()
    await eventually(lambda: bool(lag._late))
    assert lag.longest() == 0.3 - OFTEN.total_seconds()
    lag.stop()


async def test_it_is_forgotten_after_the_window() -> None:
    watch = Watch()
    lag = EventLoopLag(watch, OFTEN, window=timedelta(seconds=30))
    lag.start()
    watch.seconds = 5.0
    await eventually(lambda: lag.longest() == 5.0 - OFTEN.total_seconds() and bool(lag._late))
    watch.seconds += 31
    lag.stop()
    assert lag.longest() == 0.0


def test_nothing_is_late_before_the_start_and_a_stop_can_be_repeated() -> None:
    watch = Watch()
    lag = EventLoopLag(watch)
    watch.seconds = 100.0
    lag.stop()
    assert lag.longest() == 0.0
