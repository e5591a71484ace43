"""The stops of a script's queries, one at a time.

A stop holds all queries between two batches before it ends any of them. Two at the same time would hold each query twice, and each would
wait for a query that the other one holds, until their deadlines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Generic, TypeVar

Query = TypeVar("Query")

FORCE_AGAIN = timedelta(seconds=0.1)


class Stops(Generic[Query]):
    """`stop_all` ends these queries between two batches. It interrupts the batches that take longer than the time, or still run when the
    event is set, and returns their queries. Thread-safe."""

    def __init__(self, stop_all: Callable[[Sequence[Query], timedelta, threading.Event], Sequence[Query]]) -> None:
        self._stop_all = stop_all
        self._one = threading.Lock()
        self._forced = threading.Event()

    def run(self, find: Callable[[], Sequence[Query]], within: timedelta) -> Sequence[Query]:
        """Stop the queries that `find` finds when no other stop runs any more. If another one takes longer than `within`, its batches are
        interrupted. Blocks. Returns the queries whose batch this stop has interrupted."""
        began = monotonic()
        wait = min(max(0.0, within.total_seconds()), threading.TIMEOUT_MAX)
        while not self._one.acquire(timeout=wait):
            self._forced.set()  # repeatedly: a stop that has waited, too, may begin next
            wait = FORCE_AGAIN.total_seconds()
        return self._run(find, max(timedelta(0), within - timedelta(seconds=monotonic() - began)))

    def run_if_none_runs(self, find: Callable[[], Sequence[Query]], within: timedelta) -> Sequence[Query]:
        """As `run`, but do nothing while another stop runs."""
        return self._run(find, within) if self._one.acquire(blocking=False) else ()

    def _run(self, find: Callable[[], Sequence[Query]], within: timedelta) -> Sequence[Query]:
        try:
            self._forced.clear()
            return self._stop_all(find(), within, self._forced)
        finally:
            self._one.release()
