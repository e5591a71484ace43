"""Chore: find lost blobs, by comparing the listing of each blob store with the blobs that retained snapshots need.

The containers of the job's run are notified of the stages that have lost blobs. With its next commit, the owner of the task uploads again
the contents that its disk has (`containers.state.commits.repair`). The notice is of the kind BACKUP.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from coordinator.blobpool import BlobStores
from coordinator.fleet.notices import Notices
from coordinator.store.sql import Store
from coordinator.waits import DeletionHold
from sluice.blobs.indexes import read_index
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.clock import Clock
from sluice.core.errors import BlobMissing, BlobStoreUnusable, BlobUnavailable, CorruptData
from sluice.core.ids import JobName, StageKey
from sluice.core.snapshots.lost import LostBlobs, find_lost
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, Kind, stage_prefix

AT_ONCE = 200
"""Maximum number of stages in one notice."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FindLostBlobs:
    """The result for a blob store that does not answer is that of the last run. Nothing is compared while the database may list snapshots
    that were collected (`hold`)."""

    store: Store
    blob_stores: BlobStores
    notices: Notices
    clock: Clock
    hold: DeletionHold | None = None
    every: timedelta = timedelta(hours=1)
    name: str = "find_lost_blobs"
    found: Mapping[tuple[BlobStoreName, StageKey], LostBlobs | None] = field(default_factory=dict)
    """The lost blobs of each stage in each blob store; None if none are lost."""

    def of_job(self, job: JobName) -> Sequence[LostBlobs]:
        return [each for each in self.found.values() if each is not None and each.key.job == job]

    async def run_once(self) -> Mapping[str, int]:
        if self.hold is not None and self.hold.incomplete:
            return {"held_back": 1}
        async with self.store.read() as tx:
            keys = [key for job in await tx.snapshots.jobs() for key in await tx.snapshots.stages(job)]
        found: dict[tuple[BlobStoreName, StageKey], LostBlobs | None] = {}
        unavailable: BlobUnavailable | BlobStoreUnusable | None = None
        for name in self.blob_stores.names:
            try:
                blobs = await self.blob_stores.opened(name)
                for key in keys:
                    found[name, key] = await self._of_stage(name, blobs, key)
            except (BlobUnavailable, BlobStoreUnusable) as error:
                unavailable = error
                found |= {of: lost for of, lost in self.found.items() if of[0] == name and of not in found}
        for of, lost in found.items():
            if lost is not None and lost != self.found.get(of):
                log.error("%s", lost)
        self.found = found
        await self._request_repairs([each for each in found.values() if each is not None])
        if unavailable is not None:
            raise unavailable
        lost_now = sum(each.blobs for each in found.values() if each is not None)
        return {"lost": lost_now} if lost_now else {}

    async def _request_repairs(self, lost: Sequence[LostBlobs]) -> None:
        """Request a repair from the owners of the tasks, after each comparison that finds a loss: a container may have ended before it
        repaired anything."""
        by_job: defaultdict[JobName, list[Mapping[str, str]]] = defaultdict(list)
        for each in lost:
            by_job[each.key.job].append({"task": each.key.task, "stage": each.key.stage, "blobStore": each.blob_store})
        for job, stages in by_job.items():
            async with self.store.begin() as tx:
                run = await tx.runs.current(job)
                if run is None or run.state.ended:
                    continue
                for first in range(0, len(stages), AT_ONCE):
                    await tx.runs.add_notice(run.run_id, "BACKUP", self.clock.now(), {"lost": stages[first : first + AT_ONCE]})
            self.notices.notify(run.run_id)

    async def _of_stage(self, name: BlobStoreName, blobs: BlobStore, key: StageKey) -> LostBlobs | None:
        """The lost blobs of a stage. The snapshots are read before the blobs are listed, so that all their blobs were uploaded before the
        listing. Raises BlobUnavailable, BlobStoreUnusable."""
        async with self.store.read() as tx:
            rows = [row for row in await tx.snapshots.of_stage(key) if name in row.markers]
        needs = {row.checkpoint: await _needs(blobs, row.markers[name].index, key) for row in rows}
        listed: set[BlobId] = set()
        for kind in (Kind.DATA, Kind.SNAPSHOTS):
            async for page in blobs.list(f"{stage_prefix(key)}{kind}/", RequestContext.of_stage(Purpose.AUDIT, key)):
                listed |= {each.blob for each in page}
        async with self.store.read() as tx:  # blobs of snapshots that were retired in the meantime may have been deleted
            retained = {row.checkpoint for row in await tx.snapshots.of_stage(key)}
        return find_lost(name, key, {checkpoint: need for checkpoint, need in needs.items() if checkpoint in retained}, listed)


async def _needs(blobs: BlobStore, index: BlobId, key: StageKey) -> frozenset[BlobId]:
    """The index and the blobs that it lists. For a damaged index, a name that is in no listing."""
    try:
        return (await read_index(blobs, index, RequestContext.of_stage(Purpose.AUDIT, key))).blobs | {index}
    except BlobMissing:
        return frozenset({index})
    except CorruptData:
        return frozenset({BlobId(f"{index}-damaged")})
