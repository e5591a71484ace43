"""Tests of one process run on the loop of the simulation, whose time is virtual: none waits for real time, and a busy machine fails none.

The `conftest.py` of a folder imports `pytest_asyncio_loop_factories`. Tests there with real threads, sockets or processes are marked
`real_time`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from sluice.core.ids import Instant
from tests.simulation.loop import SimulatedLoop, waits_of_threads

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"real": asyncio.new_event_loop} if item.get_closest_marker("real_time") else {"virtual": VirtualLoop}


class VirtualLoop(SimulatedLoop):
    """The work of each thread takes a millisecond."""

    def __init__(self) -> None:
        super().__init__(Random(1), thread_seconds=lambda _: 0.001)
        self.set_exception_handler(None)

    def run_forever(self) -> None:
        with waits_of_threads(self):
            super().run_forever()

    def close(self) -> None:
        with waits_of_threads(self):
            self.discard()
            super().close()


class LoopClock:
    """The clock of the running loop, from the begin of a `FakeClock` on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self._loop.time() - self._began)

    def elapsed(self) -> Instant:
        return Instant(1000 + self._loop.time() - self._began)


class Gate:
    """Holds threads back until it is opened, in virtual time as well."""

    def __init__(self) -> None:
        self._reached: Future[None] = Future()
        self._open: Future[None] = Future()

    def wait(self) -> bool:
        """Called in a thread. Returns True when the gate is open."""
        _complete(self._reached)
        self._open.result()
        return True

    async def reached(self) -> None:
        """Wait until a thread waits."""
        await asyncio.wrap_future(self._reached)

    def open(self) -> None:
        _complete(self._open)


def _complete(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def wait_in_thread_until(condition: Callable[[], bool]) -> None:
    """Called in a thread of a virtual loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)

    def until(wake: Callable[[], None]) -> None:
        loop.call_later(0.001, wake)

    while not condition():
        loop.wait_in_thread(until)
