from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from containers.state.transfer import InOrder, in_parallel, run_to_completion


async def test_work_starts_in_order_with_a_limit_on_concurrency() -> None:
    begun: list[int] = []
    running = most = 0

    async def work(number: int) -> None:
        nonlocal running, most
        begun.append(number)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await in_parallel((partial(work, number) for number in range(10)), 3)
    assert (begun, most) == (list(range(10)), 3)


async def test_without_work_the_call_returns_immediately() -> None:
    await in_parallel((), 3)


async def test_the_first_failure_cancels_the_others_and_is_raised_unchanged() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise KeyError("first")

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hangs")

    with pytest.raises(KeyError, match="first"):
        await in_parallel([hangs, fails, hangs, hangs], 2)
    assert ended == ["hangs"]


async def test_parts_that_come_in_any_order_pass_by_their_offsets() -> None:
    order, passed = InOrder(), []

    async def part(offset: int) -> None:
        await order.turn(offset)
        passed.append(offset)
        order.passed(offset + 10)

    await asyncio.gather(*(part(offset) for offset in (20, 0, 30, 10)))
    assert passed == [0, 10, 20, 30]


async def test_work_on_a_thread_is_waited_for_when_its_caller_is_cancelled() -> None:
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go.wait(300)
        done.set()

    task = asyncio.create_task(run_to_completion(asyncio.to_thread(work)))
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_a_failure_on_a_thread_is_raised() -> None:
    def work() -> None:
        raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        await run_to_completion(asyncio.to_thread(work))
