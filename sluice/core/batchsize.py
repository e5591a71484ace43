"""The number of rows that a batch may read, computed from the durations of batches.

A query begins with the largest batches. While a stage has more to read than fits into a batch, its batches shrink if they take much longer
than `target`, and grow again until one takes about that long. Small batches are not faster in proportion: much of the duration of a batch
does not depend on its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

LEAST = 500

FASTEST_GROWTH, FASTEST_FALL = 2.0, 0.25
"""Bounds of the factor from one batch to the next. A single slow batch is not representative."""

NOISE = 0.1
"""A change by less than this fraction is not made."""

SLOW, SLOW_FIRST = 3, 10
"""By which factor a batch must exceed the target to make the next one smaller. Other queries use the same cores, and a slow batch is more
often due to them than to its rows. The first batch of a query, which also compiles the query's code, often takes several times as long."""

CATCH_UP_INTERVAL, LONGEST_CATCH_UP_INTERVAL = timedelta(seconds=1), timedelta(seconds=10)
"""While a stage of a container has a backlog, each stage that has none begins a batch at most once in this time, times the number of such
stages. Their batches would otherwise be many and small. The fixed costs of a batch are about 0.3 s of CPU: on two cores, eight stages that
begin a batch each second would leave nothing for the stage that has to catch up."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """`most`: the most rows that a batch may read from a source, for memory. `target`: how long a batch should take while there is more to
    read."""

    most: int
    target: timedelta

    def after(self, limit: int, took: timedelta, *, more: bool, first: bool = False) -> int:
        """The limit of the next batch, after one under `limit`. `more`: whether there were more records to read than it has read. `first`:
        whether it was the first batch of its query."""
        if not more:
            return limit
        factor = min(FASTEST_GROWTH, max(FASTEST_FALL, self.target / max(took, timedelta(milliseconds=1))))
        if factor < 1 and took < (SLOW_FIRST if first else SLOW) * self.target:
            return limit
        wanted = min(self.most, max(min(LEAST, self.most), round(limit * factor)))
        return limit if abs(wanted - limit) < NOISE * limit and wanted != self.most else wanted


def catch_up_intervals(behind: Mapping[str, bool]) -> Mapping[str, timedelta]:
    """The shortest time from one batch to the next of each query of a container. `behind`: whether each has a backlog, by its name."""
    without = sum(not has_backlog for has_backlog in behind.values())
    paced = min(LONGEST_CATCH_UP_INTERVAL, without * CATCH_UP_INTERVAL) if without < len(behind) else timedelta(0)
    return {query: timedelta(0) if has_backlog else paced for query, has_backlog in behind.items()}
