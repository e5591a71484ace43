"""Indexes of snapshots, read from blob stores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

from coordinator.store.backups import SnapshotRow, StoreKey
from coordinator.store.port import Reading
from sluice.blobs.port import About, BlobStore, Listed, Purpose
from sluice.core.ids import JobName, Lineage
from sluice.core.indexjson import decoded
from sluice.core.retention import References, floors
from sluice.core.snapshot import BlobId, BlobStoreName, SnapshotIndex, store_prefix


async def read_index(blobs: BlobStore, blob: BlobId, about: About) -> SnapshotIndex:
    """Parsed on a thread: an index may have megabytes. Raises BlobMissing, BlobUnavailable, IndexUnreadable."""
    body = BytesIO()
    await blobs.get(blob, body, about)
    return await asyncio.to_thread(decoded, body.getvalue(), blob)


def about_store(purpose: Purpose, key: StoreKey) -> About:
    return About(purpose, key.job, key.task, key.stage)


async def is_known(tx: Reading, job: JobName) -> bool:
    """Whether the registry has heard of the job: what it has not heard of is nobody's garbage."""
    return await tx.current_run(job) is not None or bool(await tx.snapshots(job, None, None, None, 1))


async def known_stores(tx: Reading, job: JobName) -> Mapping[str, StoreKey]:
    """The stores of a job that the registry knows, by their prefixes."""
    keys = [*await tx.snapshot_stores(job), *(StoreKey(row.job, row.task, row.stage) for row in await tx.stores(job))]
    return {store_prefix(key.job, key.task, key.stage): key for key in keys}


@dataclass(frozen=True, slots=True)
class Registered:
    """What the registry says of a store: its retained snapshots, newest first, and the lineage that it goes on under."""

    key: StoreKey
    snapshots: Sequence[SnapshotRow] = ()
    current: Lineage | None = None

    def indexes(self, blob_store: BlobStoreName) -> Sequence[BlobId]:
        """Of the snapshots that are in that blob store."""
        return [each.markers[blob_store].index for each in self.snapshots if blob_store in each.markers]

    def references(self) -> References:
        """Still without those of the indexes."""
        return References(floors([(each.lineage, each.batch_id) for each in self.snapshots]), self.current)


async def registered(tx: Reading, key: StoreKey) -> Registered:
    row = next((row for row in await tx.stores(key.job, key.task) if row.stage == key.stage), None)
    return Registered(key, await tx.snapshots_of(key), row.lineage if row else None)


async def only(blobs: BlobStore, blob: BlobId) -> Listed | None:
    """The one blob of that id, if it is there."""
    async for page in blobs.list(blob, About(Purpose.AUDIT)):
        return next((each for each in page if each.blob == blob), None)
    return None
