"""Versions of job models in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, insert, select

from coordinator.store import rows, tables
from coordinator.store.drains_sql import SqlDrainReading, SqlDrainWriting
from coordinator.store.versions import ModelHead, ModelRow, WatchedRow
from sluice.core.ids import JobName


class SqlVersionReading(SqlDrainReading):
    """Reads of one transaction."""

    async def model(self, job: JobName, version: int | None = None) -> ModelRow | None:
        query = select(tables.job_models).where(tables.job_models.c.job == job)
        if version is not None:
            query = query.where(tables.job_models.c.version == version)
        found = (await self._connection.execute(query.order_by(tables.job_models.c.version.desc()).limit(1))).first()
        return rows.model_row(found) if found else None

    async def models(self, job: JobName, before: int | None, limit: int) -> Sequence[ModelHead]:
        table = tables.job_models
        heads = [column for column in table.c if column.name != "document"]  # which may be megabytes
        query = select(*heads).where(table.c.job == job).order_by(table.c.version.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.version < before)
        return [ModelHead(**found._asdict()) for found in await self._connection.execute(query)]

    async def watched(self, job: JobName) -> Sequence[WatchedRow]:
        table = tables.watched_streams
        query = select(table).where(table.c.job == job).order_by(table.c.system, table.c.stream)
        return [rows.watched_row(found) for found in await self._connection.execute(query)]


class SqlVersionWriting(SqlVersionReading, SqlDrainWriting):
    """Reads and writes of one transaction."""

    async def add_model(self, row: ModelRow) -> None:
        await self._connection.execute(insert(tables.job_models).values(rows.model_columns(row)))

    async def put_watched(self, job: JobName, watched: Collection[WatchedRow]) -> None:
        await self._connection.execute(delete(tables.watched_streams).where(tables.watched_streams.c.job == job))
        await self._put(tables.watched_streams, [rows.watched_columns(row) for row in watched])
