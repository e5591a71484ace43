"""A stage of a job file in a drain."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from containers.agent.drain import Drain, repeated
from containers.agent.failures import StageFailure
from containers.agent.queries import Queries
from containers.agent.stage import Stage
from containers.engine import Emptied, Kept
from containers.state.checkpoint import inspect, read_offset_log
from containers.state.context import StateContext
from containers.state.offsets.offsetlog import positions_in
from sluice.core.drain import Mode
from sluice.core.ids import Generation, Ssp, StageName, TaskName
from sluice.core.snapshots.snapshot import CommitId
from sluice.job import JobDescription


@dataclass(frozen=True, slots=True)
class JobStage:
    """Implements `containers.agent.drain.DrainedStage`."""

    running: Stage
    queries: Queries
    state: StateContext
    job: JobDescription

    @property
    def task(self) -> TaskName:
        return self.running.start.task

    @property
    def stage(self) -> StageName:
        return self.running.start.stage.name

    @property
    def generation(self) -> Generation:
        return self.running.start.generation

    @property
    def feeders(self) -> Collection[StageName]:
        reads = self.running.start.stage.reads
        return {other.name for other in self.job.stages if not set(other.writes).isdisjoint(reads)}

    async def stop(self) -> None:
        await self.queries.engine.run_for(self.task, lambda engine: engine.finish(self.running.start))

    async def durable(self) -> CommitId | None:
        return None if self.running.backup is None else await self.running.backup.durable()

    async def position(self) -> tuple[int | None, Mapping[Ssp, int]]:
        return await self.state.in_thread(self._position)

    def _position(self) -> tuple[int | None, Mapping[Ssp, int]]:
        start = self.running.start
        directory = self.state.checkpoints.directory(start.task, start.stage.name)
        found = inspect(directory)
        if found is None or found.committed < 0:
            return None, dict(start.starts)
        return found.committed, positions_in(read_offset_log(directory, found.committed), self.state.reads(start))

    async def flush(self, drain: Drain) -> Emptied | Kept:
        keeps = drain.mode is Mode.KEEP_STATE
        start = self.running.start if keeps else replace(self.running.start, drain=drain.uuid)
        run_for = self.queries.engine.run_for
        ends = dict(await repeated(drain, lambda: run_for(start.task, lambda engine: engine.ends(start)), self))
        ends |= {ssp: offset for ssp, offset in drain.catch_up.items() if ssp in start.starts}
        if keeps:
            return await run_for(start.task, lambda engine: engine.keep(start, ends))
        return await run_for(start.task, lambda engine: engine.empty(start, ends))

    async def end(self) -> None:
        """Its query is paused or stopped, and stays so."""

    def failed(self, failure: StageFailure) -> None:
        self.running.failed(failure)

    def recovered(self) -> None:
        self.running.recovered()
