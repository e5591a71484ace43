"""The simulated loop: time, threads, and processes that are killed and frozen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from coordinator.chores import ChoreScheduler
from sluice.core.ids import Instant
from tests.simulation.loop import Process, SimulatedLoop, Stuck, main_process, simulated

Test = Callable[[SimulatedLoop], Coroutine[Any, Any, None]]


def run(test: Test) -> None:
    with simulated(Random(1)) as loop:
        loop.run_until_complete(loop.create_task(test(loop), context=main_process()))
        assert not loop.errors


def test_an_hour_of_virtual_time_passes_at_once() -> None:
    async def test(loop: SimulatedLoop) -> None:
        began = time.monotonic()
        await asyncio.sleep(3600)
        assert loop.time() == pytest.approx(3600, abs=0.001)
        assert time.monotonic() - began < 60

    run(test)


def test_a_killed_process_runs_nothing_more_not_even_its_finally_blocks() -> None:
    did = []

    async def work() -> None:
        try:
            for second in range(10):
                did.append(second)
                await asyncio.sleep(1)
        finally:
            did.append(-1)

    async def test(loop: SimulatedLoop) -> None:
        process = Process("a")
        loop.create_task(work(), context=process.context())
        await asyncio.sleep(2.5)
        loop.kill(process)
        await asyncio.sleep(20)
        assert did == [0, 1, 2]

    run(test)


def test_a_frozen_process_continues_where_it_was_when_it_is_thawed() -> None:
    did = []

    async def test(loop: SimulatedLoop) -> None:
        async def work() -> None:
            for _ in range(3):
                did.append(loop.time())
                await asyncio.sleep(1)

        process = Process("a")
        task = loop.create_task(work(), context=process.context())
        await asyncio.sleep(0.5)
        loop.freeze(process)
        await asyncio.sleep(10)
        assert len(did) == 1
        loop.thaw(process)
        await task
        assert did == pytest.approx([0, 10.5, 11.5], abs=0.001)

    run(test)


def test_a_process_that_is_killed_while_it_is_frozen_does_not_continue() -> None:
    did = []

    async def work() -> None:
        await asyncio.sleep(1)
        did.append(1)

    async def test(loop: SimulatedLoop) -> None:
        process = Process("a")
        loop.create_task(work(), context=process.context())
        await asyncio.sleep(0.5)
        loop.freeze(process)
        await asyncio.sleep(1)
        loop.kill(process)
        loop.thaw(process)
        await asyncio.sleep(5)
        assert did == []

    run(test)


def test_the_loop_continues_while_a_thread_waits_for_it() -> None:
    async def answer() -> int:
        await asyncio.sleep(5)
        return 7

    async def test(loop: SimulatedLoop) -> None:
        def work() -> int:
            return asyncio.run_coroutine_threadsafe(answer(), loop).result()

        ticks = 0
        thread = asyncio.ensure_future(asyncio.to_thread(work))
        while not thread.done():
            ticks += 1
            await asyncio.sleep(1)
        assert (await thread, ticks) == (7, 6)

    run(test)


def test_a_thread_of_a_killed_process_does_not_continue() -> None:
    did = []

    async def test(loop: SimulatedLoop) -> None:
        future: Future[int] = Future()

        def work() -> None:
            future.result()
            did.append(1)

        process = Process("a")
        process.context().run(loop.run_in_executor, None, work)
        await asyncio.sleep(1)
        loop.kill(process)
        future.set_result(1)
        await asyncio.sleep(5)
        assert did == []

    run(test)


def test_errors_of_threads_are_raised_where_their_results_are_awaited() -> None:
    def work() -> None:
        raise ValueError("no")

    async def test(loop: SimulatedLoop) -> None:
        with pytest.raises(ValueError, match="no"):
            await asyncio.to_thread(work)

    run(test)


def test_a_wait_that_can_never_end_is_an_error() -> None:
    async def test(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(Stuck):
        run(test)


def test_a_loop_that_tries_again_at_once_for_ever_is_an_error() -> None:
    async def test() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="after 1001 turns"), simulated(Random(1), most_turns=1000) as loop:
        loop.run_until_complete(loop.create_task(test(), context=main_process()))


def test_the_intervals_of_chores_are_multiplied_by_the_given_pace() -> None:
    class Clock:
        def now(self) -> datetime:
            raise NotImplementedError

        def elapsed(self) -> Instant:
            return Instant(asyncio.get_running_loop().time())

    class Chore:
        name = "chore"
        every = timedelta(seconds=1)

        def __init__(self) -> None:
            self.ran: list[int] = []

        async def run_once(self) -> Mapping[str, int]:
            self.ran.append(round(asyncio.get_running_loop().time()))
            return {}

    async def test(loop: SimulatedLoop) -> None:
        chore = Chore()
        async with ChoreScheduler([chore], Clock(), pace=3):
            await asyncio.sleep(7)
        assert chore.ran == [0, 3, 6]

    run(test)
