"""Keeping a stage in step with the same stage of other tasks, on the coordinator's word (`coordinator/core/alignment.py`)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import datetime, timedelta

from containers.client import Coordinator
from containers.stagerunner import StageRunner
from coordinator import wire
from coordinator.core.errors import OurTrouble
from coordinator.core.ids import RunId

log = logging.getLogger(__name__)


class Pacer:
    """Of one stage of a task. Its query is not started before the coordinator's first word."""

    def __init__(self, coordinator: Coordinator, run_id: RunId, runner: StageRunner, stop_within: timedelta, every: timedelta) -> None:
        self._coordinator = coordinator
        self._run_id = run_id
        self._runner = runner
        self._stop_within = stop_within
        self._every = every
        self._event_time: datetime | None = None
        self._news = asyncio.Event()
        self._waits_for: tuple[str, ...] = ()

    def committed(self, event_time: datetime | None) -> None:
        """A batch was committed; `event_time` is the newest in it, None if it tells none."""
        if event_time is not None:
            self._event_time = max(event_time, self._event_time or event_time)
            self._news.set()

    async def run(self) -> None:
        """Ask for ever, from a runner that is held. While the coordinator is away all stays as it said last. Raises LeaseLost, Refused."""
        while True:
            self._news.clear()
            start = self._runner.start
            with suppress(OurTrouble):
                word = await self._coordinator.pace(self._run_id, start.task, start.generation, start.declared.stage.name, self._event_time)
                await self._obey(word)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every.total_seconds()):
                    await self._news.wait()

    async def _obey(self, word: wire.PaceReply) -> None:
        if word.hold:
            if word.waits_for != self._waits_for:
                lead = "" if word.lead_seconds is None else f", {timedelta(seconds=round(word.lead_seconds))} ahead"
                log.info("%s waits for %s%s", self._runner.start.query, ", ".join(word.waits_for), lead)
            await self._runner.hold(self._stop_within)
        elif self._runner.held:
            log.info("%s goes on", self._runner.start.query)
            self._runner.go_on()
        self._waits_for = word.waits_for
