"""Drains in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from sqlalchemy import func, select

from coordinator.store import rows, tables
from coordinator.store.backups_sql import AT_ONCE, SqlBackupReading, SqlBackupWriting
from coordinator.store.drains import DrainRow, DrainStageRow
from sluice.core.drain import DrainId, Phase, Step
from sluice.core.ids import JobName, RunId, StageName, TaskName


class SqlDrainReading(SqlBackupReading):
    """Reads of one transaction."""

    async def drain(self, drain_id: DrainId) -> DrainRow | None:
        found = (await self._connection.execute(select(tables.drains).where(tables.drains.c.drain_id == drain_id))).first()
        return rows.drain_row(found) if found else None

    async def newest_drain(self, run_id: RunId) -> DrainRow | None:
        table = tables.drains
        query = select(table).where(table.c.run_id == run_id).order_by(table.c.seq.desc()).limit(1)
        found = (await self._connection.execute(query)).first()
        return rows.drain_row(found) if found else None

    async def last_drained(self, job: JobName) -> DrainRow | None:
        table = tables.drains
        query = select(table).where(table.c.job == job, table.c.phase == Phase.DRAINED.value).order_by(table.c.seq.desc()).limit(1)
        found = (await self._connection.execute(query)).first()
        return rows.drain_row(found) if found else None

    async def drains(self, job: JobName, before: int | None, limit: int) -> Sequence[DrainRow]:
        table = tables.drains
        query = select(table).where(table.c.job == job).order_by(table.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.seq < before)
        return [rows.drain_row(found) for found in await self._connection.execute(query)]

    async def active_drains(self) -> Sequence[DrainRow]:
        table = tables.drains
        query = select(table).where(table.c.ended_at.is_(None)).order_by(table.c.job, table.c.seq)
        return [rows.drain_row(found) for found in await self._connection.execute(query)]

    async def failed_flushes(self, job: JobName) -> Sequence[DrainId]:
        table = tables.drains
        failed = table.c.job == job, table.c.phase == Phase.FAILED.value, table.c.flushing_at.is_not(None)
        query = select(table.c.drain_id).where(*failed).order_by(table.c.seq)
        return [DrainId(found) for found in await self._connection.scalars(query)]

    async def drain_outcomes(self) -> Mapping[Phase, int]:
        query = select(tables.drains.c.phase, func.count()).group_by(tables.drains.c.phase)
        return {Phase(phase): count for phase, count in await self._connection.execute(query)}

    async def drain_stages(self, drain_id: DrainId) -> Sequence[DrainStageRow]:
        table = tables.drain_stages
        query = select(table).where(table.c.drain_id == drain_id).order_by(table.c.task, table.c.stage)
        return [rows.drain_stage_row(found) for found in await self._connection.execute(query)]

    async def drain_stage(self, drain_id: DrainId, task: TaskName, stage: StageName) -> DrainStageRow | None:
        table = tables.drain_stages
        query = select(table).where(table.c.drain_id == drain_id, table.c.task == task, table.c.stage == stage)
        found = (await self._connection.execute(query)).first()
        return rows.drain_stage_row(found) if found else None

    async def drain_tally(self, drain_id: DrainId) -> Mapping[Step, int]:
        table = tables.drain_stages
        query = select(table.c.step, func.count()).where(table.c.drain_id == drain_id).group_by(table.c.step)
        return {Step(step): count for step, count in await self._connection.execute(query)}

    async def lowest_step(self, drain_id: DrainId) -> Step:
        table = tables.drain_stages
        found = await self._connection.scalar(select(func.min(table.c.step)).where(table.c.drain_id == drain_id))
        return Step.COMMITTED if found is None else Step(found)

    async def is_behind(self, drain_id: DrainId, stage: StageName, step: Step) -> bool:
        table = tables.drain_stages
        query = select(table.c.task).where(table.c.drain_id == drain_id, table.c.step < step, table.c.stage == stage).limit(1)
        return await self._connection.scalar(query) is not None


class SqlDrainWriting(SqlDrainReading, SqlBackupWriting):
    """Reads and writes of one transaction."""

    async def put_drain(self, row: DrainRow) -> None:
        await self._put(tables.drains, rows.drain_columns(row))

    async def put_drain_stages(self, stages: Iterable[DrainStageRow]) -> None:
        left = iter(stages)
        while some := [rows.drain_stage_columns(row) for row in islice(left, AT_ONCE)]:
            await self._put(tables.drain_stages, some)
