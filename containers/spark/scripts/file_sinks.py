"""Spark's own sink of files: it has each batch once by its number, in `_spark_metadata`, whatever query writes it.

After a lost disk a query has the numbers of its lost batches again, and on a new checkpoint it begins at batch 0. The sink would skip these
batches, and their rows, which may be others, would be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from containers.spark.scripts.active_queries import ActiveQuery
from containers.spark.scripts.checkpoint import ScriptCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = "_spark_metadata"


def skipped_batches(spark: SparkSession, query: ActiveQuery) -> str:
    """Why the sink would skip batches of the query: it has some that the query's checkpoint has not planned. "" if it would not. Raises
    CheckpointUnreadable."""
    directory = query.file_sink
    if directory is None:
        return ""
    written = ScriptCheckpoint(spark, directory).newest_of(LOG)
    found = ScriptCheckpoint(spark, query.checkpoint).inspect()
    planned = -1 if found is None else max(found.planned, found.committed)
    if written <= planned:
        return ""
    ends = "has no batch" if planned < 0 else f"ends at batch {planned}"
    return (
        f"the file sink {directory} has batch {written}, and the checkpoint, which is new or was restored, {ends}: the sink would skip the "
        "batches in between; let the query write to another directory"
    )
