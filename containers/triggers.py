"""When the queries of a container begin their batches: not all at the same instant.

Spark begins batches at the multiples of a query's interval, counted from 1970, so that queries with one interval begin all at once, stand
in each other's way, and leave the cores idle until the next multiple. Their intervals differ here by some milliseconds, and so do their
multiples by everything.
"""

from __future__ import annotations

import threading
from datetime import timedelta

LONGEST = 0.05
"""How much longer than asked for an interval is at most, as a part of it."""

MILLISECOND = timedelta(milliseconds=1)


def spread(interval: timedelta, index: int) -> timedelta:
    """The interval of the `index`-th query (>= 0), in whole milliseconds: the first has the one that was asked for, and every further one
    the middle of the widest gap that is left (van der Corput's sequence), until there are no milliseconds between."""
    longer, part = 0.0, 0.5
    while index:
        longer += part * (index & 1)
        index, part = index >> 1, part / 2
    return round(interval * (1 + LONGEST * longer) / MILLISECOND) * MILLISECOND


class Triggers:
    """Intervals by query, which keep theirs. Any thread's."""

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._indexes: dict[str, int] = {}
        self._lock = threading.Lock()

    def of(self, query: str) -> timedelta:
        with self._lock:
            return spread(self._interval, self._indexes.setdefault(query, len(self._indexes)))
