"""Which coordinator database owns a blob store, and which snapshots of a stage the database lists.

A fresh database lists no snapshots, so every blob would look like garbage to it. Each database therefore writes its id to every blob store
it uses, and only the one that wrote last may delete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coordinator.store.snapshots import SnapshotRow
from coordinator.store.sql import ReadTransaction, Store
from sluice.blobs.port import BlobStore, ListedBlob, Purpose, RequestContext
from sluice.core.ids import JobName, Lineage, StageKey
from sluice.core.snapshots.retention import References, floors
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, checked_blob_id, stage_prefix
from sluice.randomness import new_uuid


async def is_known(tx: ReadTransaction, job: JobName) -> bool:
    """Whether the database has, or had until the job was removed, a run or a snapshot of the job. Blobs of other jobs are never garbage."""
    return await tx.runs.current(job) is not None or bool(await tx.snapshots.page(job, None, None, None, 1)) or await is_removed(tx, job)


async def is_removed(tx: ReadTransaction, job: JobName) -> bool:
    """Whether the job was removed: the database has only the owners of its tasks."""
    return await tx.runs.current(job) is None and bool(await tx.fleet.owners(job))


async def stages_by_prefix(tx: ReadTransaction, job: JobName) -> Mapping[str, StageKey]:
    """The stages of a job in the database, by the prefixes of their blobs."""
    keys = [*await tx.snapshots.stages(job), *(row.key for row in await tx.fleet.stage_states(job))]
    return {stage_prefix(key): key for key in keys}


@dataclass(frozen=True, slots=True)
class StageSnapshots:
    """The retained snapshots of a stage, newest first, and its current lineage."""

    key: StageKey
    snapshots: Sequence[SnapshotRow] = ()
    current: Lineage | None = None

    def indexes(self, blob_store: BlobStoreName) -> Sequence[BlobId]:
        """The indexes of the snapshots that are in that blob store."""
        return [each.markers[blob_store].index for each in self.snapshots if blob_store in each.markers]

    def references(self) -> References:
        """The references to offset-log entries. The caller must add the blobs in the indexes."""
        return References(floors([(each.lineage, each.batch_id) for each in self.snapshots]), self.current)


async def stage_snapshots(tx: ReadTransaction, key: StageKey) -> StageSnapshots:
    row = await tx.fleet.stage_state(key)
    return StageSnapshots(key, await tx.snapshots.of_stage(key), row.lineage if row else None)


async def find_blob(blobs: BlobStore, blob: BlobId) -> ListedBlob | None:
    """The blob with exactly that id; None if there is none."""
    async for page in blobs.list(blob, RequestContext(Purpose.AUDIT)):
        return next((each for each in page if each.blob == blob), None)
    return None


PREFIX = "registries/"
ABOUT = RequestContext(Purpose.OPEN)


async def last_owner(blobs: BlobStore) -> BlobId | None:
    """The blob with the id of the database that owns the blob store; None if no database has written one."""
    found = None
    async for page in blobs.list(PREFIX, ABOUT):
        for listed in page:
            found = listed.blob
    return found


async def owns_blob_store(store: Store, name: BlobStoreName, blobs: BlobStore) -> bool:
    """Whether this database owns the blob store. A blob store without an owner and without snapshots becomes its own."""
    async with store.read() as tx:
        own_id = await tx.cleanup.owner_id(name)
    last = await last_owner(blobs)
    if own_id is not None:
        if last is None:
            await _sign(blobs, own_id, 0)
            last = await last_owner(blobs)
        return last is not None and last.endswith(f"-{own_id}")
    if last is not None or await _used(blobs):
        return False
    await take_ownership(store, name, blobs)
    return True


async def take_ownership(store: Store, name: BlobStoreName, blobs: BlobStore, new_id: Callable[[], str] = lambda: new_uuid().hex) -> None:
    """Make this database the owner of a blob store whose snapshots it lists. Idempotent, because the id is stored first in the database."""
    async with store.begin() as tx:
        own_id = await tx.cleanup.owner_id(name)
        if own_id is None:
            own_id = new_id()
            await tx.cleanup.put_owner_id(name, own_id)
    last = await last_owner(blobs)
    if last is None or not last.endswith(f"-{own_id}"):
        await _sign(blobs, own_id, 0 if last is None else _number(last) + 1)


def _number(blob: BlobId) -> int:
    return int(blob.removeprefix(PREFIX).partition("-")[0])


async def _sign(blobs: BlobStore, own_id: str, number: int) -> None:
    await blobs.put(checked_blob_id(f"{PREFIX}{number:06}-{own_id}"), own_id.encode(), ABOUT)


async def _used(blobs: BlobStore) -> bool:
    async for page in blobs.list("jobs/", ABOUT):
        return bool(page)
    return False
