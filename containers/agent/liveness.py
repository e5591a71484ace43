"""A liveness probe for Spark's JVM.

Heartbeats are sent by Python. They continue while the JVM hangs or has ended: the container would keep its tasks and process nothing.
So the JVM is probed every few seconds. A JVM that is only busy answers, because the probe has a thread of its own there.

Time during which this process did not run must not count. When a suspended machine or a stopped container resumes, all its timeouts have
expired. The timeout is therefore spent in slices, one wait each, and a jump of the clock of any length uses up only one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

INTERVAL = timedelta(seconds=5)
"""From an answer to the next probe."""

SLICES = 10


class LivenessProbe:
    """`check` returns when Spark has answered, and raises an error when the session has ended."""

    def __init__(self, check: Callable[[], Awaitable[None]], timeout: timedelta, interval: timedelta = INTERVAL) -> None:
        self._check = check
        self._timeout = timeout
        self._interval = interval

    async def run(self) -> str:
        """Probe until Spark does not answer in time or has ended. Returns the reason."""
        while True:
            answer = asyncio.ensure_future(self._check())
            if not await self._in_time(answer):
                answer.cancel()
                return f"Spark's JVM has not answered for {self._timeout.total_seconds():g} s"
            error = answer.exception()
            if error is not None:
                return str(error)
            await asyncio.sleep(self._interval.total_seconds())

    async def _in_time(self, answer: asyncio.Future[None]) -> bool:
        for _ in range(SLICES):
            await asyncio.wait({answer}, timeout=self._timeout.total_seconds() / SLICES)
            if answer.done():
                return True
        return False
