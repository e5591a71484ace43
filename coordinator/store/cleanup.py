"""Deletions from blob stores: the clean-up queue, blobs marked as garbage, and the owner of each blob store. Rows, columns and SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, delete, func, select

from coordinator.store import tables
from coordinator.store.columns import Columns, Reads, Writes
from sluice.core.ids import JobName, StageKey, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName


class CleanupKind(StrEnum):
    KEEP = "keep"
    """Remove the time to live from the index `subject` and from the blobs that it lists."""
    RETIRE = "retire"
    """Apply the retention policy to the snapshots of the stage; `subject` is the stage's prefix."""
    OFFSETS = "offsets"
    """Delete the offset-log entries under the prefix `subject`, of one lineage, that no longer have to be replayed."""


@dataclass(frozen=True, slots=True)
class CleanupRow:
    """A task of the clean-up queue, executed at `due_at` or later. If it is queued again during its execution, it is executed again."""

    kind: CleanupKind
    blob_store: BlobStoreName
    subject: str
    job: JobName
    task: TaskName
    stage: StageName
    queued_at: datetime
    due_at: datetime
    tries: int = 0
    error: str = ""

    @property
    def key(self) -> tuple[CleanupKind, BlobStoreName, str]:
        return self.kind, self.blob_store, self.subject

    @property
    def stage_key(self) -> StageKey:
        return StageKey(self.job, self.task, self.stage)


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The items of one kind in the queue: the number, the age of the oldest, and how many of them have failed at least once."""

    kind: CleanupKind
    length: int
    oldest: datetime
    failing: int


@dataclass(frozen=True, slots=True)
class MarkedBlobRow:
    """A blob that no snapshot referred to at `marked_at`."""

    blob_store: BlobStoreName
    blob: BlobId
    size: int
    marked_at: datetime


class CleanupReads(Reads):
    async def due(self, now: datetime, limit: int, only: CleanupKind | None = None) -> Sequence[CleanupRow]:
        """Up to `limit` tasks that are due, all or of one kind, in the order of `due_at`."""
        return await self._first(tables.cleanups.c.due_at <= now, limit, only)

    async def due_after(self, at: datetime, limit: int, only: CleanupKind | None = None) -> Sequence[CleanupRow]:
        """Up to `limit` tasks that become due after that time, all or of one kind, in the order of `due_at`."""
        return await self._first(tables.cleanups.c.due_at > at, limit, only)

    async def _first(self, condition: ColumnElement[bool], limit: int, only: CleanupKind | None) -> Sequence[CleanupRow]:
        table = tables.cleanups
        query = select(table).where(condition).order_by(table.c.due_at, table.c.kind, table.c.blob_store, table.c.subject).limit(limit)
        if only is not None:
            query = query.where(table.c.kind == only.value)
        return [cleanup_row(found) for found in await self._connection.execute(query)]

    async def queued(self, like: CleanupRow) -> CleanupRow | None:
        """The task that is queued under the same key."""
        found = (await self._connection.execute(select(tables.cleanups).where(*_same_key(like)))).first()
        return cleanup_row(found) if found else None

    async def counts(self) -> Sequence[QueueCounts]:
        """The number and age of tasks by kind, only kinds with tasks."""
        table = tables.cleanups
        failing = func.count().filter(table.c.tries > 0)
        query = select(table.c.kind, func.count(), func.min(table.c.queued_at), failing).group_by(table.c.kind).order_by(table.c.kind)
        return [QueueCounts(CleanupKind(kind), n, oldest, failed) for kind, n, oldest, failed in await self._connection.execute(query)]

    async def marked(self, blob_store: BlobStoreName, after: str, until: str | None) -> Sequence[MarkedBlobRow]:
        """Marked blobs with `after` < id <= `until`, in the order of their ids (bytes)."""
        table = tables.condemned
        query = select(table).where(table.c.blob_store == blob_store, table.c.blob > after).order_by(table.c.blob)
        if until is not None:
            query = query.where(table.c.blob <= until)
        return [marked_blob_row(found) for found in await self._connection.execute(query)]

    async def owner_id(self, blob_store: BlobStoreName) -> str | None:
        """The id that this database wrote to the blob store; None if it has not written one."""
        query = select(tables.registries.c.registry).where(tables.registries.c.blob_store == blob_store)
        found: str | None = await self._connection.scalar(query)
        return found


class CleanupWrites(CleanupReads, Writes):
    async def put(self, row: CleanupRow) -> None:
        await self.put_all([row])

    async def put_all(self, rows: Iterable[CleanupRow]) -> None:
        await self._put(tables.cleanups, map(cleanup_columns, rows))

    async def drop(self, row: CleanupRow) -> None:
        """Remove the task from the queue, unless it was queued again since it was read."""
        table = tables.cleanups
        await self._connection.execute(delete(table).where(*_same_key(row), table.c.queued_at == row.queued_at))

    async def mark(self, rows: Iterable[MarkedBlobRow]) -> None:
        """Mark blobs as garbage. Blobs that are already marked keep their time."""
        await self._put(tables.condemned, map(marked_blob_columns, rows), overwrite=False)

    async def unmark(self, blob_store: BlobStoreName, blobs: Collection[BlobId]) -> None:
        table = tables.condemned
        statement = delete(table).where(table.c.blob_store == bindparam("where_"), table.c.blob == bindparam("which"))
        await self._for_each(statement, ({"where_": blob_store, "which": blob} for blob in blobs))

    async def put_owner_id(self, blob_store: BlobStoreName, owner_id: str) -> None:
        await self._put(tables.registries, [{"blob_store": blob_store, "registry": owner_id}])


def _same_key(row: CleanupRow) -> tuple[ColumnElement[bool], ...]:
    table = tables.cleanups
    return table.c.kind == row.kind.value, table.c.blob_store == row.blob_store, table.c.subject == row.subject


def cleanup_columns(row: CleanupRow) -> Columns:
    return {name: getattr(row, name) for name in row.__slots__} | {"kind": row.kind.value}


def cleanup_row(found: Row[Any]) -> CleanupRow:
    return CleanupRow(**{**found._asdict(), "kind": CleanupKind(found.kind)})


def marked_blob_columns(row: MarkedBlobRow) -> Columns:
    """Does not use `asdict`, which copies each value, because there may be a million rows."""
    return {"blob_store": row.blob_store, "blob": row.blob, "size": row.size, "condemned_at": row.marked_at}


def marked_blob_row(found: Row[Any]) -> MarkedBlobRow:
    return MarkedBlobRow(found.blob_store, found.blob, found.size, found.condemned_at)
