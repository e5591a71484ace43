"""Items for the clean-up queue."""

from __future__ import annotations

from datetime import datetime

from coordinator.store.backups import CleanupKind, CleanupRow, SnapshotRow, StoreKey
from sluice.core.snapshot import BlobStoreName, store_prefix


def retirement(key: StoreKey, now: datetime) -> CleanupRow:
    """Look which snapshots of a store are to be retained."""
    prefix = store_prefix(key.job, key.task, key.stage)
    return CleanupRow(CleanupKind.RETIRE, BlobStoreName(""), prefix, key.job, key.task, key.stage, now, now)


def keeping(row: SnapshotRow, blob_store: BlobStoreName, now: datetime) -> CleanupRow:
    """Remove the TTLs of a snapshot in one blob store."""
    return CleanupRow(CleanupKind.KEEP, blob_store, row.markers[blob_store].index, row.job, row.task, row.stage, now, now)
