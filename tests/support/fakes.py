"""Fakes: implementations for tests that fulfil the contracts of the real ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from coordinator.blobpool import Backup, BlobStores
from sluice.core.ids import Instant
from sluice.core.snapshots.snapshot import BlobStoreName
from tests.support.memory import MemoryBlobs


class FakeClock:
    """A clock that only moves when a test advances it. The time of day and the clock of leases advance together."""

    def __init__(self, start: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC), elapsed: float = 1000.0) -> None:
        self._now = start
        self._elapsed = elapsed

    def now(self) -> datetime:
        return self._now

    def elapsed(self) -> Instant:
        return Instant(self._elapsed)

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._elapsed += seconds

    def jump(self, by: timedelta) -> None:
        """Set the time of day. The clock of leases is not affected."""
        self._now += by


def with_blob_stores() -> BlobStores:
    """Blob stores of runs that are backed up."""
    local = (BlobStoreName("local"),)
    return BlobStores({"local": "memory"}, lambda name, url: MemoryBlobs(FakeClock()), Backup(local, local))


def no_blob_stores() -> BlobStores:
    """Blob stores of runs that are not backed up."""
    return BlobStores({}, lambda name, url: MemoryBlobs(FakeClock()), Backup((), ()))
