"""Reading the index of a snapshot from a blob store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO

from sluice.blobs.port import BlobStore, RequestContext
from sluice.core.errors import IndexUnreadable
from sluice.core.ids import StageKey
from sluice.core.snapshots.indexjson import decoded
from sluice.core.snapshots.snapshot import BlobId, SnapshotIndex

InThread = Callable[[Callable[[], SnapshotIndex]], Awaitable[SnapshotIndex]]


async def read_index(
    blobs: BlobStore, index: BlobId, about: RequestContext, in_thread: InThread = asyncio.to_thread, *, expected: StageKey | None = None
) -> SnapshotIndex:
    """Read and parse an index, on a thread, because it may have megabytes. Raises IndexUnreadable, also for an index of another stage than
    `expected`; BlobMissing, BlobDeleted, BlobUnavailable."""
    body = BytesIO()
    await blobs.get(index, body, about)
    found = await in_thread(lambda: decoded(body.getvalue(), index))
    if expected is not None and found.metadata.key != expected:
        raise IndexUnreadable(
            f"{index} is the index of {found.metadata.key}, not of {expected}: blobs were copied or renamed; nothing was changed"
        )
    return found
