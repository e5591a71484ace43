"""The planned batches of a lost disk that a query runs again in its gate, before it continues.

A query has one gate at a time. So a drain or a stop that pauses the query meanwhile takes over this gate: a second one would
hold the query between two of these batches, and the query would plan the next one itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from time import monotonic

from containers.errors import CheckpointUnreadable
from containers.spark.gate import PausedQuery
from containers.spark.scripts.active_queries import SPARK_ERRORS, ActiveQuery
from containers.state.offsets.offsetlog import parse

log = logging.getLogger("sluice")

STEP = timedelta(milliseconds=20)


class Repeat:
    """The batches that a start of a query runs again. `replay`: their plans. `over` is called when none of them runs any more. Thread-safe.

    The query continues after the last batch, unless it is kept paused. Then `resume` and `end` are used instead of those of `paused`."""

    def __init__(self, query: ActiveQuery, paused: PausedQuery, replay: Mapping[int, str], over: Callable[[], None]) -> None:
        self.paused = paused
        self._query = query
        self._replay = replay
        self._over = over
        self._lock = threading.Lock()
        self._kept = False
        self._interrupted = threading.Event()
        self._released = False
        """Whether the query continues, or ends because a batch has failed."""
        self.finished = threading.Event()
        """Set when none of the batches runs any more: the query waits in its gate, continues, or has ended."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="sluice-replay", daemon=True).start()

    def keep_paused(self) -> bool:
        """Let the query wait in its gate after the last of the batches. False if it continues already, or has failed."""
        with self._lock:
            self._kept = not self._released
            return self._kept

    def resume(self) -> None:
        """Let a query continue that is kept paused: after the last of the batches."""
        with self._lock:
            self._kept = False
            if self.finished.is_set():
                self._release()

    def interrupt(self, deadline: timedelta, forced: threading.Event) -> bool:
        """Let the running batch of a query finish that is kept paused, and run no further one. The next start repeats those that are left.
        False if the batch did not finish by `deadline` or before `forced` was set. Blocks."""
        self._interrupted.set()
        until = monotonic() + deadline.total_seconds()
        while not self.finished.wait(STEP.total_seconds()):
            if forced.is_set() or monotonic() > until:
                return False
        return True

    def end(self, deadline: timedelta, forced: threading.Event) -> bool:
        """End a query that is kept paused, between two of the batches; False if one had to be interrupted. Blocks."""
        in_time = self.interrupt(deadline, forced)
        return self.paused.end(deadline if in_time else timedelta(0), forced)

    def _run(self) -> None:
        try:
            self._run_all()
        except (*SPARK_ERRORS, CheckpointUnreadable, RuntimeError, AssertionError) as error:
            self._fail(error)
        finally:
            self._over()
            with self._lock:
                self.finished.set()
                if not self._kept:
                    self._release()

    def _run_all(self) -> None:
        while not self.paused.gate.reached.wait(STEP.total_seconds()):
            if not self._query.query.isActive:
                return
        for batch, text in sorted(self._replay.items()):
            if self._interrupted.is_set():
                return
            if batch < self.paused.next_batch:
                continue  # it was committed since
            log.info("query %s runs batch %d again as it was planned", self._query.name or self._query.checkpoint, batch)
            self.paused.run(batch, parse(text, f"the plan of batch {batch}"))

    def _release(self) -> None:
        """Let the query continue. Call it with the lock."""
        if not self._released:
            self._released = True
            with suppress(*SPARK_ERRORS):  # its JVM has ended
                self.paused.resume()

    def _fail(self, error: Exception) -> None:
        """End the query, which would otherwise plan the batches that are left again, with other records."""
        with self._lock:
            self._released = True
        if not self._interrupted.is_set():
            name = self._query.name or self._query.checkpoint
            log.error("query %s has not run its planned batches again: %s; start the script again", name, error)
        with suppress(*SPARK_ERRORS):
            if self._query.query.isActive:
                self.paused.end(timedelta(0), threading.Event())
