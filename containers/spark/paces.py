"""How often the queries of a container begin batches, while one of them has a backlog."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from sluice.core.batchsize import catch_up_intervals


class Paces:
    """The paces of the running queries of a container. While a query has a backlog, those without one run fewer and larger batches,
    because they use the same cores. Thread-safe."""

    def __init__(self, pace: Callable[[str, timedelta], None]) -> None:
        """`pace` sets that of a query (`InputGates.pace`), and must not call this object."""
        self._pace = pace
        self._behind: dict[str, bool] = {}
        """Whether each running query has a backlog, by its name."""
        self._present: dict[str, timedelta] = {}
        """What is set, if it is not 0."""
        self._lock = threading.Lock()

    def started(self, query: str) -> None:
        """Record that a query starts. It has a new gate, without a pace, so its first batch is not delayed."""
        with self._lock:
            self._behind[query] = False
            self._present.pop(query, None)

    def committed(self, query: str, *, behind: bool) -> None:
        """Record a batch. `behind`: whether the query has a backlog after it. Does nothing for a query that does not run."""
        with self._lock:
            if query in self._behind:
                self._behind[query] = behind
                self._set()

    def ended(self, query: str) -> None:
        """Record that a query has ended. It no longer delays others. Does nothing for one that does not run."""
        with self._lock:
            if self._behind.pop(query, None) is not None:
                self._present.pop(query, None)
                self._set()

    def _set(self) -> None:
        for query, wanted in catch_up_intervals(self._behind).items():
            if wanted != self._present.get(query, timedelta(0)):
                self._pace(query, wanted)
                self._present[query] = wanted
