"""A blob store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.blobs.port import REMEMBER, ListedBlob, RequestContext, Sink
from sluice.clock import Clock
from sluice.core.errors import BlobCorrupted, BlobDeleted, BlobMissing, BlobStoreUnusable
from sluice.core.snapshots.snapshot import BlobId, checked_blob_id, checked_prefix

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Held:
    body: bytes
    modified: datetime
    expires: datetime | None


class MemoryBlobs:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[BlobId, _Held] = {}
        self._deleted: dict[BlobId, datetime] = {}
        self._ours = False

    async def open(self, *, create: bool) -> None:
        if not self._ours and not create:
            raise BlobStoreUnusable("the store was not created yet")
        self._ours = True

    async def put(self, blob: BlobId, body: bytes | memoryview, about: RequestContext, *, ttl: timedelta | None = None) -> None:
        now = self._clock.now()
        if ttl is not None and checked_blob_id(blob) in self._held:
            return
        self._held[checked_blob_id(blob)] = _Held(bytes(body), now, now + ttl if ttl is not None else None)

    async def put_if_absent(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        mine = _Held(bytes(body), self._clock.now(), None)
        return self._held.setdefault(checked_blob_id(blob), mine) is mine

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        body = self._find(blob).body
        end = len(body) if length is None else start + length
        if start > len(body) or end > len(body):
            raise BlobCorrupted(f"{blob} has {len(body)} bytes; up to {max(start, end)} were asked for")
        sink.write(body[start:end])

    async def delete(self, blobs: Collection[BlobId], about: RequestContext) -> None:
        for blob in [checked_blob_id(blob) for blob in blobs]:
            self._held.pop(blob, None)
            self._deleted[blob] = self._clock.now()

    async def remove_ttl(self, blob: BlobId, about: RequestContext) -> None:
        held = self._find(blob)
        self._held[blob] = _Held(held.body, held.modified, None)

    async def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        checked_prefix(prefix)
        blobs = sorted(blob for blob in self._held if blob.startswith(prefix) and blob > after)
        for first in range(0, len(blobs), _PAGE):
            found = ((blob, self._held.get(blob)) for blob in blobs[first : first + _PAGE])
            yield [ListedBlob(blob, len(held.body), held.modified) for blob, held in found if held is not None]

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        expired = [blob for blob, held in self._held.items() if held.expires is not None and held.expires < now][:limit]
        for blob in expired:
            del self._held[blob]
        self._deleted = {blob: when for blob, when in self._deleted.items() if when + REMEMBER >= now}
        return len(expired)

    async def close(self) -> None:
        """The contents are kept, as in a real store."""

    def _find(self, blob: BlobId) -> _Held:
        held = self._held.get(checked_blob_id(blob))
        if held is not None:
            return held
        if blob in self._deleted:
            raise BlobDeleted(f"{blob} was deleted at {self._deleted[blob]:%Y-%m-%d %H:%M:%S} UTC")
        raise BlobMissing(f"there is no blob {blob}")
