"""Counters of backups and restores, for the container's metrics. Written on the event loop and its threads, read by the threads that
answer Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate

BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Buckets of the duration of a commit or a restore, in seconds."""


class Histogram:
    """A histogram of Prometheus: an observation is counted in the bucket of the first bound that is not less.

    `bounds`: ascending, in the unit of the observations. One thread adds; others may read, and may see the last one partly added."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Each bound, and "+Inf", with the number of observations up to it."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


@dataclass
class Transfers:
    """Uploads, or restores, of one stage: totals since the container started. Planned minus done is what remains."""

    planned_files: int = 0
    planned_bytes: int = 0
    done_files: int = 0
    done_bytes: int = 0
    retained_files: int = 0
    retained_bytes: int = 0
    failed: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(BOUNDS))

    def planned(self, files: int, size: int) -> None:
        self.planned_files += files
        self.planned_bytes += size

    def retained(self, files: int, size: int) -> None:
        self.retained_files += files
        self.retained_bytes += size

    def done(self, files: int, size: int) -> None:
        self.done_files += files
        self.done_bytes += size

    def end(self) -> None:
        """Record that the transfer has ended, perhaps with an error: nothing remains."""
        self.planned_files, self.planned_bytes = self.done_files, self.done_bytes


@dataclass
class BackupMeter:
    """The meter of one stage of one task. `snapshot_at` and `snapshot_batch`: when its newest snapshot was reported, and the last batch in
    that."""

    backup: Transfers = field(default_factory=Transfers)
    restore: Transfers = field(default_factory=Transfers)
    snapshot_at: datetime | None = None
    snapshot_batch: int | None = None
    replayed: int = 0
    replaced: int = 0


@dataclass
class CopyMeter:
    """The meter of one standby copy: what was fetched for it, its last batch, and when that was fetched."""

    transfers: Transfers = field(default_factory=Transfers)
    batch: int | None = None
    at: datetime | None = None
