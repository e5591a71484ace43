"""Whether Spark still answers.

The agent's heartbeats are Python's: they go on beside a JVM that hangs or is gone, and the container would keep its tasks and process
nothing. So Spark is asked for a sign of life every few seconds. A JVM that is only busy answers: a question has a thread of its own there.

Time that passes for nobody must not count. A machine that was suspended, or a whole container that was stopped for a while, wakes up with
all its time-outs over. The patience is therefore spent in turns, one wait each, and a jump of any length takes one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

EVERY = timedelta(seconds=5)
"""From one sign of life to the next question."""

TURNS = 10


class Pulse:
    """`ask` returns when Spark has answered, and raises when there is nothing left that could."""

    def __init__(self, ask: Callable[[], Awaitable[None]], patience: timedelta, every: timedelta = EVERY) -> None:
        self._ask = ask
        self._patience = patience
        self._every = every

    async def run(self) -> str:
        """Until Spark has no pulse; why it is thought so."""
        while True:
            answer = asyncio.ensure_future(self._ask())
            if not await self._comes(answer):
                answer.cancel()
                return f"Spark's JVM has not answered for {self._patience.total_seconds():g} s"
            error = answer.exception()
            if error is not None:
                return str(error)
            await asyncio.sleep(self._every.total_seconds())

    async def _comes(self, answer: asyncio.Future[None]) -> bool:
        for _ in range(TURNS):
            await asyncio.wait({answer}, timeout=self._patience.total_seconds() / TURNS)
            if answer.done():
                return True
        return False
