"""Which registry a blob store is of. A database that was lost and made anew knows nothing of what is backed up: it must not take that for
garbage. So a registry leaves its id in each blob store that it uses, and the last one there is the one that may delete."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from coordinator.store.port import Store
from sluice.blobs.port import About, BlobStore, Purpose
from sluice.core.snapshot import BlobId, BlobStoreName, checked_blob_id

PREFIX = "registries/"
ABOUT = About(Purpose.OPEN)


async def last_registry(blobs: BlobStore) -> BlobId | None:
    """The blob that names the registry of the blob store; None where there was none yet."""
    found = None
    async for page in blobs.list(PREFIX, ABOUT):
        for listed in page:
            found = listed.blob
    return found


async def is_ours(store: Store, name: BlobStoreName, blobs: BlobStore) -> bool:
    """Whether this registry is the blob store's; one without any becomes ours if nothing was backed up to it before."""
    async with store.read() as tx:
        ours = await tx.registry(name)
    last = await last_registry(blobs)
    if ours is not None:
        if last is None:
            await _sign(blobs, ours, 0)
            last = await last_registry(blobs)
        return last is not None and last.endswith(f"-{ours}")
    if last is not None or await _used(blobs):
        return False
    await take_over(store, name, blobs)
    return True


async def take_over(store: Store, name: BlobStoreName, blobs: BlobStore, new_id: Callable[[], str] = lambda: uuid4().hex) -> None:
    """Make this registry the blob store's: what is in it is registered. The id is in the database first, so this may run twice."""
    async with store.begin() as tx:
        ours = await tx.registry(name)
        if ours is None:
            ours = new_id()
            await tx.put_registry(name, ours)
    last = await last_registry(blobs)
    if last is None or not last.endswith(f"-{ours}"):
        await _sign(blobs, ours, 0 if last is None else _number(last) + 1)


def _number(blob: BlobId) -> int:
    return int(blob.removeprefix(PREFIX).partition("-")[0])


async def _sign(blobs: BlobStore, ours: str, number: int) -> None:
    await blobs.put(checked_blob_id(f"{PREFIX}{number:06}-{ours}"), ours.encode(), ABOUT)


async def _used(blobs: BlobStore) -> bool:
    async for page in blobs.list("jobs/", ABOUT):
        return bool(page)
    return False
