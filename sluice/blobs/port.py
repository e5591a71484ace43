"""The blob store port: immutable bytes under ids, each with or without a time to live.

The contract, tested by `tests/contracts/blobs.py` on every implementation, wrapped and bare:

* A blob is whole or not there. The same `put` may run twice (an answer was lost): ids are never used for other bytes.
* `put_if_absent` is the exception, for ids that two may want: exactly one wins, and the others learn it.
* Errors say who must act. BlobMissing: there is no such blob, and none was deleted, as far as the store knows. BlobDeleted (a BlobMissing):
  it was deleted through this port within `REMEMBER`. BlobUnavailable: the store does not answer, or not sensibly; it may pass, and nothing
  is known. BlobStoreUnusable: the store is not there, is not ours, or may not be written: a person must act.
* Nothing here retries, limits or counts: wrappers of the same type do (`retrying`, `limited`, `timeouts`, `counted`).
* A blob with a TTL may go after it, not before, and stays for ever once its TTL was removed. `remove_ttl` may run twice.
* Ids are `sluice.core.snapshot`'; whoever makes an id up with '..' in it gets BadName.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from sluice.core.ids import StageKey
from sluice.core.snapshot import BlobId

REMEMBER = timedelta(days=30)
"""How long a store can tell a deleted blob from one that never was."""


class Purpose(StrEnum):
    """What a request is for; it is counted by."""

    DATA = "data"
    PACK = "pack"
    INDEX = "index"
    OFFSETS = "offsets"
    CLEANUP = "cleanup"
    COLLECTION = "collection"
    AUDIT = "audit"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class About:
    """What a request is for, and for which stage of which task; "" if it is not for a single one."""

    purpose: Purpose
    job: str = ""
    task: str = ""
    store: str = ""

    @classmethod
    def of_stage(cls, purpose: Purpose, key: StageKey) -> About:
        return cls(purpose, key.job, key.task, key.stage)


@dataclass(frozen=True, slots=True)
class Listed:
    blob: BlobId
    size: int
    modified: datetime


class Sink(Protocol):
    """`write` may be called on another thread, one call after the other, and may keep what it is given."""

    def write(self, part: bytes | memoryview, /) -> object: ...


class BlobStore(Protocol):
    async def open(self, *, create: bool) -> None:
        """Look whether the store is there, is Sluice's and, with `create`, can be written. An empty place is marked as ours when `create`
        says so. Before all else; may run twice. Raises BlobStoreUnusable, BlobUnavailable."""
        ...

    async def put(self, blob: BlobId, body: bytes | memoryview, about: About, *, ttl: timedelta | None = None) -> None:
        """Durable when it returns. Raises BlobUnavailable, BlobStoreUnusable."""
        ...

    async def put_if_absent(self, blob: BlobId, body: bytes, about: About) -> bool:
        """False, and nothing is written, if there is one of that id. After BlobUnavailable either may be the case: `get` it."""
        ...

    async def get(self, blob: BlobId, sink: Sink, about: About, *, start: int = 0, length: int | None = None) -> None:
        """Write the blob, or its `length` bytes from `start`, into the sink, in order. The sink may have got some of it when this raises
        BlobMissing, BlobDeleted, BlobUnavailable. A range beyond the blob's end raises BlobCorrupted: its writer knew its size."""
        ...

    async def delete(self, blobs: Collection[BlobId], about: About) -> None:
        """Those that are not there are no error. Raises BlobUnavailable, BlobStoreUnusable: some may be gone."""
        ...

    async def remove_ttl(self, blob: BlobId, about: About) -> None:
        """Keep it for ever. Raises BlobMissing, BlobDeleted, BlobUnavailable."""
        ...

    def list(self, prefix: str, about: About, *, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        """The blobs whose id begins with `prefix` and is greater than `after`, in order of their ids (bytes), some at a time. Memory does
        not grow with their number. What is put or deleted meanwhile may be there or not."""
        ...

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        """Delete up to `limit` blobs whose TTL ended before `now`; how many. 0 where the store does it by itself (a lifecycle rule)."""
        ...

    async def close(self) -> None: ...
