"""Drains of a script's queries: which queries can be drained, which one reads what another one writes, and the flush of one query.

A query is drained while it is paused (`containers.spark.gate`), with the batches of `containers.spark.flush`. It reads no new input. If
another query of the script writes into its topics, it reads what that query has written in the drain, under the watermark of its last
batch. A query without state only stops: it may continue on its checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from time import sleep
from typing import TYPE_CHECKING, Any

from containers.engine import Position
from containers.spark.flush import Flusher
from containers.spark.gate import PausedQuery
from containers.spark.jvm import READ_LIMIT, java, version
from containers.spark.operators import Empties
from containers.spark.query import offset_metadata
from containers.spark.scripts.active_queries import OFFSET_LOG_VERSION, ActiveQuery
from containers.spark.scripts.checkpoint import Offsets, ScriptCheckpoint
from containers.state.offsets import offsetlog
from containers.state.offsets.offsetlog import OffsetSeq
from sluice.clock import Clock
from sluice.core.drain import to_catch_up
from sluice.core.ids import Ssp, StageName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_SPARK = (4, 0)
"""Before, a query has no context of its next batch, in which a planned batch could be put."""

KAFKA = "kafka"
_OF_APP = re.compile(r"/drain-[0-9]+(-[^/]+)?/[^/]+$")
"""The end of the location of a checkpoint of `app.checkpoint`."""
ISOLATION = "kafka.isolation.level"

SETTLES_WITHIN = timedelta(minutes=2)
"""How long a flush waits for open transactions, as a drain of a job file does."""

SETTLE_STEP = timedelta(milliseconds=100)

MAX_ROWS = 100_000
"""About how many rows a batch reads of what another query has written in the drain."""


class NotSettled(RuntimeError):
    """Records that a query must read in its drain are behind an open transaction."""


def undrainable(spark: SparkSession, query: ActiveQuery) -> Sequence[str]:
    """Why the query cannot be drained; empty if it can. A query without state can, as its checkpoint stays usable, unless it is one of
    `app.checkpoint`, which is another one after a drain."""
    if not query.is_micro_batch:
        return ("continuous processing",)
    if not query.can_be_paused:
        return ("its trigger ends it by itself (availableNow, once)",)
    if query.offset_log_version != offsetlog.VERSION:
        return (f"its offset log is of version {query.offset_log_version}: set {OFFSET_LOG_VERSION} to 1, and use a new checkpoint",)
    operators = query.operators()
    if not operators:
        return _not_continued(query) if _OF_APP.search(query.checkpoint) else ()
    if version(spark) < OLDEST_SPARK:
        return (f"this is Spark {spark.version}, and the state of a running query can be flushed since Spark 4.0",)
    found = [
        f"{each.kind} has processing-time timers: the query would have to be started again"
        for each in operators
        if each.empties is Empties.PROCESSING_TIME
    ]
    if query.is_temporary:
        found.append("it has state and no checkpointLocation, so it could not continue where the drain ends")
    return (*found, *_not_continued(query))


def _not_continued(query: ActiveQuery) -> Sequence[str]:
    """Why the query could not continue on another checkpoint, which begins at the drained offsets, with batch 0."""
    found = []
    if others := sorted({each.kind for each in query.sources() if not each.is_kafka}):
        found.append(f"it reads {', '.join(others)}, and only Kafka's offsets can be set for its next checkpoint")
    if query.file_sink is not None:
        found.append(
            "Spark's file sink skips batches whose numbers it has, and the next checkpoint begins at batch 0: use `sluice stop`, which "
            "keeps the checkpoint, or write the files with foreachBatch"
        )
    return tuple(found)


def feeders(
    queries: Mapping[StageName, ActiveQuery], writes: Mapping[StageName, Collection[str]]
) -> Mapping[StageName, frozenset[StageName]]:
    """Query -> the queries that write what it reads. `writes`: the topics that a query is known to write."""
    return {
        name: frozenset(other for other in queries if other != name and any(map(query.reads, writes.get(other, ()))))
        for name, query in queries.items()
    }


@dataclass(frozen=True, slots=True)
class Drained:
    """See `containers.engine.Emptied`. `locked`: whether the checkpoint cannot be used again."""

    position: Position
    rows_left: int = 0
    operators_left: tuple[str, ...] = ()
    locked: bool = False


class QueryDrain:
    """One paused query. Blocks."""

    def __init__(self, spark: SparkSession, query: ActiveQuery, paused: PausedQuery, clock: Clock) -> None:
        self._spark = spark
        self._query = query
        self._clock = clock
        self._checkpoint = ScriptCheckpoint(spark, query.checkpoint)
        self.paused = paused

    @property
    def stateful(self) -> bool:
        return bool(self._query.operators())

    def position(self) -> Position:
        """Call it when the query has reached its gate."""
        batch = self.committed()
        return Position(None if batch < 0 else batch, offsetlog.lowest(self._positions(batch)))

    def committed(self) -> int:
        found = self._checkpoint.inspect()
        return -1 if found is None else found.committed

    def flush(self, drain: str, fed_by: Collection[str]) -> Drained:
        """Read what other queries have written into the topics `fed_by`, then empty the state. A checkpoint with state is locked before the
        first of these batches. May be repeated. Raises what a batch raises, NotSettled, and CheckpointUnreadable."""
        batch = self.committed()
        positions = self._positions(batch)
        at = Position(None if batch < 0 else batch, offsetlog.lowest(positions))
        ends = self._ends(fed_by)
        unread = any(at.offsets.get(ssp, 0) < end for ssp, end in ends.items())
        if at.batch is None and not unread and not to_catch_up(positions):
            return Drained(at)  # it has no state yet
        flusher = Flusher(
            self._spark,
            self._checkpoint,
            self._query.name,
            _no_writer,
            {**dict.fromkeys(ends, 0), **at.offsets},
            MAX_ROWS,
            self._clock,
            paused=self.paused,
            first_plan=self._first_plan,
            operators=self._query.operators(),
        )
        if not self.stateful:
            flusher.keep(ends, even=_OF_APP.search(self._query.checkpoint) is not None)
            return Drained(self.position())
        emptied = flusher.empty(drain, ends)
        return Drained(self.position(), emptied.rows_left, tuple(emptied.operators_left), locked=True)

    def _ends(self, topics: Collection[str]) -> Mapping[Ssp, int]:
        """The ends of the topics that the query reads, when everything before them can be read. Raises NotSettled."""
        found: dict[Ssp, int] = {}
        batch = self.committed()
        read = self._positions(batch)
        for place, (source, line) in enumerate(zip(self.paused.sources(), self._lines(batch), strict=True)):
            if any(ssp.stream in topics for ssp in read[place]):
                found = offsetlog.highest([found, self._settled_ends(place, source, line, topics)])
        return found

    def _positions(self, batch: int) -> Sequence[Mapping[Ssp, int]]:
        """The offsets of each source after the batch; none for a source that is not Kafka's. Raises CheckpointUnreadable."""
        read = zip(self.paused.sources(), self._lines(batch), strict=True)
        return [offsetlog.all_positions_in(line, KAFKA) if _is_kafka(source) else {} for source, line in read]

    def _settled_ends(self, place: int, source: Any, line: str, topics: Collection[str]) -> Mapping[Ssp, int]:
        """As `KafkaSystem.settled_ends`. A source that reads only committed records ends before an open transaction, also of another
        program, although records of a feeder are behind it."""
        limit = java(self._spark, READ_LIMIT).allAvailable()
        options = self._query.kafka_options(place)
        committed_only = options.get(ISOLATION) == "read_committed"
        until = self._clock.elapsed() + SETTLES_WITHIN.total_seconds()
        last: Mapping[Ssp, int] | None = None
        while True:
            latest = offsetlog.all_positions_in(str(source.latestOffset(source.deserializeOffset(line), limit).json()), KAFKA)
            ends = {ssp: end for ssp, end in latest.items() if ssp.stream in topics}
            if committed_only and last is None:
                last = self._last_records(options, ends)  # once, because other programs may write on
            if all(ends.get(ssp, 0) > offset for ssp, offset in (last or {}).items()):
                return ends
            if self._clock.elapsed() > until:
                named = ", ".join(sorted({ssp.stream for ssp in ends}))
                raise NotSettled(
                    f"query {self._query.name or self._query.checkpoint} cannot read {named} to the end, because of a transaction that has "
                    f"been open for {SETTLES_WITHIN}: end it with kafka-transactions.sh"
                )
            sleep(SETTLE_STEP.total_seconds())

    def _last_records(self, options: Mapping[str, str], ends: Mapping[Ssp, int]) -> Mapping[Ssp, int]:
        """The offset of the last record after these ends, also of open transactions, by partition that has one."""
        begins: dict[str, dict[str, int]] = {}
        for ssp, end in ends.items():
            begins.setdefault(ssp.stream, {})[str(ssp.partition)] = end
        reader = self._spark.read.format(KAFKA).options(**{**options, ISOLATION: "read_uncommitted"}).option("failOnDataLoss", "false")
        reader = reader.option("assign", json.dumps({topic: sorted(map(int, partitions)) for topic, partitions in begins.items()}))
        rows = reader.option("startingOffsets", json.dumps(begins)).load()
        found = rows.groupBy("topic", "partition").agg({"offset": "max"}).collect()
        return {Ssp(KAFKA, str(topic), int(partition)): int(offset) for topic, partition, offset in found}

    def _lines(self, batch: int) -> Sequence[str]:
        """The offsets of each source after the batch; for -1 where each begins."""
        if batch < 0:
            return [str(source.initialOffset().json()) if _is_kafka(source) else offsetlog.NOTHING_YET for source in self.paused.sources()]
        return offsetlog.parse(self._checkpoint.read_offset_log(batch), f"{self._checkpoint.location}/offsets/{batch}").sources

    def _first_plan(self) -> OffsetSeq:
        lines = [offsetlog.VERSION, offset_metadata(self._spark, self._clock.now()), *self._lines(-1)]
        return offsetlog.parse("\n".join(lines), "the first entry")


def sources_beginning(query: ActiveQuery, offsets: Offsets) -> Mapping[str, Offsets]:
    """Where each source of the query begins, of `offsets`: all partitions that it reads. The keys are as in `set_sources`. Raises
    ValueError for a source of which there are no offsets."""
    found: dict[str, Offsets] = {}
    unnamed = count()
    for source in query.sources():
        begins = {
            topic: {partition: offset for partition, offset in partitions.items() if source.reads_partition(topic, int(partition))}
            for topic, partitions in offsets.items()
            if source.reads(topic)
        }
        missing = sorted(set(source.topics) - begins.keys())
        if missing or not begins:
            raise ValueError(f"the query reads {', '.join(missing) or source.kind}, and the drained query did not")
        found[source.name or str(next(unnamed))] = begins
    return found


def _is_kafka(source: Any) -> bool:
    return "kafka" in str(source.getClass().getName())


def _no_writer() -> Any:
    raise AssertionError("a script's query is drained only while it is paused")
