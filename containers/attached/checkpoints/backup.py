"""The backup of a checkpoint of a script: that of a stage of a job file (`containers.state.backup`), for a query whose batches wait for
nothing, and whose script a failure must not end.

The disk is polled: it has a batch before the driver reports it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from containers.engine import StageStart
from containers.state.backup import Backup
from containers.state.checkpoint import DRAIN_MARKER, inspect
from containers.state.commits.commit import CommitOverdue, CommitState
from containers.state.context import StateContext
from containers.state.recovery.decision import Rule
from sluice.client import Refused
from sluice.core.errors import LeaseLost, SluiceError, StaleRun
from sluice.core.ids import Lineage
from sluice.core.snapshots.snapshot import CommitId

log = logging.getLogger("sluice")

RETRY = timedelta(seconds=2)
LOOK = timedelta(seconds=0.5)
"""How often it is checked whether there is a batch to back up."""


class ScriptBackup(Backup):
    """The backup of one checkpoint. `folder`: that of its directory. `reopen`: the commits after the newest snapshot that the coordinator
    knows, for the lineage."""

    def __init__(
        self, state: StateContext, start: StageStart, rule: Rule, folder: str, reopen: Callable[[Lineage], Awaitable[CommitState]]
    ) -> None:
        super().__init__(state, start, rule)
        self.folder = folder
        self.directory = state.checkpoints.directory(start.task, start.stage.name)
        self.over = asyncio.Event()
        self._reopen = reopen

    @property
    def start(self) -> StageStart:
        """How the checkpoint was prepared."""
        return self._start

    async def run_until_over(self) -> None:
        """Back up on schedule, until the lease or the run has ended, or `over` is set."""
        works = [asyncio.create_task(each) for each in (self.over.wait(), self._poll(), self._run_again())]
        try:
            await asyncio.wait((works[0], works[2]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in works:
                each.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(LOOK.total_seconds())
            with suppress(SluiceError, OSError):  # the next commit shows the error
                self.seen(await self._last_on_disk())

    async def _run_again(self) -> None:
        await asyncio.sleep(LOOK.total_seconds())
        while True:
            try:
                await self.run()
            except (CommitOverdue, Refused) as error:  # a snapshot may be recorded that this one does not know
                log.warning("checkpoint %s was not backed up: %s; it begins again after the newest snapshot", self._start.stage.name, error)
                await self._begin_again()
            except (LeaseLost, StaleRun) as lost:
                log.info("checkpoint %s is not backed up any more: %s", self._start.stage.name, lost)
                return
            except Exception as error:
                known = isinstance(error, SluiceError | OSError)
                log.warning("checkpoint %s was not backed up: %s; retrying", self._start.stage.name, error, exc_info=not known)
                self.failed_with = f"{type(error).__name__}: {error}"
            await asyncio.sleep(RETRY.total_seconds())

    async def _begin_again(self) -> None:
        """Continue after the newest snapshot that the coordinator knows. What blob stores have lost of former ones must still be
        replaced."""
        with suppress(SluiceError, OSError, TimeoutError):
            async with self._one_commit:
                reopened = await self._reopen(self._start.lineage)
                reopened.to_repair |= self._commits.to_repair | self._commits.damaged  # after the wait: it may have changed meanwhile
                reopened.keep_running_batch = self._gate.keep_running_batch
                self._commits = reopened

    async def _until_due(self) -> None:
        """The first batch is backed up at once, and the others at intervals, however many they are."""
        if self._commits.durable_commit is None:
            await self._until_behind()
        else:
            await asyncio.sleep(self._state.policy.interval.total_seconds())

    async def _last_on_disk(self) -> int:
        """No query continues on a checkpoint that a drain flushes, so that it is not backed up."""
        return await self._state.in_thread(lambda: _last_of(self.directory))

    async def durable(self) -> CommitId | None:
        """Make the last batch of a paused query durable. Returns its snapshot; None without blob stores, and if no batch has run. A
        checkpoint whose flush was interrupted has been made durable before. Raises what `commit` raises."""
        if not self._state.destinations.to:
            return None
        await self.finish()
        return self._commits.durable_commit

    async def keep_plan(self, batch: int) -> str:
        """Make what the batch reads durable. Returns why that failed, "" if it did not."""
        try:
            if self._state.destinations.to:
                await self._gate.keep(batch)
        except (SluiceError, OSError) as error:
            return str(error)
        return ""


def _last_of(directory: Path) -> int:
    found = None if (directory / DRAIN_MARKER).exists() else inspect(directory)
    return -1 if found is None else found.committed
