"""New partitions of a stream whose first records are gone already, made known to a query's checkpoint.

Spark's Kafka source begins a partition that its checkpoint does not know at its first record, and takes it for lost data when that is not
record 0: with `failOnDataLoss` the query fails, for good. So the checkpoint gets a batch that reads nothing and ends at the old offsets and
at the starts of the new partitions, under a source that does not mind; from then on the query minds again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.query import run_planned_batch
from containers.state import offsetlog
from containers.state.checkpoint import inspect, read_plan, write_plan
from sluice.core.ids import Ssp, StreamId

log = logging.getLogger(__name__)


class Opening:
    """Of one store on which no query runs. `starts` is where the partitions begin that it is to read, `reads` the streams that this is
    about. `writer_of` makes its query; told so, one whose sources do not mind that first records are gone. Methods block, and may be
    interrupted anywhere and run again."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        name: str,
        starts: Mapping[Ssp, int],
        reads: Sequence[StreamId],
        writer_of: Callable[[bool], DataStreamWriter],
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._name = name
        self._starts = starts
        self._reads = reads
        self._writer_of = writer_of

    def open(self, now: datetime) -> None:
        """Make the partitions known that the store does not know."""
        found = inspect(self._directory)
        if found is None or found.planned < 0:
            return
        plan = offsetlog.widened(self._plan(found.planned), self._starts, self._reads, now)
        if found.planned > found.committed and (plan is not None or self._widens(found.planned)):
            self.run(found.planned)
        if plan is not None:
            log.info("%s begins partitions that have lost their first records", self._name)
            write_plan(self._directory, found.planned + 1, plan.text)
            self.run(found.planned + 1)

    def run(self, batch: int) -> None:
        """Run the batch that is planned, and not committed."""
        run_planned_batch(self._spark, self._writer_of(self._widens(batch)), self._name, self._directory)

    def _widens(self, batch: int) -> bool:
        return batch > 0 and offsetlog.widens(self._plan(batch - 1), self._plan(batch), self._starts, self._reads)

    def _plan(self, batch: int) -> offsetlog.BatchPlan:
        return offsetlog.read(read_plan(self._directory, batch), f"{self._directory}/offsets/{batch}")
