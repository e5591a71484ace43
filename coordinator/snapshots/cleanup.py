"""Clean-up after a report, from a queue in the database: remove times to live (TTLs), retire superseded snapshots, and delete offset-log
entries that are no longer needed.

Tasks are idempotent. A task is removed from the queue when it is done, and retried later if it fails. No task waits longer than
LONGEST_PAUSE. A task that is due later was queued under a clock that was ahead, and is executed immediately. This module never deletes
blobs that a snapshot refers to; garbage collection deletes blobs after a grace period.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never

from coordinator.blobpool import BlobStores
from coordinator.snapshots.concurrent import run_all
from coordinator.snapshots.inventory import stage_snapshots
from coordinator.store.cleanup import CleanupKind, CleanupRow, QueueCounts
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import PinRow, SnapshotRow
from coordinator.store.sql import Store, WriteTransaction
from coordinator.waits import DeletionHold
from sluice.blobs.indexes import read_index
from sluice.blobs.port import Purpose, RequestContext
from sluice.clock import Clock
from sluice.core.errors import BlobMissing, BlobStoreUnusable, BlobUnavailable, SluiceError
from sluice.core.ids import JobName, Lineage, RunId, StageKey, TaskName
from sluice.core.jobmodels.spec import JobKind
from sluice.core.snapshots.retention import Retention, SnapshotTime, retained
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, offsets_prefix
from sluice.core.waits import TOLERANCE

log = logging.getLogger(__name__)

FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(minutes=10)
OFFSETS_EVERY = timedelta(minutes=1)
"""Minimum interval between two clean-ups of the offset log of a lineage. Each one lists it."""

AT_ONCE = 8


def pause_after(tries: int) -> timedelta:
    """Delay after this many failures in a row."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * float(2 ** min(tries, 20)))


def pins_at(pins: Sequence[PinRow], now: datetime) -> Mapping[CommitId, Sequence[str]]:
    """The ids of the unexpired pins on each snapshot of a stage. `pins`: of the stage."""
    found: defaultdict[CommitId, list[str]] = defaultdict(list)
    for pin in pins:
        if pin.expires_at is None or pin.expires_at > now:
            found[pin.checkpoint].append(pin.pin_id)
    return found


@dataclass(slots=True)
class CleanUp:
    """Chore. `ttl` is the time to live of uploads: a task that removes it must be done within a third of it. While deletions are on hold,
    only these tasks are done: the others delete something."""

    store: Store
    blob_stores: BlobStores
    clock: Clock
    retention: Retention
    ttl: timedelta
    hold: DeletionHold | None = None
    batch: int = 200
    every: timedelta = timedelta(seconds=1)
    name: str = "clean_up"
    queue: Sequence[QueueCounts] = field(default_factory=tuple)
    """The queue at the start of the last run."""

    @property
    def max_age(self) -> timedelta:
        """Maximum age of a task that removes TTLs."""
        return self.ttl / 3

    def overdue(self, now: datetime) -> bool:
        """Whether a TTL has not been removed for too long, so that blobs of snapshots may expire."""
        return self._overdue(self.queue, now)

    async def is_overdue(self) -> bool:
        """The same, according to the database. `queue` is empty before the first run, and out of date while a run waits for a blob
        store."""
        async with self.store.read() as tx:
            return self._overdue(await tx.cleanup.counts(), self.clock.now())

    def _overdue(self, queue: Sequence[QueueCounts], now: datetime) -> bool:
        return any(each.kind is CleanupKind.KEEP and each.oldest + self.max_age < now for each in queue)

    async def run_once(self) -> Mapping[str, int]:
        only = CleanupKind.KEEP if self.hold is not None and self.hold.active() else None
        async with self.store.read() as tx:
            self.queue = await tx.cleanup.counts()
            now = self.clock.now()
            ahead = now + LONGEST_PAUSE + TOLERANCE
            due = [*await tx.cleanup.due(now, self.batch, only), *await tx.cleanup.due_after(ahead, self.batch, only)]
        by_store: defaultdict[BlobStoreName, list[CleanupRow]] = defaultdict(list)
        for item in due:
            by_store[item.blob_store].append(item)
        done: defaultdict[str, int] = defaultdict(int)
        await run_all(self._all(items, done) for items in by_store.values())
        if self.overdue(self.clock.now()):
            log.error("could not remove the time to live of snapshots for %s: their blobs may expire", self.max_age)
        return dict(done)

    async def _all(self, items: Sequence[CleanupRow], done: defaultdict[str, int]) -> None:
        """The tasks of one blob store. While it is unavailable, only the first ones are tried."""
        for first in range(0, len(items), AT_ONCE):
            of_stores: defaultdict[tuple[str, str, str], list[CleanupRow]] = defaultdict(list)
            for item in items[first : first + AT_ONCE]:
                of_stores[item.job, item.task, item.stage].append(item)
            found = [each for some in await asyncio.gather(*map(self._in_turn, of_stores.values())) for each in some]
            for item, error in found:
                done[item.kind.value if error is None else "put_off"] += 1
            away = next((error for _, error in found if isinstance(error, BlobUnavailable | BlobStoreUnusable)), None)
            if away is not None:
                for item in items[first + AT_ONCE :]:
                    await self._postpone(item, away)
                return

    async def _in_turn(self, items: Sequence[CleanupRow]) -> Sequence[tuple[CleanupRow, SluiceError | None]]:
        """The tasks of one stage, in order, because the next snapshot may share blobs whose TTL the first has removed."""
        return [(item, await self._one(item)) for item in items]

    async def _one(self, item: CleanupRow) -> SluiceError | None:
        try:
            await self._do(item)
        except SluiceError as error:
            if str(error)[:1000] != item.error:
                log.warning(
                    "%s %s in blob store %s failed and will be tried again: %s", item.kind.value, item.subject, item.blob_store, error
                )
            await self._postpone(item, error)
            return error
        async with self.store.begin() as tx:
            await tx.cleanup.drop(item)
        return None

    async def _postpone(self, item: CleanupRow, error: SluiceError) -> None:
        async with self.store.begin() as tx:
            known = await tx.cleanup.queued(item)
            if known is not None and known.queued_at == item.queued_at:
                now = self.clock.now()
                later, queued_at = now + pause_after(item.tries), min(known.queued_at, now)
                await tx.cleanup.put(replace(known, queued_at=queued_at, due_at=later, tries=item.tries + 1, error=str(error)[:1000]))

    async def _do(self, item: CleanupRow) -> None:
        key = item.stage_key
        match item.kind:
            case CleanupKind.KEEP:
                await self._keep(item, key)
            case CleanupKind.RETIRE:
                async with self.store.begin() as tx:
                    await retire(tx, key, self.retention, self.clock.now())
            case CleanupKind.OFFSETS:
                await self._drop_plans(item, key)
            case _:
                assert_never(item.kind)

    async def _keep(self, item: CleanupRow, key: StageKey) -> None:
        """Remove the TTL of a snapshot's blobs, except those of the previous snapshot if their TTL was already removed."""
        index_blob, where = BlobId(item.subject), item.blob_store
        async with self.store.read() as tx:
            rows = await tx.snapshots.of_stage(key)
        row = _marked(rows, where, index_blob)
        if row is None:
            return  # retired since, so its blobs may expire
        blobs, about = await self.blob_stores.opened(where), RequestContext.of_stage(Purpose.CLEANUP, key)
        try:
            index = await read_index(blobs, index_blob, about)
        except BlobMissing:
            if any(where in later.markers for later in rows if later.seq > row.seq):
                return  # it is lost, and the stage has been backed up again since
            raise
        wanted = index.blobs
        former = None if index.previous is None else _marked(rows, where, index.previous)
        if former is not None and former.markers[where].kept:
            with suppress(BlobMissing):
                wanted -= (await read_index(blobs, former.markers[where].index, about)).blobs
        for blob in (*sorted(wanted), index_blob):
            await blobs.remove_ttl(blob, about)
        async with self.store.begin() as tx:
            row = await tx.snapshots.get(key, row.checkpoint)
            if row is not None and row.markers[where].index == index_blob:  # else a repair has replaced it, and queued the new one
                kept = replace(row.markers[where], kept=True)
                await tx.snapshots.put_all([replace(row, markers={**row.markers, where: kept})])

    async def _drop_plans(self, item: CleanupRow, key: StageKey) -> None:
        """Delete the offset-log entries that the catalog no longer needs; it may have changed since the item was queued."""
        lineage = Lineage(item.subject.rstrip("/").rpartition("/")[2])
        async with self.store.read() as tx:
            known = await stage_snapshots(tx, key)
        needed = known.references()
        blobs, about = await self.blob_stores.opened(item.blob_store), RequestContext.of_stage(Purpose.CLEANUP, key)
        async for page in blobs.list(offsets_prefix(key, lineage), about):
            gone = [each.blob for each in page if not needed.refer_to(each.blob)]
            if gone:
                await blobs.delete(gone, about)
            if len(gone) < len(page):
                return  # entries are listed in the order of their batches


def _marked(rows: Sequence[SnapshotRow], where: BlobStoreName, index: BlobId) -> SnapshotRow | None:
    return next((row for row in rows if where in row.markers and row.markers[where].index == index), None)


async def retire(tx: WriteTransaction, key: StageKey, retention: Retention, now: datetime) -> int:
    """Delete the snapshots of a stage that are no longer retained. Returns their number. Blobs that only they referred to become
    garbage."""
    rows = await tx.snapshots.of_stage(key)
    store = await tx.fleet.stage_state(key)
    stay = retained(
        [SnapshotTime(row.checkpoint, row.reported_at) for row in rows],
        retention,
        store.head if store else None,
        pins_at(await tx.snapshots.pins_of(key), now),
    )
    gone = [row for row in rows if row.checkpoint not in stay]
    await tx.snapshots.drop(key.job, [row.seq for row in gone])
    touched = {row.lineage for row in rows if row in gone or (store is not None and row.lineage == store.lineage)}
    for lineage in sorted(touched):
        for where in sorted({name for row in rows for name in row.markers}):
            await _queue_offsets(tx, key, lineage, where, now)
    return len(gone)


async def _queue_offsets(tx: WriteTransaction, key: StageKey, lineage: Lineage, where: BlobStoreName, now: datetime) -> None:
    prefix = offsets_prefix(key, lineage)
    item = CleanupRow(CleanupKind.OFFSETS, where, prefix, key.job, key.task, key.stage, now, now + OFFSETS_EVERY)
    known = await tx.cleanup.queued(item)
    await tx.cleanup.put(item if known is None else replace(item, due_at=known.due_at, tries=known.tries))


@dataclass(frozen=True, slots=True)
class _AssignedTasks:
    """The tasks in a job's assignment. `of`: the run and the version of its job model."""

    of: tuple[RunId, int]
    tasks: Collection[TaskName]


@dataclass(frozen=True, slots=True)
class RetireStores:
    """Chore: retire the snapshots of stages and tasks that a job no longer has, once `after` has passed, and apply the retention policy to
    all others again, because pins expire and hours pass. Pinned snapshots are kept."""

    store: Store
    clock: Clock
    hold: DeletionHold
    after: timedelta
    retention: Retention
    every: timedelta = timedelta(minutes=10)
    name: str = "retire_stores"

    async def run_once(self) -> Mapping[str, int]:
        if self.hold.active():
            return {"held_back": 1}
        async with self.store.read() as tx:
            keys = [key for job in await tx.snapshots.jobs() for key in await tx.snapshots.stages(job)]
        done: defaultdict[str, int] = defaultdict(int)
        read: dict[JobName, _AssignedTasks] = {}
        for key in keys:
            async with self.store.begin() as tx:
                if await self._gone(tx, key, read):
                    done["stores"] += 1
                    await self._drop(tx, key)
                else:
                    done["snapshots"] += await retire(tx, key, self.retention, self.clock.now())
        return {what: count for what, count in done.items() if count}

    async def _gone(self, tx: WriteTransaction, key: StageKey, read: dict[JobName, _AssignedTasks]) -> bool:
        run = await tx.runs.current(key.job)
        hold = await tx.fleet.owner(key.job, key.task)
        if run is None or run.created_at + self.after > self.clock.now() or (hold is not None and not hold.owner.released):
            return False
        if run.spec.kind is JobKind.ATTACHED:  # a drain gives checkpoints up, and the next run opens those that its script uses
            return await tx.fleet.stage_state(key) is None
        if key.stage not in run.spec.stage_names:
            return True
        return key.task not in await self._assigned(tx, run, read)

    async def _assigned(self, tx: WriteTransaction, run: RunRow, read: dict[JobName, _AssignedTasks]) -> Collection[TaskName]:
        """The tasks of the job. They are kept in `read`, because an assignment has a row for each partition, and changes only with the
        model."""
        known = read.get(run.job)
        if known is None or known.of != (run.run_id, run.model_version):
            tasks = frozenset((await tx.jobmodels.assignment(run.job)).tasks.values())
            known = read[run.job] = _AssignedTasks((run.run_id, run.model_version), tasks)
        return known.tasks

    async def _drop(self, tx: WriteTransaction, key: StageKey) -> None:
        pinned = pins_at(await tx.snapshots.pins_of(key), self.clock.now())
        rows = await tx.snapshots.of_stage(key)
        await tx.snapshots.drop(key.job, [row.seq for row in rows if row.checkpoint not in pinned])
        store = await tx.fleet.stage_state(key)
        if store is not None:
            await tx.fleet.drop_stage_states(key.job, [key])
            log.warning("stage %s of task %s is no longer in job %s: its snapshots are retired", key.stage, key.task, key.job)


@dataclass(frozen=True, slots=True)
class SweepExpired:
    """Chore: delete unreported uploads whose time to live has passed, in blob stores that do not do so themselves. Suspended while the
    removal of TTLs is overdue, and while deletions are on hold."""

    blob_stores: BlobStores
    clean_up: CleanUp
    clock: Clock
    hold: DeletionHold
    batch: int = 1000
    rounds: int = 20
    every: timedelta = timedelta(minutes=5)
    name: str = "sweep_expired"

    async def run_once(self) -> Mapping[str, int]:
        if self.hold.active() or await self.clean_up.is_overdue():
            return {"held_back": 1}
        found = await asyncio.gather(*(self._sweep(name) for name in self.blob_stores.names), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        swept = sum(each for each in found if isinstance(each, int))
        return {"swept": swept} if swept else {}

    async def _sweep(self, name: BlobStoreName) -> int:
        blobs, swept = await self.blob_stores.opened(name), 0
        for _ in range(self.rounds):
            count = await blobs.sweep_expired(self.clock.now(), self.batch)
            swept += count
            if count < self.batch:
                break
        return swept
