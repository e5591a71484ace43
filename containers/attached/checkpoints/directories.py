"""`app.checkpoint`: the checkpoint directories of an attached script.

    <state>/<job>/drain-<number>[-<suffix>]/<name>/

`number` is that of the last drain that has flushed the query, 0 before the first one. `suffix` is set after an upgrade that was rolled
back, because the new version has used the directory. A drain locks the checkpoint that it has flushed, so
the next start of the script gets another directory, whose first query begins where the drain has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from containers.errors import DiskUnwritable
from containers.spark.masters import is_local
from containers.spark.scripts.checkpoint import Offsets, ScriptCheckpoint
from containers.state.checkpoint import check_writable
from sluice.core.errors import ClientError, Conflict
from sluice.core.ids import JobName, StageName, checked_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CheckpointRefused(ClientError):
    """The script cannot have a checkpoint directory on this machine."""


class DrainUnfinished(Conflict):
    """A drain has failed while it flushed the query."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a checkpoint begins. `seq`: the number of the drain, 0 for none. `suffix`: see above. `failed`: why the drain did not finish,
    "" if it did."""

    seq: int
    suffix: str
    offsets: Offsets
    failed: str


def checkpoint(
    spark: SparkSession, state: Path, job: JobName, name: str, where: Callable[[StageName], Beginning], listen: Callable[[], None]
) -> str:
    """The URL of the directory, which exists. `where` asks the supervisor. `listen`: called if the first query must be prepared. Raises
    BadName, CheckpointRefused, DrainUnfinished, DiskUnwritable."""
    checked_name("checkpoint", name)
    master = str(spark.sparkContext.master)
    if not is_local(master):
        raise CheckpointRefused(
            f"app.checkpoint is a directory of this machine, and executors of {master} run elsewhere: set checkpointLocation to a URL that "
            "all of them reach (s3a://, hdfs://)"
        )
    begins = where(StageName(name))
    if begins.failed:
        raise DrainUnfinished(
            f"the state of {name} was not flushed completely ({begins.failed}): its checkpoint is locked; use another name, and set "
            "startingOffsets to where the new query must begin"
        )
    directory = state / job / "-".join(["drain", str(begins.seq), *filter(None, [begins.suffix])]) / name
    try:
        check_writable(directory)
    except DiskUnwritable as error:
        raise CheckpointRefused(str(error)) from error
    url = directory.as_uri()
    files = ScriptCheckpoint(spark, url)
    found = files.inspect()  # which knows locks: a crash may have left one without the offsets to begin at
    new = found is None or (found.committed < 0 and found.planned < 0)
    if begins.offsets and (new or files.begins_at() is not None):
        listen()
        if files.begins_at() is None and files.read("sources/0/0") is None:
            files.begin_at(begins.offsets)
    return url
