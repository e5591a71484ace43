"""Rebuild the catalog of a lost database from the blob stores alone, so that each stage continues from its newest snapshot.

The index of a snapshot is uploaded last, so a snapshot with an index was uploaded completely. Snapshots that lack a blob are skipped and
reported.

For each job, its last run is registered as STOPPED, with its history, the owners and baselines of partitions, and start offsets
(`coordinator.snapshots.continuation`). The next deployment of the job with the start "checkpoint" continues that run: each stage restores
its newest snapshot and replays the offset-log entries after it, in the same lineage; unread records of intermediate
streams are read; and partitions of streams that have grown stay with their tasks. Snapshots of Sluice before 0.2 do not contain all this.
A job that has only such snapshots begins a new history, and regroups the partitions of its streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

from coordinator.blobpool import BlobStores
from coordinator.snapshots.continuation import REASON, ContinuedRun, continued_run, of_index
from coordinator.snapshots.inventory import take_ownership
from coordinator.snapshots.operations import Progress
from coordinator.store.fleet import StageStateRow, TaskOwnershipRow
from coordinator.store.jobmodels import ModelRow
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import MarkerRow, SnapshotRow
from coordinator.store.sql import Store, WriteTransaction
from coordinator.transitions import keeping, retirement
from sluice.blobs.indexes import read_index
from sluice.blobs.port import BlobStore, ListedBlob, Purpose, RequestContext
from sluice.clock import Clock
from sluice.core.drain import histories_of_state
from sluice.core.errors import CatalogNotEmpty, CorruptData
from sluice.core.ids import ExecutionContainerId, Generation, JobName, RunId, StageKey, TaskName
from sluice.core.leases.ownership import TaskOwner
from sluice.core.snapshots.retention import BEFORE_ALL, split
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Kind, SnapshotIndex, stage_prefix, walk
from sluice.wire import samza as wire_samza

ABOUT = RequestContext(Purpose.AUDIT)
REBUILT = RunId("rebuilt")
"""The run of snapshots and owners that a rebuild has registered and whose index names no run."""

GENERATION_MARGIN = 1000
"""The next generation of a task exceeds the last known one by this number, because owners that never committed are unknown."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A whole snapshot in one blob store."""

    where: BlobStoreName
    blob: BlobId
    index: SnapshotIndex

    @property
    def key(self) -> StageKey:
        of = self.index.metadata
        return StageKey(of.job, of.task, of.store)


@dataclass(slots=True)
class RebuiltCatalog:
    """What is to be registered. `left_out`: indexes and stages, and why. `found`: the snapshots of each stage; `listed`: all indexes of
    each blob store, also of those that are left out."""

    snapshots: list[SnapshotRow] = field(default_factory=list)
    stores: list[StageStateRow] = field(default_factory=list)
    generations: dict[StageKey, Generation] = field(default_factory=dict)
    runs: dict[JobName, ContinuedRun] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    found: dict[StageKey, list[FoundSnapshot]] = field(default_factory=dict)
    listed: dict[BlobStoreName, set[BlobId]] = field(default_factory=dict)

    @property
    def jobs(self) -> Sequence[JobName]:
        return sorted({*self.runs, *(row.job for row in self.snapshots)})


async def find(blob_stores: BlobStores, progress: Progress, now: datetime) -> RebuiltCatalog:
    """Read all snapshots. Raises BlobUnavailable, BlobStoreUnusable, because with a partial catalog the other blobs would look like
    garbage."""
    rebuilt, found = RebuiltCatalog(), list[FoundSnapshot]()
    for name in blob_stores.names:
        blobs = await blob_stores.opened(name)
        rebuilt.listed[name] = set()
        async for prefix, listed in _stores(blobs):
            progress.done += len(listed)
            found += await _snapshots(name, blobs, prefix, listed, rebuilt)
    by_store: defaultdict[StageKey, list[FoundSnapshot]] = defaultdict(list)
    by_job: defaultdict[JobName, list[SnapshotIndex]] = defaultdict(list)
    for each in found:
        by_store[each.key].append(each)
        by_job[each.key.job].append(each.index)
    rebuilt.found = dict(by_store)
    for job, indexes in sorted(by_job.items()):
        continued = continued_run(job, indexes, now)
        if continued is not None:
            rebuilt.runs[job] = continued
    numbers: defaultdict[JobName, int] = defaultdict(int)
    for key in sorted(by_store, key=lambda key: (key.job, key.task, key.stage)):
        rows = rows_of_stage(by_store[key])
        for row in rows:
            numbers[key.job] += 1
            rebuilt.snapshots.append(replace(row, seq=numbers[key.job]))
        rebuilt.generations[key] = max(row.generation for row in rows)
        continued = rebuilt.runs.get(key.job)
        state = state_of_stage(rows, by_store[key], None if continued is None else continued.run)
        if isinstance(state, StageStateRow):
            rebuilt.stores.append(state)
        else:
            rebuilt.left_out[f"{key}"] = f"its snapshots belong to run {state}, whose history has ended: the stage begins with empty state"
    return rebuilt


def state_of_stage(rows: Sequence[SnapshotRow], found: Sequence[FoundSnapshot], run: RunRow | None) -> StageStateRow | RunId:
    """The state of a stage: that of its newest snapshot of the newest history from which the job's `run` continues. If the stage has a
    newer one, this is restored as one that an operator has chosen: what ran after it was given up. Returns the first run of the newest
    snapshot's history if the job continues from none of them. An index that does not name its history is taken as one of the last."""
    newest = rows[-1]
    history_of = {each.index.metadata.checkpoint: RunId(of.first_run) for each in found if (of := of_index(each.index)) is not None}
    ended = history_of.get(newest.checkpoint)
    if ended is None or run is None:
        return _store(newest)
    for history in histories_of_state(run.first_run, run.kept, newest.stage):
        of_history = [row for row in rows if history_of.get(row.checkpoint) == history]
        if of_history:
            return replace(_store(of_history[-1]), chosen=of_history[-1] is not newest)
    return ended


async def _stores(blobs: BlobStore) -> AsyncIterator[tuple[str, Mapping[BlobId, ListedBlob]]]:
    """The prefix and the blobs of each stage."""
    current, listed = "", dict[BlobId, ListedBlob]()
    async for page in blobs.list("jobs/", ABOUT):
        for prefix, part in groupby(page, key=lambda each: split(each.blob)[1]):
            if prefix != current and listed:
                yield current, listed
                listed = {}
            current = prefix
            if prefix:
                listed |= {each.blob: each for each in part}
    if listed:
        yield current, listed


async def _snapshots(
    name: BlobStoreName, blobs: BlobStore, prefix: str, listed: Mapping[BlobId, ListedBlob], rebuilt: RebuiltCatalog
) -> Sequence[FoundSnapshot]:
    found = []
    for blob in (each for each in listed if each.startswith(f"{prefix}{Kind.SNAPSHOTS}/")):
        rebuilt.listed[name].add(blob)
        try:
            index = await read_index(blobs, blob, ABOUT)
        except CorruptData as error:
            rebuilt.left_out[f"{name}: {blob}"] = str(error)
            continue
        why = _unfit(index, prefix, listed)
        if why:
            rebuilt.left_out[f"{name}: {blob}"] = why
        else:
            found.append(FoundSnapshot(name, blob, index))
    return found


def _unfit(index: SnapshotIndex, prefix: str, listed: Mapping[BlobId, ListedBlob]) -> str:
    of = index.metadata
    if stage_prefix(StageKey(of.job, of.task, of.store)) != prefix:
        return f"its index belongs to {of.job}, {of.task}, {of.store}"
    if index.lineage is None or index.generation is None:
        return "its index has no lineage: Sluice did not write it"
    missing = sorted(index.blobs - listed.keys())
    return f"{len(missing)} of its blobs are missing: {missing[0]}" if missing else ""


def rows_of_stage(found: Iterable[FoundSnapshot]) -> Sequence[SnapshotRow]:
    """The rows of one stage, oldest first: by generation, and under one generation by batch, because the clocks of containers differ and
    jump."""
    by_checkpoint: dict[CommitId, SnapshotRow] = {}
    for each in found:
        row = _row(each)
        known = by_checkpoint.get(row.checkpoint)
        by_checkpoint[row.checkpoint] = row if known is None else replace(known, markers={**known.markers, **row.markers})
    return sorted(by_checkpoint.values(), key=lambda row: (row.generation, _number(row.batch_id), row.reported_at, row.checkpoint))


def _number(batch: int | None) -> int:
    return BEFORE_ALL if batch is None else batch


def _row(found: FoundSnapshot) -> SnapshotRow:
    index = found.index
    assert index.lineage is not None
    assert index.generation is not None
    known = of_index(index)
    return SnapshotRow(
        job=found.key.job,
        seq=0,
        task=found.key.task,
        stage=found.key.stage,
        checkpoint=index.metadata.checkpoint,
        lineage=index.lineage,
        batch_id=index.batch,
        generation=index.generation,
        run_id=REBUILT if known is None else RunId(known.run_id),
        reported_at=EPOCH + timedelta(milliseconds=index.created_millis),
        offsets=index.offsets,
        markers={found.where: MarkerRow(found.blob, sum(1 for _ in walk(index.root)), index.size)},
    )


def _store(newest: SnapshotRow) -> StageStateRow:
    return StageStateRow(
        job=newest.job,
        task=newest.task,
        stage=newest.stage,
        lineage=newest.lineage,
        batch_id=newest.batch_id,
        offsets=newest.offsets,
        generation=newest.generation,
        reported_at=newest.reported_at,
        head=newest.checkpoint,
    )


async def write(store: Store, blob_stores: BlobStores, clock: Clock, rebuilt: RebuiltCatalog, *, force: bool) -> None:
    """Register the result in one transaction, and take the ownership of the blob stores. `force`: first delete the snapshots that are in
    the database. Without `force`, raises CatalogNotEmpty if there are any."""
    async with store.begin() as tx:
        known = await tx.snapshots.jobs()
        if known and not force:
            raise CatalogNotEmpty(f"the database already has snapshots of {', '.join(known[:5])}; use --force to rebuild anyway")
        for job in known:
            await _forget(tx, job)
        for job in rebuilt.jobs:
            await write_job(tx, clock.now(), rebuilt, job)
    for name in blob_stores.names:
        await take_ownership(store, name, await blob_stores.opened(name))


async def _forget(tx: WriteTransaction, job: JobName) -> None:
    await tx.snapshots.drop(job, [row.seq for row in await tx.snapshots.page(job, None, None, None, 1_000_000)])
    await tx.fleet.drop_stage_states(job)


async def write_job(tx: WriteTransaction, now: datetime, rebuilt: RebuiltCatalog, job: JobName) -> int:
    """Register what was found of a job of which the database has no snapshots. Returns the number of its snapshots."""
    continued = rebuilt.runs.get(job)
    if continued is not None and await tx.runs.current(job) is None:
        await _write_run(tx, now, job, continued)
    rows = [row for row in rebuilt.snapshots if row.job == job]
    await tx.snapshots.put_all(replace(row, reported_at=min(row.reported_at, now)) for row in rows)
    await tx.cleanup.put_all(keeping(row, name, now) for row in rows for name in row.markers)
    stores = [each for each in rebuilt.stores if each.job == job]
    await tx.fleet.put_stage_states(stores)
    await tx.cleanup.put_all(retirement(store.key, now) for store in stores)
    await _write_owners(tx, now, rebuilt, job)
    return len(rows)


async def _write_owners(tx: WriteTransaction, now: datetime, rebuilt: RebuiltCatalog, job: JobName) -> None:
    owners = {row.task: row for row in await tx.fleet.owners(job)}
    later: dict[TaskName, TaskOwnershipRow] = {}
    for key, last in ((key, last) for key, last in rebuilt.generations.items() if key.job == job):
        held = later.get(key.task) or owners.get(key.task)
        generation = Generation(last + GENERATION_MARGIN)
        if held is None or held.owner.generation < generation:
            hold = TaskOwner(generation, ExecutionContainerId(str(REBUILT)), released=True)
            later[key.task] = TaskOwnershipRow(job, key.task, REBUILT, hold, now)
    await tx.fleet.put_owners(later.values())


async def _write_run(tx: WriteTransaction, now: datetime, job: JobName, continued: ContinuedRun) -> None:
    run, model = continued.run, continued.model
    document = wire_samza.job_model_bytes(model).decode()
    await tx.jobmodels.add(ModelRow(job, run.model_version, run.run_id, model.content_hash(), now, REASON, "rebuild", document))
    await tx.runs.put(run)
    await tx.runs.put_start_offsets(run.run_id, continued.starts)
    await tx.jobmodels.put_assignment(job, continued.assignment)
