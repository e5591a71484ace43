"""The embedded log as a task's system: appends are exactly once, by lineage and batch, and fenced by generation."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from containers.engine import Writes
from containers.spark.systems import log_source
from containers.spark.systems.port import Grant, StreamEnds
from containers.state.checkpoint import PlannedBatches
from sluice.clock import Clock
from sluice.core.errors import LeaseLost
from sluice.job import Delivery
from sluice.streams.log import Log, LogEnds, Record, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LogTaskSystem:
    def __init__(self, spark: SparkSession, directory: Path, clock: Clock, on_lease_lost: Callable[[LeaseLost], None]) -> None:
        self._spark = spark
        self._log = Log(directory)
        self._clock = clock
        self._on_lease_lost = on_lease_lost

    def read(self, grant: Grant, stream: str, starts: Mapping[int, int], max_rows: int) -> DataFrame:
        source = log_source.register(self._spark, f"{grant.owner}/{grant.stage}/{stream}")
        return (
            self._spark.readStream.format(source)
            .option("path", str(self._log.directory))
            .option("stream", stream)
            .option("starts", json.dumps(starts))
            .option("maxRows", str(max_rows))
            .load()
        )

    def append(
        self,
        grant: Grant,
        records: DataFrame,
        batch: int,
        stream: str,
        headers: Mapping[str, str],
        ready: Callable[[], None] = lambda: None,
        delivery: Delivery = Delivery.EXACTLY_ONCE,
        partitions: int | None = None,
    ) -> None:
        table = records.toArrow()
        found = list(map(Record, table["value"].to_pylist(), table["key"].to_pylist()))
        micros = (self._clock.now() - _EPOCH) // timedelta(microseconds=1)
        writer = Writer(grant.lineage, grant.owner, grant.generation)
        ready()
        try:
            self._log.append(stream, found, writer=writer, batch=batch, headers=headers, now_micros=micros, partitions=partitions)
        except LeaseLost as lost:
            self._on_lease_lost(lost)
            raise

    def ends(self, stream: str) -> Mapping[int, int]:
        return self._log.latest(stream)

    def stream_ends(self) -> StreamEnds:
        return _LogStreamEnds(self._log)

    def fence(self, grant: Grant, stream: str, delivery: Delivery | None, planned: Callable[[], PlannedBatches] = PlannedBatches) -> int:
        self._log.fence(stream, grant.owner, grant.generation)
        appended = self._log.last_batch(stream, grant.lineage)
        return -1 if appended is None else appended

    def writes(self, grant: Grant, stream: str, delivery: Delivery) -> Writes:
        return Writes(Delivery.EXACTLY_ONCE)

    def renew(self) -> None:
        """Do nothing: the log does not expire."""

    def close(self) -> None:
        """Do nothing: each append opens and closes the log's file."""


class _LogStreamEnds:
    def __init__(self, log: Log) -> None:
        self._ends = LogEnds(log)

    def latest(self, partitions: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, int]]:
        return {stream: self._ends.latest(stream) for stream in partitions}

    def close(self) -> None:
        self._ends.close()
