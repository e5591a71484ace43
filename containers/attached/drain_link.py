"""The agent's part in a drain of a script: it passes the phases to the driver, and the driver's steps to the coordinator.

Before a query is flushed, the agent backs its checkpoint up, if it is one of `app.checkpoint`. If the drain then fails, the query goes back
to that snapshot.

When all queries are flushed and have ended, or the driver has, nothing of them is left to save. The agent then reports each stage as
committed, which ends the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from containers.attached.port import Beginning, DrainOfScript, Step
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.core.drain import Phase
from sluice.core.errors import LeaseLost, SluiceError, StaleRun, Unavailable
from sluice.core.ids import Generation, JobName, RunId, StageName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.core.snapshots.snapshot import CommitId
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains

log = logging.getLogger("sluice")

CHECKPOINTS = "attached.checkpoints"
"""The name in the config of a run of a suffix of the checkpoints' directories."""

T = TypeVar("T")

RETRY = timedelta(seconds=0.5)

_ORDER = list(Phase)


class DrainLink:
    """`tell` tells the driver, if one is connected, which drain the run has. `backed_up` makes the last batch of a paused query durable,
    and returns its snapshot; None if its checkpoint is not backed up. It raises what a commit raises."""

    def __init__(
        self,
        coordinator: AgentClient,
        run: RunId,
        generation: Generation,
        tell: Callable[[DrainOfScript], None],
        backed_up: Callable[[StageName], Awaitable[CommitId | None]],
    ) -> None:
        self._coordinator = coordinator
        self._backed_up = backed_up
        self._run = run
        self._generation = generation
        self._tell = tell
        self._drain: wire_drains.DrainDetail | None = None
        self._steps: asyncio.Queue[tuple[str, Step]] = asyncio.Queue()
        self._driver_done = asyncio.Event()

    async def begin(self, uuid: str) -> None:
        """Read a drain of the run, at the start or after a notice, and pass its phase to the driver. Notices are read from the first one
        on, so the drain may be older than the one in progress, and over."""
        detail = await _retry(lambda: self._coordinator.drain(uuid))
        if detail is None:
            return
        known = self._drain
        if known is not None and known.uuid == uuid and _ORDER.index(known.phase) > _ORDER.index(detail.phase):
            return
        if known is not None and known.uuid != uuid and detail.phase.over and not known.phase.over:
            return  # otherwise the steps of the one in progress would be dropped
        self._drain = detail
        if known is None or known.uuid != uuid:
            self._driver_done.clear()
        self.greet()

    def greet(self) -> None:
        """Pass the phase to a driver that has attached, or that knows an older one."""
        drain = self._drain
        if drain is not None:
            left = [StageName(stage.stage) for stage in _stages(drain) if not _has_taken(stage, drain.phase)]
            self._tell(DrainOfScript(drain.uuid, drain.phase, left))

    def take(self, drain: str, step: Step) -> None:
        """A step of the driver."""
        self._steps.put_nowait((drain, step))

    def driver_ended(self) -> None:
        """All queries are flushed and have ended, or the driver has ended."""
        self._driver_done.set()

    def driver_began(self) -> None:
        self._driver_done.clear()

    async def run(self) -> None:
        """Report steps until cancelled."""
        reporting = asyncio.create_task(self._report_steps())
        try:
            while True:
                await self._driver_done.wait()
                drain = self._drain
                if drain is not None and drain.phase is Phase.COMMITTING:
                    await commit(self._coordinator, self._run, self._generation, drain.uuid)
                    self._drain = None
                await asyncio.sleep(RETRY.total_seconds())
        finally:
            reporting.cancel()

    async def _report_steps(self) -> None:
        async with asyncio.TaskGroup() as stopping:
            while True:
                drain, step = await self._steps.get()
                if step.step == "stopped":  # side by side, because each waits for a snapshot
                    stopping.create_task(self._report_stopped(drain, step))
                else:
                    await self._report_step(drain, step, None)

    async def _report_stopped(self, drain: str, step: Step) -> None:
        """Make the last batch of the query durable, then report that it has stopped. While that fails, the drain waits."""
        last = ""
        while self._drain is not None and self._drain.uuid == drain and not self._drain.phase.over:
            try:
                checkpoint = await self._backed_up(step.stage)
            except (LeaseLost, StaleRun) as lost:
                log.warning("%s is not backed up for the drain any more: %s", step.stage, lost)
                return
            except (SluiceError, OSError, TimeoutError) as error:
                if str(error) != last:
                    log.warning("the drain waits until %s is backed up: %s", step.stage, error)
                last = str(error)
                await asyncio.sleep(RETRY.total_seconds())
            except Exception:  # the steps of the other queries must be reported
                log.exception("the drain waits until %s is backed up", step.stage)
                await asyncio.sleep(RETRY.total_seconds())
            else:
                await self._report_step(drain, step, checkpoint)
                return

    async def _report_step(self, drain: str, step: Step, checkpoint: CommitId | None) -> None:
        body = wire_drains.DrainStepRequest.model_validate(
            {
                "generation": self._generation,
                "uuid": drain,
                "step": step.step,
                "batchId": step.batch,
                "offsets": wire_body.offsets_body(step.offsets),
                "checkpointId": checkpoint,
                "leftoverRows": step.rows_left,
                "leftoverOperators": step.operators_left,
            }
        )
        reply = await _retry(lambda: self._coordinator.drain_step(self._run, ATTACHED_TASK, step.stage, body))
        if reply is not None and self._drain is not None and self._drain.uuid == body.uuid:
            await self.begin(body.uuid)


async def last_drain_of(coordinator: AgentClient, job: JobName, run: RunId, stage: str) -> Beginning:
    """Where a new checkpoint of the stage begins: after the last drain that is over and has flushed the stage. `offsets`: none if the drain
    has failed and the query goes back to the snapshot that was made before its flush, and `failed` is "" then. A drain in progress does not
    count: an interrupted flush is finished on the same checkpoint. Raises Refused, Unavailable."""
    suffix = (await coordinator.run(run)).config.get(CHECKPOINTS, "")
    for summary in await coordinator.drains(job):
        detail = await coordinator.drain(summary.uuid)
        found = next((each for each in _stages(detail) if each.stage == stage), None)
        flushes = any(each.phase is Phase.FLUSHING for each in detail.phases)
        if not detail.phase.over or found is None or found.step in (None, "stopped") or not flushes:
            continue
        if detail.phase is Phase.FAILED and found.pinned_checkpoint is not None:
            return Beginning(detail.seq, suffix, {}, "")
        failed = "" if found.step in ("flushed", "committed") else f"drain {detail.uuid} has {detail.phase.lower()}: {detail.reason}"
        offsets: dict[str, dict[str, int]] = {}
        for each in found.offsets:
            offsets.setdefault(each.stream, {})[str(each.partition)] = each.offset
        return Beginning(detail.seq, suffix, offsets, failed)
    return Beginning(0, suffix, {}, "")


async def commit(coordinator: AgentClient, run: RunId, generation: Generation, uuid: str) -> None:
    """Report every stage of a drain in COMMITTING as committed. The last report ends the run."""
    detail = await _retry(lambda: coordinator.drain(uuid))
    for stage in () if detail is None or detail.phase is not Phase.COMMITTING else _stages(detail):
        body = wire_drains.DrainStepRequest(
            generation=generation, uuid=uuid, step="committed", batch_id=stage.batch_id, offsets=stage.offsets
        )
        name = StageName(stage.stage)
        await _retry(lambda: coordinator.drain_step(run, ATTACHED_TASK, name, body))  # noqa: B023 (awaited here)


async def _retry(call: Callable[[], Awaitable[T]]) -> T | None:
    """The answer; None if the coordinator refuses. Repeats the call while the coordinator cannot be reached."""
    while True:
        try:
            return await call()
        except Unavailable as error:
            log.warning("the drain waits: %s", error)
            await asyncio.sleep(RETRY.total_seconds())
        except (Refused, LeaseLost) as refused:
            log.warning("the coordinator refuses a step of the drain: %s", refused)
            return None


def _stages(drain: wire_drains.DrainDetail) -> list[wire_drains.DrainStageReply]:
    return [stage for container in drain.containers for task in container.tasks for stage in task.stages]


def _has_taken(stage: wire_drains.DrainStageReply, phase: Phase) -> bool:
    """Whether the stage needs nothing more of the driver in this phase."""
    steps: dict[Phase, Any] = {Phase.REQUESTED: ("stopped",), Phase.STOPPING: ("stopped",), Phase.FLUSHING: ("flushed", "committed")}
    return phase not in steps or stage.step in steps[phase]
