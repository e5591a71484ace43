"""One task of the slot, from its acquire to its release: its stages run, take part in drains, and restart with more to read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from containers.agent.drain import DrainParticipant
from containers.agent.job_drain import JobStage
from containers.agent.lifecycle import ContainerLifecycle
from containers.agent.progress import ProgressReporter
from containers.agent.queries import Queries
from containers.agent.stage import Stage
from containers.engine import StageStart
from containers.state.context import StateContext
from sluice.client.agents import AgentClient
from sluice.core.errors import LeaseLost
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, Lineage, RunId, Ssp, TaskName
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Snapshot
from sluice.job import JobDescription
from sluice.logconfig import about
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs
from sluice.wire import snapshots as wire_snapshots

log = logging.getLogger(__name__)

ACQUIRE_WAIT, ACQUIRE_PAUSE = timedelta(seconds=2), timedelta(seconds=0.2)
"""How long the coordinator holds a request for a task that another container owns, and the longest pause before the request is repeated."""


class StillActing(Exception):
    """A query has not ended in time after it was stopped. The task cannot be released while this process exists."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What the tasks of a container share. `stop_timeout`: how long a stop waits for running batches."""

    lifecycle: ContainerLifecycle
    job: JobDescription
    coordinator: AgentClient
    run: wire_runs.BasicRun
    execution_id: ExecutionContainerId
    epoch: Epoch
    queries: Queries
    reporter: ProgressReporter
    drains: DrainParticipant
    state: StateContext
    stop_timeout: timedelta

    @property
    def run_id(self) -> RunId:
        return RunId(self.run.run_id)

    def in_drain(self, stage: Stage) -> JobStage:
        return JobStage(stage, self.queries, self.state, self.job)


class AssignedTask:
    """A task that is assigned to this slot. Used on the agent's loop. `on_acquired` is called when this container owns the task; `reads` is
    known from then on. `generation`: None while this container does not own the task."""

    def __init__(self, context: TaskContext, task: TaskName, on_acquired: Callable[[TaskName], None]) -> None:
        self.task = task
        self.generation: Generation | None = None
        self._context = context
        self._on_acquired = on_acquired
        self._stages: dict[str, Stage] = {}
        self._changed = asyncio.Event()
        self._stable = asyncio.Event()
        self._stable.set()
        self._releasing = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def reads(self) -> frozenset[Ssp]:
        """The partitions that its queries read, or will read after the drain."""
        return frozenset(ssp for stage in self._stages.values() for ssp in stage.start.starts)

    @property
    def _active(self) -> bool:
        return not (self._context.lifecycle.exiting or self._releasing.is_set())

    @property
    def _may_run(self) -> bool:
        return self._active and not self._context.drains.active

    # --- running ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the task until the container exits or `release` is called. Raises what `Queries.run` and `DrainParticipant.run` raise, and
        Refused when the task belongs to another slot now."""
        with about(task=self.task):
            try:
                acquired = await self._acquire()
                if acquired is not None:
                    self._own(acquired)
                    await self._work()
            finally:
                self._ended.set()

    async def _acquire(self) -> wire_agents.AcquireReply | None:
        """Wait for the task as long as necessary; None when it is no longer needed."""
        context = self._context

        async def request() -> wire_agents.AcquireReply | wire_agents.WaitReply:
            return await context.coordinator.acquire(context.run_id, self.task, context.execution_id, context.epoch, ACQUIRE_WAIT)

        while self._active:
            reply = await context.lifecycle.until_answered(request)
            if isinstance(reply, wire_agents.AcquireReply):
                return reply
            if reply is not None:
                log.info("task %s: %s may still act for %.1f s", self.task, reply.former, reply.wait_seconds)
                await self._pause(min(timedelta(seconds=reply.wait_seconds + 0.05), ACQUIRE_PAUSE))
        return None

    async def _pause(self, duration: timedelta) -> None:
        releasing = asyncio.ensure_future(self._releasing.wait())
        waited: set[asyncio.Future[object]] = {releasing, self._context.lifecycle.exit_reason}  # type: ignore[arg-type]
        await asyncio.wait(waited, timeout=duration.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        releasing.cancel()

    def _own(self, acquired: wire_agents.AcquireReply) -> None:
        self.generation = Generation(acquired.generation)
        self._stages = {start.query: self._context.queries.add(start) for start in self._starts(acquired)}
        if not self._releasing.is_set():
            self._context.drains.begin(acquired.drain)
            self._on_acquired(self.task)

    def _starts(self, acquired: wire_agents.AcquireReply) -> Sequence[StageStart]:
        return stage_starts(self._context.job, self._context.run, self.task, acquired)

    async def _work(self) -> None:
        queries, drains = self._context.queries, self._context.drains
        while self._active:
            await self._stable.wait()
            if self._may_run:
                await self._run_stages()  # until the end, or until a drain has paused them
            elif drains.active:
                stages = list(self._stages.values())
                drained = [self._context.in_drain(stage) for stage in stages]
                if await queries.prepare(stages) and await queries.concurrently_with_commits(stages, drains.run(drained)):
                    return

    async def _run_stages(self) -> None:
        """Run each stage separately: one may restart while the others run. After an error the others run until the container stops them."""
        running: dict[str, asyncio.Task[None]] = {}
        try:
            while running or self._may_run:
                if self._may_run:
                    running |= {query: asyncio.create_task(self._run_stage(query)) for query in self._stages if query not in running}
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait({changed, *running.values()}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                for query in [query for query, ended in running.items() if ended.done()]:
                    running.pop(query).result()
        except asyncio.CancelledError:
            for each in running.values():
                each.cancel()
            raise

    async def _run_stage(self, query: str) -> None:
        await self._stable.wait()
        if self._may_run:
            await self._context.queries.run(self._stages[query])

    # --- adopting versions -----------------------------------------------------------------------------------------

    async def extend(self) -> None:
        """Acquire the task again, although this container owns it, and restart those of its queries that have more to read now. Returns
        when they run, or the container exits. Raises StillActing, and Refused when the task belongs to another slot now."""
        with about(task=self.task):
            self._stable.clear()
            try:
                acquired = await self._acquire()
                if acquired is None:
                    return
                restarted = await self._stop_extended(acquired)
            finally:
                self._stable.set()
                self._changed.set()
            for stage in restarted:
                await self._context.lifecycle.unless_exiting(stage.started.wait())

    async def _stop_extended(self, acquired: wire_agents.AcquireReply) -> Collection[Stage]:
        """Stop the stages that read less than the acquire says, and set how they start. `_run_stages` runs them again."""
        self._context.drains.begin(acquired.drain)
        starts = {start.query: start for start in self._starts(acquired)}
        longer = {query for query, start in starts.items() if query not in self._stages or start.starts != self._stages[query].start.starts}
        await self._stop([stage for query, stage in self._stages.items() if query in longer])
        self._stages = {query: self._context.queries.add(start) for query, start in starts.items()}
        for query in longer:
            log.info("%s restarts with %d partitions", query, len(starts[query].starts))
        return [self._stages[query] for query in longer]

    async def _stop(self, stages: Collection[Stage]) -> None:
        acting = await self._context.queries.stop_stages(stages, self._context.stop_timeout)
        if acting:
            names = ", ".join(sorted(stage.name for stage in acting))
            raise StillActing(f"{names} did not stop within {self._context.stop_timeout}")

    async def release(self) -> None:
        """Stop its queries between two batches, commit, report the last progress, and release the task if this container owns it. Raises
        StillActing, and LeaseLost if its last report is refused."""
        context = self._context
        with about(task=self.task):
            self._releasing.set()
            self._changed.set()
            await self._stop(self._stages.values())
            await self._ended.wait()
            await context.queries.release(self._stages.values(), context.stop_timeout)
            generation = self.generation
            if generation is not None:
                await context.lifecycle.until_answered(context.reporter.flush)
                try:
                    await context.lifecycle.until_answered(lambda: context.coordinator.release(context.run_id, self.task, generation))
                except LeaseLost as lost:  # an answer was lost, and the next owner has the task; heartbeats notice a lost lease
                    log.info("task %s has another owner already: %s", self.task, lost)
                if not context.lifecycle.exiting:  # otherwise it may have to be repeated at the exit
                    self.generation = None
                    log.info("task %s is released", self.task)


def stage_starts(job: JobDescription, run: wire_runs.BasicRun, task: TaskName, acquired: wire_agents.AcquireReply) -> Sequence[StageStart]:
    """How each stage starts, in the order of the chain."""
    by_name: dict[str, wire_agents.StageStart] = {stage.stage: stage for stage in acquired.stages}
    return [
        StageStart(
            stage=stage,
            task=task,
            generation=Generation(acquired.generation),
            lineage=Lineage(found.lineage),
            reported=found.batch_id,
            starts=wire_body.offsets_of(found.starts),
            first_run=RunId(run.first_run),
            failed_drains=run.failed_drains,
            kept_operators=found.kept_operators,
            earlier_histories=tuple(map(RunId, found.earlier_histories)),
            continuation=acquired.continuation,
            snapshot=None if found.snapshot is None else snapshot_of(found.snapshot),
        )
        for stage in job.stages
        if (found := by_name.get(stage.name)) is not None
    ]


def snapshot_of(found: wire_snapshots.StageSnapshot) -> Snapshot:
    """The snapshot that the coordinator names."""
    return Snapshot(
        CommitId(found.checkpoint_id),
        Lineage(found.lineage),
        -1 if found.batch_id is None else found.batch_id,
        {BlobStoreName(name): BlobId(index) for name, index in found.markers.items()},
        found.chosen,
    )
