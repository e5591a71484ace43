"""The store port's part about drains. See `coordinator.store.port` for the promises that hold of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from sluice.core.drain import DrainId, Phase, Step, Times, is_late
from sluice.core.ids import Generation, JobName, RunId, Ssp, StageName, TaskName
from sluice.core.snapshot import CheckpointId


@dataclass(frozen=True, slots=True)
class DrainRow:
    """A drain of a run, kept for ever. `seq` counts the job's drains; `model_version` is the pinned job model's. `pinned`: the ends of the
    intermediate streams at the request; `catch_up`: partitions that several stages must read up to there before they flush; `drained`:
    where the next run begins. Each `…_at` is when the phase of that name began, `ended_at` when the drain was over."""

    drain_id: DrainId
    run_id: RunId
    job: JobName
    seq: int
    mode: str
    phase: Phase
    model_version: int
    requested_at: datetime
    soft: timedelta
    hard: timedelta
    budgets: Mapping[Phase, timedelta] = field(default_factory=dict)
    pinned: Mapping[Ssp, int] = field(default_factory=dict)
    catch_up: Mapping[Ssp, int] = field(default_factory=dict)
    drained: Mapping[Ssp, int] = field(default_factory=dict)
    stopping_at: datetime | None = None
    flushing_at: datetime | None = None
    committing_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""

    @property
    def times(self) -> Times:
        return Times(self.soft, self.hard, self.budgets)

    @property
    def soft_at(self) -> datetime | None:
        """The deadlines count from the first container on."""
        return None if self.stopping_at is None else self.stopping_at + self.soft

    @property
    def hard_at(self) -> datetime | None:
        return None if self.stopping_at is None else self.stopping_at + self.hard

    def is_late(self, now: datetime) -> bool:
        return is_late(self.times, self.phase, self.stopping_at, self.entered_at, now)

    @property
    def entered_at(self) -> datetime:
        """When its phase began."""
        return self.ended_at or self.committing_at or self.flushing_at or self.stopping_at or self.requested_at


@dataclass(frozen=True, slots=True)
class DrainStageRow:
    """A stage of a task of the pinned job model, and how far it has come. `pinned` is the checkpoint to go back to, `committed` the last;
    `began_empty`: it had run no batch when it stopped, so that without a checkpoint it goes back to its beginning. `batch_id` and `offsets`
    are those of the newest step; `rows_left`, `operators_left`: what the flush could not empty."""

    drain_id: DrainId
    task: TaskName
    stage: StageName
    step: Step = Step.NONE
    generation: Generation | None = None
    batch_id: int | None = None
    offsets: Mapping[Ssp, int] = field(default_factory=dict)
    pinned: CheckpointId | None = None
    committed: CheckpointId | None = None
    began_empty: bool = False
    rows_left: int | None = None
    operators_left: Sequence[str] = ()
    note: str = ""
    reported_at: datetime | None = None


class DrainReading(Protocol):
    async def drain(self, drain_id: DrainId) -> DrainRow | None: ...

    async def newest_drain(self, run_id: RunId) -> DrainRow | None:
        """The run's last drain, over or not."""
        ...

    async def last_drained(self, job: JobName) -> DrainRow | None:
        """The job's last drain that is DRAINED."""
        ...

    async def drains(self, job: JobName, before: int | None, limit: int) -> Sequence[DrainRow]:
        """Up to `limit` of the job's, newest first, those numbered below `before`."""
        ...

    async def active_drains(self) -> Sequence[DrainRow]:
        """Those that are not over, by job."""
        ...

    async def failed_flushes(self, job: JobName) -> Sequence[DrainId]:
        """The job's drains that failed after FLUSHING had begun, oldest first."""
        ...

    async def drain_outcomes(self) -> Mapping[Phase, int]:
        """How many drains there are by phase."""
        ...

    async def drain_stages(self, drain_id: DrainId) -> Sequence[DrainStageRow]: ...

    async def drain_stage(self, drain_id: DrainId, task: TaskName, stage: StageName) -> DrainStageRow | None: ...

    async def drain_tally(self, drain_id: DrainId) -> Mapping[Step, int]:
        """How many stages are at each step, without the steps that none is at."""
        ...

    async def lowest_step(self, drain_id: DrainId) -> Step:
        """That of the stage that is furthest behind; COMMITTED when there is none."""
        ...

    async def is_behind(self, drain_id: DrainId, stage: StageName, step: Step) -> bool:
        """Whether the stage has not come to the step yet in some task."""
        ...


class DrainWriting(DrainReading, Protocol):
    async def put_drain(self, row: DrainRow) -> None: ...

    async def put_drain_stages(self, rows: Iterable[DrainStageRow]) -> None: ...
