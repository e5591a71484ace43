"""Watermark caps: reports the progress of the container's stages, and passes on how far their watermarks may rise.

`StageWatermarks` is what one stage has to report. `WatermarkReporter` sends one request for all stages of the container that write or read
an intermediate stream, and passes the steps in the answer to the engine (`sluice/core/watermarks.py`). While the coordinator does not
answer, the steps stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from containers.engine import Batch, StageStart
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.errors import ClientError, LeaseLost, Unavailable
from sluice.core.ids import Instant, RunId, StreamId
from sluice.core.watermarks import FeederProgress, WatermarkStep
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body

log = logging.getLogger(__name__)

INTERVAL = timedelta(seconds=1)
"""The shortest time between two reports, and the interval while something changes."""

QUIET_INTERVAL = timedelta(seconds=5)
"""The interval when neither the reports nor the answers have changed for `QUIET_AFTER`. Reports continue, because a coordinator that was
restarted does not know the feeders."""

QUIET_AFTER = timedelta(seconds=10)

Limit = Callable[[str, Mapping[StreamId, Sequence[WatermarkStep]] | None], None]
"""`Engine.limit_watermark`."""


class StageWatermarks:
    """What a stage that writes or reads an intermediate stream reports. `reads`: whether it reads one. `on_change` is called when the
    report has changed."""

    def __init__(self, start: StageStart, *, reads: bool, on_change: Callable[[], None]) -> None:
        self.reads = reads
        self.query = start.query
        self._start = start
        self._on_change = on_change
        self._progress: FeederProgress | None = None
        self._watermark: datetime | None = None
        self._partitions: int | None = None

    def started(self, progress: FeederProgress | None, partitions: int) -> None:
        """Record that the query of the stage has started, and how many partitions it reads. `progress`: that in the checkpoint."""
        self._progress = progress or self._progress
        self._partitions = partitions
        self._on_change()

    def committed(self, batch: Batch) -> None:
        self._progress = batch.progress or self._progress
        self._watermark = batch.watermark or self._watermark
        self._on_change()

    def body(self) -> wire_agents.StageWatermark:
        progress = self._progress
        return wire_agents.StageWatermark(
            task=self._start.task,
            generation=self._start.generation,
            stage=self._start.stage.name,
            event_time=progress and progress.event_time,
            delay_seconds=progress.delay.total_seconds() if progress else 0,
            source=progress and progress.source.value,
            pending=progress is not None and progress.pending,
            watermark=self._watermark,
            partitions=self._partitions,
        )


class WatermarkReporter:
    """`stages` returns what to report; `limit` is the engine's. Used on the agent's loop."""

    def __init__(
        self,
        coordinator: AgentClient,
        run_id: RunId,
        clock: Clock,
        stages: Callable[[], Iterable[StageWatermarks]],
        limit: Limit,
        interval: timedelta = INTERVAL,
    ) -> None:
        self._coordinator = coordinator
        self._run_id = run_id
        self._clock = clock
        self._stages = stages
        self._limit = limit
        self._interval = interval
        self._new = asyncio.Event()
        self._last: tuple[object, object] = ((), None)
        self._changed_at: Instant = clock.elapsed()
        self._held_by: dict[tuple[str, StreamId], tuple[str, ...]] = {}

    def changed(self) -> None:
        """Report soon, because a batch was committed or a stage was added."""
        self._new.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self._new.clear()
            with suppress(Unavailable):
                await self._report()
            await asyncio.sleep(self._interval.total_seconds())
            quiet = self._clock.elapsed() - self._changed_at >= QUIET_AFTER.total_seconds()
            if quiet and not self._new.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout((QUIET_INTERVAL - self._interval).total_seconds()):
                        await self._new.wait()

    async def _report(self) -> None:
        stages = {stage.query: stage for stage in self._stages()}
        if not stages:
            return
        bodies = tuple(stage.body() for stage in stages.values())
        try:
            reply = await self._coordinator.report_watermarks(self._run_id, wire_agents.WatermarksRequest(stages=bodies))
        except (ClientError, LeaseLost) as refused:
            log.error("the coordinator refused the watermarks of %s: %s", ", ".join(stages), refused)
            return
        if (bodies, reply) != self._last:
            self._last, self._changed_at = (bodies, reply), self._clock.elapsed()
        for stage in reply.stages:
            query = f"{stage.task}/{stage.stage}"
            if query in stages:
                self._limit(query, {StreamId(each.system, each.stream): _steps(each) for each in stage.streams})
                for each in stage.streams:
                    self._log_held(query, StreamId(each.system, each.stream), each.held_by)

    def _log_held(self, query: str, stream: StreamId, held_by: tuple[str, ...]) -> None:
        if self._held_by.get((query, stream), ()) != held_by:
            self._held_by[query, stream] = held_by
            if held_by:
                log.info("%s: the watermark behind %s waits for %s", query, stream, ", ".join(held_by))


def _steps(cap: wire_agents.StreamCap) -> Sequence[WatermarkStep]:
    return [
        WatermarkStep(step.event_time, timedelta(seconds=step.delay_seconds), wire_body.offsets_of(step.ends), step.exact)
        for step in cap.steps
    ]
