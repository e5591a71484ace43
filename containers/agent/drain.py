"""The container's part in a drain. The coordinator moves the drain from phase to phase; a task stops, flushes and commits its stages as the
phases say, and reports each step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from containers.agent.lifecycle import RETRY, ContainerLifecycle
from containers.agent.queries import Queries
from containers.engine import Emptied, StageStart
from containers.state.checkpoint import inspect, read_offset_log
from containers.state.context import StateContext
from containers.state.offsetlog import positions_in
from sluice.client import CoordinatorClient, Refused
from sluice.core.drain import Phase
from sluice.core.errors import Unavailable
from sluice.core.ids import RunId, Ssp
from sluice.core.snapshot import CommitId
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)

T = TypeVar("T")

AGAIN = timedelta(seconds=0.3)
"""Before something is tried again that has failed."""

_ORDER = list(Phase)


class Draining:
    """One drain, for all tasks of the container. Made and used on the agent's loop."""

    def __init__(self, coordinator: CoordinatorClient, run_id: RunId, place: StateContext, drain: wire_runs.DrainOfRun) -> None:
        self.uuid = drain.uuid
        self._coordinator = coordinator
        self._run_id = run_id
        self._place = place
        self._phase = drain.phase
        self._heard = 0
        self._changed = asyncio.Condition()
        self._asked: tuple[int, asyncio.Future[wire_drains.DrainDetail]] | None = None

    @property
    def over(self) -> bool:
        return self._phase.over

    async def heard(self, phase: Phase) -> None:
        """The coordinator has moved the phase, or a stage was flushed everywhere. Old news may come late: phases go forward."""
        await self._is_now(max(phase, self._phase, key=_ORDER.index))

    async def _is_now(self, phase: Phase) -> None:
        async with self._changed:
            self._heard += 1
            if not self._phase.over:
                self._phase = phase
            self._changed.notify_all()

    async def _until(self, *phases: Phase) -> bool:
        """Wait for one of these phases; False when the drain is over instead."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._phase in phases or self._phase.over)
            return not self._phase.over

    async def participate(self, queries: Queries, starts: Sequence[StageStart]) -> bool:
        """Do a task's part; False when the drain has ended before anything was flushed, and the task is to go on. Raises what engine and
        backups raise, and LeaseLost."""
        while not self.over:
            try:
                await self._take_part(queries, starts)
            except Refused as refused:
                log.warning("drain %s is not as it seemed: %s", self.uuid, refused)
                await self._look()
                await asyncio.sleep(AGAIN.total_seconds())
        return self._phase is not Phase.CANCELLED and not (self._phase is Phase.FAILED and await self._failed_early())

    async def _take_part(self, queries: Queries, starts: Sequence[StageStart]) -> None:
        if await self._until(Phase.STOPPING, Phase.FLUSHING, Phase.COMMITTING):
            await _all(self._stop(queries, start) for start in starts)
        if await self._until(Phase.FLUSHING, Phase.COMMITTING):
            for start in starts:
                await self._empty(queries, start)
        if await self._until(Phase.COMMITTING):
            await _all(self._commit(queries, start) for start in starts)
        await self._until()

    async def _stop(self, queries: Queries, start: StageStart) -> None:
        if self._phase is Phase.STOPPING:
            await queries.run_on_engine(start, lambda engine: engine.finish(start))
            await self._tell(start, "stopped", await self._durable(queries, start))
            log.info("%s has stopped for drain %s", start.query, self.uuid)

    async def _empty(self, queries: Queries, start: StageStart) -> None:
        if self._phase is not Phase.FLUSHING:  # told before this container was started again
            return
        catch_up = await self._feeders_have_flushed(start)
        if self.over:
            return
        under = replace(start, drain=self.uuid)
        ends = dict(await self._until_there(lambda: queries.run_on_engine(start, lambda engine: engine.ends(under))) or {})
        ends |= {ssp: offset for ssp, offset in catch_up.items() if ssp in start.starts}
        await self._tell(start, "flushing", None)
        if self.over:
            return
        emptied: Emptied = await queries.run_on_engine(start, lambda engine: engine.empty(under, ends))
        await self._tell(start, "flushed", None, emptied)
        left = f", {emptied.rows_left} rows stay: {', '.join(emptied.operators_left)}" if emptied.rows_left else ""
        log.info("%s is flushed after batch %d%s", start.query, emptied.batch, left)

    async def _commit(self, queries: Queries, start: StageStart) -> None:
        await self._tell(start, "committed", await self._durable(queries, start))

    async def _durable(self, queries: Queries, start: StageStart) -> CommitId | None:
        backup = queries.backup(start)
        return await self._until_there(backup.durable) if backup is not None else None

    async def _until_there(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask until there is an answer; None when the drain is over before."""
        while not self.over:
            try:
                return await ask()
            except Unavailable as error:
                log.warning("drain %s waits: %s", self.uuid, error)
                await asyncio.sleep(AGAIN.total_seconds())
        return None

    async def _feeders_have_flushed(self, start: StageStart) -> Mapping[Ssp, int]:
        """Wait until nobody writes any more what the stage reads; where it must read up to because others have read further."""
        while not self.over:
            heard = self._heard
            drain = await self._until_there(self._told)
            if drain is not None and not _waits_for(drain, start):
                return wire_body.offsets_of(drain.catch_up)
            await self._news_after(heard)
        return {}

    async def _news_after(self, heard: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._heard != heard or self._phase.over)

    async def _told(self) -> wire_drains.DrainDetail:
        """How the drain stands, after what was heard last; asked once for all stages."""
        if self._asked is None or self._asked[0] != self._heard:
            self._asked = (self._heard, asyncio.ensure_future(self._coordinator.drain(self.uuid)))
        number, asked = self._asked
        try:
            return await asyncio.shield(asked)
        except Unavailable:
            if self._asked == (number, asked):
                self._asked = None
            raise

    async def _tell(
        self, start: StageStart, step: wire_agents.StepName, checkpoint: CommitId | None, emptied: Emptied | None = None
    ) -> None:
        """Until it is heard. Nothing of a drain that is over. Raises Refused, LeaseLost."""
        batch, offsets = await self._place.in_thread(lambda: self._standing(start))
        body = wire_drains.DrainStepRequest(
            generation=start.generation,
            uuid=self.uuid,
            step=step,
            batch_id=batch,
            offsets=wire_body.offsets_body(offsets),
            checkpoint_id=checkpoint,
            leftover_rows=None if emptied is None else emptied.rows_left,
            leftover_operators=() if emptied is None else tuple(emptied.operators_left),
        )
        stage = start.declared.stage.name
        reply = await self._until_there(lambda: self._coordinator.drain_step(self._run_id, start.task, stage, body))
        if reply is not None and reply.phase is not self._phase:
            await self.heard(reply.phase)

    def _standing(self, start: StageStart) -> tuple[int | None, Mapping[Ssp, int]]:
        """The last committed batch of the stage's store, and where it ends. Blocks."""
        directory = self._place.checkpoints.directory(start.task, start.declared.stage.name)
        found = inspect(directory)
        if found is None or found.committed < 0:
            return None, dict(start.starts)
        return found.committed, positions_in(read_offset_log(directory, found.committed), self._place.reads(start))

    # --- when things are not as they seemed ------------------------------------------------------------------------

    async def _look(self) -> None:
        """See how the drain stands, whatever was heard before. One that the coordinator does not know is no drain."""
        heard = self._heard
        try:
            drain = await self._until_there(lambda: self._coordinator.drain(self.uuid))
        except Refused:
            await self._is_now(Phase.CANCELLED)
            return
        if drain is not None and self._heard == heard:  # else that is newer
            await self._is_now(drain.phase)

    async def _failed_early(self) -> bool:
        """Whether the drain failed before anything was flushed: then the run goes on as it was."""
        while True:
            try:
                drain = await self._coordinator.drain(self.uuid)
            except Refused:
                return True
            except Unavailable:
                await asyncio.sleep(AGAIN.total_seconds())
            else:
                return all(each.phase is not Phase.FLUSHING for each in drain.phases)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """At a time, each to its end; then the first error is raised."""
    for error in await asyncio.gather(*works, return_exceptions=True):
        if error is not None:
            raise error


def _waits_for(drain: wire_drains.DrainDetail, start: StageStart) -> Sequence[str]:
    for container in drain.containers:
        for task in container.tasks:
            for stage in task.stages:
                if (task.task, stage.stage) == (start.task, start.declared.stage.name):
                    return stage.waits_for
    return ()


class DrainNews:
    """`on_begin`: queries are to pause; `on_end`: a drain is over and the container goes on."""

    def __init__(
        self,
        life: ContainerLifecycle,
        coordinator: CoordinatorClient,
        run_id: RunId,
        place: StateContext,
        on_begin: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._life = life
        self._coordinator = coordinator
        self._run_id = run_id
        self._place = place
        self._on_begin = on_begin
        self._on_end = on_end
        self.current: Draining | None = None

    async def hear(self, told: Mapping[str, object]) -> None:
        """The first word of a drain pauses the queries. One that makes no sense, or is about another drain, changes nothing."""
        try:
            uuid, phase = str(told["uuid"]), Phase(str(told["phase"]))
        except (KeyError, ValueError):
            log.warning("a notice of a drain is not understood: %s", str(told)[:200])
            return
        if self.current is not None and self.current.uuid == uuid:
            await self.current.heard(phase)
        elif not phase.over:
            self._life.in_background(self._look_for(uuid), "drain")

    async def _look_for(self, uuid: str) -> None:
        """Take part in the drain if it is the run's."""
        while not self._life.over:
            try:
                drain = (await self._coordinator.run(self._run_id)).drain
                break
            except Unavailable:
                await self._life.pause(RETRY)
            except Refused as refused:
                log.warning("a notice of drain %s is left alone: %s", uuid, refused)
                return
        else:
            return
        if drain is None or drain.uuid != uuid or drain.phase.over:
            return
        if self.current is not None and self.current.uuid == uuid:  # another look was quicker
            await self.current.heard(drain.phase)
            return
        self._begin(drain)

    def begin(self, drain: wire_runs.DrainOfRun | None) -> None:
        """Take part in the drain that the coordinator names, if it names one that is on and none is taken part in."""
        if drain is not None and not drain.phase.over and self.current is None:
            self._begin(drain)

    def _begin(self, drain: wire_runs.DrainOfRun) -> None:
        log.info("drain %s: %s", drain.uuid, drain.phase)
        self.current = Draining(self._coordinator, self._run_id, self._place, drain)
        self._on_begin()

    def end(self, draining: Draining) -> None:
        """It is over, and nothing was flushed."""
        if self.current is draining:
            log.info("drain %s is over before anything was flushed: the queries go on", draining.uuid)
            self.current = None
            self._on_end()
