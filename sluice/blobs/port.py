"""The port of blob stores: immutable bytes under ids, with or without a time to live (TTL).

The contract, tested by `tests/contracts/blobs.py` on every implementation, wrapped and bare:

* A blob is complete or does not exist. The same `put` may run twice, if an answer was lost: an id is never reused for other bytes. The
  second one, however late it arrives, brings no TTL back that was removed meanwhile.
* `put_if_absent` is the exception, for ids that two writers may use: exactly one wins, and each of the others learns that it lost.
* Errors say who must act. BlobMissing: the blob does not exist, and is not known to have been deleted. BlobDeleted (a BlobMissing): it was
  deleted through this port within `REMEMBER`. BlobUnavailable: the store does not answer, or answers nonsense; the request may have been
  carried out, and a later one may succeed. BlobStoreUnusable: the store does not exist, is not Sluice's, or denies access: a person must
  act.
* Implementations do not retry, limit or count. Wrappers of the same type do (`retrying`, `limited`, `timeouts`, `counted`).
* A blob with a TTL may be deleted after it, not before, and is kept once its TTL was removed. `remove_ttl` may run twice.
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
    """What a request is for. Requests are counted by it."""

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
    """What a request is for, and for which stage of which task; "" if it is not for a single one."""

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
    """`write` may be called on another thread, one call after the other, and may keep what it is given."""

    def write(self, part: bytes | memoryview, /) -> object: ...


class BlobStore(Protocol):
    async def open(self, *, create: bool) -> None:
        """Check that the store exists, is Sluice's and, with `create`, can be written. With `create` an empty location becomes Sluice's.
        Call it first; it may run twice. Raises BlobStoreUnusable, BlobUnavailable."""
        ...

    async def put(self, blob: BlobId, body: bytes | memoryview, about: RequestContext, *, ttl: timedelta | None = None) -> None:
        """Durable when it returns. Raises BlobUnavailable, BlobStoreUnusable."""
        ...

    async def put_if_absent(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        """False if the id exists; then nothing is written. After BlobUnavailable either may have happened: `get` the blob to find out."""
        ...

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        """Write the blob, or its `length` bytes from `start`, into the sink, in order. Raises BlobMissing, BlobDeleted,
        BlobUnavailable, also after a part was written, and BlobCorrupted for a range beyond the end: the caller knows the size."""
        ...

    async def delete(self, blobs: Collection[BlobId], about: RequestContext) -> None:
        """Blobs that do not exist are no error. Raises BlobUnavailable, BlobStoreUnusable; some blobs may then be deleted."""
        ...

    async def remove_ttl(self, blob: BlobId, about: RequestContext) -> None:
        """Keep the blob until it is deleted. Raises BlobMissing, BlobDeleted, BlobUnavailable."""
        ...

    def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        """The blobs whose id begins with `prefix` and is greater than `after`, in the order of their ids as bytes, in pages. Memory
        use does not grow with their number. Blobs put or deleted meanwhile may be included or not."""
        ...

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        """Delete up to `limit` blobs whose TTL ended before `now`. Returns their number; 0 where the store deletes them itself, by
        lifecycle rules."""
        ...

    async def close(self) -> None: ...
