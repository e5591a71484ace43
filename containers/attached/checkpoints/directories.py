"""`app.checkpoint` in the driver: the checkpoint directories of an attached script.

    <state>/<job>/drain-<number>[-<suffix>]/<name>/

`number` is that of the last drain that has flushed the query, 0 before the first one. `suffix` is set after an upgrade that was rolled
back, because the new version has used the directory. A drain locks the checkpoint that it has flushed, so
the next start of the script gets another directory, whose first query begins where the drain has ended.

Before the driver uses a directory, the agent makes the checkpoint in it ready (`containers.attached.checkpoints.backups`), and then
deletes what is not needed of the former ones (`containers.attached.checkpoints.former`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from containers.attached.checkpoints.adoption import adopt_checkpoint
from containers.attached.port import Beginning, Made, NotGranted, Wanted
from containers.errors import DiskUnwritable
from containers.rpc.codec import OtherProcessFailed
from containers.spark.jvm import version
from containers.spark.masters import executors_requested, is_local
from containers.spark.scripts.checkpoint import ScriptCheckpoint, url_of
from containers.spark.scripts.drain import OLDEST_SPARK
from containers.state.checkpoint import check_writable
from sluice.clock import Clock
from sluice.core.errors import ClientError, Conflict, SluiceError
from sluice.core.ids import JobName, StageName, checked_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from containers.spark.executors import SharedPaths

EXECUTORS_WITHIN = timedelta(seconds=120)
"""How long to wait for executors on other machines, and for a job on them."""

MANY, ONE = 1_000, 1
"""How many planned batches can run again: Spark itself runs one, and the gate of drains runs more."""


class CheckpointRefused(ClientError):
    """The script cannot have a checkpoint directory on this machine."""


class Preparing(Protocol):
    """Prepares checkpoints: see `containers.attached.port.Agent`. Also raises NotGranted."""

    def beginning(self, stage: StageName) -> Beginning: ...

    def prepare(self, wanted: Wanted) -> Made: ...


class DrainUnfinished(Conflict):
    """A drain has failed while it flushed the query."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that a query may be started on. `url`: for `checkpointLocation`. `begins_again`: why numbers of batches come again that
    sinks may have from before; "" if they do not."""

    url: str
    stage: StageName
    made: Made
    begins_again: str = ""


class ScriptDirectories:
    """The checkpoints of a script under the directory `state`. `listen`: called if the first query of a checkpoint must be prepared."""

    def __init__(self, state: Path, job: JobName, agent: Preparing, clock: Clock, listen: Callable[[], None]) -> None:
        self._state = state
        self._job = job
        self._agent = agent
        self._clock = clock
        self._listen = listen
        self._shared: dict[Path, SharedPaths] = {}

    def checkpoint(self, spark: SparkSession, name: str, adopt: str | None) -> Checkpoint:
        """A directory that exists. Raises BadName, CheckpointRefused, DrainUnfinished, PathNotShared, ExecutorsMissing, and
        CheckpointUnreadable."""
        checked_name("checkpoint", name)
        stage = StageName(name)
        begins = self._agent.beginning(stage)
        if begins.failed:
            raise DrainUnfinished(
                f"the state of {name} was not flushed completely ({begins.failed}): its checkpoint is locked; use another name, and set "
                "startingOffsets to where the new query must begin"
            )
        directory = self._state / self._job / begins.folder / name
        try:
            check_writable(directory.parent)
        except DiskUnwritable as error:
            raise CheckpointRefused(str(error)) from error
        self._check_shared(spark, directory.parent)
        replays = MANY if version(spark) >= OLDEST_SPARK else ONE
        wanted = Wanted(stage, self._state, begins.folder, code_of_script(), replays, adopts=adopt is not None and begins.seq == 0)
        made = self._prepare(wanted)
        if made.adopt and adopt is not None:
            adopt_checkpoint(spark, adopt, directory)
            made = self._prepare(replace(wanted, adopts=False))
        check_writable(directory)
        url = url_of(directory)
        new = self._begin(spark, url, begins)
        if made.replay or made.new_lineage:
            self._listen()
        return Checkpoint(url, stage, made, "under a new id" if made.new_lineage else "after a drain" if begins.seq and new else "")

    def _prepare(self, wanted: Wanted) -> Made:
        try:
            return self._agent.prepare(wanted)
        except NotGranted:
            raise
        except (SluiceError, OtherProcessFailed) as error:
            raise CheckpointRefused(f"checkpoint {wanted.stage}: {error}") from error

    def _begin(self, spark: SparkSession, url: str, begins: Beginning) -> bool:
        """Returns whether the checkpoint has no batch yet."""
        files = ScriptCheckpoint(spark, url)
        found = files.inspect()  # which knows locks: a crash may have left one without the offsets to begin at
        new = found is None or (found.committed < 0 and found.planned < 0)
        if begins.offsets and (new or files.begins_at() is not None):
            self._listen()
            if files.begins_at() is None and not files.has_sources():
                files.begin_at(begins.offsets)
        return new

    def _check_shared(self, spark: SparkSession, directory: Path) -> None:
        """Executors on other machines write the state, so they must see the directory, too."""
        master = str(spark.sparkContext.master)
        if is_local(master) or directory in self._shared:
            return
        try:
            executors: Any = import_module("containers.spark.executors")
        except ImportError as error:  # other scripts need no pyarrow
            raise CheckpointRefused(
                f"executors of {master} may run on other machines, and the check that they share {directory} needs {error.name}: "
                f"pip install {error.name}, or set checkpointLocation to a URL that all of them reach (s3a://, hdfs://)"
            ) from error
        path = executors.SharedPath(directory, "SLUICE_STATE_DIR")
        shared = executors.SharedPaths(spark, [path], self._clock, EXECUTORS_WITHIN)
        shared.check(executors_requested(master, dict(spark.sparkContext.getConf().getAll())))
        self._shared[directory] = shared

    def check_new_executors(self) -> None:
        """Called often. Raises PathNotShared."""
        for each in list(self._shared.values()):
            each.check_new_executors()


def code_of_script() -> str:
    """A short name of the text of the script that this process runs, "" if it has no file."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""
    except OSError:
        return ""
