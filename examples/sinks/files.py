"""Parquet files as an exactly-once sink: the function for `task.foreach_batch`. docs/sinks.md explains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from sluice import Task


def one_file_a_batch(task: Task, directory: Path) -> Callable[[DataFrame, int], None]:
    """Write each batch as one file, whose name is its transaction id. A batch that runs again has the same rows, and replaces its file. A
    file appears completely or not at all. Readers of the directory must skip names that begin with a dot, as Spark's do."""

    def function(rows: DataFrame, batch: int) -> None:
        found = rows.toArrow()
        name = f"{quote(task.txn_id(batch), safe='')}.parquet"
        draft = directory / f".{name}.{task.generation}"
        pq.write_table(found, draft)
        draft.replace(directory / name)

    return function
