"""Watermark alignment: a stage that runs ahead of the same stage of other tasks waits for them (`sluice/core/watermarks.py`).

The query keeps running. Each of its batches waits before it computes, until the coordinator has received the event time of the batch before
and answered that the stage need not wait. So a task exceeds the limit by at most one batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from containers.engine import StageStart
from sluice.client.agents import AgentClient
from sluice.core.errors import Unavailable
from sluice.core.ids import RunId
from sluice.wire import agents as wire_agents

log = logging.getLogger(__name__)

WAITING_INTERVAL = timedelta(seconds=1)
"""How often a stage that waits reports its event time."""

INTERVAL = timedelta(seconds=5)
"""How often a stage that need not wait reports its event time: a coordinator that was restarted does not know it."""

PROGRESS_WITHIN = timedelta(seconds=20)
"""How long a batch waits for the progress of the batch before it. Spark drops progress events when its queue of events is full."""


class Aligner:
    """Aligns one stage of a task with the others. Created and run on the agent's loop."""

    def __init__(self, coordinator: AgentClient, run_id: RunId, start: StageStart, waiting_interval: timedelta = WAITING_INTERVAL) -> None:
        self._coordinator = coordinator
        self._run_id = run_id
        self._start = start
        self._waiting_interval = waiting_interval
        self._loop = asyncio.get_running_loop()
        self._event_time: datetime | None = None
        self._committed = self._passed = -1
        self._reported: int | None = None
        self._decision = wire_agents.EventTimeReply(wait=True, lead_seconds=None, waits_for=())
        self._open = False
        self._report_now = asyncio.Event()
        self._changed = asyncio.Event()

    def committed(self, batch: int, event_time: datetime | None) -> None:
        """A batch was committed. `event_time`: the newest in it, None if it has none."""
        self._committed = batch
        if event_time is not None:
            self._event_time = max(event_time, self._event_time or event_time)
        self._report_now.set()

    def open(self) -> None:
        """Let every batch pass from now on: the query is stopping, and a batch that has begun must finish. Call it on the agent's loop."""
        self._open = True
        self._report_now.set()
        self._look_again()  # `run` does not after another part of the stage has failed, such as its backup

    def close(self) -> None:
        """Hold back batches again."""
        self._open = False

    def before_batch(self, batch: int) -> None:
        """Block until the batch need not wait. Called on Spark's threads."""
        asyncio.run_coroutine_threadsafe(self._pass(batch), self._loop).result()

    async def _pass(self, batch: int) -> None:
        if self._passed == batch - 1:
            with suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_WITHIN.total_seconds()):
                    await self._until(lambda: self._open or (self._reported is not None and self._reported >= batch - 1))
        await self._until(lambda: self._open or (self._reported is not None and not self._decision.wait))
        self._passed = batch

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _look_again(self) -> None:
        """Let each batch that waits check its condition. All of them wait on this loop."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Report the event time until cancelled. While the coordinator is unreachable its last decision stands. Raises LeaseLost,
        Refused."""
        while True:
            self._report_now.clear()
            with suppress(Unavailable):
                await self._report()
            self._look_again()
            with suppress(TimeoutError):
                async with asyncio.timeout((self._waiting_interval if self._decision.wait else INTERVAL).total_seconds()):
                    await self._report_now.wait()

    async def _report(self) -> None:
        start, committed, last = self._start, self._committed, self._decision
        stage = start.stage.name
        decision = await self._coordinator.report_event_time(self._run_id, start.task, start.generation, stage, self._event_time)
        if decision.wait and (decision.waits_for != last.waits_for or not last.wait):
            lead = "" if decision.lead_seconds is None else f", {timedelta(seconds=round(decision.lead_seconds))} ahead"
            log.info("%s waits for %s%s", start.query, ", ".join(decision.waits_for), lead)
        elif last.wait and not decision.wait:
            log.info("%s continues", start.query)
        self._decision, self._reported = decision, committed
