"""A liveness probe for the driver and Spark's JVM.

Heartbeats are sent by the agent. Without a probe they would continue while the driver or the JVM hangs: the container would keep its tasks
and process nothing. So both are probed every few seconds. One that is only busy answers, because the probe has a thread of its own in it.

Time during which this process did not run must not count. When a suspended machine or a stopped container resumes, all its timeouts have
expired. The timeout is therefore spent in slices, one wait each, and a jump of the clock of any length uses up only one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

log = logging.getLogger(__name__)

INTERVAL = timedelta(seconds=5)
"""From an answer to the next probe."""

SLICES = 10


class LivenessProbe:
    """`check` returns when Spark has answered, and raises an error when the session has ended."""

    def __init__(
        self,
        check: Callable[[], Awaitable[None]],
        timeout: timedelta,
        interval: timedelta = INTERVAL,
        on_hang: Callable[[str], None] = lambda why: None,
    ) -> None:
        """`on_hang` is called with `hangs` when it changes from None."""
        self._check = check
        self._timeout = timeout
        self._interval = interval
        self._on_hang = on_hang
        self.hangs: str | None = None
        """That Spark does not answer in time; None if it does. Meanwhile no heartbeat is sent, so that a driver that hangs loses the lease,
        and one that was only busy keeps it."""

    async def run(self) -> str:
        """Probe until Spark has ended. Returns the reason."""
        while True:
            answer = asyncio.ensure_future(self._check())
            if not await self._in_time(answer):
                self.hangs = f"the driver has not answered for {self._timeout.total_seconds():g} s"
                log.warning("%s", self.hangs)
                self._on_hang(self.hangs)
                await asyncio.wait({answer})
            self.hangs = None
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
