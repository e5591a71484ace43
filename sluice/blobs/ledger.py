"""The ledger of what a coordinator's database has issued, in a blob store; see `sluice.core.leases.issued`.

    issued/<origin>/<number>      an entry as JSON; the one with the highest number counts

Entries are appended by `put_if_absent`, so of two concurrent writers only one succeeds, and the other detects it. Old entries are deleted
from time to time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from io import BytesIO
from typing import Any

from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.core.errors import BlobMissing, LedgerUnreadable
from sluice.core.leases.issued import LedgerEntry
from sluice.core.leases.lease import LeaseBounds
from sluice.core.snapshots.snapshot import BlobId, checked_blob_id

PREFIX = "issued/"
ABOUT = RequestContext(Purpose.OPEN)
_FORMAT = 1

_KEPT = 2
"""The number of entries that are kept, so that a reader that has listed the last but one still finds it."""

_DELETED_AT_ONCE = 20
"""Entries are deleted when this many are superfluous, because each deletion is recorded for a month."""


def entry_id(origin: str, number: int) -> BlobId:
    return checked_blob_id(f"{PREFIX}{origin}/{number:012}")


async def read_ledgers(blobs: BlobStore) -> Sequence[LedgerEntry]:
    """The newest entry of each origin. Raises LedgerUnreadable, BlobUnavailable, BlobStoreUnusable."""
    return [await _newest(blobs, origin, numbers) for origin, numbers in (await _numbers(blobs, PREFIX)).items()]


async def append(blobs: BlobStore, entry: LedgerEntry) -> bool:
    """False if another entry has its number: read the ledger, and try again. Durable when it returns True. Raises BlobUnavailable: the
    entry may have been written; BlobStoreUnusable, LedgerUnreadable."""
    blob = entry_id(entry.origin, entry.number)
    if await blobs.put_if_absent(blob, _encoded(entry), ABOUT):
        return True
    return await _read(blobs, blob, entry.origin, entry.number) == entry  # the answer to an earlier request was lost


async def tidy(blobs: BlobStore, origin: str) -> None:
    """Delete entries that newer ones have replaced, if there are many. Raises BlobUnavailable, BlobStoreUnusable."""
    numbers = (await _numbers(blobs, f"{PREFIX}{origin}/")).get(origin, [])
    superfluous = sorted(numbers)[:-_KEPT]
    if len(superfluous) >= _DELETED_AT_ONCE:
        await blobs.delete([entry_id(origin, number) for number in superfluous], ABOUT)


async def _numbers(blobs: BlobStore, prefix: str) -> dict[str, list[int]]:
    """The numbers of the entries, by origin."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    async for page in blobs.list(prefix, ABOUT):
        for listed in page:
            origin, _, number = listed.blob.removeprefix(PREFIX).partition("/")
            if number.isdigit():
                found[origin].append(int(number))
    return dict(found)


async def _newest(blobs: BlobStore, origin: str, numbers: Sequence[int]) -> LedgerEntry:
    """The newest entry of an origin. Entries may be replaced and deleted meanwhile."""
    while True:
        try:
            return await _read(blobs, entry_id(origin, max(numbers)), origin, max(numbers))
        except BlobMissing:
            again = (await _numbers(blobs, f"{PREFIX}{origin}/")).get(origin, [])
            if max(again, default=0) <= max(numbers):
                raise
            numbers = again


async def _read(blobs: BlobStore, blob: BlobId, origin: str, number: int) -> LedgerEntry:
    body = BytesIO()
    await blobs.get(blob, body, ABOUT)
    return _decoded(body.getvalue(), blob, origin, number)


def _encoded(entry: LedgerEntry) -> bytes:
    bounds = {name: getattr(entry.bounds, name).total_seconds() for name in LeaseBounds.__slots__}
    document = {
        "sluice-ledger": _FORMAT,
        "timeline": entry.timeline,
        "sequence": entry.sequence,
        "reserved": entry.reserved,
        "leaseSeconds": bounds,
    }
    return json.dumps(document).encode() + b"\n"


def _decoded(body: bytes, blob: BlobId, origin: str, number: int) -> LedgerEntry:
    try:
        found: dict[str, Any] = json.loads(body)
        if found["sluice-ledger"] != _FORMAT:
            raise ValueError(f"it has the format {found['sluice-ledger']!r}, and this version knows {_FORMAT}")
        bounds = LeaseBounds(**{name: timedelta(seconds=found["leaseSeconds"][name]) for name in LeaseBounds.__slots__})
        return LedgerEntry(number, origin, str(found["timeline"]), int(found["sequence"]), int(found["reserved"]), bounds)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise LedgerUnreadable(f"{blob} is not an entry of a ledger of issued numbers: {error}") from error
