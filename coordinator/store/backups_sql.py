"""Snapshots, pins, the clean-up queue and the condemned in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any

from sqlalchemy import Executable, Table, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import rows, tables
from coordinator.store.backups import CleanupKind, CleanupRow, CondemnedRow, PinRow, QueueTally, SnapshotRow, StoreKey
from sluice.core.ids import JobName, StageName, TaskName
from sluice.core.snapshot import BlobId, BlobStoreName, CheckpointId

AT_ONCE = 1_000
"""Rows of one statement that writes many."""


@cache
def upsert(table: Table, dialect: str, *, over: bool = True) -> Executable:
    """Insert rows, over older ones with the same key or leaving those. Made once: making it takes longer than running it."""
    insert_into: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect]
    statement = insert_into(table)
    keys = [column.name for column in table.primary_key]
    if not over:
        left: Executable = statement.on_conflict_do_nothing(index_elements=keys)
        return left
    rest = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in keys}
    written: Executable = statement.on_conflict_do_update(index_elements=keys, set_=rest)
    return written


class SqlBackupReading:
    """Reads of one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def newest_snapshot(self, job: JobName) -> int:
        newest = select(func.max(tables.snapshots.c.seq)).where(tables.snapshots.c.job == job)
        return int(await self._connection.scalar(newest) or 0)

    async def snapshot(self, store: StoreKey, checkpoint: CheckpointId) -> SnapshotRow | None:
        query = _of_store(store).where(tables.snapshots.c.checkpoint == checkpoint)
        found = (await self._connection.execute(query)).first()
        return rows.snapshot_row(found) if found else None

    async def snapshots_of(self, store: StoreKey) -> Sequence[SnapshotRow]:
        found = await self._connection.execute(_of_store(store).order_by(tables.snapshots.c.seq.desc()))
        return [rows.snapshot_row(each) for each in found]

    async def snapshots(
        self, job: JobName, task: TaskName | None, stage: StageName | None, before: int | None, limit: int
    ) -> Sequence[SnapshotRow]:
        table = tables.snapshots
        query = select(table).where(table.c.job == job).order_by(table.c.seq.desc()).limit(limit)
        if task is not None:
            query = query.where(table.c.task == task)
        if stage is not None:
            query = query.where(table.c.stage == stage)
        if before is not None:
            query = query.where(table.c.seq < before)
        return [rows.snapshot_row(each) for each in await self._connection.execute(query)]

    async def snapshot_jobs(self) -> Sequence[JobName]:
        query = select(tables.snapshots.c.job).distinct().order_by(tables.snapshots.c.job)
        return [JobName(job) for job in await self._connection.scalars(query)]

    async def snapshot_stores(self, job: JobName) -> Sequence[StoreKey]:
        table = tables.snapshots
        query = select(table.c.task, table.c.stage).where(table.c.job == job).distinct().order_by(table.c.task, table.c.stage)
        return [StoreKey(job, TaskName(found.task), StageName(found.stage)) for found in await self._connection.execute(query)]

    async def pins(self, job: JobName) -> Sequence[PinRow]:
        table = tables.pins
        query = select(table).where(table.c.job == job).order_by(table.c.pin_id, table.c.task, table.c.stage)
        return [rows.pin_row(found) for found in await self._connection.execute(query)]

    async def pin(self, pin_id: str) -> Sequence[PinRow]:
        table = tables.pins
        query = select(table).where(table.c.pin_id == pin_id).order_by(table.c.job, table.c.task, table.c.stage)
        return [rows.pin_row(found) for found in await self._connection.execute(query)]

    async def cleanups(self, due: datetime, limit: int) -> Sequence[CleanupRow]:
        table = tables.cleanups
        order = (table.c.due_at, table.c.kind, table.c.blob_store, table.c.subject)
        query = select(table).where(table.c.due_at <= due).order_by(*order).limit(limit)
        return [rows.cleanup_row(found) for found in await self._connection.execute(query)]

    async def cleanup(self, like: CleanupRow) -> CleanupRow | None:
        found = (await self._connection.execute(select(tables.cleanups).where(*_same(like)))).first()
        return rows.cleanup_row(found) if found else None

    async def cleanup_tally(self) -> Sequence[QueueTally]:
        table = tables.cleanups
        failing = func.count().filter(table.c.tries > 0)
        query = select(table.c.kind, func.count(), func.min(table.c.queued_at), failing).group_by(table.c.kind).order_by(table.c.kind)
        return [QueueTally(CleanupKind(kind), n, oldest, failed) for kind, n, oldest, failed in await self._connection.execute(query)]

    async def condemned(self, blob_store: BlobStoreName, after: str, until: str | None) -> Sequence[CondemnedRow]:
        table = tables.condemned
        query = select(table).where(table.c.blob_store == blob_store, table.c.blob > after).order_by(table.c.blob)
        if until is not None:
            query = query.where(table.c.blob <= until)
        return [rows.condemned_row(found) for found in await self._connection.execute(query)]

    async def registry(self, blob_store: BlobStoreName) -> str | None:
        query = select(tables.registries.c.registry).where(tables.registries.c.blob_store == blob_store)
        found: str | None = await self._connection.scalar(query)
        return found


def _of_store(store: StoreKey) -> Any:
    table = tables.snapshots
    return select(table).where(table.c.job == store.job, table.c.task == store.task, table.c.stage == store.stage)


def _same(item: CleanupRow) -> Sequence[Any]:
    table = tables.cleanups
    return table.c.kind == item.kind.value, table.c.blob_store == item.blob_store, table.c.subject == item.subject


class SqlBackupWriting(SqlBackupReading):
    """Reads and writes of one transaction."""

    async def _put(self, table: Table, columns: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, over: bool = True) -> None:
        several = [columns] if isinstance(columns, Mapping) else list(columns)
        if not several:
            return
        await self._connection.execute(upsert(table, self._connection.dialect.name, over=over), several)

    async def put_snapshot(self, row: SnapshotRow) -> None:
        await self._put(tables.snapshots, rows.snapshot_columns(row))

    async def drop_snapshot(self, job: JobName, seq: int) -> None:
        await self._connection.execute(delete(tables.snapshots).where(tables.snapshots.c.job == job, tables.snapshots.c.seq == seq))

    async def put_pin(self, row: PinRow) -> None:
        await self._put(tables.pins, rows.pin_columns(row))

    async def drop_pin(self, pin_id: str) -> int:
        return (await self._connection.execute(delete(tables.pins).where(tables.pins.c.pin_id == pin_id))).rowcount

    async def put_cleanup(self, row: CleanupRow) -> None:
        await self._put(tables.cleanups, rows.cleanup_columns(row))

    async def drop_cleanup(self, row: CleanupRow) -> None:
        table = tables.cleanups
        await self._connection.execute(delete(table).where(*_same(row), table.c.queued_at == row.queued_at))

    async def condemn(self, condemned: Iterable[CondemnedRow]) -> None:
        left = iter(condemned)
        while some := [rows.condemned_columns(row) for row in islice(left, AT_ONCE)]:
            await self._put(tables.condemned, some, over=False)

    async def pardon(self, blob_store: BlobStoreName, blobs: Collection[BlobId]) -> None:
        table = tables.condemned
        statement = delete(table).where(table.c.blob_store == bindparam("where_"), table.c.blob == bindparam("which"))
        if several := [{"where_": blob_store, "which": blob} for blob in blobs]:
            await self._connection.execute(statement, several)

    async def put_registry(self, blob_store: BlobStoreName, registry: str) -> None:
        await self._put(tables.registries, {"blob_store": blob_store, "registry": registry})
