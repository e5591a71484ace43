"""The drains of a script in its driver: which query is paused for them, and what happens when a query starts.

The agent moves a drain on (`containers.attached.script_drains`), and this pauses, flushes and ends the queries. While a drain is active,
each query that starts is paused before its first batch, except those that were planned before: they run first
(`containers.attached.checkpoints.repeats`). A checkpoint that a drain has flushed is locked
(`containers.spark.scripts.checkpoint`); only the drain itself may start a query on it again, to finish a flush that was interrupted. It is
unlocked for this start, and locked again before the first batch of the flush, or when the query or the script ends. A kill in between
leaves it unlocked, so a query that was not seen at its start is checked when it is listed. The first query on a new checkpoint after a
drain begins where the drain has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from containers.attached.checkpoints.repeats import Repeat
from containers.attached.port import DrainInterrupted, DrainOfScript, Flushed
from containers.engine import Position
from containers.errors import CheckpointUnreadable
from containers.spark.gate import PausedQuery
from containers.spark.query import await_initialised
from containers.spark.scripts.active_queries import SPARK_ERRORS, ActiveQueries, ActiveQuery, session_of
from containers.spark.scripts.checkpoint import ScriptCheckpoint
from containers.spark.scripts.drain import QueryDrain, feeders, sources_beginning
from containers.spark.scripts.starts import QueryStarts, pause_at_start
from sluice.clock import Clock
from sluice.core.ids import StageName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("sluice")

LOOK = timedelta(seconds=0.1)
"""How often the queries are listed until all of them are paused."""

AT_GATE_STEP = timedelta(milliseconds=20)
PAUSE_WITHIN = timedelta(days=1)
"""A batch may take as long as it needs: the drain has deadlines of its own."""


class PlansLeft(RuntimeError):
    """A query that a drain has paused has not run all batches again that were planned before its disk was lost."""


@dataclass
class PausedScriptQuery:
    """A query that is paused between two batches. `at_start`: it was paused before its first batch. `repeat`: the planned batches that
    it runs again before it waits. `lacks_plans`: whether it lacks some of them after this batch."""

    query: ActiveQuery
    paused: PausedQuery
    drain: QueryDrain
    topics_of: Callable[[Sequence[StageName]], Collection[str]]
    forced: threading.Event
    lacks_plans: Callable[[ActiveQuery, int], bool]
    at_start: bool = False
    repeat: Repeat | None = None

    def position(self) -> Position:
        self._check_plans()
        return self.drain.position()

    def flush(self, drain: str, feeders: Sequence[StageName]) -> Flushed:
        self._check_plans()
        found = self.drain.flush(drain, self.topics_of(feeders))
        lock = "; its checkpoint is locked" if found.locked else ""
        log.info("query %s is flushed after batch %s%s", self.query.name or self.query.checkpoint, found.position.batch, lock)
        return Flushed(found.position, found.rows_left, found.operators_left)

    def _check_plans(self) -> None:
        """Raises PlansLeft. The next checkpoint would begin before batches that the sink has."""
        committed = self.drain.committed()
        if self.lacks_plans(self.query, committed):
            name = self.query.name or self.query.checkpoint
            raise PlansLeft(
                f"query {name} has not run the batches again that were planned after batch {committed}: start it in the session that was "
                "given to sluice.attach"
            )

    def resume(self) -> None:
        (self.repeat or self.paused).resume()

    def end(self, deadline: timedelta) -> bool:
        return (self.repeat or self.paused).end(deadline, self.forced)

    def await_gate(self, over: threading.Event) -> bool:
        """Wait until a query that was paused at its start has run what was planned before; False if it has ended, or `over` is set."""
        while not self._at_gate():
            if not self.query.query.isActive or over.wait(AT_GATE_STEP.total_seconds()):
                return False
        return True

    def _at_gate(self) -> bool:
        return (self.repeat is None or self.repeat.finished.is_set()) and self.paused.gate.reached.is_set()


@dataclass(frozen=True, slots=True, eq=False)
class _Unlocked:
    """A checkpoint on which this start of a query finishes a flush."""

    run_id: str
    checkpoint: ScriptCheckpoint


@dataclass
class _Drain:
    """A drain in which this driver takes part. `flushing`: state may have been flushed in it, also by an earlier start of the script."""

    uuid: str
    flushing: bool
    former: _Drain | None = None
    """The one before, which may not have been left yet."""
    held: dict[str, PausedScriptQuery] = field(default_factory=dict)
    """By the start of the query."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when no further query is paused or flushed for it."""
    flushes: int = 0
    """How many queries are being flushed."""
    begun: bool = False
    """Whether this start has begun to flush."""
    released: bool = False
    """Whether the queries that were held have been released. Those that come later are released at once."""
    ends: bool = False
    """Whether they end, or continue."""
    left: threading.Event = field(default_factory=threading.Event)
    """Set when all its queries continue or have ended."""


@dataclass
class DriverDrains:
    """`stage_of`: the name under which a query is reported, None if it is not reported yet. `on_drained` is called before the queries end
    that were flushed: later starts are stopped."""

    spark: SparkSession
    queries: ActiveQueries
    stage_of: Callable[[ActiveQuery], StageName | None]
    on_drained: Callable[[], None]
    clock: Clock
    stop_timeout: timedelta
    on_start: Callable[[ActiveQuery], None] = lambda query: None
    """Called on the thread of a query that starts, before it is paused for a drain."""
    repeated: Callable[[ActiveQuery], Repeat | None] = lambda query: None
    """See `Plans.kept_paused`."""
    lacks_plans: Callable[[ActiveQuery, int], bool] = lambda query, committed: False
    """See `Plans.lacks`."""
    forced: threading.Event = field(default_factory=threading.Event)
    _drain: _Drain | None = None
    _changing: threading.Condition = field(default_factory=threading.Condition)
    """Held while a drain begins, is left, or changes what it holds."""
    _unlocked: dict[str, _Unlocked] = field(default_factory=dict)
    """By location."""
    _locking: threading.Lock = field(default_factory=threading.Lock)
    _stops: int = 0
    """How many stops of the queries run now."""

    def __post_init__(self) -> None:
        self._starts = QueryStarts(self.spark, self._on_start)

    # --- what the agent calls --------------------------------------------------------------------------------------

    def begin(self, found: DrainOfScript) -> None:
        """Pause each query that starts from now on. A former drain is over: a run has one at a time."""
        with self._changing:
            former = self._drain
            if former is not None and former.uuid == found.uuid:
                return
            if self._stops:
                log.info("drain %s: the queries are being stopped; it continues when the script is started again", found.uuid)
                return
            self._drain = _Drain(found.uuid, found.flushing, former)
        log.info("drain %s: pausing the queries between two batches", found.uuid)
        self.listen()

    def pause_queries(self, uuid: str, needed: Sequence[StageName]) -> Mapping[StageName, Position]:
        """See `containers.attached.port.Driver`."""
        drain = self._present(uuid)
        if drain.former is not None:
            self._leave(drain.former, end=False)
            drain.former = None
        while True:
            paused = self._pause_all(drain)
            if drain.over.is_set():
                raise DrainInterrupted("the queries are being stopped")
            if self._all_paused(drain) and paused.keys() >= set(needed):
                return {stage: each.position() for stage, each in paused.items()}
            drain.over.wait(LOOK.total_seconds())

    def feeders(self) -> Mapping[StageName, Sequence[StageName]]:
        """See `containers.attached.port.Driver`."""
        held = {} if self._drain is None else {stage: each.query for stage, each in self._by_stage(self._drain).items()}
        return {stage: sorted(found) for stage, found in feeders(held, {name: query.writes() for name, query in held.items()}).items()}

    def flush(self, uuid: str, stage: StageName, feeders: Sequence[StageName]) -> Flushed:
        """See `containers.attached.port.Driver`."""
        drain = self._present(uuid)
        query = self._by_stage(drain).get(stage)
        if query is None:
            raise RuntimeError(f"the query {stage} has ended")
        with self._changing:
            if drain.over.is_set():
                raise DrainInterrupted("the queries are being stopped")
            drain.begun = drain.flushing = True
            drain.flushes += 1
        try:
            return query.flush(uuid, feeders)
        finally:
            with self._changing:
                drain.flushes -= 1
                self._changing.notify_all()

    def leave(self, uuid: str, end: bool) -> None:
        """See `containers.attached.port.Driver`."""
        drain = self._drain
        while drain is not None and drain.uuid != uuid:
            drain = drain.former
        if drain is not None:
            self._leave(drain, end=end)

    def _present(self, uuid: str) -> _Drain:
        """Raises DrainInterrupted."""
        drain = self._drain
        if drain is None or drain.uuid != uuid or drain.over.is_set():
            raise DrainInterrupted("the queries are being stopped")
        return drain

    def _leave(self, drain: _Drain, *, end: bool) -> None:
        """End the queries, or let them continue. Those that may have been flushed end in any case: they would drop new rows as late."""
        with self._changing:
            first = not drain.over.is_set()
            drain.over.set()
            while drain.flushes:
                self._changing.wait()
        if drain.former is not None:
            self._leave(drain.former, end=False)
        if not first:
            drain.left.wait()
            return
        if drain.begun:
            self.on_drained()
        try:
            self._release(drain, end=end or drain.flushing)
            self._lock_again(dict(self._unlocked))
        finally:
            drain.left.set()

    def _release(self, drain: _Drain, *, end: bool) -> None:
        with self._changing:
            held = list(drain.held.values())
            drain.released, drain.ends = True, end
        log.info("drain %s: %d queries %s", drain.uuid, len(held), "end" if end else "continue")
        with ThreadPoolExecutor(max(1, len(held)), "sluice-leave") as threads:
            list(threads.map(lambda each: _quietly_released(each, self.stop_timeout, end=end), held))

    # --- what the script does --------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Prepare each query that starts from now on."""
        self._starts.listen()

    def close(self) -> None:
        """Queries that start from now on are not prepared."""
        self._starts.close()

    @contextmanager
    def abandoned(self, within: timedelta) -> Iterator[None]:
        """The script is stopped. No drain begins meanwhile: it would hold queries that the stop waits for."""
        with self._changing:
            self._stops += 1
        try:
            self.abandon(within)
            yield
        finally:
            with self._changing:
                self._stops -= 1

    def abandon(self, within: timedelta) -> None:
        """The script is stopped, or its agent has ended. Before the flush, let the queries continue, so that they can be stopped; they end
        if an earlier start has begun to flush them. A later start continues the drain. A flush that has begun may go on so long; then the
        queries end."""
        drain = self._drain
        if drain is None:
            return
        until = monotonic() + within.total_seconds()
        if drain.begun:
            drain.left.wait(within.total_seconds())
        leaving = threading.Thread(target=self._leave, args=(drain,), kwargs={"end": False}, name="sluice-leave", daemon=True)
        leaving.start()
        leaving.join(max(0.0, until - monotonic()))

    def await_report(self, within: timedelta) -> None:
        """The script ends: wait until the drain is left."""
        if self._drain is not None:
            self._drain.left.wait(within.total_seconds())
            self._lock_again(dict(self._unlocked))

    def holds(self, query: ActiveQuery) -> bool:
        """Whether the query is paused for a drain, which ends it."""
        return self._drain is not None and query.run_id in self._drain.held and not self._drain.left.is_set()

    # --- the queries -----------------------------------------------------------------------------------------------

    def _pause_all(self, drain: _Drain) -> Mapping[StageName, PausedScriptQuery]:
        """Pause the active queries that are not paused yet. Returns all paused ones. Blocks while batches run, and until the drain is
        over."""
        active = self._forget_ended(drain)
        new = [each for each in active if each.run_id not in drain.held]
        with ThreadPoolExecutor(max(1, len(active)), "sluice-pause") as threads:
            list(threads.map(lambda each: self._pause(drain, each), new))
            held = list(drain.held.values())
            wait = list(threads.map(lambda each: not each.at_start or each.await_gate(drain.over) or each.query.query.isActive, held))
        paused = [each for each, waits in zip(held, wait, strict=True) if waits]  # the others have ended in a batch that was planned before
        return {stage: each for each in paused if (stage := self.stage_of(each.query)) is not None}

    def _all_paused(self, drain: _Drain) -> bool:
        return all(each.run_id in drain.held and self.stage_of(each) is not None for each in self._forget_ended(drain))

    def _forget_ended(self, drain: _Drain) -> Sequence[ActiveQuery]:
        unlocked = dict(self._unlocked)  # before the list: a query that starts meanwhile is not in it
        active = self.queries.find()
        running = {each.run_id for each in active}
        self._lock_again({location: each for location, each in unlocked.items() if each.run_id not in running})
        with self._changing:
            for run_id in drain.held.keys() - running:
                del drain.held[run_id]
        return active

    def _by_stage(self, drain: _Drain) -> dict[StageName, PausedScriptQuery]:
        return {stage: each for each in list(drain.held.values()) if (stage := self.stage_of(each.query)) is not None}

    def _topics(self, drain: _Drain, stages: Sequence[StageName]) -> Collection[str]:
        return {topic for stage, each in self._by_stage(drain).items() if stage in stages for topic in each.query.writes()}

    def _pause(self, drain: _Drain, query: ActiveQuery) -> None:
        try:
            await_initialised(query.query, PAUSE_WITHIN)
            if query.run_id in drain.held:
                return  # it was paused at its start
            if (repeat := self.repeated(query)) is not None:
                self._hold(drain, query, repeat.paused, at_start=True, repeat=repeat)
                return
            paused = query.pause(PAUSE_WITHIN, drain.over)
        except SPARK_ERRORS as error:
            log.debug("query %s is not paused: %s", query.name, error)
            return
        if paused is not None:
            self._hold(drain, query, paused, at_start=False)

    def _hold(self, drain: _Drain, query: ActiveQuery, paused: PausedQuery, *, at_start: bool, repeat: Repeat | None = None) -> None:
        """Keep the query paused, unless the drain is left."""
        flush, topics = QueryDrain(self.spark, query, paused, self.clock), partial(self._topics, drain)
        held = PausedScriptQuery(query, paused, flush, topics, self.forced, self.lacks_plans, at_start, repeat)
        with self._changing:
            late = drain.released
            if not late:
                drain.held.setdefault(query.run_id, held)
        if late:
            release = partial(_quietly_released, held, self.stop_timeout, end=drain.ends)
            threading.Thread(target=release, name="sluice-release", daemon=True).start()

    # --- starts ----------------------------------------------------------------------------------------------------

    def _on_start(self, query: ActiveQuery) -> None:
        """Called on the query's thread, before it reads its checkpoint."""
        drain = self._drain
        active = drain is not None and not drain.over.is_set()
        if not query.is_temporary:
            self._prepare(query, drain.uuid if drain is not None and active and query.can_be_paused else None)
        self.on_start(query)
        if drain is None or not active or not query.can_be_paused:
            return
        repeat = self.repeated(query)
        paused = pause_at_start(self.spark, query) if repeat is None else repeat.paused
        self._hold(drain, query, paused, at_start=True, repeat=repeat)
        if drain.over.is_set():  # meanwhile
            self._lock_again(dict(self._unlocked))

    def _prepare(self, query: ActiveQuery, drain: str | None) -> None:
        checkpoint = ScriptCheckpoint(self.spark, query.checkpoint)
        if drain is not None:
            with self._locking:
                self._unlocked[query.checkpoint] = _Unlocked(query.run_id, checkpoint)  # before it is
        prepare(checkpoint, query, drain)

    def _lock_again(self, ended: Mapping[str, _Unlocked]) -> None:
        """Lock these checkpoints, unless another query has been started on them meanwhile, or they were not flushed."""
        with self._locking:
            for location, each in ended.items():
                if self._unlocked.get(location) is not each:
                    continue
                try:
                    lock_emptied(each.checkpoint)
                except (*SPARK_ERRORS, CheckpointUnreadable) as error:
                    log.error("checkpoint %s cannot be locked: %s; no query may start on it", location, error)
                else:
                    del self._unlocked[location]

    def refused_start(self, query: ActiveQuery) -> str:
        """Why a query must not run that was not seen at its start: its checkpoint was flushed, and a kill has left it unlocked. It is
        locked now. "" if the query may run."""
        if query.is_temporary:
            return ""
        try:
            checkpoint = ScriptCheckpoint(session_of(self.spark), query.checkpoint)
            drain, emptied_by = self._drain, checkpoint.emptied_by()
            if emptied_by is None or (drain is not None and drain.uuid == emptied_by):
                return ""
            lock_emptied(checkpoint)
        except (*SPARK_ERRORS, CheckpointUnreadable) as error:
            log.debug("whether the checkpoint of query %s was flushed is not known: %s", query.name, error)
            return ""
        return (
            f"drain {emptied_by or '(unknown)'} has flushed its checkpoint, or has begun to, and the query would drop new rows: "
            "use app.checkpoint(NAME), or another checkpointLocation"
        )


def _quietly_released(query: PausedScriptQuery, deadline: timedelta, *, end: bool) -> None:
    """End a paused query, or let it continue, unless its JVM has ended."""
    try:
        if end:
            query.end(deadline)
        else:
            query.resume()
    except SPARK_ERRORS as error:
        log.debug("query %s: %s", query.query.name, error)


def lock_emptied(checkpoint: Any) -> None:
    """Lock a checkpoint if it was flushed. Raises CheckpointUnreadable."""
    emptied_by = checkpoint.emptied_by()
    if emptied_by is not None:
        checkpoint.mark_emptied(emptied_by or "(unknown)", -1)


def prepare(checkpoint: Any, query: Any, drain: str | None) -> None:
    """Prepare the checkpoint of a query that starts. `drain`: the drain that is active, if any. Raises CheckpointUnreadable."""
    begins = checkpoint.begins_at()
    if begins is not None:
        try:
            checkpoint.set_sources(sources_beginning(query, begins))
        except ValueError as error:
            checkpoint.unlock()
            checkpoint.lock(f"The first query on this checkpoint cannot begin at the offsets of the drain: {error}.")
    if drain is not None and checkpoint.emptied_by() == drain:
        checkpoint.unlock()  # to finish the flush, which locks it again before its first batch
    else:
        lock_emptied(checkpoint)
