"""The driver's part in a drain of its script.

The coordinator moves the drain from phase to phase (`sluice.core.drain`). The agent passes each phase on, and the steps back.

* STOPPING: all queries are paused between two batches, and each reports where it is.
* FLUSHING: each query is flushed as soon as the queries that write its topics are. Then all of them end, so that `awaitTermination`
  returns, and queries that the script starts later are stopped.
* COMMITTING: nothing is left to do here; the agent reports it.

A drain that is cancelled before FLUSHING lets the queries continue. A driver that starts while its run is being drained pauses its queries
as they start, and takes the same steps again: each of them may be repeated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from containers.attached.port import Step
from sluice.core.drain import Phase
from sluice.core.ids import Ssp, StageName

log = logging.getLogger("sluice")

LOOK = timedelta(seconds=0.1)
"""How often the queries are listed until all of them are paused."""

_ORDER = list(Phase)


class Position(Protocol):
    """See `containers.spark.scripts.drain.Position`."""

    @property
    def batch(self) -> int | None: ...

    @property
    def offsets(self) -> Mapping[Ssp, int]: ...


class Drained(Protocol):
    """See `containers.spark.scripts.drain.Drained`."""

    @property
    def position(self) -> Position: ...

    @property
    def rows_left(self) -> int: ...

    @property
    def operators_left(self) -> Sequence[str]: ...

    @property
    def locked(self) -> bool: ...


class Paused(Protocol):
    """A query that is paused between two batches."""

    def position(self) -> Position: ...

    def flush(self, drain: str, feeders: Sequence[StageName]) -> Drained: ...

    def resume(self) -> None: ...

    def end(self, deadline: timedelta) -> bool: ...


class Script(Protocol):
    """The queries of a script, by stage."""

    def pause_all(self, over: threading.Event) -> Mapping[StageName, Paused]:
        """Pause the active queries that are not paused yet. Returns all paused ones. Blocks while batches run, and until `over` is set."""

    def all_paused(self) -> bool:
        """Whether no active query is left that is not paused."""

    def feeders(self) -> Mapping[StageName, frozenset[StageName]]:
        """Stage -> the stages that write what it reads."""

    def drained(self) -> None:
        """Called when all queries are flushed: later starts are stopped."""


def step(stage: StageName, name: str, position: Position) -> Step:
    """A step after which the query is there."""
    return Step(stage, name, position.batch, position.offsets)


class ScriptDrain:
    """One drain. `report` sends a step to the agent. `ended` is called when all queries have ended after their flush."""

    def __init__(
        self,
        uuid: str,
        phase: Phase,
        script: Script,
        report: Callable[[Step], None],
        ended: Callable[[], None],
        stop_timeout: timedelta,
        needed: Collection[StageName] = (),
    ) -> None:
        """`needed`: the stages that the coordinator waits for. Those that do not run yet, because the driver has started during the drain,
        are waited for."""
        self.uuid = uuid
        self.phase = phase
        self._script = script
        self._report = report
        self._ended = ended
        self._stop_timeout = stop_timeout
        self._needed = frozenset(needed)
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._flushing = phase in (Phase.FLUSHING, Phase.COMMITTING)
        """Whether state may have been flushed, also by a former start of the script."""
        self._begun = False
        """Whether this start flushes."""
        self.finished = threading.Event()
        """Set when the drain has been taken part in, or is over."""

    @property
    def goes_on(self) -> bool:
        """Whether the queries continue, because the drain is over and nothing was flushed."""
        return self.phase.over and not self._flushing

    def move(self, phase: Phase) -> None:
        """The drain has reached this phase. Phases only go forward."""
        with self._changed:
            if _ORDER.index(phase) > _ORDER.index(self.phase):
                self.phase = phase
                self._changed.notify_all()
        if self.phase.over:
            self._over.set()

    def run(self) -> None:
        """Take all steps. Blocks until the drain is over or everything is flushed. Raises what a batch raises; the queries that are not
        flushed are then stopped."""
        try:
            self._run()
        finally:
            self.finished.set()

    def _run(self) -> None:
        paused = self._stop()
        if self._is_over(paused):
            return
        for stage, each in paused.items() if self.phase is Phase.STOPPING else ():
            self._report(step(stage, "stopped", each.position()))
        self._wait(Phase.FLUSHING)
        with self._changed:
            self._begun = not self.phase.over
            self._flushing |= self._begun
        if self._is_over(paused):
            return
        try:
            if self.phase is Phase.FLUSHING:
                self._flush_all(paused)
        except BaseException:
            self._script.drained()
            raise
        finally:
            self._end(paused)
        log.info("drain %s: all queries are flushed and have ended", self.uuid)
        self._ended()

    def _is_over(self, paused: Mapping[StageName, Paused]) -> bool:
        """Whether the drain is over before this start flushes. The queries then continue. They end if a former start has begun to flush
        them: they would drop new rows as late."""
        if self._begun or not self.phase.over:
            return False
        if self._flushing:
            log.info("drain %s is %s in its flush: the queries end", self.uuid, self.phase.lower())
            self._end(paused)
        else:
            self._go_on(paused)
        return True

    def _stop(self) -> Mapping[StageName, Paused]:
        """Pause all queries. Returns them."""
        while True:
            paused = self._script.pause_all(self._over)
            if self._over.is_set() or (self._script.all_paused() and self._needed <= paused.keys()):
                return paused
            self._over.wait(LOOK.total_seconds())

    def _wait(self, phase: Phase) -> None:
        with self._changed:
            while _ORDER.index(self.phase) < _ORDER.index(phase):
                self._changed.wait()

    def _go_on(self, paused: Mapping[StageName, Paused]) -> None:
        log.info("drain %s is %s: the queries continue", self.uuid, self.phase.lower())
        for each in paused.values():
            each.resume()

    def _flush_all(self, paused: Mapping[StageName, Paused]) -> None:
        """Flush each query when its feeders are flushed. A circle of queries is flushed in the order of their names. After a failure no
        further flush begins."""
        feeders = self._script.feeders()
        left = dict(sorted(paused.items()))
        with ThreadPoolExecutor(max(1, len(paused)), "sluice-flush") as threads:
            while left:
                ready = [stage for stage in left if not (feeders.get(stage, frozenset()) & left.keys())] or [next(iter(left))]
                flushed = list(threads.map(lambda stage: self._flush(stage, left[stage], sorted(feeders.get(stage, ()))), ready))
                for stage, result in zip(ready, flushed, strict=True):
                    flushed_at = step(stage, "flushed", result.position)
                    self._report(replace(flushed_at, rows_left=result.rows_left, operators_left=result.operators_left))
                    del left[stage]

    def _flush(self, stage: StageName, paused: Paused, feeders: Sequence[StageName]) -> Drained:
        self._report(Step(stage, "flushing"))
        found = paused.flush(self.uuid, feeders)
        log.info("%s is flushed after batch %s%s", stage, found.position.batch, "; its checkpoint is locked" if found.locked else "")
        return found

    def _end(self, paused: Mapping[StageName, Paused]) -> None:
        self._script.drained()
        with ThreadPoolExecutor(max(1, len(paused)), "sluice-end") as threads:
            list(threads.map(lambda each: each.end(self._stop_timeout), paused.values()))

    def abandon(self, within: timedelta) -> None:
        """The script is stopped, or has lost its agent. Before the flush, let the queries continue, so that they can be
        stopped; those that a former start has begun to flush end. A later start continues the drain. A flush that has begun is awaited, at
        most so long: it ends the queries itself."""
        with self._changed:
            if not self._begun:
                self.move(Phase.FAILED)
        self.finished.wait(within.total_seconds())
