"""A task's part in a drain, once its queries have stopped between batches. The coordinator moves the phase; see
`coordinator/core/drain.py`.

    STOPPING    finish an interrupted batch, make the store durable, tell "stopped" with that checkpoint
    FLUSHING    in the order of the chain: wait until every task has flushed the stages before; read on to the ends of the streams between;
                close windows and fire timers; tell "flushed" with the rows that are left
    COMMITTING  make the store durable, tell "committed" with where it ends

Whatever is done is a batch of Spark's own log with a durable plan, so a container that is killed anywhere comes back, restores, and does
the rest. When all feeders of an intermediate stream have told that they flushed, nobody writes to it any more: its ends are where to read
to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from containers.backupplace import BackupPlace
from containers.client import Coordinator
from containers.engine import Emptied, Start
from containers.localstate import inspect, read_plan
from containers.positions import positions_in
from containers.queries import Queries
from coordinator import wire, wire_drain
from coordinator.core.drain import Phase
from coordinator.core.errors import OurTrouble
from coordinator.core.ids import RunId, Ssp
from coordinator.core.snapshot import CheckpointId

log = logging.getLogger(__name__)

LOOK_AGAIN = timedelta(seconds=0.3)


class Draining:
    """One drain, for all tasks of the container. Made and used on the agent's loop."""

    def __init__(self, coordinator: Coordinator, run_id: RunId, place: BackupPlace, drain: wire.DrainOfRun) -> None:
        self.uuid = drain.uuid
        self._coordinator = coordinator
        self._run_id = run_id
        self._place = place
        self._phase = drain.phase
        self._catch_up: Mapping[Ssp, int] = wire.offsets_of(drain.catch_up)
        self._changed = asyncio.Condition()

    @property
    def over(self) -> bool:
        return self._phase.over

    async def heard(self, phase: Phase) -> None:
        """The coordinator has moved the phase."""
        async with self._changed:
            if not self._phase.over:
                self._phase = phase
            self._changed.notify_all()

    async def _until(self, *phases: Phase) -> bool:
        """Wait for one of these phases; False when the drain is over instead."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._phase in phases or self._phase.over)
            return not self._phase.over

    async def take_part(self, queries: Queries, starts: Sequence[Start]) -> bool:
        """Do a task's part; False when the drain was cancelled, and the task is to go on. Raises what engine, backups and coordinator
        raise."""
        if await self._until(Phase.STOPPING, Phase.FLUSHING, Phase.COMMITTING):
            for start in starts:
                await self._stop(queries, start)
        if await self._until(Phase.FLUSHING, Phase.COMMITTING):
            for start in starts:
                await self._empty(queries, start)
        if await self._until(Phase.COMMITTING):
            for start in starts:
                await self._tell(start, "committed", await self._durable(queries, start))
        async with self._changed:
            await self._changed.wait_for(lambda: self._phase.over)
        return self._phase is not Phase.CANCELLED

    async def _stop(self, queries: Queries, start: Start) -> None:
        if self._phase is Phase.STOPPING:
            await queries.on_engine(lambda engine: engine.finish(start))
            await self._tell(start, "stopped", await self._durable(queries, start))
            log.info("%s has stopped for drain %s", start.query, self.uuid)

    async def _empty(self, queries: Queries, start: Start) -> None:
        if self._phase is not Phase.FLUSHING:  # told before this container was started again
            return
        await self._feeders_have_flushed(start)
        under = replace(start, drain=self.uuid)
        ends = dict(await queries.on_engine(lambda engine: engine.ends(under)))
        ends |= {ssp: offset for ssp, offset in self._catch_up.items() if ssp in start.starts}
        await self._tell(start, "flushing", None)
        emptied: Emptied = await queries.on_engine(lambda engine: engine.empty(under, ends))
        await self._tell(start, "flushed", None, emptied)
        left = f", {emptied.rows_left} rows stay: {', '.join(emptied.operators_left)}" if emptied.rows_left else ""
        log.info("%s is flushed after batch %d%s", start.query, emptied.batch, left)

    async def _durable(self, queries: Queries, start: Start) -> CheckpointId | None:
        backup = queries.backup(start)
        return await backup.durable() if backup is not None else None

    async def _feeders_have_flushed(self, start: Start) -> None:
        while not self._phase.over:
            with suppress(OurTrouble):
                if not _waits_for(await self._coordinator.drain(self.uuid), start):
                    return
            await asyncio.sleep(LOOK_AGAIN.total_seconds())

    async def _tell(self, start: Start, step: wire.StepName, checkpoint: CheckpointId | None, emptied: Emptied | None = None) -> None:
        """Until it is heard. Nothing of a drain that is over."""
        batch, offsets = await self._place.in_thread(lambda: self._standing(start))
        body = wire_drain.DrainStepRequest(
            generation=start.generation,
            uuid=self.uuid,
            step=step,
            batch_id=batch,
            offsets=wire.offsets_body(offsets),
            checkpoint_id=checkpoint,
            rows_left=None if emptied is None else emptied.rows_left,
            operators_left=() if emptied is None else tuple(emptied.operators_left),
        )
        while not self.over:
            with suppress(OurTrouble):
                reply = await self._coordinator.drain_step(self._run_id, start.task, start.declared.stage.name, body)
                if reply.phase is not self._phase:
                    await self.heard(reply.phase)
                return
            await asyncio.sleep(LOOK_AGAIN.total_seconds())

    def _standing(self, start: Start) -> tuple[int | None, Mapping[Ssp, int]]:
        """The last committed batch of the stage's store, and where it ends. Blocks."""
        directory = self._place.stores.directory(start.task, start.declared.stage.name)
        found = inspect(directory)
        if found is None or found.committed < 0:
            return None, dict(start.starts)
        return found.committed, positions_in(read_plan(directory, found.committed), self._place.reads(start))


def _waits_for(drain: wire_drain.DrainDetail, start: Start) -> Sequence[str]:
    for container in drain.containers:
        for task in container.tasks:
            for stage in task.stages:
                if (task.task, stage.stage) == (start.task, start.declared.stage.name):
                    return stage.waits_for
    return ()
