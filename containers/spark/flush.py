"""A drain of a stage: finish the interrupted batch, run the rest of the input, flush the state.

Every step is a batch that is planned here (`containers.state.offsets.offsetlog`) and run by Spark from its offset log. So a crash at any
line leaves an ordinary checkpoint: the planned batch runs again, and the batches before it do not. After a flush, a query would drop all
later input as late, so no query may start on the checkpoint again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, reduce
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import functions as F

from containers.engine import Emptied
from containers.spark.gate import PausedQuery
from containers.spark.listener import OperatorState
from containers.spark.operators import Empties, LogicalPlan, Operator
from containers.spark.query import offset_metadata, run_planned_batch
from containers.state.checkpoint import CheckpointInfo, inspect, mark_emptied, read_offset_log, write_offset_log
from containers.state.offsets import offsetlog
from containers.state.offsets.offsetlog import OffsetSeq, highest
from sluice.clock import Clock
from sluice.core.ids import Ssp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


ROUNDS = 20
"""The maximum number of batches of a flush. Timers may set new timers endlessly."""

ENDS_WITHIN = timedelta(seconds=30)
"""The time limit for stopping a query that runs no batch."""

KINDS: Mapping[str, str] = {
    "stateStoreSave": "aggregation",
    "sessionWindowStateStoreSaveExec": "aggregation",
    "symmetricHashJoin": "join",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    "transformWithStateExec": "transformWithState",
    "transformWithStateInPySparkExec": "transformWithState",
    "globalLimit": "limit",
}
"""Names of operators in Spark's progress -> in the DataFrame API."""


class CheckpointFiles(Protocol):
    """The files of one checkpoint. See `containers.state.checkpoint` for the errors. `location`: a URL or a path, for Spark's readers."""

    @property
    def location(self) -> str: ...

    def inspect(self) -> CheckpointInfo | None: ...

    def read_offset_log(self, batch: int) -> str: ...

    def write_offset_log(self, batch: int, entry: str) -> None: ...

    def mark_emptied(self, drain: str, batch: int) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """A checkpoint directory on this disk."""

    directory: Path

    @property
    def location(self) -> str:
        return str(self.directory)

    def inspect(self) -> CheckpointInfo | None:
        return inspect(self.directory)

    def read_offset_log(self, batch: int) -> str:
        return read_offset_log(self.directory, batch)

    def write_offset_log(self, batch: int, entry: str) -> None:
        write_offset_log(self.directory, batch, entry)

    def mark_emptied(self, drain: str, batch: int) -> None:
        mark_emptied(self.directory, drain, batch)


class Flusher:
    """For one checkpoint, whose query is stopped, or paused (`containers.spark.gate`). Blocks; called on the engine's threads. Raises what
    a batch raises, and CheckpointUnreadable."""

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Path | CheckpointFiles,
        name: str,
        writer_of: Callable[[], DataStreamWriter],
        starts: Mapping[Ssp, int],
        max_rows: int,
        clock: Clock,
        rounds: int = ROUNDS,
        paused: PausedQuery | None = None,
        first_plan: Callable[[], OffsetSeq] | None = None,
        operators: Sequence[Operator] | None = None,
    ) -> None:
        """`checkpoint`: its directory on this disk, or access to its files elsewhere. `name` is the query's. `writer_of` calls the stage's
        function, once. `starts` has the partitions that it reads, and where it started. A batch of the rest reads about `max_rows` rows.
        `paused`: a paused query, in which batches need no start of a query. It is stopped where it cannot be used. `first_plan`: the entry
        before batch 0, if not from the writer. `operators`: the stateful operators of the query, if they are known: to derive them from its
        plan takes a tenth of a second, and threads cannot do it side by side."""
        self._spark = spark
        self._files = LocalCheckpoint(checkpoint) if isinstance(checkpoint, Path) else checkpoint
        self._name = name
        self._writer_of = writer_of
        self._starts = starts
        self._reads = sorted({ssp.stream_id for ssp in starts}, key=str)
        self._max_rows = max_rows
        self._clock = clock
        self._rounds = rounds
        self._paused = paused
        self._first_plan = first_plan
        self._operators = operators
        self._kept: tuple[OperatorState, ...] = ()

    @cached_property
    def _writer(self) -> DataStreamWriter:
        """One writer for all batches: for each writer Spark starts a Python process to get the columns of a source."""
        return self._writer_of()

    @cached_property
    def operators(self) -> Sequence[Operator]:
        return LogicalPlan.of(self._writer).operators if self._operators is None else self._operators

    def empty(self, drain: str, ends: Mapping[Ssp, int]) -> Emptied:
        """Run all steps of a drain, in order. The checkpoint is marked first, so that after a crash no query starts on it. May be run
        again."""
        found = self._files.inspect()
        self._files.mark_emptied(drain, -1 if found is None else found.committed)
        self.finish_interrupted()
        self.advance(ends, even=True)
        return self.flush()

    def keep(self, ends: Mapping[Ssp, int], *, even: bool = False) -> int:
        """Run the steps of a drain that keeps the state, in order. Returns the last batch, -1 for none. The checkpoint is not marked,
        because the query could have run every batch itself. May be run again. `even`: see `advance`."""
        self.finish_interrupted()
        self.advance(ends, even=even)
        found = self._files.inspect()
        return -1 if found is None else found.committed

    def finish_interrupted(self) -> bool:
        """Run the batch that is planned and not committed. Returns whether there was one."""
        found = self._files.inspect()
        if found is None or found.planned <= found.committed:
            return False
        self._run(found.planned)
        return True

    def advance(self, ends: Mapping[Ssp, int], *, even: bool = False) -> int:
        """Read up to these ends, in bounded batches. Returns the number of batches. They keep the watermark of the last batch, so that rows
        of a slower feeder are not late. Partitions that are not in `ends` are not read. `even`: sources that read the same partition end at
        the same offset, because the next checkpoint has one start offset for all of them. Call `finish_interrupted` before."""
        found = self._files.inspect()
        assert found is not None
        last = self._plan(found.committed) if found.committed >= 0 else self._before_the_first()
        if even:
            ends = highest([ends, last.to_catch_up(self._reads)])
        batches = 0
        for plan in offsetlog.entries_up_to(last, ends, self._reads, self._max_rows, self._clock.now()):
            batches += 1
            self._run(found.committed + batches, plan)
        return batches

    def flush(self) -> Emptied:
        """Close all windows and fire all timers, in as many batches as necessary; a stage without state needs none. May be run again. The
        operators that still have rows are named as in "aggregation (3 rows)"."""
        found = self._files.inspect()
        if found is None or found.committed < 0 or not self.operators:
            return Emptied(-1 if found is None else found.committed)
        if self._paused is not None and any(each.empties is Empties.PROCESSING_TIME for each in self.operators):
            self._paused.end(ENDS_WITHIN, Event())  # a batch of a running query always uses the present time
            self._paused = None
        plan = offsetlog.flush_entry(self._plan(found.committed), self._clock.now())
        rounds = 1
        self._run(found.committed + rounds, plan)
        while rounds < self._rounds and (now := self._next_round(plan)) is not None:
            plan = plan.at(now)
            rounds += 1
            self._run(found.committed + rounds, plan)
        kept = [each for each in self._kept if each.rows]
        named = tuple(f"{KINDS.get(each.operator, each.operator)} ({each.rows} rows)" for each in kept)
        return Emptied(found.committed + rounds, sum(each.rows for each in kept), named)

    def _next_round(self, plan: OffsetSeq) -> datetime | None:
        """The time of the next batch of the flush; None if another batch would change nothing."""
        timed = {each.empties for each in self.operators if each.timed}
        if not timed or not any(each.rows or each.indexed for each in self._kept):
            return None
        moment = next_batch_time(pending_timers(self._spark, self._files.location))
        return moment if moment is None or Empties.PROCESSING_TIME in timed else plan.timestamp

    def _before_the_first(self) -> OffsetSeq:
        if self._first_plan is not None:
            return self._first_plan()
        metadata = offset_metadata(self._spark, self._clock.now())
        named = {stream.stream: stream for stream in self._reads}
        sources = [named.get(name) if name else None for name in LogicalPlan.of(self._writer).sources]
        return offsetlog.first_entry(metadata, sources, self._starts)

    def _plan(self, batch: int) -> OffsetSeq:
        return offsetlog.parse(self._files.read_offset_log(batch), f"{self._files.location}/offsets/{batch}")

    def _run(self, batch: int, plan: OffsetSeq | None = None) -> None:
        if self._paused is not None and plan is not None:
            self._kept = self._paused.run(batch, plan)
            return
        if plan is not None:
            self._files.write_offset_log(batch, plan.text)
        self._kept = run_planned_batch(self._spark, self._writer, self._name, self._files.location)


TRANSFORM = "transformWithState"
GROUPS = ("applyInPandasWithState", "flatMapGroupsWithState")
"""Prefixes of Spark's names of operators that run user code."""

_EXPIRES = "ttlExpirationMs"
_TICK = timedelta(milliseconds=1)
"""Spark fires timers that are before the time of the batch, not those at it."""


@dataclass(frozen=True, slots=True)
class PendingTimers:
    """The first and the last timer, and the first and the last expiry time of state with a time to live; None if there is none. `before` is
    the last timer before the first expiry."""

    first: datetime | None = None
    last: datetime | None = None
    before: datetime | None = None
    expires_first: datetime | None = None
    expires_last: datetime | None = None


def next_batch_time(waiting: PendingTimers) -> datetime | None:
    """The time of the next batch in which timers fire or the remaining state expires; None if there are no timers and no expiry times."""
    if waiting.first is not None and waiting.last is not None:
        fire_all = waiting.expires_first is None or waiting.last < waiting.expires_first
        return (waiting.last if fire_all else waiting.before or waiting.first) + _TICK
    return None if waiting.expires_last is None else waiting.expires_last + _TICK


def pending_timers(spark: SparkSession, checkpoint: str) -> PendingTimers:
    """The timers and expiry times in the last committed batch of the checkpoint."""
    first, last = _ends(_timers(spark, checkpoint))
    expires_first, expires_last = _ends(_expiries(spark, checkpoint))
    before = None
    if expires_first is not None and last is not None and last >= expires_first:
        limit = offsetlog.millis(expires_first)
        _, before = _ends(times.filter(F.col("at") < limit - 1) for times in _timers(spark, checkpoint))
    return PendingTimers(first, last, before, expires_first, expires_last)


def _ends(found: Iterable[DataFrame]) -> tuple[datetime | None, datetime | None]:
    """The first and the last of all times; None if there are none."""
    rows = [times.agg(F.min("at"), F.max("at")).collect()[0] for times in found]
    ends = [offsetlog.from_millis(millis) for row in rows for millis in row if millis is not None]
    return min(ends, default=None), max(ends, default=None)


def _operators(spark: SparkSession, checkpoint: str) -> dict[int, tuple[str, str | None]]:
    rows = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName", "operatorProperties").collect()
    return {id_: (name, properties) for id_, name, properties in rows}


def _timers(spark: SparkSession, checkpoint: str) -> Iterator[DataFrame]:
    """For each operator with timers, a DataFrame with the column "at": milliseconds."""
    for id_, (name, _) in _operators(spark, checkpoint).items():
        store = spark.read.format("statestore").option("operatorId", str(id_))
        if name.startswith(TRANSFORM):
            yield store.option("readRegisteredTimers", "true").load(checkpoint).select(F.col("expiration_timestamp_ms").alias("at"))
        elif name.startswith(GROUPS):
            yield store.load(checkpoint).select(F.col("value.timeoutTimestamp").alias("at")).filter("at >= 0")


def _expiries(spark: SparkSession, checkpoint: str) -> Iterator[DataFrame]:
    """The same, for each state variable with a time to live."""
    for id_, (name, properties) in _operators(spark, checkpoint).items():
        variables: list[Any] = json.loads(properties or "{}").get("stateVariables", []) if name.startswith(TRANSFORM) else []
        for variable in variables:
            if variable.get("ttlEnabled"):
                store = spark.read.format("statestore").option("operatorId", str(id_)).option("stateVarName", variable["stateName"])
                found = store.load(checkpoint)
                yield found.select(_expiry(found).alias("at"))


def _expiry(variable: DataFrame) -> Column:
    """The expiry time of a row: it is in different columns for values, lists and maps."""
    columns = [field.name for field in variable.schema.fields if _EXPIRES in getattr(field.dataType, "names", ())]
    return reduce(F.coalesce, [F.col(f"{column}.{_EXPIRES}") for column in columns])
