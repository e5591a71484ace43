"""Drains, and the progress of each stage in them: rows, columns and SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Row, and_, func, select

from coordinator.store import tables
from coordinator.store.columns import Columns, Reads, Writes, offset_list, offsets_of
from coordinator.store.snapshots import SnapshotRow, snapshot_row
from sluice.core.drain import DrainId, DrainTimeLimits, Mode, Phase, Step, is_late
from sluice.core.ids import Generation, JobName, Lineage, RunId, Ssp, StageName, TaskName
from sluice.core.snapshots.snapshot import CommitId


@dataclass(frozen=True, slots=True)
class DrainRow:
    """A drain of a run. `seq` counts the job's drains; `model_version` is that of the pinned job model. `pinned`: the end
    offsets of the intermediate streams at the request; `catch_up`: offsets that several stages must reach before they flush; `drained`:
    where the next run starts. Each `…_at` is when the phase of that name began."""

    drain_id: DrainId
    run_id: RunId
    job: JobName
    seq: int
    mode: Mode
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
    def emptied(self) -> bool:
        """Whether it may have emptied the state of a stage."""
        return self.flushing_at is not None and self.mode is Mode.DEFAULT

    @property
    def times(self) -> DrainTimeLimits:
        return DrainTimeLimits(self.soft, self.hard, self.budgets)

    @property
    def soft_at(self) -> datetime | None:
        """The deadlines count from the time at which the first container began to stop."""
        return None if self.stopping_at is None else self.stopping_at + self.soft

    @property
    def hard_at(self) -> datetime | None:
        return None if self.stopping_at is None else self.stopping_at + self.hard

    def is_late(self, now: datetime) -> bool:
        return is_late(self.times, self.phase, self.stopping_at, self.entered_at, now)

    @property
    def entered_at(self) -> datetime:
        """When the current phase began."""
        return self.ended_at or self.committing_at or self.flushing_at or self.stopping_at or self.requested_at


@dataclass(frozen=True, slots=True)
class DrainStageRow:
    """The progress of a stage of a task of the pinned job model. `pinned`: the commit that it returns to if the drain fails. `committed`:
    the last commit. `began_empty`: it had run no batch when it stopped, so without a commit it returns to empty state. `batch_id`,
    `offsets`: at the newest step. `rows_left`, `operators_left`: state that the flush could not empty. `lineage`: of its checkpoint at the
    newest step. `operators`: the stateful operators whose state the drain kept; None if they were not reported."""

    drain_id: DrainId
    task: TaskName
    stage: StageName
    step: Step = Step.NONE
    generation: Generation | None = None
    batch_id: int | None = None
    offsets: Mapping[Ssp, int] = field(default_factory=dict)
    pinned: CommitId | None = None
    committed: CommitId | None = None
    began_empty: bool = False
    rows_left: int | None = None
    operators_left: Sequence[str] = ()
    note: str = ""
    reported_at: datetime | None = None
    lineage: Lineage | None = None
    operators: Sequence[str] | None = None


class DrainReads(Reads):
    async def get(self, drain_id: DrainId) -> DrainRow | None:
        found = (await self._connection.execute(select(tables.drains).where(tables.drains.c.drain_id == drain_id))).first()
        return drain_row(found) if found else None

    async def newest(self, run_id: RunId) -> DrainRow | None:
        """The run's last drain, ended or not."""
        table = tables.drains
        query = select(table).where(table.c.run_id == run_id).order_by(table.c.seq.desc()).limit(1)
        found = (await self._connection.execute(query)).first()
        return drain_row(found) if found else None

    async def last_drained(self, job: JobName) -> DrainRow | None:
        """The job's last drain that is DRAINED."""
        table = tables.drains
        query = select(table).where(table.c.job == job, table.c.phase == Phase.DRAINED.value).order_by(table.c.seq.desc()).limit(1)
        found = (await self._connection.execute(query)).first()
        return drain_row(found) if found else None

    async def page(self, job: JobName, before: int | None, limit: int) -> Sequence[DrainRow]:
        """Up to `limit` drains of the job, newest first, with a `seq` below `before`."""
        table = tables.drains
        query = select(table).where(table.c.job == job).order_by(table.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.seq < before)
        return [drain_row(found) for found in await self._connection.execute(query)]

    async def active(self) -> Sequence[DrainRow]:
        """The drains that have not ended, by job."""
        table = tables.drains
        query = select(table).where(table.c.ended_at.is_(None)).order_by(table.c.job, table.c.seq)
        return [drain_row(found) for found in await self._connection.execute(query)]

    async def failed_flushes(self, job: JobName) -> Sequence[DrainId]:
        """The job's drains that failed after they had begun to empty state, oldest first."""
        table = tables.drains
        failed = table.c.job == job, table.c.phase == Phase.FAILED.value
        emptied = table.c.flushing_at.is_not(None), table.c.mode == Mode.DEFAULT.value
        query = select(table.c.drain_id).where(*failed, *emptied).order_by(table.c.seq)
        return [DrainId(found) for found in await self._connection.scalars(query)]

    async def outcomes(self) -> Mapping[Phase, int]:
        """The number of drains by phase."""
        query = select(tables.drains.c.phase, func.count()).group_by(tables.drains.c.phase)
        return {Phase(phase): count for phase, count in await self._connection.execute(query)}

    async def stages(self, drain_id: DrainId) -> Sequence[DrainStageRow]:
        table = tables.drain_stages
        query = select(table).where(table.c.drain_id == drain_id).order_by(table.c.task, table.c.stage)
        return await self._all(query, drain_stage_row)

    async def stage(self, drain_id: DrainId, task: TaskName, stage: StageName) -> DrainStageRow | None:
        table = tables.drain_stages
        query = select(table).where(table.c.drain_id == drain_id, table.c.task == task, table.c.stage == stage)
        found = (await self._connection.execute(query)).first()
        return drain_stage_row(found) if found else None

    async def snapshots(
        self, drain_id: DrainId, job: JobName, of: Literal["pinned", "committed"]
    ) -> Mapping[tuple[TaskName, StageName], SnapshotRow]:
        """For each stage of a drain of the job, the snapshot that it pinned or committed; only those that are still retained."""
        stage, found = tables.drain_stages, tables.snapshots
        same = (found.c.task == stage.c.task, found.c.stage == stage.c.stage, found.c.checkpoint == stage.c[of])
        query = select(found).join(stage, and_(*same)).where(stage.c.drain_id == drain_id, found.c.job == job)
        return {(row.task, row.stage): row for row in await self._all(query, snapshot_row)}

    async def step_counts(self, drain_id: DrainId) -> Mapping[Step, int]:
        """The number of stages at each step, only steps with stages."""
        table = tables.drain_stages
        query = select(table.c.step, func.count()).where(table.c.drain_id == drain_id).group_by(table.c.step)
        return {Step(step): count for step, count in await self._connection.execute(query)}

    async def lowest_step(self, drain_id: DrainId) -> Step:
        """The step of the stage that is furthest behind; COMMITTED if there are no stages."""
        table = tables.drain_stages
        found = await self._connection.scalar(select(func.min(table.c.step)).where(table.c.drain_id == drain_id))
        return Step.COMMITTED if found is None else Step(found)

    async def is_behind(self, drain_id: DrainId, stage: StageName, step: Step) -> bool:
        """Whether some task's instance of the stage has not reached the step."""
        table = tables.drain_stages
        query = select(table.c.task).where(table.c.drain_id == drain_id, table.c.step < step, table.c.stage == stage).limit(1)
        return await self._connection.scalar(query) is not None


class DrainWrites(DrainReads, Writes):
    async def put(self, row: DrainRow) -> None:
        await self._put(tables.drains, [drain_columns(row)])

    async def put_stages(self, stages: Iterable[DrainStageRow]) -> None:
        await self._put(tables.drain_stages, map(drain_stage_columns, stages))


def drain_columns(row: DrainRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    return columns | {
        "mode": row.mode.value,
        "phase": row.phase.value,
        "soft": row.soft.total_seconds(),
        "hard": row.hard.total_seconds(),
        "budgets": {phase.value: budget.total_seconds() for phase, budget in row.budgets.items()},
        "pinned": offset_list(row.pinned),
        "catch_up": offset_list(row.catch_up),
        "drained": offset_list(row.drained),
    }


def drain_row(found: Row[Any]) -> DrainRow:
    columns = found._asdict()
    columns |= {
        "drain_id": DrainId(found.drain_id),
        "mode": Mode(found.mode),
        "phase": Phase(found.phase),
        "soft": timedelta(seconds=found.soft),
        "hard": timedelta(seconds=found.hard),
        "budgets": {Phase(phase): timedelta(seconds=budget) for phase, budget in found.budgets.items()},
        "pinned": offsets_of(found.pinned),
        "catch_up": offsets_of(found.catch_up),
        "drained": offsets_of(found.drained),
    }
    return DrainRow(**columns)


def drain_stage_columns(row: DrainStageRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    operators = None if row.operators is None else list(row.operators)
    return columns | {
        "step": int(row.step),
        "offsets": offset_list(row.offsets),
        "operators_left": list(row.operators_left),
        "operators": operators,
    }


def drain_stage_row(found: Row[Any]) -> DrainStageRow:
    columns = found._asdict()
    columns |= {
        "step": Step(found.step),
        "offsets": offsets_of(found.offsets),
        "operators_left": tuple(found.operators_left),
        "operators": None if found.operators is None else tuple(found.operators),
    }
    return DrainStageRow(**columns)
