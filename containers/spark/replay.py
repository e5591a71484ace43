"""Batches that run before a stage's query starts: those that were planned and not committed, and one that adds new partitions.

Spark's Kafka source starts a partition that is not in its checkpoint at the partition's first record. If that is not record 0, the source
considers records lost, and with `failOnDataLoss` the query fails each time it starts. So a batch is added to the checkpoint that reads
nothing, and that ends at the old offsets and at the starts of the new partitions. It runs with a source that tolerates missing records.
After it, the query runs with a source that does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.query import run_planned_batch
from containers.state.checkpoint import inspect, read_offset_log, write_offset_log
from containers.state.offsets import offsetlog
from sluice.core.ids import Ssp, StreamId

log = logging.getLogger(__name__)


class Replay:
    """For one checkpoint on which no query runs. Methods block, and may be interrupted anywhere and run again."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        name: str,
        starts: Mapping[Ssp, int],
        reads: Sequence[StreamId],
        writer_of: Callable[[bool], DataStreamWriter],
    ) -> None:
        """`name` is the query's. `starts` has the partitions that the query will read, and where they start. `reads` has the streams whose
        new partitions must be added. `writer_of` makes the query; with True, one whose sources tolerate missing records."""
        self._spark = spark
        self._directory = directory
        self._name = name
        self._starts = starts
        self._reads = reads
        self._writer_of = writer_of

    def run(self, entries: Mapping[int, str]) -> None:
        """Run the batches of these offset-log entries that are not committed, one at a time. The last of them is only written: the query
        itself starts with it."""
        for batch, entry in sorted(entries.items()):
            found = inspect(self._directory)
            if found is not None and batch <= found.committed:
                continue
            write_offset_log(self._directory, batch, entry)
            if batch < max(entries):
                log.info("%s runs batch %d again", self._name, batch)
                self._run(batch)

    def add_partitions(self, now: datetime) -> None:
        """Add the partitions of `starts` that the checkpoint does not have."""
        found = inspect(self._directory)
        if found is None or found.planned < 0:
            return
        added = offsetlog.with_new_partitions(self._entry(found.planned), self._starts, self._reads, now)
        if found.planned > found.committed and (added is not None or self._adds_partitions(found.planned)):
            self._run(found.planned)
        if added is not None:
            log.info("%s starts partitions whose first records are deleted", self._name)
            write_offset_log(self._directory, found.planned + 1, added.text)
            self._run(found.planned + 1)

    def _run(self, batch: int) -> None:
        """Run the batch that is planned and not committed."""
        run_planned_batch(self._spark, self._writer_of(self._adds_partitions(batch)), self._name, str(self._directory))

    def _adds_partitions(self, batch: int) -> bool:
        return batch > 0 and offsetlog.adds_partitions(self._entry(batch - 1), self._entry(batch), self._starts, self._reads)

    def _entry(self, batch: int) -> offsetlog.OffsetSeq:
        return offsetlog.parse(read_offset_log(self._directory, batch), f"{self._directory}/offsets/{batch}")
