"""Progress on its way to the coordinator: the newest batch of each stage of each task, sent when there is news, never twice at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sluice.client import CoordinatorClient
from sluice.core.errors import ClientError, Unavailable
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, TaskName
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    task: TaskName
    stage: StageName
    generation: Generation
    lineage: Lineage
    batch: int
    offsets: Mapping[Ssp, int]
    measures: wire_agents.StageMetricsBody | None = None


def _body(report: Report) -> wire_agents.ProgressRequest:
    return wire_agents.ProgressRequest(
        generation=report.generation,
        stage=report.stage,
        lineage=report.lineage,
        batch_id=report.batch,
        offsets=wire_body.offsets_body(report.offsets),
        metrics=report.measures,
    )


class Reports:
    """Holds back nothing but what is superseded: a stage that runs ten batches in a second sends one report."""

    def __init__(self, coordinator: CoordinatorClient, run_id: RunId, pause: timedelta) -> None:
        self._coordinator = coordinator
        self._run_id = run_id
        self._pause = pause
        self._newest: dict[tuple[TaskName, StageName], Report] = {}
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()

    def put(self, report: Report) -> None:
        self._newest[report.task, report.stage] = report
        self._news.set()

    async def run(self) -> None:
        """Send for ever; raises LeaseLost when a task is not ours any more. A coordinator that is away gets the newest when it is back."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.flush()
            except Unavailable as trouble:
                log.warning("progress is kept back: %s", trouble)
                self._news.set()
            await asyncio.sleep(self._pause.total_seconds())

    async def flush(self) -> None:
        """Send what is waiting. Raises LeaseLost, CoordinatorUnreachable."""
        async with self._sending:
            for key, report in list(self._newest.items()):
                try:
                    await self._coordinator.progress(self._run_id, report.task, _body(report))
                except ClientError as refused:
                    about = {"task": report.task, "stage": report.stage, "generation": report.generation}
                    log.error("the coordinator refused the progress of %s/%s: %s", report.task, report.stage, refused, extra=about)
                if self._newest.get(key) is report:
                    del self._newest[key]
