"""Fakes: implementations for tests that keep the promises of the real thing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from coordinator.blobpool import Backup, BlobStores
from sluice.core.ids import Instant
from sluice.core.snapshot import BlobStoreName
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
        """The time of day is set to another time; the clock of leases goes on as before."""
        self._now += by


def kept_somewhere() -> BlobStores:
    """For verbs of runs that are backed up."""
    local = (BlobStoreName("local"),)
    return BlobStores({"local": "memory"}, lambda name, url: MemoryBlobs(FakeClock()), Backup(local, local))


def no_blob_stores() -> BlobStores:
    """For verbs of runs that are backed up to nowhere."""
    return BlobStores({}, lambda name, url: MemoryBlobs(FakeClock()), Backup((), ()))
