"""What a function of `foreachBatch` in an attached script must know to write each batch once.

Spark sets local properties in the thread of a query. A function of `foreachBatch` runs in Python on behalf of that thread, and so can read
them. Code in another thread cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.core.errors import ClientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's local properties, see its `StreamExecution` and `MicroBatchExecution`."""


class NoBatch(ClientError):
    """The code does not run in a batch of an attached script."""


@dataclass(frozen=True, slots=True)
class BatchContext:
    """The batch that runs now, under the names that a `Task` has for it.

    `lineage`: Spark's id of the query. It is in the checkpoint, so it is the same after a restart, and another one for a new checkpoint.
    `batch`: the number of the batch. A batch that runs again has the same lineage and number. `generation`: the number of this owner of the
    job. It rises with each start of the script, so a sink can reject the writes of a former start."""

    lineage: str
    batch: int
    generation: int

    @property
    def txn_id(self) -> str:
        """Lineage and number in one string. It is the same each time the batch runs."""
        return f"{self.lineage}/{self.batch}"


def running_batch(spark: SparkSession, generation: int) -> BatchContext:
    """The batch for which this function was called. Raises NoBatch."""
    context = spark.sparkContext
    lineage, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
    if not lineage or not batch:
        raise NoBatch("batch_context() was called outside of a batch: call it in the function of foreachBatch, and in no thread of its own")
    return BatchContext(str(lineage), int(batch), generation)


def runs_batch(spark: SparkSession) -> bool:
    """Whether this thread runs a function of `foreachBatch` now."""
    context = spark.sparkContext
    return context._jsc is not None and bool(context.getLocalProperty(QUERY))  # None: the script has stopped its session
