"""The agent's part in the drains of a script: the driver pauses, flushes and ends its queries, and the steps are those of every container
(`containers.agent.drain`).

Before a query is flushed, its checkpoint is backed up, if it is one of `app.checkpoint`. If the drain then fails, the query goes back to
that snapshot. When all queries are flushed and have ended, each stage is reported as committed, which ends the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from containers.agent.drain import Drain, DrainEnded, DrainParticipant, repeated
from containers.agent.failures import StageFailure
from containers.agent.lifecycle import ContainerLifecycle
from containers.attached.port import Beginning, DrainInterrupted, DrainOfScript, Flushed
from containers.engine import Emptied, Position
from containers.retries import until_available
from containers.rpc.codec import OtherProcessFailed
from containers.rpc.connection import Connection, ConnectionLost
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.core.drain import Phase
from sluice.core.errors import ClientError, LeaseLost, SluiceError, StaleRun, Unavailable
from sluice.core.ids import Generation, JobName, RunId, Ssp, StageName, TaskName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.core.snapshots.snapshot import CommitId
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs

log = logging.getLogger("sluice")

T = TypeVar("T")

CHECKPOINTS = "attached.checkpoints"
"""The name in the config of a run of a suffix of the checkpoints' directories."""


@dataclass
class ScriptStage:
    """A query of the script in a drain. Implements `containers.agent.drain.DrainedStage`. `writers`: the queries that write what it reads.
    `feeders`: those of them that are flushed before it. `finish`: end all queries, and report all stages of the drain as committed. `at`:
    where it is."""

    stage: StageName
    generation: Generation
    drain: Drain
    driver: Connection
    backed_up: Callable[[StageName], Awaitable[CommitId | None]]
    finish: Callable[[], Awaitable[None]]
    at: Position
    writers: Collection[StageName] = ()
    feeders: Collection[StageName] = ()
    task: TaskName = ATTACHED_TASK
    _flushed: bool = field(default=False, init=False)

    async def stop(self) -> None:
        """It is paused after its last planned batch."""

    async def durable(self) -> CommitId | None:
        """No query continues on a checkpoint that was flushed. Raises Unavailable if the backup fails, also with an error that an operator
        must act on, so that the drain waits; and DrainEnded as soon as the drain is over, whereas the backup goes on."""
        if self._flushed:
            return None
        backup = asyncio.ensure_future(self.backed_up(self.stage))
        backup.add_done_callback(lambda done: done.cancelled() or done.exception())
        backup.add_done_callback(lambda _: self.drain.recheck())
        try:
            await self.drain.until(backup.done)
            return backup.result()
        except asyncio.CancelledError:
            backup.cancel()
            raise
        except (LeaseLost, StaleRun, Refused, Unavailable):
            raise
        except (SluiceError, OSError, TimeoutError) as error:
            raise Unavailable(str(error) or type(error).__name__) from error

    async def position(self) -> tuple[int | None, Mapping[Ssp, int]]:
        return self.at.batch, self.at.offsets

    async def flush(self, drain: Drain) -> Emptied:
        found: Flushed = await asyncio.wrap_future(self.driver.request("flush", drain.uuid, self.stage, sorted(self.writers)))
        self.at, self._flushed = found.position, True
        drain.advance(drain.phase, {self.stage}, {})  # the coordinator names no flushed stages of a script
        return Emptied(-1 if self.at.batch is None else self.at.batch, found.rows_left, found.operators_left)

    async def end(self) -> None:
        self._flushed = True
        await self.finish()

    def failed(self, failure: StageFailure) -> None:
        """The log has it."""

    def recovered(self) -> None:
        """See `failed`."""


class ScriptDrains:
    """Used on the agent's loop. `backed_up` makes the last batch of a paused query durable, and returns its snapshot; None if its
    checkpoint is not backed up. It raises what a commit raises."""

    def __init__(
        self,
        coordinator: AgentClient,
        run: RunId,
        generation: Generation,
        lifecycle: ContainerLifecycle,
        backed_up: Callable[[StageName], Awaitable[CommitId | None]],
    ) -> None:
        self._coordinator = coordinator
        self._run = run
        self._generation = generation
        self._backed_up = backed_up
        self._participant = DrainParticipant(coordinator, run, lifecycle, self._on_begin, lambda: None)
        self._driver: Connection | None = None
        self._told: tuple[str, Connection] | None = None
        """The drain for which a driver pauses the queries that it starts."""
        self._given_up: tuple[Drain, Connection | None] | None = None
        """A drain, and the driver that takes no part in it any more."""
        self._changed = asyncio.Event()

    def begin(self, drain: wire_runs.DrainOfRun | None) -> None:
        """The run has this drain."""
        self._participant.begin(drain)

    def advance(self, notice: wire_drains.DrainNotice) -> None:
        """A notice about a drain of the run."""
        self._participant.advance(notice)
        self._changed.set()

    def attached(self, driver: Connection) -> None:
        """This driver may start queries. Those that start in a drain are paused."""
        self._driver = driver
        self._on_begin()

    def driver_ended(self) -> None:
        self._driver = None
        self._changed.set()

    def _on_begin(self) -> None:
        drain = self._participant.drain
        if drain is not None and not drain.phase.over and self._driver is not None:
            self._told = (drain.uuid, self._driver)
            self._driver.tell("drain", DrainOfScript(drain.uuid, drain.phase in (Phase.FLUSHING, Phase.COMMITTING)))
        self._changed.set()

    async def run(self) -> None:
        """Take part in drains until cancelled."""
        while True:
            self._changed.clear()
            drain, driver = self._participant.drain, self._driver
            if drain is None or drain.phase.over:
                await self._release()
                await self._changed.wait()
            elif drain.phase is Phase.COMMITTING:  # the queries have ended; one that starts now is on another checkpoint
                await commit(self._coordinator, self._run, self._generation, drain.uuid)
                await self._changed.wait()
            elif driver is None or self._given_up == (drain, driver):
                await self._changed.wait()
            else:
                await self._try_to_take_part(drain, driver)

    async def _release(self) -> None:
        """No drain is in progress: the driver may still hold queries for the last one, which another driver has left."""
        told, self._told = self._told, None
        if told is not None and told[1] is self._driver:
            with suppress(ConnectionLost, OtherProcessFailed):
                await asyncio.wrap_future(told[1].request("leave", told[0], False))

    @property
    def has_drained(self) -> bool:
        """Whether a drain has ended the run, or is about to."""
        drain = self._participant.drain
        return drain is not None and drain.phase in (Phase.COMMITTING, Phase.DRAINED)

    async def _try_to_take_part(self, drain: Drain, driver: Connection) -> None:
        try:
            await self._take_part(drain, driver)
        except (ConnectionLost, DrainInterrupted, LeaseLost) as error:
            log.info("drain %s: %s; it continues when the script is started again", drain.uuid, error)
            self._given_up = (drain, driver)
        except Exception as error:  # of a batch
            log.error("drain %s: %s; the queries end, and it continues when the script is started again", drain.uuid, error)
            self._given_up = (drain, driver)

    async def _take_part(self, drain: Drain, driver: Connection) -> None:
        """Raises what the driver raises, whose queries then end."""
        leaving: list[asyncio.Future[None]] = []

        async def leave(*, end: bool = True) -> None:
            if not leaving:
                leaving.append(asyncio.wrap_future(driver.request("leave", drain.uuid, end)))
            await asyncio.shield(leaving[0])

        finishing: list[asyncio.Task[None]] = []

        async def finish_once() -> None:
            await leave()
            await commit(self._coordinator, self._run, self._generation, drain.uuid)  # also stages that an earlier start has flushed

        async def finish() -> None:
            if not finishing:
                finishing.append(asyncio.create_task(finish_once()))
            await asyncio.shield(finishing[0])

        try:
            stages = await self._paused(drain, driver, finish)
            ended = await self._participant.run(stages)
        except Exception:
            await leave()
            raise
        finally:
            for each in finishing:
                each.cancel()  # without effect, unless the agent ends
        await leave(end=ended)
        if self._told == (drain.uuid, driver):
            self._told = None

    async def _paused(self, drain: Drain, driver: Connection, finish: Callable[[], Awaitable[None]]) -> list[ScriptStage]:
        """The stages of the drain, when all queries are paused; none if the drain is over first. Raises what the driver raises."""
        try:
            detail = await repeated(drain, lambda: self._coordinator.drain(drain.uuid))
            known = {StageName(each.stage): each for each in _stages(detail)}
            needed = [stage for stage, each in known.items() if each.step not in ("flushed", "committed")]
            pausing = asyncio.wrap_future(driver.request("pause_queries", drain.uuid, needed))
            pausing.add_done_callback(lambda _: drain.recheck())
            await drain.until(pausing.done)
        except DrainEnded:
            return []
        paused: Mapping[StageName, Position] = pausing.result()
        feeders: Mapping[StageName, Collection[StageName]] = await asyncio.wrap_future(driver.request("feeders"))
        order = flush_order(paused, feeders)
        return [
            ScriptStage(
                stage, self._generation, drain, driver, self._backed_up, finish, at,
                writers=feeders.get(stage, ()), feeders=order[stage] & known.keys(),
            )
            for stage, at in paused.items()
            if stage in known
        ]  # fmt: skip


def flush_order(
    stages: Iterable[StageName], feeders: Mapping[StageName, Collection[StageName]]
) -> Mapping[StageName, frozenset[StageName]]:
    """Stage -> the stages that are flushed before it. Of stages that write each other's input, the first one by name is flushed first."""
    left, order = sorted(stages), dict[StageName, frozenset[StageName]]()
    while left:
        ready = [stage for stage in left if not set(feeders.get(stage, ())).intersection(left).difference([stage])] or left[:1]
        for stage in ready:
            order[stage] = frozenset(feeders.get(stage, ())) & order.keys()
        left = [stage for stage in left if stage not in ready]
    return order


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
    detail = await _answered(lambda: coordinator.drain(uuid))
    for stage in () if detail is None or detail.phase is not Phase.COMMITTING else _stages(detail):
        body = wire_drains.DrainStepRequest(
            generation=generation, uuid=uuid, step="committed", batch_id=stage.batch_id, offsets=stage.offsets
        )
        await _answered(partial(coordinator.drain_step, run, ATTACHED_TASK, StageName(stage.stage), body))


async def _answered(request: Callable[[], Awaitable[T]]) -> T | None:
    """The answer; None if the coordinator refuses."""
    try:
        return await until_available(request, what="the drain waits")
    except (Refused, LeaseLost, ClientError) as refused:
        log.warning("the coordinator refuses a step of the drain: %s", refused)
        return None


def _stages(drain: wire_drains.DrainDetail) -> list[wire_drains.DrainStageReply]:
    return [stage for container in drain.containers for task in container.tasks for stage in task.stages]
