"""Standby copies on this disk of the checkpoints of tasks that other slots run. A copy is complete, or does not exist.

<root>/<job>/.standby/<slot>/lock               locked by the process of the slot that writes here
<root>/<job>/.standby/<slot>/<task>/<stage>/    a copy; beside it .staging/<stage>/ and .replaced/<stage>/, as for every restore

`containers.state.standby` keeps the copies up to date. When the task is assigned to this slot, its copy becomes its checkpoint by a rename.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from containers.errors import CheckpointUnreadable, disk_error
from containers.state.checkpoint import CheckpointInfo, Checkpoints, inspect
from containers.state.files import LocalFiles
from containers.state.recovery.restore import finish_swap, staging_of, swap
from sluice.core.ids import Lineage, StageName, TaskName, directory_name

log = logging.getLogger(__name__)

T = TypeVar("T")

CopyKey = tuple[TaskName, StageName]


class Copies:
    """The copies of one slot. Used on the agent's loop; `in_thread` runs blocking work."""

    def __init__(self, checkpoints: Checkpoints, slot: str, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._checkpoints = checkpoints
        self._root = checkpoints.copies(slot)
        self._in_thread = in_thread
        self._lock: IO[str] | None = None
        self._taken: set[CopyKey] = set()
        self._writing: dict[CopyKey, asyncio.Task[Any]] = {}

    def directory(self, of: CopyKey) -> Path:
        return self._root / directory_name(of[0]) / of[1]

    # --- updating copies ----------------------------------------------------------------------------------------------

    def lock(self) -> bool:
        """Lock the directory until this process ends. False if another process of the slot has it locked, even a suspended one. Blocks
        briefly. Raises DiskUnwritable."""
        if self._lock is not None:
            return True
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            file = (self._root / "lock").open("w")
        except OSError as error:
            raise disk_error(error, f"{error.filename}: {error.strerror}: no standby copies are kept") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._lock = file
        return True

    async def write(self, of: CopyKey, work: Coroutine[Any, Any, T]) -> T | None:
        """Run the work that writes the copy. None if its task is assigned to this slot before or during the work."""
        if of in self._taken:
            work.close()
            return None
        self._writing[of] = writing = asyncio.ensure_future(work)
        try:
            await asyncio.wait({writing})
            return None if writing.cancelled() else writing.result()
        finally:
            writing.cancel()
            del self._writing[of]

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def found(self, of: CopyKey) -> CheckpointInfo | None:
        """The copy; None without one. An unreadable one is removed. Blocks. Raises OSError."""
        directory = self.directory(of)
        finish_swap(directory)
        try:
            return inspect(directory)
        except CheckpointUnreadable as error:
            log.warning("an unreadable standby copy is removed and fetched again: %s", error)
            shutil.rmtree(directory, ignore_errors=True)
            return None

    def usable(self, of: CopyKey) -> Path | None:
        """The directory whose files a new copy may reuse: the present copy, else the checkpoint of the task from when it ran here.
        Blocks."""
        if self.found(of) is not None:
            return self.directory(of)
        checkpoint = self._checkpoints.directory(*of)
        return checkpoint if checkpoint.is_dir() else None

    def forget(self, task: TaskName) -> None:
        """Allow copies of the task again, after it has left this slot."""
        self._taken = {of for of in self._taken if of[0] != task}

    def keep_only(self, wanted: Iterable[TaskName]) -> None:
        """Remove the copies of other tasks. Blocks."""
        names = {directory_name(task) for task in wanted}
        for directory in self._tasks():
            if directory.name not in names:
                log.info("the standby copy in %s is no longer needed and is removed", directory)
                shutil.rmtree(directory, ignore_errors=True)

    def _tasks(self) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            yield from (entry for entry in self._root.iterdir() if entry.is_dir())

    # --- using copies ------------------------------------------------------------------------------------------------

    async def take(self, task: TaskName, stage: StageName, lineage: Lineage) -> None:
        """Make the copy of a stage that will run here its checkpoint, unless the checkpoint has as many batches. May be repeated."""
        of = task, stage
        self._taken.add(of)
        writing = self._writing.get(of)
        if writing is not None:
            writing.cancel()
            await asyncio.wait({writing})
        await self._in_thread(lambda: self._take(of, lineage))

    def _take(self, of: CopyKey, lineage: Lineage) -> None:
        copy, checkpoint = self.directory(of), self._checkpoints.directory(*of)
        found = self.found(of)
        if found is not None and _has_more(found, inspect(checkpoint), lineage):
            swap(copy, checkpoint, LocalFiles())
            log.info("%s/%s: the standby copy on this disk is now its checkpoint: batch %d", *of, found.committed)
        for rest in (copy, staging_of(copy)):
            shutil.rmtree(rest, ignore_errors=True)


def _has_more(copy: CheckpointInfo, checkpoint: CheckpointInfo | None, lineage: Lineage) -> bool:
    """Whether the copy is better than the checkpoint. A checkpoint or a copy of another lineage cannot be used. Without a checkpoint, a
    copy of any lineage is taken."""
    if checkpoint is None:
        return True
    return copy.lineage == lineage and (checkpoint.lineage != lineage or checkpoint.committed < copy.committed)
