"""The number of rows that a batch may read, computed from the durations of batches.

While a stage has far more to read than fits into a batch, batches grow or shrink until one takes `target`. When it has read all, they
return to `FIRST`, so that the first batch of a burst is short.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

FIRST = 10_000
LEAST = 500

FASTEST_GROWTH, FASTEST_FALL = 2.0, 0.25
"""Bounds of the factor from one batch to the next. A single slow batch, such as the first one, is not representative."""

NOISE = 0.1
"""A change by less than this fraction is not made."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """`most`: the most rows that a batch may read from a source, for memory. `target`: how long a batch should take while there is more to
    read."""

    most: int
    target: timedelta

    @property
    def first(self) -> int:
        """The limit of a query's first batch."""
        return min(FIRST, self.most)

    def after(self, limit: int, took: timedelta, *, more: bool) -> int:
        """The limit of the next batch, after one under `limit`. `more`: whether there were more records to read than it has read."""
        if not more:
            return max(self.first, limit // 2) if limit > self.first else limit
        factor = min(FASTEST_GROWTH, max(FASTEST_FALL, self.target / max(took, timedelta(milliseconds=1))))
        wanted = min(self.most, max(min(LEAST, self.most), round(limit * factor)))
        return limit if abs(wanted - limit) < NOISE * limit and wanted != self.most else wanted
