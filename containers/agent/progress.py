"""Reports progress to the coordinator: the newest batch of each stage of each task. One request at a time, and nothing is sent twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sluice.client.agents import AgentClient
from sluice.core.errors import ClientError, CoordinatorUnavailable, Unavailable
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, TaskName
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProgressReport:
    task: TaskName
    stage: StageName
    generation: Generation
    lineage: Lineage
    batch: int
    offsets: Mapping[Ssp, int]
    metrics: wire_agents.StageMetricsBody | None = None


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A failure of a stage, see `StageFailure`. With 0 failures, the stage has recovered. `log`: where the container's log is."""

    task: TaskName
    stage: StageName
    generation: Generation
    error: str
    failures: int
    retry_seconds: float | None
    log: str


def _body(report: ProgressReport) -> wire_agents.ProgressRequest:
    return wire_agents.ProgressRequest(
        generation=report.generation,
        stage=report.stage,
        lineage=report.lineage,
        batch_id=report.batch,
        offsets=wire_body.offsets_body(report.offsets),
        metrics=report.metrics,
    )


class ProgressReporter:
    """A newer report of a stage replaces an older one that was not sent yet: a stage that runs ten batches in a second sends one report.
    `interval`: the shortest time between two rounds of reports."""

    def __init__(self, coordinator: AgentClient, run_id: RunId, interval: timedelta) -> None:
        self._coordinator = coordinator
        self._run_id = run_id
        self._interval = interval
        self._unsent: dict[tuple[TaskName, StageName], ProgressReport] = {}
        self._failures: dict[tuple[TaskName, StageName], FailureReport] = {}
        self._new = asyncio.Event()
        self._sending = asyncio.Lock()

    def put(self, report: ProgressReport) -> None:
        """Queue progress. It replaces the failures of its stage, here and in the coordinator."""
        self._unsent[report.task, report.stage] = report
        self._failures.pop((report.task, report.stage), None)
        self._new.set()

    def put_failure(self, report: FailureReport) -> None:
        """Queue a failure. It is sent after the progress that was queued before it."""
        self._failures[report.task, report.stage] = report
        self._new.set()

    async def run(self) -> None:
        """Send reports until cancelled. While the coordinator is unreachable the newest ones are kept. Raises LeaseLost when a task belongs
        to another container."""
        while True:
            await self._new.wait()
            self._new.clear()
            try:
                await self.flush()
            except Unavailable as error:
                log.warning("progress is not reported yet: %s", error)
                self._new.set()
            await asyncio.sleep(self._interval.total_seconds())

    async def flush(self) -> None:
        """Send all queued reports. Raises LeaseLost, CoordinatorUnreachable."""
        async with self._sending:
            try:
                await self._send_progress()
            except CoordinatorUnavailable:
                # Its database cannot be written, perhaps because of the same full disk. It keeps failures in memory, and forgets them at
                # the next progress. So # they stay queued and are sent again after that.
                for failure in list(self._failures.values()):
                    await self._send_failure(failure)
                raise
            for key, failure in list(self._failures.items()):
                await self._send_failure(failure)
                if self._failures.get(key) is failure:
                    del self._failures[key]

    async def _send_progress(self) -> None:
        for key, report in list(self._unsent.items()):
            try:
                await self._coordinator.progress(self._run_id, report.task, _body(report))
            except ClientError as refused:
                about = {"task": report.task, "stage": report.stage, "generation": report.generation}
                log.error("the coordinator refused the progress of %s/%s: %s", report.task, report.stage, refused, extra=about)
            if self._unsent.get(key) is report:
                del self._unsent[key]

    async def _send_failure(self, failure: FailureReport) -> None:
        task, stage = failure.task, failure.stage
        try:
            await self._coordinator.stage_failed(
                self._run_id, task, stage, failure.generation, failure.error, failure.failures, failure.retry_seconds, failure.log
            )
        except ClientError as refused:
            log.debug("the failure of %s/%s is not reported: %s", task, stage, refused)
