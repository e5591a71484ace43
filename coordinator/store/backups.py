"""The store port's part about backups: what was reported, what is pinned, what is still to be cleaned up, what is condemned.

A snapshot's row is the registry's reference to its blobs: a blob is garbage when no row's index refers to it. Dropping a row retires the
snapshot. See `coordinator.store.port` for the promises that hold of all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from sluice.core.ids import Generation, JobName, Lineage, RunId, Ssp, StageName, TaskName
from sluice.core.snapshot import BlobId, BlobStoreName, CheckpointId


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
    checkpoint: CheckpointId
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
    checkpoint: CheckpointId
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


@dataclass(frozen=True, slots=True)
class StoreKey:
    """A store of the registry: the checkpoint directory of a stage of a task."""

    job: JobName
    task: TaskName
    stage: StageName


class BackupReading(Protocol):
    async def newest_snapshot(self, job: JobName) -> int:
        """The number of the job's newest snapshot; 0 without any."""
        ...

    async def snapshot(self, store: StoreKey, checkpoint: CheckpointId) -> SnapshotRow | None: ...

    async def snapshots_of(self, store: StoreKey) -> Sequence[SnapshotRow]:
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

    async def snapshot_stores(self, job: JobName) -> Sequence[StoreKey]:
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
