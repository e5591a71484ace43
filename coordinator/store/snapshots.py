"""Snapshots, pins, the clean-up queue and blobs marked as garbage: rows, columns and SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import Any, Protocol

from sqlalchemy import Executable, Row, Table, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables
from coordinator.store.columns import Columns, _offset_list, _offsets
from sluice.core.ids import Generation, JobName, Lineage, RunId, Ssp, StageKey, StageName, TaskName
from sluice.core.snapshot import BlobId, BlobStoreName, CommitId


@dataclass(frozen=True, slots=True)
class MarkerRow:
    """A snapshot in one blob store. `kept`: nothing that it refers to has a time to live any more. `puts` are requests, `files` and `bytes`
    those of the directory, `uploaded_…` what of it was new."""

    index: BlobId
    files: int = 0
    bytes: int = 0
    uploaded_files: int = 0
    uploaded_bytes: int = 0
    puts: int = 0
    kept: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A reported snapshot of a store that is retained. `seq` counts the job's reports; `batch_id` is the last batch in it, None before the
    first; `reported_at` is by the coordinator's clock."""

    job: JobName
    seq: int
    task: TaskName
    stage: StageName
    checkpoint: CommitId
    lineage: Lineage
    batch_id: int | None
    generation: Generation
    run_id: RunId
    reported_at: datetime
    offsets: Mapping[Ssp, int] = field(default_factory=dict)
    markers: Mapping[BlobStoreName, MarkerRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PinRow:
    """What keeps a snapshot whatever the retention says, until `expires_at` (None: until it is taken away). A pin may be on one snapshot
    of each of several stores of a job."""

    pin_id: str
    job: JobName
    task: TaskName
    stage: StageName
    checkpoint: CommitId
    reason: str
    created_at: datetime
    expires_at: datetime | None = None


class CleanupKind(StrEnum):
    KEEP = "keep"
    """Remove the TTLs of what the index `subject` refers to, and its own."""
    RETIRE = "retire"
    """Look which snapshots of the store are to be retained; `subject` is its prefix."""
    OFFSETS = "offsets"
    """Delete the plans under the prefix `subject`, of a lineage, that are not needed any more."""


@dataclass(frozen=True, slots=True)
class CleanupRow:
    """Something to be done, at `due_at` or later. The same may be queued again; it is done when it is done as it was queued last."""

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


@dataclass(frozen=True, slots=True)
class QueueTally:
    """Of one kind of the queue: how many, the oldest, and how many of them have failed at least once."""

    kind: CleanupKind
    length: int
    oldest: datetime
    failing: int


@dataclass(frozen=True, slots=True)
class CondemnedRow:
    blob_store: BlobStoreName
    blob: BlobId
    size: int
    condemned_at: datetime


class BackupReading(Protocol):
    async def newest_snapshot(self, job: JobName) -> int:
        """The number of the job's newest snapshot; 0 without any."""
        ...

    async def snapshot(self, store: StageKey, checkpoint: CommitId) -> SnapshotRow | None: ...

    async def snapshots_of(self, store: StageKey) -> Sequence[SnapshotRow]:
        """All of a store, newest first."""
        ...

    async def snapshots(
        self, job: JobName, task: TaskName | None, stage: StageName | None, before: int | None, limit: int
    ) -> Sequence[SnapshotRow]:
        """Up to `limit` of the job's, newest first, those numbered below `before`; `stage` without `task` is of all tasks."""
        ...

    async def snapshot_jobs(self) -> Sequence[JobName]:
        """The jobs that have snapshots."""
        ...

    async def snapshot_stores(self, job: JobName) -> Sequence[StageKey]:
        """The stores of the job that have snapshots."""
        ...

    async def pins(self, job: JobName) -> Sequence[PinRow]:
        """The job's pins, expired ones too."""
        ...

    async def pin(self, pin_id: str) -> Sequence[PinRow]: ...

    async def cleanups(self, due: datetime, limit: int) -> Sequence[CleanupRow]:
        """Up to `limit` that are due, those first that have been for longest."""
        ...

    async def cleanup(self, like: CleanupRow) -> CleanupRow | None:
        """The item that is queued under the same key."""
        ...

    async def cleanup_tally(self) -> Sequence[QueueTally]:
        """By kind, those that have any."""
        ...

    async def condemned(self, blob_store: BlobStoreName, after: str, until: str | None) -> Sequence[CondemnedRow]:
        """Those whose ids are greater than `after` and not greater than `until`, in the order of their ids (bytes)."""
        ...

    async def registry(self, blob_store: BlobStoreName) -> str | None:
        """The id by which the blob store knows this registry; None if it was not told yet."""
        ...


class BackupWriting(BackupReading, Protocol):
    async def put_snapshot(self, row: SnapshotRow) -> None: ...

    async def drop_snapshot(self, job: JobName, seq: int) -> None: ...

    async def put_pin(self, row: PinRow) -> None: ...

    async def drop_pin(self, pin_id: str) -> int:
        """On how many snapshots it was."""
        ...

    async def put_cleanup(self, row: CleanupRow) -> None: ...

    async def drop_cleanup(self, row: CleanupRow) -> None:
        """Take it from the queue, unless it was queued again meanwhile."""
        ...

    async def condemn(self, rows: Iterable[CondemnedRow]) -> None:
        """Those that are condemned already keep their time."""
        ...

    async def pardon(self, blob_store: BlobStoreName, blobs: Collection[BlobId]) -> None:
        """Forget that they were condemned."""
        ...

    async def put_registry(self, blob_store: BlobStoreName, registry: str) -> None: ...


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

    async def snapshot(self, store: StageKey, checkpoint: CommitId) -> SnapshotRow | None:
        query = _of_store(store).where(tables.snapshots.c.checkpoint == checkpoint)
        found = (await self._connection.execute(query)).first()
        return snapshot_row(found) if found else None

    async def snapshots_of(self, store: StageKey) -> Sequence[SnapshotRow]:
        found = await self._connection.execute(_of_store(store).order_by(tables.snapshots.c.seq.desc()))
        return [snapshot_row(each) for each in found]

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
        return [snapshot_row(each) for each in await self._connection.execute(query)]

    async def snapshot_jobs(self) -> Sequence[JobName]:
        query = select(tables.snapshots.c.job).distinct().order_by(tables.snapshots.c.job)
        return [JobName(job) for job in await self._connection.scalars(query)]

    async def snapshot_stores(self, job: JobName) -> Sequence[StageKey]:
        table = tables.snapshots
        query = select(table.c.task, table.c.stage).where(table.c.job == job).distinct().order_by(table.c.task, table.c.stage)
        return [StageKey(job, TaskName(found.task), StageName(found.stage)) for found in await self._connection.execute(query)]

    async def pins(self, job: JobName) -> Sequence[PinRow]:
        table = tables.pins
        query = select(table).where(table.c.job == job).order_by(table.c.pin_id, table.c.task, table.c.stage)
        return [pin_row(found) for found in await self._connection.execute(query)]

    async def pin(self, pin_id: str) -> Sequence[PinRow]:
        table = tables.pins
        query = select(table).where(table.c.pin_id == pin_id).order_by(table.c.job, table.c.task, table.c.stage)
        return [pin_row(found) for found in await self._connection.execute(query)]

    async def cleanups(self, due: datetime, limit: int) -> Sequence[CleanupRow]:
        table = tables.cleanups
        order = (table.c.due_at, table.c.kind, table.c.blob_store, table.c.subject)
        query = select(table).where(table.c.due_at <= due).order_by(*order).limit(limit)
        return [cleanup_row(found) for found in await self._connection.execute(query)]

    async def cleanup(self, like: CleanupRow) -> CleanupRow | None:
        found = (await self._connection.execute(select(tables.cleanups).where(*_same(like)))).first()
        return cleanup_row(found) if found else None

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
        return [condemned_row(found) for found in await self._connection.execute(query)]

    async def registry(self, blob_store: BlobStoreName) -> str | None:
        query = select(tables.registries.c.registry).where(tables.registries.c.blob_store == blob_store)
        found: str | None = await self._connection.scalar(query)
        return found


def _of_store(store: StageKey) -> Any:
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
        await self._put(tables.snapshots, snapshot_columns(row))

    async def drop_snapshot(self, job: JobName, seq: int) -> None:
        await self._connection.execute(delete(tables.snapshots).where(tables.snapshots.c.job == job, tables.snapshots.c.seq == seq))

    async def put_pin(self, row: PinRow) -> None:
        await self._put(tables.pins, pin_columns(row))

    async def drop_pin(self, pin_id: str) -> int:
        return (await self._connection.execute(delete(tables.pins).where(tables.pins.c.pin_id == pin_id))).rowcount

    async def put_cleanup(self, row: CleanupRow) -> None:
        await self._put(tables.cleanups, cleanup_columns(row))

    async def drop_cleanup(self, row: CleanupRow) -> None:
        table = tables.cleanups
        await self._connection.execute(delete(table).where(*_same(row), table.c.queued_at == row.queued_at))

    async def condemn(self, condemned: Iterable[CondemnedRow]) -> None:
        left = iter(condemned)
        while some := [condemned_columns(row) for row in islice(left, AT_ONCE)]:
            await self._put(tables.condemned, some, over=False)

    async def pardon(self, blob_store: BlobStoreName, blobs: Collection[BlobId]) -> None:
        table = tables.condemned
        statement = delete(table).where(table.c.blob_store == bindparam("where_"), table.c.blob == bindparam("which"))
        if several := [{"where_": blob_store, "which": blob} for blob in blobs]:
            await self._connection.execute(statement, several)

    async def put_registry(self, blob_store: BlobStoreName, registry: str) -> None:
        await self._put(tables.registries, {"blob_store": blob_store, "registry": registry})


def snapshot_columns(row: SnapshotRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    return columns | {"offsets": _offset_list(row.offsets), "markers": {name: asdict(marker) for name, marker in row.markers.items()}}


def snapshot_row(found: Row[Any]) -> SnapshotRow:
    markers = {BlobStoreName(name): MarkerRow(**{**marker, "index": BlobId(marker["index"])}) for name, marker in found.markers.items()}
    return SnapshotRow(**{**found._asdict(), "offsets": _offsets(found.offsets), "markers": markers})


def pin_columns(row: PinRow) -> Columns:
    return asdict(row)


def pin_row(found: Row[Any]) -> PinRow:
    return PinRow(**found._asdict())


def cleanup_columns(row: CleanupRow) -> Columns:
    return asdict(row) | {"kind": row.kind.value}


def cleanup_row(found: Row[Any]) -> CleanupRow:
    return CleanupRow(**{**found._asdict(), "kind": CleanupKind(found.kind)})


def condemned_columns(row: CondemnedRow) -> Columns:
    """Spelled out, as there may be a million: `asdict` copies each value."""
    return {"blob_store": row.blob_store, "blob": row.blob, "size": row.size, "condemned_at": row.condemned_at}


def condemned_row(found: Row[Any]) -> CondemnedRow:
    return CondemnedRow(found.blob_store, found.blob, found.size, found.condemned_at)
