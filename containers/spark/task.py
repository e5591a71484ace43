"""The `Task` that a stage's function gets: it reads and writes the streams of the job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from containers.engine import Bound, Callbacks, Writes
from containers.spark.systems.port import Grant, TaskSystem
from containers.state.checkpoint import PlannedBatches
from containers.state.offsets.offsetlog import from_micros
from sluice.core.errors import BadJobFile, UnknownSystem
from sluice.core.ids import Ssp, StreamId
from sluice.job import Delivery, Input, Readable, Writable
from sluice.wire.body import CONTROL_RECORD_HEADER, DRAIN_RECORD_HEADER, RUN_RECORD_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


WRITTEN, NEWEST = "sluice-written", "newest"
"""Name and field of a batch's metric with the newest event time that the batch wrote, in microseconds since 1970."""

READ = "sluice-read"
"""Prefix of the names of a batch's metrics with the newest event time that the batch read from each partition of an input."""


def partition_times(observed: Mapping[str, Mapping[str, int]], reads: Sequence[StreamId]) -> Mapping[Ssp, datetime]:
    """The newest event time that a batch has read from each partition, from its metrics."""
    found: dict[Ssp, datetime] = {}
    for name, newest in observed.items():
        for each in reads:
            if name.startswith(f"{READ}/") and name.endswith(f"/{each.stream}"):
                found |= {Ssp(each.system, each.stream, int(partition)): from_micros(at) for partition, at in newest.items()}
    return found


_FIELD = re.compile(r"[A-Za-z_]\w*")


def event_time_of(named: str) -> Column:
    """The event time of a record, in microseconds since 1970; null where it has none. `named`: a field of the value, which is a JSON
    object, or an SQL expression over the columns of `StageTask.read`. Numbers are seconds since 1970, as in Spark's casts."""
    if not _FIELD.fullmatch(named):
        return F.unix_micros(F.expr(named).cast("timestamp"))
    text = F.get_json_object(F.col("value").cast("string"), f"$.{named}")
    seconds = text.try_cast("double")
    return F.coalesce((seconds * 1_000_000).cast("long"), F.unix_micros(text.try_cast("timestamp")))


class StageTask:
    """One stage of one task, in one session. Every start of the query has a new one."""

    def __init__(
        self,
        spark: SparkSession,
        grant: Grant,
        streams: Mapping[str, Bound],
        systems: Mapping[str, TaskSystem],
        config: Mapping[str, str],
        max_rows: int,
        asked: Callbacks | None = None,
        drain: str = "",
        failed_drains: Sequence[str] = (),
    ) -> None:
        self.spark = spark
        self.config = dict(config)
        self._grant = grant
        self._streams = streams
        self._systems = systems
        self._max_rows = max_rows
        self._asked = asked
        self.draining = drain
        self._failed_drains = failed_drains
        self.timed: list[StreamId] = []
        """The inputs whose event time is observed by partition."""
        self.deliveries: dict[str, Delivery] = {}
        """The delivery of each stream that it writes, by name."""
        self.writes_event_time = False
        """Whether its write names the event-time column."""

    @property
    def name(self) -> str:
        return self._grant.task

    def _bound(self, name: str) -> Bound:
        if name not in self._streams:
            raise BadJobFile(
                f"stage {self._grant.stage} uses the stream {name!r}, which is not a stream of the run: declare it and deploy again"
            )
        return self._streams[name]

    def _system(self, name: str) -> TaskSystem:
        if name not in self._systems:
            raise UnknownSystem(f"this container cannot reach the system {name!r}")
        return self._systems[name]

    def read(self, stream: Readable) -> DataFrame:
        bound = self._bound(stream.name)
        starts = {ssp.partition: offset for ssp, offset in self._grant.starts.items() if ssp.stream_id == bound.stream}
        if not starts:
            raise BadJobFile(f"stage {self._grant.stage} reads {stream.name!r} without declaring it: name it in reads=")
        rows = self._system(bound.stream.system).read(self._grant, bound.stream.stream, starts, self._max_rows)
        if isinstance(stream, Input) and stream.event_time is not None and len(starts) > 1:
            rows = self._observing(rows, bound.stream, stream.event_time, sorted(starts))
        return rows.filter(self._of_this_history()) if bound.intermediate else rows

    def _observing(self, rows: DataFrame, stream: StreamId, event_time: str, partitions: Sequence[int]) -> DataFrame:
        """Make each batch report the newest event time of each partition in its progress."""
        at = event_time_of(event_time)
        newest = [F.max(F.when(F.col("partition") == partition, at)).alias(str(partition)) for partition in partitions]
        self.timed.append(stream)
        return rows.observe(f"{READ}/{len(self.timed)}/{stream.stream}", *newest)

    def _of_this_history(self) -> Column:
        """Selects the records of this history, and of the earlier ones whose state drains have kept for it: after a restore of an older
        snapshot they are read again. User code never gets records of other histories, nor control records. Nearly all records have exactly
        the header that `write` adds. Spark compiles that comparison, but not the general one, which uses a function."""
        first_run = F.lit(self._grant.first_run.encode())
        usual = F.array(F.struct(F.lit(RUN_RECORD_HEADER).alias("key"), first_run.alias("value")))
        of_this_history = F.exists("headers", self._names_history)
        return (F.col("headers") == usual) | (of_this_history & ~F.exists("headers", self._is_void))

    def _names_history(self, header: Column) -> Column:
        histories = [F.lit(run.encode()) for run in (self._grant.first_run, *self._grant.earlier_histories)]
        return (header["key"] == RUN_RECORD_HEADER) & header["value"].isin(histories)

    def _is_void(self, header: Column) -> Column:
        """Whether it is the header of a control record, or of a drain that failed."""
        void = header["key"] == CONTROL_RECORD_HEADER
        for drain in self._failed_drains:
            void = void | ((header["key"] == DRAIN_RECORD_HEADER) & (header["value"] == F.lit(drain.encode())))
        return void

    def write(
        self,
        rows: DataFrame,
        stream: Writable,
        *,
        key: str | Column | None = None,
        value: str | Column | None = None,
        event_time: str | Column | None = None,
        delivery: str = Delivery.EXACTLY_ONCE,
    ) -> DataStreamWriter:
        bound = self._bound(stream.name)
        if delivery not in list(Delivery):
            raise BadJobFile(f"delivery={delivery!r} of stream {stream.name!r} must be one of {', '.join(Delivery)}")
        chosen = self.deliveries[stream.name] = Delivery(delivery)
        if event_time is not None:
            self.writes_event_time = True
            column = F.col(event_time) if isinstance(event_time, str) else event_time
            rows = rows.observe(WRITTEN, F.max(F.unix_micros(column.cast("timestamp"))).alias(NEWEST))
        chosen_key = F.lit(None) if key is None else F.col(key) if isinstance(key, str) else key
        chosen_value = F.to_json(F.struct("*")) if value is None else F.col(value) if isinstance(value, str) else value
        records = rows.select(chosen_key.cast("string").cast("binary").alias("key"), chosen_value.cast("binary").alias("value"))
        system = self._system(bound.stream.system)

        def append(batch: DataFrame, batch_id: int) -> None:
            self._begins(batch_id)
            ready, headers = lambda: self._writes(batch_id), self._headers(bound)
            system.append(self._grant, batch, batch_id, bound.stream.stream, headers, ready, chosen, bound.written_partitions)

        return records.writeStream.foreachBatch(append)

    def _headers(self, bound: Bound) -> dict[str, str]:
        """The headers of a batch's records. A drain may start while the query runs."""
        headers = {RUN_RECORD_HEADER: str(self._grant.first_run)} if bound.intermediate else {}
        return headers | ({DRAIN_RECORD_HEADER: self.draining} if self.draining else {})

    def foreach_batch(self, rows: DataFrame, function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        def write(batch: DataFrame, batch_id: int) -> None:
            self._begins(batch_id)
            self._writes(batch_id)
            function(batch, batch_id)

        return rows.writeStream.foreachBatch(write)

    def txn_id(self, batch: int) -> str:
        return f"{self._grant.lineage}/{batch}"

    @property
    def lineage(self) -> str:
        return self._grant.lineage

    @property
    def generation(self) -> int:
        return self._grant.generation

    def _begins(self, batch: int) -> None:
        if self._asked is not None:
            self._asked.before_batch(self._grant.query, self._grant.generation, batch)

    def _writes(self, batch: int) -> None:
        if self._asked is not None:
            self._asked.before_write(self._grant.query, self._grant.generation, batch)

    def writes(self) -> Mapping[str, Writes]:
        """How it writes streams, by name. Any thread."""
        found = {}
        for name, delivery in dict(self.deliveries).items():
            stream = self._bound(name).stream
            found[name] = self._system(stream.system).writes(self._grant, stream.stream, delivery)
        return found

    def fence(self, writes: Sequence[str], planned: Callable[[], PlannedBatches] = PlannedBatches) -> int:
        """Fence older generations of this task off the streams that the stage writes. Returns the last batch that its lineage appended to
        any of them, as far as their systems know; -1 for none. Called before the query starts, when the stage's function has returned.
        `planned`: see `TaskSystem.fence`."""
        bound = [(self._bound(name).stream, self.deliveries.get(name)) for name in writes]
        return max((self._system(stream.system).fence(self._grant, stream.stream, how, planned) for stream, how in bound), default=-1)
