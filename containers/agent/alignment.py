"""Keeping a stage in step with the same stage of other tasks, on the coordinator's word (`sluice/core/alignment.py`).

The query itself runs on: each of its batches passes a gate before it writes anything, and the gate opens when the coordinator, told how far
the batch before has come, says so. So a task is never further ahead than is allowed by more than one batch.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import datetime, timedelta

from containers.engine import StageStart
from sluice.client import CoordinatorClient
from sluice.core.errors import Unavailable
from sluice.core.ids import RunId
from sluice.wire import agents as wire_agents

log = logging.getLogger(__name__)

ASK_AGAIN = timedelta(seconds=1)
REMIND = timedelta(seconds=5)
"""How often a task that need not wait says where it is: a coordinator that was restarted must hear of it."""

LATE_NEWS = timedelta(seconds=20)
"""How long a batch waits for Spark's word on the batch before it, which Spark may drop when its queue of events is full."""


class Aligner:
    """Of one stage of a task. Made and run on the agent's loop; it stands around each batch."""

    def __init__(self, coordinator: CoordinatorClient, run_id: RunId, start: StageStart, ask_again: timedelta = ASK_AGAIN) -> None:
        self._coordinator = coordinator
        self._run_id = run_id
        self._start = start
        self._ask_again = ask_again
        self._loop = asyncio.get_running_loop()
        self._event_time: datetime | None = None
        self._committed = self._passed = -1
        self._told: int | None = None
        self._word = wire_agents.EventTimeReply(wait=True, lead_seconds=None, waits_for=())
        self._open = False
        self._news = asyncio.Event()
        self._changed = asyncio.Condition()

    def committed(self, batch: int, event_time: datetime | None) -> None:
        """A batch was committed; `event_time` is the newest in it, None if it tells none."""
        self._committed = batch
        if event_time is not None:
            self._event_time = max(event_time, self._event_time or event_time)
        self._news.set()

    def open(self) -> None:
        """Let every batch pass from now on: the container is stopping, and a batch that has begun is to finish."""
        self._open = True
        self._news.set()

    def close(self) -> None:
        """Hold batches back again."""
        self._open = False

    def begins(self, batch: int) -> None:
        """Blocks until the batch may go on."""
        asyncio.run_coroutine_threadsafe(self._pass(batch), self._loop).result()

    def writes(self, batch: int) -> None:
        """It has passed already."""

    async def _pass(self, batch: int) -> None:
        if self._passed == batch - 1:
            with suppress(TimeoutError):
                async with asyncio.timeout(LATE_NEWS.total_seconds()), self._changed:
                    await self._changed.wait_for(lambda: self._open or (self._told is not None and self._told >= batch - 1))
        async with self._changed:
            await self._changed.wait_for(lambda: self._open or (self._told is not None and not self._word.wait))
        self._passed = batch

    async def run(self) -> None:
        """Tell the coordinator, and hear its word, for ever. While it is away all stays as it said last. Raises LeaseLost, Refused."""
        while True:
            self._news.clear()
            with suppress(Unavailable):
                await self._ask()
            async with self._changed:
                self._changed.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout((self._ask_again if self._word.wait else REMIND).total_seconds()):
                    await self._news.wait()

    async def _ask(self) -> None:
        start, committed = self._start, self._committed
        stage = start.declared.stage.name
        word = await self._coordinator.report_event_time(self._run_id, start.task, start.generation, stage, self._event_time)
        if word.wait and (word.waits_for != self._word.waits_for or not self._word.wait):
            lead = "" if word.lead_seconds is None else f", {timedelta(seconds=round(word.lead_seconds))} ahead"
            log.info("%s waits for %s%s", start.query, ", ".join(word.waits_for), lead)
        elif self._word.wait and not word.wait:
            log.info("%s goes on", start.query)
        self._word, self._told = word, committed
