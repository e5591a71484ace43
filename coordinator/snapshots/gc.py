"""Garbage collection: list each blob store, mark the blobs that no retained snapshot refers to, and delete them a grace period later.

A pass processes the listing in order, one stage after another, and keeps the references of one stage at a time in memory. It skips stages
of jobs that are not in the database, stages with an unreadable index, and blob stores that another database owns. Skipped blobs are never
deleted, because a leak is better than a loss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby

from coordinator.blobpool import BlobStores
from coordinator.snapshots.inventory import StageSnapshots, is_known, owns_blob_store, stage_snapshots, stages_by_prefix
from coordinator.snapshots.operations import Progress
from coordinator.store.cleanup import MarkedBlobRow
from coordinator.store.sql import Store
from coordinator.waits import DeletionHold
from sluice.blobs.indexes import read_index
from sluice.blobs.port import BlobStore, ListedBlob, Purpose, RequestContext
from sluice.clock import Clock
from sluice.core.errors import CorruptData, SluiceError
from sluice.core.ids import JobName, StageKey, StageName, TaskName
from sluice.core.snapshots.retention import BlobSize, CollectionDecision, References, decide, split
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName

log = logging.getLogger(__name__)

ABOUT = RequestContext(Purpose.COLLECTION)
SHOWN = 50
"""Maximum number of blobs of each kind in a report."""

Pause = Callable[[float], Awaitable[None]]


@dataclass(slots=True)
class BlobSummary:
    """A set of blobs: their number, their bytes, and the first of them."""

    blobs: int = 0
    bytes: int = 0
    first: list[BlobId] = field(default_factory=list)

    def add(self, found: Sequence[BlobSize]) -> None:
        self.blobs += len(found)
        self.bytes += sum(each.size for each in found)
        self.first += [each.blob for each in found[: SHOWN - len(self.first)]]


@dataclass(slots=True)
class CollectionResult:
    """The result of a pass over one blob store. `not_judged`: prefixes of stages that were skipped, and why."""

    blob_store: BlobStoreName
    looked_at: int = 0
    referenced: int = 0
    condemned: BlobSummary = field(default_factory=BlobSummary)
    waiting: BlobSummary = field(default_factory=BlobSummary)
    deleted: BlobSummary = field(default_factory=BlobSummary)
    pardoned: int = 0
    not_judged: dict[str, str] = field(default_factory=dict)

    def count(self, decision: CollectionDecision) -> None:
        self.referenced += decision.referenced
        self.condemned.add(decision.condemn)
        self.waiting.add(decision.wait)
        self.pardoned += len(decision.pardon)


@dataclass(slots=True)
class _Scope:
    """The stage whose blobs are being listed. It is skipped if `references` is None."""

    prefix: str
    known: StageSnapshots | None = None
    references: References | None = None
    why_not: str = ""


@dataclass(slots=True)
class CollectionTotals:
    """Totals of one blob store, since the coordinator started."""

    condemned: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    pardoned: int = 0
    passes: int = 0
    waiting: int = 0
    not_judged: int = 0


class GarbageCollector:
    """Chore: collect garbage. Operators can also request a pass. `pause` sleeps for a number of seconds, to limit deletions to
    `deletes_per_second`. While `hold` is active, garbage is marked but not deleted."""

    name = "collect_garbage"

    def __init__(
        self,
        store: Store,
        blob_stores: BlobStores,
        clock: Clock,
        hold: DeletionHold,
        *,
        grace: timedelta,
        every: timedelta,
        deletes_per_second: float,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.every = every
        self.grace = grace
        self.totals: dict[BlobStoreName, CollectionTotals] = {name: CollectionTotals() for name in blob_stores.names}
        self._store = store
        self._blob_stores = blob_stores
        self._clock = clock
        self._hold = hold
        self._rate = deletes_per_second
        self._pause = pause
        self._passing = asyncio.Lock()

    async def run_once(self) -> Mapping[str, int]:
        found = await self.run(Progress("blobs"), dry=False)
        return {
            what: count
            for what, count in {
                "condemned": sum(each.condemned.blobs for each in found),
                "deleted": sum(each.deleted.blobs for each in found),
                "pardoned": sum(each.pardoned for each in found),
            }.items()
            if count
        }

    async def run(self, progress: Progress, *, dry: bool) -> Sequence[CollectionResult]:
        """Make one pass over all blob stores. Passes do not run concurrently. A dry run writes nothing. If a blob store fails, the others
        are collected, then the error is raised."""
        found, failure = [], None
        async with self._passing:
            for name in self._blob_stores.names:
                try:
                    found.append(await self._pass(name, progress, dry=dry))
                except SluiceError as error:
                    failure = error
        if failure is not None:
            raise failure
        return found

    async def _pass(self, name: BlobStoreName, progress: Progress, *, dry: bool) -> CollectionResult:
        collected, blobs = CollectionResult(name), await self._blob_stores.opened(name)
        if not await owns_blob_store(self._store, name, blobs):
            collected.not_judged["jobs/"] = "another coordinator database owns this blob store: `sluice rebuild` takes it over"
            return collected
        after, scope, totals = "", _Scope(""), self.totals[name]
        async for page in blobs.list("jobs/", ABOUT):
            for prefix, part in groupby(page, key=lambda listed: split(listed.blob)[1]):
                if prefix != scope.prefix:
                    scope = await self._scope(name, prefix, blobs)
                    if scope.references is None:
                        collected.not_judged[prefix or "jobs/"] = scope.why_not
                listed = list(part)
                if scope.references is not None:
                    await self._process(name, blobs, scope, listed, after, collected, dry=dry)
                after = listed[-1].blob
            collected.looked_at += len(page)
            progress.done += len(page)
        if not dry:
            await self._forget(name, after, None, collected)
            self._total(totals, collected)
        return collected

    async def _scope(self, name: BlobStoreName, prefix: str, blobs: BlobStore) -> _Scope:
        if not prefix:
            return _Scope(prefix, why_not="not the prefix of a stage")
        job = JobName(split(BlobId(f"{prefix}x"))[0])
        async with self._store.read() as tx:
            if not await is_known(tx, job):
                return _Scope(prefix, why_not=f"the database has no job {job}: `sluice rebuild` adds it")
            key = (await stages_by_prefix(tx, job)).get(prefix)
            known = StageSnapshots(StageKey(job, TaskName(""), StageName(""))) if key is None else await stage_snapshots(tx, key)
        return await self._with_references(name, _Scope(prefix, known), blobs)

    async def _with_references(self, name: BlobStoreName, scope: _Scope, blobs: BlobStore) -> _Scope:
        assert scope.known is not None
        references, about = scope.known.references(), RequestContext.of_stage(Purpose.COLLECTION, scope.known.key)
        for index in scope.known.indexes(name):
            references.add([index])
            try:
                references.add((await read_index(blobs, index, about)).blobs)
            except CorruptData as error:
                log.error("blob store %s: nothing under %s is collected: %s", name, scope.prefix, error)
                return _Scope(scope.prefix, scope.known, None, str(error))
        return _Scope(scope.prefix, scope.known, references)

    async def _process(
        self,
        name: BlobStoreName,
        blobs: BlobStore,
        scope: _Scope,
        listed: Sequence[ListedBlob],
        after: str,
        collected: CollectionResult,
        *,
        dry: bool,
    ) -> None:
        assert scope.references is not None
        until = listed[-1].blob
        async with self._store.read() as tx:
            condemned = {row.blob: row.marked_at for row in await tx.cleanup.marked(name, after, until)}
        found, now = [BlobSize(each.blob, each.size) for each in listed], self._clock.now()
        decision = decide(found, condemned, scope.references.refer_to, now, self.grace)
        collected.count(decision)
        if dry:
            collected.deleted.add(decision.delete)
            return
        if decision.condemn or decision.pardon:
            async with self._store.begin() as tx:
                again = [each.blob for each in decision.condemn if each.blob in condemned]
                await tx.cleanup.unmark(name, [*decision.pardon, *again])
                await tx.cleanup.mark(MarkedBlobRow(name, each.blob, each.size, now) for each in decision.condemn)
        if decision.delete and not self._hold.active() and await self._unchanged(scope):
            await self._delete(name, blobs, scope, decision.delete, collected)

    async def _unchanged(self, scope: _Scope) -> bool:
        """Whether the stage has no new snapshots or lineage since its references were read. If it has, the next pass decides."""
        assert scope.known is not None
        async with self._store.read() as tx:
            if not scope.known.key.task:
                return scope.prefix not in await stages_by_prefix(tx, scope.known.key.job)
            now = await stage_snapshots(tx, scope.known.key)
        return {each.seq for each in now.snapshots} <= {each.seq for each in scope.known.snapshots} and now.current == scope.known.current

    async def _delete(
        self, name: BlobStoreName, blobs: BlobStore, scope: _Scope, found: Sequence[BlobSize], collected: CollectionResult
    ) -> None:
        assert scope.known is not None
        gone = [each.blob for each in found]
        await blobs.delete(gone, RequestContext.of_stage(Purpose.COLLECTION, scope.known.key))
        async with self._store.begin() as tx:
            await tx.cleanup.unmark(name, gone)
        collected.deleted.add(found)
        await self._pause(len(gone) / self._rate)

    async def _forget(self, name: BlobStoreName, after: str, until: str | None, collected: CollectionResult) -> None:
        """Unmark blobs in this range, which no longer exist."""
        async with self._store.begin() as tx:
            gone = [row.blob for row in await tx.cleanup.marked(name, after, until)]
            await tx.cleanup.unmark(name, gone)
        collected.pardoned += len(gone)

    def _total(self, totals: CollectionTotals, collected: CollectionResult) -> None:
        totals.condemned += collected.condemned.blobs
        totals.deleted += collected.deleted.blobs
        totals.deleted_bytes += collected.deleted.bytes
        totals.pardoned += collected.pardoned
        totals.waiting, totals.not_judged = collected.waiting.blobs, len(collected.not_judged)
        totals.passes += 1
