"""One task of the slot, from its acquire to its release: its stages run, take part in drains, and start again with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from containers.agent.drain import DrainNews
from containers.agent.lifecycle import ContainerLifecycle
from containers.agent.progress import Reports
from containers.agent.queries import Queries
from containers.engine import StageStart
from containers.state.recovery import Snapshot
from sluice.client import CoordinatorClient
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, Lineage, RunId, Ssp, TaskName
from sluice.core.snapshot import BlobId, BlobStoreName, CommitId
from sluice.job import Job
from sluice.logconfig import about
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)


WAIT, BETWEEN = timedelta(seconds=2), timedelta(seconds=0.2)
"""How long the coordinator holds a question for a task that another holds, and before it is asked again."""


class StillActing(Exception):
    """A query has not ended though it was told to: the task can be given to nobody while this process is there."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What the tasks of a container share. `snapshots` are those that were offered at the last acquire, by query."""

    life: ContainerLifecycle
    job: Job
    coordinator: CoordinatorClient
    run: wire_runs.RunDetail
    execution_id: ExecutionContainerId
    epoch: Epoch
    queries: Queries
    reports: Reports
    drains: DrainNews
    snapshots: dict[str, Snapshot]
    stop_within: timedelta


class AssignedTask:
    """On the agent's loop. `on_acquired`: it is held, and `reads` tells what."""

    def __init__(self, place: TaskContext, task: TaskName, on_acquired: Callable[[TaskName], None]) -> None:
        self.task = task
        self.generation: Generation | None = None
        self._place = place
        self._on_acquired = on_acquired
        self._starts: dict[str, StageStart] = {}
        self._more = asyncio.Event()
        self._steady = asyncio.Event()
        self._steady.set()
        self._leaving = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def reads(self) -> frozenset[Ssp]:
        """The partitions that its queries run with, or will when the drain is over."""
        return frozenset(ssp for start in self._starts.values() for ssp in start.starts)

    @property
    def _goes_on(self) -> bool:
        return not self._place.life.over and not self._leaving.is_set() and self._place.drains.current is None

    # --- running ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the container ends or `leave`. Raises what `Queries.run` and `Draining.participate` raise, and Refused when the task
        belongs to another slot by now."""
        with about(task=self.task):
            try:
                acquired = await self._acquire()
                if acquired is not None:
                    self._hold(acquired)
                    await self._work()
            finally:
                self._ended.set()

    async def _acquire(self) -> wire_agents.AcquireReply | None:
        """Wait for the task for as long as it takes; None when it is not to be waited for any more."""
        place = self._place
        while not (place.life.over or self._leaving.is_set()):
            reply = await place.life.until_told(self._ask)
            if isinstance(reply, wire_agents.AcquireReply):
                return reply
            if reply is not None:
                log.info("task %s: %s may still act for %.1f s", self.task, reply.former, reply.wait_seconds)
                await self._pause(min(timedelta(seconds=reply.wait_seconds + 0.05), BETWEEN))
        return None

    async def _ask(self) -> wire_agents.AcquireReply | wire_agents.WaitReply:
        place = self._place
        return await place.coordinator.acquire(RunId(place.run.run_id), self.task, place.execution_id, place.epoch, WAIT)

    async def _pause(self, duration: timedelta) -> None:
        leaving = asyncio.ensure_future(self._leaving.wait())
        waited: set[asyncio.Future[object]] = {leaving, self._place.life.ending}  # type: ignore[arg-type]
        await asyncio.wait(waited, timeout=duration.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()

    def _hold(self, acquired: wire_agents.AcquireReply) -> None:
        place = self._place
        self.generation = Generation(acquired.generation)
        place.snapshots.update(offered(self.task, acquired))
        self._starts = self._starts_of(acquired)
        if not self._leaving.is_set():
            place.drains.begin(acquired.drain)
            self._on_acquired(self.task)

    def _starts_of(self, acquired: wire_agents.AcquireReply) -> dict[str, StageStart]:
        place = self._place
        return {start.query: start for start in starts_of(place.job, place.run, self.task, acquired)}

    async def _work(self) -> None:
        place = self._place
        while not (place.life.over or self._leaving.is_set()):
            await self._steady.wait()
            if self._goes_on:
                await self._run_stages()  # until the end, or until a drain has paused them
            elif (draining := place.drains.current) is not None:
                prepared = await place.queries.prepare(list(self._starts.values()))
                if prepared is not None:
                    if await place.queries.concurrently_with_commits(prepared, draining.participate(place.queries, prepared)):
                        return
                    place.drains.end(draining)

    async def _run_stages(self) -> None:
        """Each for itself: one may start again while the others go on. After an error they go on until the container stops them."""
        keeping: dict[str, asyncio.Task[None]] = {}
        try:
            while keeping or self._goes_on:
                if self._goes_on:
                    keeping |= {query: asyncio.create_task(self._keep(query)) for query in self._starts if query not in keeping}
                self._more.clear()
                more = asyncio.create_task(self._more.wait())
                await asyncio.wait({more, *keeping.values()}, return_when=asyncio.FIRST_COMPLETED)
                more.cancel()
                for query in [query for query, kept in keeping.items() if kept.done()]:
                    keeping.pop(query).result()
        except asyncio.CancelledError:
            for kept in keeping.values():
                kept.cancel()
            raise

    async def _keep(self, query: str) -> None:
        await self._steady.wait()
        if self._goes_on:
            await self._place.queries.run([self._starts[query]])

    # --- adopting versions -----------------------------------------------------------------------------------------

    async def extend(self) -> None:
        """Acquire the task again, which it holds, and start those of its queries again that have more to read by now. Returns when they
        run, or the container ends. Raises StillActing, and Refused when the task belongs to another slot by now."""
        with about(task=self.task):
            self._steady.clear()
            try:
                acquired = await self._acquire()
                if acquired is None:
                    return
                longer = await self._restarted(acquired)
            finally:
                self._steady.set()
                self._more.set()
            await self._place.life.unless_over(self._place.queries.begun(longer))

    async def _restarted(self, acquired: wire_agents.AcquireReply) -> Collection[str]:
        """Stop what reads less than the coordinator says by now, and note with what it starts again."""
        place = self._place
        place.drains.begin(acquired.drain)
        starts = self._starts_of(acquired)
        longer = {
            query: start for query, start in starts.items() if query not in self._starts or start.starts != self._starts[query].starts
        }
        await self._stop(longer)
        place.snapshots.update(offered(self.task, acquired))
        self._starts = {query: longer.get(query) or self._starts[query] for query in starts}
        for start in longer.values():
            log.info("%s starts again with %d partitions", start.query, len(start.starts))
        return longer.keys()

    async def _stop(self, queries: Collection[str]) -> None:
        acting = await self._place.queries.stop_some(queries, self._place.stop_within)
        if acting:
            raise StillActing(f"{', '.join(sorted(acting))} did not stop within {self._place.stop_within}")

    async def leave(self) -> None:
        """Stop its queries between batches, commit, tell the last progress, and give the task back, if it is held. Raises StillActing,
        LeaseLost."""
        place, held = self._place, RunId(self._place.run.run_id)
        with about(task=self.task):
            self._leaving.set()
            self._more.set()
            await self._stop(self._starts)
            await self._ended.wait()
            await place.queries.give_up(self._starts, place.stop_within)
            generation = self.generation
            if generation is not None:
                await place.life.until_told(place.reports.flush)
                await place.life.until_told(lambda: place.coordinator.release(held, self.task, generation))
                if not place.life.over:  # else the end may have to do it again
                    self.generation = None
                    log.info("task %s is released", self.task)


def starts_of(job: Job, run: wire_runs.RunDetail, task: TaskName, acquired: wire_agents.AcquireReply) -> Sequence[StageStart]:
    """In the order of the chain."""
    by_name: dict[str, wire_agents.StageStart] = {stage.stage: stage for stage in acquired.stages}
    return [
        StageStart(
            declared=declared,
            task=task,
            generation=Generation(acquired.generation),
            lineage=Lineage(found.lineage),
            reported=found.batch_id,
            starts=wire_body.offsets_of(found.starts),
            origin=RunId(run.first_run),
            failed_drains=run.failed_drains,
        )
        for declared in job.chain()
        if (found := by_name.get(declared.stage.name)) is not None
    ]


def offered(task: TaskName, acquired: wire_agents.AcquireReply) -> dict[str, Snapshot]:
    """The snapshots that the stages of an acquired task may be restored from, by query."""
    return {
        f"{task}/{stage.stage}": Snapshot(
            CommitId(found.checkpoint_id),
            Lineage(found.lineage),
            -1 if found.batch_id is None else found.batch_id,
            {BlobStoreName(name): BlobId(index) for name, index in found.markers.items()},
            found.chosen,
        )
        for stage in acquired.stages
        if (found := stage.snapshot) is not None
    }
