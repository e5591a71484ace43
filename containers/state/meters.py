"""Counters of backups and restores, for the container's metrics. Written on the event loop and its threads, read by the threads that
answer Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sluice.core.histogram import Histogram

BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Buckets of the duration of a commit or a restore, in seconds."""


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
        """The transfer has ended, perhaps by an error: nothing remains."""
        self.planned_files, self.planned_bytes = self.done_files, self.done_bytes


@dataclass
class BackupMeter:
    """Of one stage of one task. `snapshot_at` and `snapshot_batch`: when its newest snapshot was reported, and the last batch in that."""

    backup: Transfers = field(default_factory=Transfers)
    restore: Transfers = field(default_factory=Transfers)
    snapshot_at: datetime | None = None
    snapshot_batch: int | None = None
    replayed: int = 0
    replaced: int = 0


@dataclass
class CopyMeter:
    """Of one standby copy: what was fetched for it, its last batch, and when that was fetched."""

    transfers: Transfers = field(default_factory=Transfers)
    batch: int | None = None
    at: datetime | None = None
