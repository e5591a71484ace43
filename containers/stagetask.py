"""The task that a stage's function is given: reading and writing the job's streams. Imports pyspark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from containers import logsource
from containers.job import Readable, Writable
from coordinator.clock import Clock
from coordinator.core.errors import BadJobFile, LeaseLost, UnknownSystem
from coordinator.core.ids import Generation, Lineage, RunId, Ssp, StageName, StreamId, TaskName
from coordinator.streams.log import Log, Record, Writer
from coordinator.wire import CONTROL_RECORD_HEADER, RUN_RECORD_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bound:
    """A stream of the job, bound to a system."""

    stream: StreamId
    intermediate: bool


@dataclass(frozen=True, slots=True)
class Grant:
    """What the acquire of a task gave one of its stages."""

    job: str
    task: TaskName
    stage: StageName
    generation: Generation
    lineage: Lineage
    origin: RunId
    starts: Mapping[Ssp, int]

    @property
    def owner(self) -> str:
        return f"{self.job}/{self.task}"

    @property
    def writer(self) -> Writer:
        return Writer(self.lineage, self.owner, self.generation)


class StageTask:
    """One stage of one task, in one session. Made anew for every start of the query."""

    def __init__(
        self,
        spark: SparkSession,
        grant: Grant,
        streams: Mapping[str, Bound],
        systems: Mapping[str, Mapping[str, str]],
        config: Mapping[str, str],
        max_rows: int,
        clock: Clock,
        on_lease_lost: Callable[[LeaseLost], None],
    ) -> None:
        self.spark = spark
        self.config = dict(config)
        self._grant = grant
        self._streams = streams
        self._systems = systems
        self._max_rows = max_rows
        self._clock = clock
        self._on_lease_lost = on_lease_lost

    @property
    def name(self) -> str:
        return self._grant.task

    def _bound(self, name: str) -> Bound:
        if name not in self._streams:
            raise BadJobFile(
                f"stage {self._grant.stage} uses the stream {name!r}, which the run does not know: declare it and deploy again"
            )
        return self._streams[name]

    def _log(self, system: str) -> Log:
        if system != "log":
            raise UnknownSystem(f"this container cannot reach the system {system!r}")
        return Log(Path(self._systems[system]["path"]))

    def read(self, stream: Readable) -> DataFrame:
        bound = self._bound(stream.name)
        starts = {ssp.partition: offset for ssp, offset in self._grant.starts.items() if ssp.stream_id == bound.stream}
        if not starts:
            raise BadJobFile(f"stage {self._grant.stage} reads {stream.name!r} without saying so: name it in reads=")
        source = logsource.register(self.spark, f"{self._grant.owner}/{self._grant.stage}/{bound.stream}")
        rows = (
            self.spark.readStream.format(source)
            .option("path", str(self._log(bound.stream.system).directory))
            .option("stream", bound.stream.stream)
            .option("starts", json.dumps(starts))
            .option("maxRows", str(self._max_rows))
            .load()
        )
        return rows.filter(self._of_this_history()) if bound.intermediate else rows

    def _of_this_history(self) -> Column:
        """Records of other runs and control records never reach user code."""
        origin = F.lit(self._grant.origin.encode())
        ours = F.exists("headers", lambda header: (header["key"] == RUN_RECORD_HEADER) & (header["value"] == origin))
        return ours & ~F.exists("headers", lambda header: header["key"] == CONTROL_RECORD_HEADER)

    def write(
        self, rows: DataFrame, stream: Writable, *, key: str | Column | None = None, value: str | Column | None = None
    ) -> DataStreamWriter:
        bound = self._bound(stream.name)
        log = self._log(bound.stream.system)
        headers = {RUN_RECORD_HEADER: self._grant.origin} if bound.intermediate else {}
        chosen_key = F.lit(None) if key is None else F.col(key) if isinstance(key, str) else key
        chosen_value = F.to_json(F.struct("*")) if value is None else F.col(value) if isinstance(value, str) else value
        records = rows.select(chosen_key.cast("string").cast("binary").alias("key"), chosen_value.cast("binary").alias("value"))

        def append(batch: DataFrame, batch_id: int) -> None:
            table = batch.toArrow()
            found = [Record(value=v, key=k) for k, v in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)]
            micros = (self._clock.now() - _EPOCH) // timedelta(microseconds=1)
            try:
                log.append(bound.stream.stream, found, writer=self._grant.writer, batch=batch_id, headers=headers, now_micros=micros)
            except LeaseLost as lost:
                self._on_lease_lost(lost)
                raise

        return records.writeStream.foreachBatch(append)

    def fence(self, writes: Sequence[str]) -> int:
        """Shut out older generations of this task from the streams that the stage writes, and return the last batch that its lineage
        appended to any of them, -1 for none. Run it before the query starts."""
        last = -1
        for name in writes:
            bound = self._bound(name)
            log = self._log(bound.stream.system)
            log.fence(bound.stream.stream, self._grant.owner, self._grant.generation)
            appended = log.last_batch(bound.stream.stream, self._grant.lineage)
            last = max(last, -1 if appended is None else appended)
        return last


def positions_of(spelled: Sequence[str], reads: Sequence[StreamId]) -> dict[Ssp, int]:
    """The offsets of a batch as sources spell them, for the streams that the stage reads; sources of other kinds are left out."""
    systems = {stream.stream: stream.system for stream in reads}
    found: dict[Ssp, int] = {}
    for text in spelled:
        try:
            document: Any = json.loads(text)
        except ValueError:
            continue
        for stream, partitions in document.items() if isinstance(document, dict) else ():
            if stream in systems and isinstance(partitions, dict):
                found |= {Ssp(systems[stream], stream, int(p)): int(offset) for p, offset in partitions.items()}
    return found
