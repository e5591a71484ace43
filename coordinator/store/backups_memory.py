"""Snapshots, pins, the clean-up queue and the condemned in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from coordinator.store.backups import CleanupKind, CleanupRow, CondemnedRow, PinRow, QueueTally, SnapshotRow, StoreKey
from sluice.core.ids import JobName, StageName, TaskName
from sluice.core.snapshot import BlobId, BlobStoreName, CheckpointId

_Row = TypeVar("_Row")


def in_utc(row: _Row) -> _Row:
    """A copy of the row that shares nothing with its writer, its times in UTC."""
    copied = deepcopy(row)
    times = {name: at.astimezone(UTC) for name in row.__slots__ if isinstance(at := getattr(row, name), datetime)}  # type: ignore[attr-defined]
    return replace(copied, **times)  # type: ignore[type-var]


@dataclass(slots=True)
class BackupRows:
    """All rows, by their keys."""

    snapshots: dict[tuple[JobName, int], SnapshotRow] = field(default_factory=dict)
    pins: dict[tuple[str, JobName, TaskName, StageName], PinRow] = field(default_factory=dict)
    cleanups: dict[tuple[CleanupKind, BlobStoreName, str], CleanupRow] = field(default_factory=dict)
    condemned: dict[tuple[BlobStoreName, BlobId], CondemnedRow] = field(default_factory=dict)
    registries: dict[BlobStoreName, str] = field(default_factory=dict)

    def copy(self) -> BackupRows:
        """Tables of their own; the rows in them are values and shared."""
        return BackupRows(**{name: dict(getattr(self, name)) for name in self.__slots__})


class MemoryBackupReading:
    """Reads of one transaction."""

    def __init__(self, backups: BackupRows) -> None:
        self._backups = backups

    async def newest_snapshot(self, job: JobName) -> int:
        return max((seq for of, seq in self._backups.snapshots if of == job), default=0)

    async def snapshot(self, store: StoreKey, checkpoint: CheckpointId) -> SnapshotRow | None:
        return next((row for row in await self.snapshots_of(store) if row.checkpoint == checkpoint), None)

    async def snapshots_of(self, store: StoreKey) -> Sequence[SnapshotRow]:
        return self._newest_first(lambda row: StoreKey(row.job, row.task, row.stage) == store)

    async def snapshots(
        self, job: JobName, task: TaskName | None, stage: StageName | None, before: int | None, limit: int
    ) -> Sequence[SnapshotRow]:
        def wanted(row: SnapshotRow) -> bool:
            return row.job == job and task in (None, row.task) and stage in (None, row.stage) and (before is None or row.seq < before)

        return self._newest_first(wanted)[:limit]

    def _newest_first(self, wanted: Callable[[SnapshotRow], bool]) -> list[SnapshotRow]:
        return sorted((row for row in self._backups.snapshots.values() if wanted(row)), key=lambda row: row.seq, reverse=True)

    async def snapshot_jobs(self) -> Sequence[JobName]:
        return sorted({job for job, _ in self._backups.snapshots})

    async def snapshot_stores(self, job: JobName) -> Sequence[StoreKey]:
        found = {(row.task, row.stage) for row in self._backups.snapshots.values() if row.job == job}
        return [StoreKey(job, task, stage) for task, stage in sorted(found)]

    async def pins(self, job: JobName) -> Sequence[PinRow]:
        return [row for _, row in sorted(self._backups.pins.items()) if row.job == job]

    async def pin(self, pin_id: str) -> Sequence[PinRow]:
        return [row for _, row in sorted(self._backups.pins.items()) if row.pin_id == pin_id]

    async def cleanups(self, due: datetime, limit: int) -> Sequence[CleanupRow]:
        found = [row for row in self._backups.cleanups.values() if row.due_at <= due]
        return sorted(found, key=lambda row: (row.due_at, *row.key))[:limit]

    async def cleanup(self, like: CleanupRow) -> CleanupRow | None:
        return self._backups.cleanups.get(like.key)

    async def cleanup_tally(self) -> Sequence[QueueTally]:
        by_kind: defaultdict[CleanupKind, list[CleanupRow]] = defaultdict(list)
        for row in self._backups.cleanups.values():
            by_kind[row.kind].append(row)
        return [
            QueueTally(kind, len(found), min(row.queued_at for row in found), sum(1 for row in found if row.tries))
            for kind, found in sorted(by_kind.items())
        ]

    async def condemned(self, blob_store: BlobStoreName, after: str, until: str | None) -> Sequence[CondemnedRow]:
        kept = sorted(self._backups.condemned.items())
        return [row for (where, blob), row in kept if where == blob_store and blob > after and (until is None or blob <= until)]

    async def registry(self, blob_store: BlobStoreName) -> str | None:
        return self._backups.registries.get(blob_store)


class MemoryBackupWriting(MemoryBackupReading):
    """Reads and writes of one transaction."""

    async def put_snapshot(self, row: SnapshotRow) -> None:
        self._backups.snapshots[row.job, row.seq] = in_utc(row)

    async def drop_snapshot(self, job: JobName, seq: int) -> None:
        self._backups.snapshots.pop((job, seq), None)

    async def put_pin(self, row: PinRow) -> None:
        self._backups.pins[row.pin_id, row.job, row.task, row.stage] = in_utc(row)

    async def drop_pin(self, pin_id: str) -> int:
        gone = [key for key in self._backups.pins if key[0] == pin_id]
        for key in gone:
            del self._backups.pins[key]
        return len(gone)

    async def put_cleanup(self, row: CleanupRow) -> None:
        self._backups.cleanups[row.key] = in_utc(row)

    async def drop_cleanup(self, row: CleanupRow) -> None:
        known = self._backups.cleanups.get(row.key)
        if known is not None and known.queued_at == row.queued_at:
            del self._backups.cleanups[row.key]

    async def condemn(self, condemned: Iterable[CondemnedRow]) -> None:
        for row in condemned:
            self._backups.condemned.setdefault((row.blob_store, row.blob), in_utc(row))

    async def pardon(self, blob_store: BlobStoreName, blobs: Collection[BlobId]) -> None:
        for blob in blobs:
            self._backups.condemned.pop((blob_store, blob), None)

    async def put_registry(self, blob_store: BlobStoreName, registry: str) -> None:
        self._backups.registries[blob_store] = registry
