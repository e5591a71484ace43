"""The drains of a script in its driver: which query is paused for them, and what happens when a query starts.

While a drain is active, each query that starts is paused before its first batch, except those that were planned before: they run first
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
from typing import TYPE_CHECKING, Any

from containers.attached.checkpoints.repeats import Repeat
from containers.attached.port import DrainOfScript, Step
from containers.attached.script_drain import Drained, Paused, Position, ScriptDrain
from containers.errors import CheckpointUnreadable
from containers.spark.gate import PausedQuery
from containers.spark.query import await_initialised
from containers.spark.scripts.active_queries import SPARK_ERRORS, ActiveQueries, ActiveQuery, session_of
from containers.spark.scripts.checkpoint import ScriptCheckpoint
from containers.spark.scripts.drain import NotSettled, QueryDrain, feeders, sources_beginning
from containers.spark.scripts.starts import QueryStarts, pause_at_start
from sluice.clock import Clock
from sluice.core.drain import Phase
from sluice.core.ids import StageName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("sluice")

AT_GATE_STEP = timedelta(milliseconds=20)
PAUSE_WITHIN = timedelta(days=1)
"""A batch may take as long as it needs: the drain has deadlines of its own."""


class PlansLeft(RuntimeError):
    """A query that a drain has paused has not run all batches again that were planned before its disk was lost."""


@dataclass
class PausedScriptQuery:
    """See `containers.attached.script_drain.Paused`. `at_start`: it was paused before its first batch. `repeat`: the planned batches that
    it runs again before it waits. `lacks_plans`: whether it lacks some of them after this batch."""

    query: ActiveQuery
    paused: PausedQuery
    drain: QueryDrain
    topics_of: Callable[[Sequence[StageName]], Collection[str]]
    forced: threading.Event
    lacks_plans: Callable[[ActiveQuery, int], bool]
    at_start: bool = False
    repeat: Repeat | None = None
    released: bool = False

    def position(self) -> Position:
        self._check_plans()
        return self.drain.position()

    def flush(self, drain: str, feeders: Sequence[StageName]) -> Drained:
        self._check_plans()
        return self.drain.flush(drain, self.topics_of(feeders))

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
        self.released = True
        (self.repeat or self.paused).resume()

    def end(self, deadline: timedelta) -> bool:
        self.released = True
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
class DriverDrains:
    """`stage_of`: the name under which a query is reported, None if it is not reported yet. `report` sends a step of a drain to the agent,
    `ended` that all queries have ended after their flush. `on_drained` is called when all are flushed."""

    spark: SparkSession
    queries: ActiveQueries
    stage_of: Callable[[ActiveQuery], StageName | None]
    report: Callable[[str, Step], None]
    ended: Callable[[], None]
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
    _held: dict[str, PausedScriptQuery] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _drain: ScriptDrain | None = None
    _thread: threading.Thread | None = None
    _unlocked: dict[str, _Unlocked] = field(default_factory=dict)
    """By location."""
    _locking: threading.Lock = field(default_factory=threading.Lock)
    _beginning: threading.Lock = field(default_factory=threading.Lock)
    _stops: int = 0
    """How many stops of the queries run now."""

    def __post_init__(self) -> None:
        self._starts = QueryStarts(self.spark, self._on_start)

    # --- what the agent tells --------------------------------------------------------------------------------------

    def move(self, found: DrainOfScript) -> None:
        """The run's drain has reached a phase. Does not block."""
        uuid, phase, drain = found.uuid, found.phase, self._drain
        if drain is not None and drain.uuid == uuid:
            drain.move(phase)
            return
        if phase.over or phase is Phase.COMMITTING:
            return
        if drain is not None:
            drain.move(Phase.CANCELLED)  # a run has one drain at a time
        new = ScriptDrain(uuid, phase, self, lambda step: self.report(uuid, step), self.ended, self.stop_timeout, found.needed)
        with self._beginning:
            if self._stops:
                log.info("drain %s: the queries are being stopped; it continues when the script is started again", uuid)
                return
            self._drain = new
        log.info("drain %s: pausing the queries between two batches", uuid)
        self.listen()
        former = self._thread
        self._thread = threading.Thread(target=self._run_after, args=(former, new), name="sluice-drain", daemon=True)
        self._thread.start()

    def listen(self) -> None:
        """Prepare each query that starts from now on."""
        self._starts.listen()

    def close(self) -> None:
        """Queries that start from now on are not prepared."""
        self._starts.close()

    @contextmanager
    def abandoned(self, within: timedelta) -> Iterator[None]:
        """The script is stopped. No drain begins meanwhile: it would hold queries that the stop waits for."""
        with self._beginning:
            self._stops += 1
        try:
            self.abandon(within)
            yield
        finally:
            with self._beginning:
                self._stops -= 1

    def abandon(self, within: timedelta) -> None:
        """The script is stopped, or has lost its agent; see `ScriptDrain.abandon`."""
        if self._drain is not None:
            self._drain.abandon(within)

    def await_report(self, within: timedelta) -> None:
        """The script ends: wait until the last step is sent."""
        if self._drain is not None:
            self._drain.finished.wait(within.total_seconds())
            self._lock_again(dict(self._unlocked))

    def holds(self, query: ActiveQuery) -> bool:
        """Whether the query is paused for a drain, which ends it."""
        return query.run_id in self._held

    def _run_after(self, former: threading.Thread | None, drain: ScriptDrain) -> None:
        """Run the drain when the former one has let the queries continue."""
        if former is not None:
            former.join()
        self._run(drain)

    def _run(self, drain: ScriptDrain) -> None:
        try:
            drain.run()
        except (PlansLeft, NotSettled) as error:
            log.error("drain %s: %s; the queries end, and it continues when the script is started again", drain.uuid, error)
        except (*SPARK_ERRORS, RuntimeError) as error:
            log.error("drain %s: a query has ended: %s; the drain continues when the script is started again", drain.uuid, error)
        except CheckpointUnreadable as error:
            log.error("drain %s: %s; it continues when the script is started again", drain.uuid, error)
        finally:
            with self._lock:
                late = [each for each in self._held.values() if not each.released]
                self._held.clear()
            for each in late:  # queries that have started after the others were paused
                self._release(each, drain)
            self._lock_again(dict(self._unlocked))

    def _release(self, query: PausedScriptQuery, drain: ScriptDrain) -> None:
        if drain.goes_on:
            query.resume()
        else:
            query.end(self.stop_timeout)

    # --- the queries: `containers.attached.script_drain.Script` ----------------------------------------------------

    def pause_all(self, over: threading.Event) -> Mapping[StageName, Paused]:
        active = self._forget_ended()
        new = [each for each in active if each.run_id not in self._held]
        with ThreadPoolExecutor(max(1, len(active)), "sluice-pause") as threads:
            list(threads.map(lambda each: self._pause(each, over), new))
            held = list(self._held.values())
            wait = list(threads.map(lambda each: not each.at_start or each.await_gate(over) or each.query.query.isActive, held))
        paused = [each for each, waits in zip(held, wait, strict=True) if waits]  # the others have ended in a batch that was planned before
        return {stage: each for each in paused if (stage := self.stage_of(each.query)) is not None}

    def all_paused(self) -> bool:
        return all(each.run_id in self._held and self.stage_of(each) is not None for each in self._forget_ended())

    def feeders(self) -> Mapping[StageName, frozenset[StageName]]:
        held = self._by_stage()
        return feeders(held, {stage: query.writes() for stage, query in held.items()})

    def drained(self) -> None:
        self.on_drained()

    def _forget_ended(self) -> Sequence[ActiveQuery]:
        unlocked = dict(self._unlocked)  # before the list: a query that starts meanwhile is not in it
        active = self.queries.find()
        running = {each.run_id for each in active}
        self._lock_again({location: each for location, each in unlocked.items() if each.run_id not in running})
        with self._lock:
            for run_id in self._held.keys() - running:
                del self._held[run_id]
        return active

    def _by_stage(self) -> dict[StageName, ActiveQuery]:
        return {stage: each.query for each in list(self._held.values()) if (stage := self.stage_of(each.query)) is not None}

    def _topics(self, stages: Sequence[StageName]) -> Collection[str]:
        return {topic for stage, query in self._by_stage().items() if stage in stages for topic in query.writes()}

    def _pause(self, query: ActiveQuery, over: threading.Event) -> None:
        try:
            await_initialised(query.query, PAUSE_WITHIN)
            if query.run_id in self._held:
                return  # it was paused at its start
            if (repeat := self.repeated(query)) is not None:
                self._hold(query, repeat.paused, at_start=True, repeat=repeat)
                return
            paused = query.pause(PAUSE_WITHIN, over)
        except SPARK_ERRORS as error:
            log.debug("query %s is not paused: %s", query.name, error)
            return
        if paused is not None:
            self._hold(query, paused, at_start=False)

    def _hold(self, query: ActiveQuery, paused: PausedQuery, *, at_start: bool, repeat: Repeat | None = None) -> None:
        drain = QueryDrain(self.spark, query, paused, self.clock)
        held = PausedScriptQuery(query, paused, drain, self._topics, self.forced, self.lacks_plans, at_start, repeat)
        with self._lock:
            self._held.setdefault(query.run_id, held)

    # --- starts ----------------------------------------------------------------------------------------------------

    def _on_start(self, query: ActiveQuery) -> None:
        """Called on the query's thread, before it reads its checkpoint."""
        drain = self._drain
        active = drain is not None and not drain.finished.is_set()
        if not query.is_temporary:
            self._prepare(query, drain.uuid if drain is not None and active and query.can_be_paused else None)
        self.on_start(query)
        if drain is None or not active or not query.can_be_paused:
            return
        repeat = self.repeated(query)
        paused = pause_at_start(self.spark, query) if repeat is None else repeat.paused
        self._hold(query, paused, at_start=True, repeat=repeat)
        if drain.finished.is_set():  # meanwhile
            self._lock_again(dict(self._unlocked))
            with self._lock:
                held = self._held.pop(query.run_id, None)
            if held is not None:
                threading.Thread(target=self._release, args=(held, drain), name="sluice-release", daemon=True).start()

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
