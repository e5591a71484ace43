"""Warm standby: copies, on this disk, of the newest snapshots of tasks that other slots run. When such a task fails over to this slot, only
the difference must be fetched. The coordinator decides which slot copies which tasks (`sluice.core.jobmodels.placement`).

The container's own tasks do not depend on the copies, and need the disk more: a copy that does not fit is not fetched."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from containers.errors import DiskFull
from containers.state.context import StateContext
from containers.state.copies import CopyKey
from containers.state.diff import Identity
from containers.state.files import LocalFiles
from containers.state.meters import CopyMeter
from containers.state.recovery.restore import Restored
from sluice.core.errors import BlobMissing, SluiceError, Unavailable
from sluice.core.ids import ExecutionContainerId, Instant, StageKey, StageName, TaskName
from sluice.core.snapshots.fingerprint import Fingerprint
from sluice.core.snapshots.snapshot import BlobId, CommitId
from sluice.wire.jobmodels import StandbyCopy

log = logging.getLogger(__name__)

PAUSE_WHEN_FULL = timedelta(minutes=10)
"""How long a copy for which the disk has no room is not tried again."""


class CachedFingerprints(LocalFiles):
    """Caches the fingerprints of files that only this process writes. Fingerprints that the last restore did not need are dropped."""

    def __init__(self) -> None:
        self._before: dict[Identity, Fingerprint] = {}
        self._now: dict[Identity, Fingerprint] = {}

    def next_restore(self) -> None:
        """Prepare for another restore."""
        self._before, self._now = self._now, {}

    def fingerprint(self, path: Path, identity: Identity) -> Fingerprint:
        found = self._before.get(identity) or super().fingerprint(path, identity)
        self._now[identity] = found
        return found


@dataclass
class _Copy:
    checkpoint: CommitId | None = None
    files: CachedFingerprints = field(default_factory=CachedFingerprints)
    meter: CopyMeter = field(default_factory=CopyMeter)
    failure: str = ""
    not_before: Instant | None = None


class Standby:
    """The standby copies of one container. Used on the agent's loop."""

    def __init__(self, state: StateContext, execution_id: ExecutionContainerId, every: timedelta) -> None:
        self._state = state
        self._execution_id = execution_id
        self._every = every
        self._copies: dict[CopyKey, _Copy] = {}

    @property
    def meters(self) -> dict[CopyKey, CopyMeter]:
        return {of: copy.meter for of, copy in self._copies.items()}

    async def run(self) -> NoReturn:
        """Update the copies until cancelled. Errors are logged, and the update is repeated: the container's own tasks do not depend on the
        copies."""
        while True:
            try:
                await self.update()
            except SluiceError as error:
                log.warning("standby copies are not updated: %s", error)
            except OSError as error:
                log.warning("standby copies are not updated: %s: %s", error.filename, error.strerror)
            await asyncio.sleep(self._every.total_seconds())

    async def update(self) -> None:
        """Update every copy to the newest snapshot, and remove copies that are no longer needed. Raises DiskUnwritable, OSError, and what
        the coordinator raises."""
        state = self._state
        reply = await state.coordinator.standby(state.run_id, self._execution_id)
        wanted = {(TaskName(each.task), StageName(each.stage)): each for each in reply.copies}
        for task in {of[0] for of in wanted}:
            state.copies.forget(task)
        if not (wanted or self._copies) or not await state.in_thread(state.copies.lock):
            return
        self._copies = {of: self._copies.get(of, _Copy()) for of in wanted}
        keep = {of[0] for of in wanted} | set(map(TaskName, reply.own))
        await state.in_thread(lambda: state.copies.keep_only(keep))
        for of, each in wanted.items():
            try:
                await self._update_copy(of, each)
            except Unavailable:
                raise
            except SluiceError as error:  # such as a damaged snapshot, which does not affect the other copies
                self._say_failed(of, str(error))

    def _say_failed(self, of: CopyKey, why: str) -> None:
        """Log why a copy is not updated, once for each cause."""
        if self._copies[of].failure != why:
            log.warning("the standby copy of %s/%s is not updated: %s", *of, why)
        self._copies[of].failure = why

    async def _update_copy(self, of: CopyKey, wanted: StandbyCopy) -> None:
        copy, checkpoint = self._copies[of], CommitId(wanted.snapshot.checkpoint_id)
        if copy.checkpoint == checkpoint or (copy.not_before is not None and self._state.clock.elapsed() < copy.not_before):
            return
        try:
            restored = await self._state.copies.write(of, self._fetch(of, copy, wanted))
        except BlobMissing as error:  # a newer snapshot has replaced it
            copy.meter.transfers.failed += 1
            log.info("the standby copy of %s/%s will be updated later: %s", *of, error)
            return
        except DiskFull as error:  # others may fit, and the tasks of this container need what becomes free
            copy.meter.transfers.failed += 1
            copy.not_before = Instant(self._state.clock.elapsed() + PAUSE_WHEN_FULL.total_seconds())
            self._say_failed(of, f"{error}; the next attempt is in {PAUSE_WHEN_FULL}")
            return
        except SluiceError:
            copy.meter.transfers.failed += 1
            raise
        if restored is not None:
            copy.checkpoint, copy.failure = checkpoint, ""
            copy.meter.batch, copy.meter.at = wanted.snapshot.batch_id, self._state.clock.now()
            log.debug("the standby copy of %s/%s is at snapshot %s: %s", *of, checkpoint, restored)

    async def _fetch(self, of: CopyKey, copy: _Copy, wanted: StandbyCopy) -> Restored | None:
        """Fetch a copy. None if no blob store that this run restores from has the snapshot."""
        state, directory = self._state, self._state.copies.directory(of)
        for name, blobs in state.destinations.restore_from.items():
            index = wanted.snapshot.markers.get(name)
            if index is None:
                continue
            began = state.clock.elapsed()
            local = await state.in_thread(lambda: state.copies.usable(of))
            copy.files.next_restore()
            try:
                restorer = state.copier(blobs, StageKey(state.job, *of), copy.meter.transfers, copy.files)
                restored = await restorer.restore(BlobId(index), directory, local)
            finally:
                copy.meter.transfers.end()
            copy.meter.transfers.seconds.add(state.clock.elapsed() - began)
            return restored
        return None
