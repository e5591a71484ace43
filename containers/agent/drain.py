"""The container's part in drains. The coordinator moves a drain from phase to phase. Each stage stops, flushes and commits in the phase for
it, and reports each step. Stages are those of a job file, or the queries of a script.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import Protocol, TypeVar

from containers.agent.failures import StageFailure
from containers.agent.lifecycle import RETRY, ContainerLifecycle
from containers.engine import Emptied, Kept
from containers.retries import until_available
from sluice import tracing
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.core.drain import Mode, Phase
from sluice.core.errors import Unavailable
from sluice.core.ids import Generation, RunId, Ssp, StageName, TaskName
from sluice.core.snapshots.snapshot import CommitId
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_STEP = timedelta(seconds=0.3)
"""The pause before a request or a step that failed is repeated."""

_ORDER = list(Phase)


class DrainEnded(Exception):
    """The drain is DRAINED, CANCELLED or FAILED."""


class Drain:
    """One drain, as far as this container knows it. `mode`: whether it empties the state or keeps it. `flushed`: the stages that every task
    has flushed; None until that is known, in FLUSHING. `catch_up`: offsets up to which stages must read before they flush. Waits raise
    DrainEnded when the drain ends."""

    def __init__(self, uuid: str, phase: Phase, mode: Mode) -> None:
        self.uuid = uuid
        self.mode = mode
        self.phase = phase
        self.flushed: frozenset[str] | None = None
        self.catch_up: Mapping[Ssp, int] = {}
        self.changes = 0
        self._changed = asyncio.Event()

    def set(self, phase: Phase, flushed: frozenset[str] | None, catch_up: Mapping[Ssp, int]) -> None:
        if not self.phase.over:
            self.phase = phase
        self.flushed, self.catch_up = flushed, catch_up
        self.changes += 1
        self.recheck()

    def recheck(self) -> None:
        """Make all waits check their conditions."""
        self._changed.set()
        self._changed = asyncio.Event()

    def advance(self, phase: Phase, flushed: Collection[str] | None, catch_up: Mapping[Ssp, int]) -> None:
        """Add what a notice or an answer says. A late one changes nothing: phases and flushed stages only go forward."""
        known = self.flushed if flushed is None else frozenset(flushed) | (self.flushed or frozenset())
        self.set(max(phase, self.phase, key=_ORDER.index), known, catch_up or self.catch_up)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.check()
            await self._changed.wait()
        self.check()

    async def phase_at_least(self, phase: Phase) -> None:
        await self.until(lambda: _ORDER.index(self.phase) >= _ORDER.index(phase))

    def check(self) -> None:
        if self.phase.over:
            raise DrainEnded


class DrainedStage(Protocol):
    """A stage that takes part in a drain. Each method may be repeated, and raises what the engine and backups raise."""

    @property
    def task(self) -> TaskName: ...

    @property
    def stage(self) -> StageName: ...

    @property
    def generation(self) -> Generation: ...

    @property
    def feeders(self) -> Collection[StageName]:
        """The stages that must be flushed before."""
        ...

    async def stop(self) -> None:
        """Run the batch that is planned and not committed. The query is paused or stopped."""
        ...

    async def durable(self) -> CommitId | None:
        """Make its state durable. Returns the commit that contains it; None if there is none."""
        ...

    async def position(self) -> tuple[int | None, Mapping[Ssp, int]]:
        """The last committed batch, None for none, and the offsets after it."""
        ...

    async def flush(self, drain: Drain) -> Emptied | Kept:
        """Read the input that is left, and empty the state, or keep it."""
        ...

    async def end(self) -> None:
        """All stages are flushed: end what may not act any more when they are committed."""
        ...

    def failed(self, failure: StageFailure) -> None:
        """Show what delays the drain."""
        ...

    def recovered(self) -> None:
        """It is over."""
        ...


class DrainParticipant:
    """This container's part in the drains of its run, one at a time: stop, flush and commit each stage as the coordinator advances the
    phase.

    Created and used on the agent's loop. `on_begin` is called to pause the queries, `on_end` when a drain is over and the container
    continues.
    """

    def __init__(
        self,
        coordinator: AgentClient,
        run_id: RunId,
        lifecycle: ContainerLifecycle,
        on_begin: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._coordinator = coordinator
        self._run_id = run_id
        self._lifecycle = lifecycle
        self._on_begin = on_begin
        self._on_end = on_end
        self._drain: Drain | None = None
        self._participating = 0
        """The number of tasks that take part in a drain."""

    # --- which drain -----------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether the run is being drained: its queries are paused, or are about to be."""
        return self._drain is not None

    @property
    def drain(self) -> Drain | None:
        """The drain in progress, or the last one, if it has ended the run."""
        return self._drain

    def begin(self, drain: wire_runs.DrainOfRun | None) -> None:
        """Take part in the run's drain, if there is one. A run has one drain at a time, so a former one has ended, although this container
        may not know it yet."""
        if drain is None or drain.phase.over:
            return
        former = self._drain
        if former is not None and former.uuid == drain.uuid:
            return
        if former is not None and not former.phase.over:
            self._lifecycle.in_background(self._join(drain.uuid), "drain")
            return
        log.info("drain %s, mode %s: %s", drain.uuid, drain.mode, drain.phase)
        self._drain = Drain(drain.uuid, drain.phase, Mode(drain.mode))
        self._on_begin()

    def advance(self, notice: wire_drains.DrainNotice) -> None:
        """The phase or the set of flushed stages has changed. A notice of another drain than the run's changes nothing."""
        drain = self._drain
        if drain is not None and drain.uuid == notice.uuid:
            drain.advance(notice.phase, notice.flushed, {})
            if drain.phase is Phase.CANCELLED and not self._participating:
                self._leave(drain)
        elif not notice.phase.over:
            self._lifecycle.in_background(self._join(notice.uuid, notice), "drain")

    async def _join(self, uuid: str, notice: wire_drains.DrainNotice | None = None) -> None:
        """Take part in the drain `uuid` if it is the run's."""
        while not self._lifecycle.exiting:
            try:
                ended = await self._former_ended(uuid)
                drain = (await self._coordinator.basic_run(self._run_id)).drain  # last: it may have ended meanwhile
            except Unavailable:
                await self._lifecycle.pause(RETRY)
                continue
            except Refused as refused:
                log.warning("a notice of drain %s is ignored: %s", uuid, refused)
                return
            if drain is None or drain.uuid != uuid:
                return
            if ended:
                self.begin(drain)
                if self._drain is not None and self._drain.uuid == uuid:
                    self._drain.advance(drain.phase, None, {})
                    if notice is not None:
                        self.advance(notice)
                return
            await self._lifecycle.pause(RETRY)

    async def _former_ended(self, uuid: str) -> bool:
        """Whether this container takes part in no other drain that has not ended."""
        former = self._drain
        if former is None or former.uuid == uuid:
            return True
        with suppress(DrainEnded):
            await self._reread(former)
        return former.phase.over

    # --- taking part -----------------------------------------------------------------------------------------------

    async def run(self, stages: Sequence[DrainedStage]) -> bool:
        """Take part with the stages of a task, in the order of the chain, until the drain ends. False if it ended before anything was
        emptied, so that the task resumes. Raises what the engine and backups raise, and LeaseLost."""
        drain = self._drain
        if drain is None:
            return False
        self._participating += 1
        try:
            while True:
                try:
                    await self._participate(drain, stages)
                except Refused as refused:
                    log.warning("drain %s has changed: %s", drain.uuid, refused)
                    await self._reread(drain)
                    await asyncio.sleep(RETRY_STEP.total_seconds())
        except DrainEnded:
            if drain.phase is Phase.DRAINED or (drain.phase is Phase.FAILED and await self._emptied_anything(drain)):
                return True
        finally:
            self._participating -= 1
        self._leave(drain)
        return False

    def _leave(self, drain: Drain) -> None:
        """Continue after a drain that has ended, unless another one has begun meanwhile."""
        if self._drain is drain:
            log.info("drain %s ended before anything was emptied: the queries resume", drain.uuid)
            self._drain = None
            self._on_end()

    async def _participate(self, drain: Drain, stages: Sequence[DrainedStage]) -> None:
        """Take the steps of the drain. Steps of a phase that has passed were taken before this container restarted, and are skipped."""
        await drain.phase_at_least(Phase.STOPPING)
        await _all(self._stop(drain, stage) for stage in stages)
        await drain.phase_at_least(Phase.FLUSHING)
        await self._flush_all(drain, stages)
        await drain.phase_at_least(Phase.COMMITTING)
        await _all(self._commit(drain, stage) for stage in stages)
        await drain.until(lambda: drain.phase.over)

    async def _stop(self, drain: Drain, stage: DrainedStage) -> None:
        if drain.phase is not Phase.STOPPING:
            return
        with _part_of(drain, "drain.stop", stage):
            await stage.stop()
            await self._report(drain, stage, "stopped", await repeated(drain, stage.durable, stage))
            log.info("%s/%s has stopped for drain %s", stage.task, stage.stage, drain.uuid)

    async def _flush_all(self, drain: Drain, stages: Sequence[DrainedStage]) -> None:
        """Flush each stage as soon as its feeders are flushed. After a failure no further flush begins."""
        failed = asyncio.Event()

        async def flush(stage: DrainedStage) -> None:
            try:
                await self._flush(drain, stage, failed)
            except BaseException:
                failed.set()
                drain.recheck()
                raise

        await _all(flush(stage) for stage in stages)

    async def _flush(self, drain: Drain, stage: DrainedStage, failed: asyncio.Event) -> None:
        if drain.phase is not Phase.FLUSHING:
            return
        await drain.until(lambda: failed.is_set() or (drain.flushed is not None and drain.flushed.issuperset(stage.feeders)))
        if failed.is_set():
            return
        with _part_of(drain, "drain.flush", stage):
            await self._report(drain, stage, "flushing")
            match await stage.flush(drain):
                case Kept() as kept:
                    await self._report(drain, stage, "flushed", kept=kept)
                    log.info("%s/%s keeps its state after batch %d", stage.task, stage.stage, kept.batch)
                case Emptied() as emptied:
                    await self._report(drain, stage, "flushed", emptied=emptied)
                    left = f", {emptied.rows_left} rows stay: {', '.join(emptied.operators_left)}" if emptied.rows_left else ""
                    log.info("%s/%s is flushed after batch %d%s", stage.task, stage.stage, emptied.batch, left)

    async def _commit(self, drain: Drain, stage: DrainedStage) -> None:
        with _part_of(drain, "drain.commit", stage):
            await stage.end()
            await self._report(drain, stage, "committed", await repeated(drain, stage.durable, stage))

    async def _report(
        self,
        drain: Drain,
        stage: DrainedStage,
        step: wire_body.StepName,
        checkpoint: CommitId | None = None,
        emptied: Emptied | None = None,
        kept: Kept | None = None,
    ) -> None:
        """Report a step until the coordinator has answered. Raises Refused, LeaseLost."""
        batch, offsets = await stage.position()
        body = wire_drains.DrainStepRequest(
            generation=stage.generation,
            uuid=drain.uuid,
            step=step,
            batch_id=batch,
            offsets=wire_body.offsets_body(offsets),
            checkpoint_id=checkpoint,
            leftover_rows=None if emptied is None else emptied.rows_left,
            leftover_operators=() if emptied is None else tuple(emptied.operators_left),
            operators=None if kept is None else tuple(kept.operators),
        )
        reply = await repeated(drain, lambda: self._coordinator.drain_step(self._run_id, stage.task, stage.stage, body), stage)
        drain.advance(reply.phase, reply.flushed, wire_body.offsets_of(reply.catch_up))

    # --- reading the drain -----------------------------------------------------------------------------------------

    async def _reread(self, drain: Drain) -> None:
        """Read the state of the drain. Its phase may have moved back, if the database was restored. A drain that the coordinator does not
        know counts as cancelled."""
        changes = drain.changes
        try:
            detail = await repeated(drain, lambda: self._coordinator.drain(drain.uuid))
        except Refused:
            drain.set(Phase.CANCELLED, None, {})
            return
        if drain.changes == changes:  # otherwise a newer notice has arrived meanwhile
            drain.set(detail.phase, _flushed_in(detail), wire_body.offsets_of(detail.catch_up))

    async def _emptied_anything(self, drain: Drain) -> bool:
        """Whether a failed drain that empties state had started to do so."""
        if drain.mode is Mode.KEEP_STATE:
            return False
        try:
            detail = await until_available(lambda: self._coordinator.drain(drain.uuid))
        except Refused:
            return False
        return any(each.phase is Phase.FLUSHING for each in detail.phases)


async def repeated(drain: Drain, call: Callable[[], Awaitable[T]], stage: DrainedStage | None = None) -> T:
    """The result of the call, which is repeated until it succeeds. Each failure is shown as one of `stage`. Raises DrainEnded when the
    drain ends first."""
    failures = 0
    while True:
        drain.check()
        try:
            found = await call()
        except Unavailable as error:
            failures += 1
            log.warning("drain %s waits: %s", drain.uuid, error)
            if stage is not None:
                stage.failed(StageFailure(f"drain {drain.uuid} waits: {error.title()} {error}", failures, RETRY_STEP))
            await asyncio.sleep(RETRY_STEP.total_seconds())
        else:
            if stage is not None and failures:
                stage.recovered()
            return found


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Await all concurrently, each to its end. Then raise the first error; DrainEnded only if there is no other."""
    errors = [error for error in await asyncio.gather(*works, return_exceptions=True) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, DrainEnded)):
        raise error


def _part_of(drain: Drain, name: str, stage: DrainedStage) -> AbstractContextManager[None]:
    return tracing.part_of(tracing.drain_subject(drain.uuid), name, task=stage.task, stage=stage.stage)


def _flushed_in(detail: wire_drains.DrainDetail) -> frozenset[str] | None:
    """The stages that every task has flushed; None before FLUSHING."""
    if detail.phase is not Phase.FLUSHING:
        return None
    stages = [stage for container in detail.containers for task in container.tasks for stage in task.stages]
    behind = {stage.stage for stage in stages if stage.step not in ("flushed", "committed")}
    return frozenset(stage.stage for stage in stages) - behind
