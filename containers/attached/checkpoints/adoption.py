"""`app.checkpoint(NAME, adopt=URL)`: a query continues on a copy of a checkpoint that it has used without Sluice.

The copy has everything: the id of the query, so that sinks recognize a batch that runs again, and the batch that is planned and not
committed. It is made by Hadoop's FileSystem in the driver's JVM, so the URL may be any that Spark can use for a checkpoint. Nothing is read
from the inputs, and the former checkpoint is not changed. The copy gets its name when it is complete.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from containers.attached.checkpoints.former import ADOPTED
from containers.errors import CheckpointUnreadable
from containers.spark.scripts.checkpoint import ScriptCheckpoint, url_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("sluice")


def adopt_checkpoint(spark: SparkSession, url: str, directory: Path) -> None:
    """Copy the checkpoint at `url` to the directory, which must not have a checkpoint. After a crash it is copied again. Blocks. Raises
    CheckpointUnreadable if there is none, or if a drain has flushed it."""
    source = ScriptCheckpoint(spark, url if ":" in url.partition("/")[0] else url_of(Path(url).absolute()))
    found = source.inspect()
    if found is None:
        raise CheckpointUnreadable(f"{url} is not a checkpoint: it has no metadata")
    if source.emptied_by() is not None:
        raise CheckpointUnreadable(f"{url} was flushed by a drain: a query would drop its input as late")
    copy = directory.parent / ADOPTED / directory.name
    shutil.rmtree(copy, ignore_errors=True)
    copy.parent.mkdir(parents=True, exist_ok=True)
    source.copy_to(copy)
    if directory.is_dir():
        directory.rmdir()  # it is empty
    copy.rename(directory)
    log.info("checkpoint %s continues on a copy of %s, after batch %d", directory.name, url, found.committed)
