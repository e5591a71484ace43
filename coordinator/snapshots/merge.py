"""Complete the catalog of a restored database: register the snapshots that the blob stores have and the database lacks.

As in a rebuild (`coordinator.snapshots.rebuild`), each complete snapshot that has an index is considered. For each stage, the snapshots are
added that are newer than the newest one in the catalog; older ones were retired or never reported. The stage then continues from its newest
snapshot of the histories from which its job continues. A job that the database does not know is registered as in a rebuild.

Snapshots in the catalog whose index no blob store lists any more are removed from it: they were retired and collected after the copy was
made.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from coordinator.blobpool import BlobStores
from coordinator.snapshots.inventory import is_removed
from coordinator.snapshots.operations import Progress
from coordinator.snapshots.rebuild import FoundSnapshot, RebuiltCatalog, find, rows_of_stage, state_of_stage, write_job
from coordinator.store.fleet import StageStateRow
from coordinator.store.snapshots import SnapshotRow
from coordinator.store.sql import Store, WriteTransaction
from coordinator.transitions import keeping, retirement
from sluice.clock import Clock
from sluice.core.ids import JobName, StageKey
from sluice.core.leases.ownership import TaskOwner

log = logging.getLogger(__name__)

STAGES_PER_TRANSACTION = 100
"""On PostgreSQL a transaction has a time limit, and a job may have 100,000 tasks. Stages do not depend on one another, so a
crash between two transactions is repaired by the repetition. A job that the database does not know is written in one transaction."""


async def complete(store: Store, blob_stores: BlobStores, clock: Clock) -> Mapping[str, int]:
    """Complete the catalog. May be repeated. Returns the number of snapshots that were added and removed. Raises BlobUnavailable,
    BlobStoreUnusable if any blob store cannot be read, and StoreUnavailable; some stages may then be complete."""
    rebuilt = await find(blob_stores, Progress("blobs"), clock.now())
    done: Counter[str] = Counter()
    async with store.read() as tx:
        known = {job: await tx.snapshots.stages(job) for job in await tx.snapshots.jobs()}
    by_job: defaultdict[JobName, dict[StageKey, Sequence[FoundSnapshot]]] = defaultdict(dict)
    for key, found in rebuilt.found.items():
        by_job[key.job][key] = found
    for job in sorted({*by_job, *known}):
        keys = sorted({*by_job[job], *known.get(job, ())}, key=str)
        for first in range(0, len(keys), STAGES_PER_TRANSACTION):
            some = {key: by_job[job].get(key, ()) for key in keys[first : first + STAGES_PER_TRANSACTION]}
            async with store.begin() as tx:
                if await is_removed(tx, job):
                    break
                if by_job[job] and await tx.runs.current(job) is None and not await tx.snapshots.stages(job):
                    done["snapshots"] += await write_job(tx, clock.now(), rebuilt, job)
                    break
                done += await _merge(tx, clock.now(), rebuilt, job, some)
    return dict(done)


async def _merge(
    tx: WriteTransaction, now: datetime, rebuilt: RebuiltCatalog, job: JobName, found: Mapping[StageKey, Sequence[FoundSnapshot]]
) -> Counter[str]:
    """Complete some stages of a job."""
    done: Counter[str] = Counter()
    for key, of_stage in found.items():
        there = rows_of_stage(of_stage)
        known = {row.checkpoint: row for row in await tx.snapshots.of_stage(key)}
        newest_known = max((n for n, row in enumerate(there) if row.checkpoint in known), default=-1)
        added = await _add(tx, now, job, [row for row in there[newest_known + 1 :] if row.checkpoint not in known])
        done["snapshots"] += len(added)
        if added:
            await _continue_from(tx, job, key, there, of_stage)
            await _note_owner(tx, key, there[-1])
            await tx.cleanup.put(retirement(key, now))
        done["removed"] += await _remove_collected(tx, rebuilt, key, list(known.values()))
    return done


async def _add(tx: WriteTransaction, now: datetime, job: JobName, rows: Sequence[SnapshotRow]) -> Sequence[SnapshotRow]:
    last = await tx.snapshots.last_seq(job)
    added = [replace(row, seq=last + n, reported_at=min(row.reported_at, now)) for n, row in enumerate(rows, 1)]
    await tx.snapshots.put_all(added)
    await tx.cleanup.put_all(keeping(row, name, now) for row in added for name in row.markers)
    return added


async def _continue_from(
    tx: WriteTransaction, job: JobName, key: StageKey, rows: Sequence[SnapshotRow], found: Sequence[FoundSnapshot]
) -> None:
    """Make the newest snapshot the head of the stage, if the job continues from its history. Later reports of the same lineage are kept."""
    state = state_of_stage(rows, found, await tx.runs.current(job))
    if not isinstance(state, StageStateRow):
        log.warning("%s does not continue from its newest snapshot, which is of run %s, whose history the job has ended", key, state)
        return
    before = await tx.fleet.stage_state(key)
    if before is None:
        await tx.fleet.put_stage_states([state])
    elif before.lineage != state.lineage:
        await tx.fleet.put_stage_states([replace(state, former=before.lineage, starts=before.starts, late_rows=before.late_rows)])
    elif before.batch_id is not None and (state.batch_id is None or before.batch_id > state.batch_id):
        await tx.fleet.put_stage_states([replace(before, head=state.head, chosen=state.chosen)])
    else:
        await tx.fleet.put_stage_states([replace(state, former=before.former, starts=before.starts, late_rows=before.late_rows)])


async def _note_owner(tx: WriteTransaction, key: StageKey, newest: SnapshotRow) -> None:
    """Record that the task has had a later owner than the one in the database, which therefore no longer owns it."""
    held = await tx.fleet.owner(key.job, key.task)
    if held is not None and held.owner.generation < newest.generation:
        later = TaskOwner(newest.generation, held.owner.holder, released=True)
        await tx.fleet.put_owners([replace(held, owner=later)])


async def _remove_collected(tx: WriteTransaction, rebuilt: RebuiltCatalog, key: StageKey, known: Sequence[SnapshotRow]) -> int:
    state, removed = await tx.fleet.stage_state(key), 0
    for row in known:
        listed = any(marker.index in rebuilt.listed.get(name, ()) for name, marker in row.markers.items())
        looked_for = set(row.markers) <= rebuilt.listed.keys()
        if looked_for and not listed and (state is None or state.head != row.checkpoint):
            await tx.snapshots.drop(key.job, [row.seq])
            removed += 1
    return removed
