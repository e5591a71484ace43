"""The port of blob stores: immutable bytes under ids, with or without a time to live (TTL).

The contract, tested by `tests/contracts/blobs.py` on every implementation, wrapped and bare:

* A blob is complete or does not exist. `put` is idempotent, because an answer may be lost; an id is never reused for other bytes. A
  repeated `put`, even a late one, does not restore a TTL that was removed in the meantime.
* `put_if_absent` is for ids that two writers may use. Exactly one succeeds, and the others are informed.
* The error determines who must act. BlobMissing: the blob does not exist, and is not known to have been deleted. BlobDeleted (a
  BlobMissing): it was deleted through this port within `REMEMBER`, when the store was not full. BlobUnavailable: the store does not answer,
  or gives an invalid answer; the request may have been executed, and a later one may succeed. BlobStoreUnusable: the store does not exist,
  is not Sluice's, or denies access; an operator must act.
* A full store can be opened, and blobs can be deleted from it. Otherwise it could not free itself.
* Implementations do not retry, limit or count requests. Wrappers of the same type do (`retrying`, `limited`, `timeouts`, `counted`).
* A blob with a TTL may be deleted after its TTL has passed. A blob whose TTL was removed is kept. `remove_ttl` is idempotent.
* Ids are those of `sluice.core.snapshots.snapshot`. Any other id, such as one with '..', raises BadName.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from sluice.core.ids import StageKey
from sluice.core.snapshots.snapshot import BlobId

REMEMBER = timedelta(days=30)
"""How long a store can distinguish a deleted blob from one that never existed."""


class Purpose(StrEnum):
    """The purpose of a request. Requests are counted by purpose."""

    DATA = "data"
    PACK = "pack"
    INDEX = "index"
    OFFSETS = "offsets"
    CLEANUP = "cleanup"
    COLLECTION = "collection"
    AUDIT = "audit"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The purpose of a request, and its stage of a task; "" if it is not for a single one."""

    purpose: Purpose
    job: str = ""
    task: str = ""
    store: str = ""

    @classmethod
    def of_stage(cls, purpose: Purpose, key: StageKey) -> RequestContext:
        return cls(purpose, key.job, key.task, key.stage)


@dataclass(frozen=True, slots=True)
class ListedBlob:
    blob: BlobId
    size: int
    modified: datetime


class Sink(Protocol):
    """`write` may be called on another thread, one call at a time. It may keep its argument."""

    def write(self, part: bytes | memoryview, /) -> object: ...


class BlobStore(Protocol):
    async def open(self, *, create: bool) -> None:
        """Check that the store exists, is Sluice's and, with `create`, can be written unless it is full. With `create` an empty location
        becomes Sluice's. Call it first. Idempotent. Raises BlobStoreUnusable, BlobUnavailable."""
        ...

    async def put(self, blob: BlobId, body: bytes | memoryview, about: RequestContext, *, ttl: timedelta | None = None) -> None:
        """Store a blob. It is durable when this returns. Raises BlobUnavailable, BlobStoreUnusable."""
        ...

    async def put_if_absent(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        """Store a blob unless the id exists. Returns whether it was stored. After BlobUnavailable this is unknown: `get` the blob."""
        ...

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        """Write the blob, or its `length` bytes from `start`, into the sink, in order. Raises BlobMissing, BlobDeleted,
        BlobUnavailable, also after a part was written, and BlobCorrupted for a range beyond the end, because the caller knows the size."""
        ...

    async def delete(self, blobs: Collection[BlobId], about: RequestContext) -> None:
        """Delete blobs. Missing ones are ignored. Raises BlobUnavailable, BlobStoreUnusable; some blobs may have been deleted then."""
        ...

    async def remove_ttl(self, blob: BlobId, about: RequestContext) -> None:
        """Remove the TTL, so that the blob is kept until it is deleted. Raises BlobMissing, BlobDeleted, BlobUnavailable."""
        ...

    def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        """The blobs whose id begins with `prefix` and is greater than `after`, in the order of their ids as bytes, in pages. Memory
        use does not depend on their number. Blobs that are stored or deleted concurrently may be included or not."""
        ...

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        """Delete up to `limit` blobs whose TTL ended before `now`. Returns their number; 0 if the store deletes them itself with
        lifecycle rules."""
        ...

    async def close(self) -> None: ...
