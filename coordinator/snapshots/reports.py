"""The commit point: a report makes an uploaded snapshot valid. Also begins new lineages. Both are compare-and-swap operations, fenced by
the generation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from coordinator.blobpool import BlobStores
from coordinator.fleet.notices import Notices
from coordinator.fleet.report_checks import ReportChecks
from coordinator.fleet.strangers import Strangers
from coordinator.store.fleet import StageStateRow
from coordinator.store.runs import LINEAGE, RunRow
from coordinator.store.snapshots import MarkerRow, SnapshotRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import check_owner, get_run, keeping, retirement
from sluice.clock import Clock
from sluice.core.errors import BadName, SnapshotConflict, StaleRun, UnknownSnapshot, UnknownTask
from sluice.core.ids import Generation, JobName, Lineage, RunId, Ssp, StageKey, StageName, TaskName
from sluice.core.leases.ownership import Committed
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Kind, checked_blob_id, stage_prefix
from sluice.core.waits import age

log = logging.getLogger(__name__)

LONGEST_WHY = 1_000
"""Characters of the reason of a new lineage that are stored."""


@dataclass(frozen=True, slots=True)
class MarkerReport:
    """A reported snapshot in one blob store. `previous`: the index of the snapshot that it follows there."""

    marker: MarkerRow
    previous: BlobId | None


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    generation: Generation
    lineage: Lineage
    batch: int | None
    offsets: Mapping[Ssp, int]
    checkpoint: CommitId
    markers: Mapping[BlobStoreName, MarkerReport]


@dataclass(frozen=True, slots=True)
class Replacement:
    """The index of a snapshot in one blob store, in place of `previous`: of the same files, in blobs of which none is lost."""

    generation: Generation
    checkpoint: CommitId
    blob_store: BlobStoreName
    previous: BlobId
    index: BlobId


class Snapshots:
    """`new_lineage` returns a new id. `newest`: when the newest snapshot of each stage was reported. `stores`: the blob stores that have
    it."""

    def __init__(
        self,
        store: Store,
        blob_stores: BlobStores,
        notices: Notices,
        clock: Clock,
        new_lineage: Callable[[], Lineage],
        checks: ReportChecks,
        strangers: Strangers | None = None,
    ) -> None:
        self._strangers = strangers or Strangers()
        self._store = store
        self._checks = checks
        self._blob_stores = blob_stores
        self._notices = notices
        self._clock = clock
        self._new_lineage = new_lineage
        self.newest: dict[StageKey, datetime] = {}
        self.stores: dict[StageKey, frozenset[BlobStoreName]] = {}
        self._reported: dict[StageKey, float] = {}
        """The same times by the monotonic clock."""

    def age(self, key: StageKey) -> timedelta:
        """The time since the newest snapshot of the stage was reported."""
        return timedelta(seconds=self._clock.elapsed() - self._reported[key])

    def _note(self, key: StageKey, at: datetime, stores: Collection[BlobStoreName]) -> None:
        self.newest[key] = at
        self.stores[key] = frozenset(stores)
        self._reported[key] = self._clock.elapsed() - age(at, self._clock.now()).total_seconds()

    async def reload(self) -> None:
        """Read again what is kept in memory of the database."""
        for known in (self.newest, self.stores, self._reported):
            known.clear()
        await self.recover()

    async def recover(self) -> None:
        """Read from the database when the stages of active runs were last reported."""
        async with self._store.read() as tx:
            for run in await tx.runs.active():
                await self._read(tx, run.job)

    async def look_up(self, job: JobName, stages: Iterable[tuple[TaskName, StageName]]) -> None:
        """Read the newest snapshots of the job from the database if one of these stages is not cached."""
        if any(StageKey(job, *of) not in self.stores for of in stages):
            async with self._store.read() as tx:
                await self._read(tx, job)

    async def _read(self, tx: ReadTransaction, job: JobName) -> None:
        for head in await tx.snapshots.heads(job):
            key = StageKey(job, head.task, head.stage)
            if key not in self.stores:
                self._note(key, head.reported_at, head.blob_stores)

    async def report(self, run_id: RunId, task: TaskName, stage: StageName, report: SnapshotReport) -> SnapshotRow:
        """Make an uploaded snapshot the newest of its stage. Idempotent: a repeated report returns the same row and changes nothing.

        Raises UnknownRun, UnknownTask, LeaseLost, FalseReport, CatalogIncomplete, BlobStoreUnusable and BadName for names in the markers,
        and SnapshotConflict if it does not follow the newest one.
        """
        self._blob_stores.blob_stores_of(list(report.markers), ())
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, report.generation)
            self._strangers.check_catalog()
            key = StageKey(run.job, task, stage)
            _check_places(key, [each.marker.index for each in report.markers.values()])
            row = await get_stage_state(tx, key)
            known = await tx.snapshots.get(key, report.checkpoint)
            if known is not None:
                return _check_repeated(known, report)
            reported = Committed(report.generation, report.lineage, report.batch, report.offsets)
            reported = await self._checks.check(tx, run, task, stage, reported, row, only_own=True)
            report = replace(report, offsets=reported.offsets)
            await _check_order(tx, key, row, report)
            now = self._clock.now()
            made = _snapshot(key, await tx.snapshots.last_seq(run.job) + 1, run_id, report, now)
            await tx.snapshots.put_all([made])
            await tx.origin.note()
            await tx.fleet.put_stage_states([_with_head(row, made)])
            await _queue(tx, made)
        self._note(made.key, made.reported_at, made.markers)
        return made

    async def replace_index(self, run_id: RunId, task: TaskName, stage: StageName, replacement: Replacement) -> SnapshotRow:
        """Give a retained snapshot another index in one blob store. Idempotent.

        Raises UnknownRun, UnknownTask, UnknownSnapshot, LeaseLost, BlobStoreUnusable, BadName, and SnapshotConflict if the snapshot has
        neither of the two indexes there.
        """
        name, index = replacement.blob_store, replacement.index
        self._blob_stores.blob_stores_of([name], ())
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, replacement.generation)
            key = StageKey(run.job, task, stage)
            _check_places(key, [index])
            row = await tx.snapshots.get(key, replacement.checkpoint)
            if row is None or name not in row.markers:
                raise UnknownSnapshot(f"stage {stage} of task {task} has no snapshot {replacement.checkpoint} in blob store {name}")
            marker = row.markers[name]
            if marker.index == index:
                return row
            if marker.index != replacement.previous:
                raise SnapshotConflict(
                    f"in blob store {name} the index of snapshot {row.checkpoint} is {marker.index}, not {replacement.previous}"
                )
            made = replace(row, markers={**row.markers, name: replace(marker, index=index, kept=False)})
            await tx.snapshots.put_all([made])
            await tx.cleanup.put(keeping(made, name, self._clock.now()))
        log.warning(
            "snapshot %s of %s has index %s in blob store %s, which has lost blobs of the former one", row.checkpoint, key, index, name
        )
        return made

    async def new_lineage(
        self,
        run_id: RunId,
        task: TaskName,
        stage: StageName,
        generation: Generation,
        lineage: Lineage,
        why: str,
        checkpoint: CommitId | None = None,
    ) -> Lineage:
        """Begin a lineage at the stage's head snapshot, or with empty state if there is none, because later batches cannot be replayed
        exactly. With `checkpoint`, an older snapshot becomes the head, because no blob store has the current one. Idempotent: a repeated
        request with the former lineage returns the new one.

        Raises UnknownRun, UnknownTask, UnknownSnapshot, LeaseLost, CatalogIncomplete, SnapshotConflict.
        """
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            await check_owner(tx, run, task, generation)
            self._strangers.check_catalog()
            key = StageKey(run.job, task, stage)
            row = await get_stage_state(tx, key)
            if row.former == lineage:
                return row.lineage
            if row.lineage != lineage:
                raise SnapshotConflict(f"stage {stage} of task {task} has lineage {row.lineage}, not {lineage}")
            if checkpoint is not None:
                row = replace(row, head=checkpoint)
            head = None if row.head is None else await tx.snapshots.get(key, row.head)
            if checkpoint is not None and head is None:
                raise UnknownSnapshot(f"stage {stage} of task {task} has no snapshot {checkpoint}: it was deleted, restore another one")
            begun = replace(
                row,
                lineage=self._new_lineage(),
                former=lineage,
                chosen=False,
                batch_id=head.batch_id if head else None,
                offsets=head.offsets if head else {},
                generation=generation,
                reported_at=self._clock.now(),
            )
            await tx.fleet.put_stage_states([begun])
            detail = {"task": task, "stage": stage, "lineage": begun.lineage, "batch": begun.batch_id, "why": why[:LONGEST_WHY]}
            await tx.runs.add_notice(run_id, LINEAGE, self._clock.now(), detail)
        log.warning("stage %s of task %s of job %s begins lineage %s: %s", stage, task, run.job, begun.lineage, why)
        return begun.lineage

    def forget(self, job: JobName) -> None:
        """Remove the data of a deleted job."""
        for known in (self.newest, self.stores):
            for key in [each for each in known if each.job == job]:
                del known[key]

    async def set_backup(self, run_id: RunId, to: tuple[str, ...], restore_from: tuple[str, ...]) -> RunRow:
        """Set the blob stores of the run's containers from their next commit on. Raises UnknownRun, StaleRun, BlobStoreUnusable."""
        document = self._blob_stores.blob_stores_of(to, restore_from).document
        async with self._store.begin() as tx:
            run = await get_run(tx, run_id)
            if run.state.ended:
                raise StaleRun(f"run {run_id} has ended: set it in the configuration of the next one")
            changed = replace(run, backup=document)
            await tx.runs.put(changed)
            await tx.runs.add_notice(run_id, "BACKUP", self._clock.now(), {"stores": list(to), "restoreFrom": list(restore_from)})
        self._notices.notify(run_id)
        return changed


async def get_stage_state(tx: ReadTransaction, key: StageKey) -> StageStateRow:
    """Raises UnknownTask if no container has ever acquired the stage's task."""
    row = await tx.fleet.stage_state(key)
    if row is None:
        raise UnknownTask(f"task {key.task!r} of job {key.job} has no stage {key.stage!r}")
    return row


def _check_places(key: StageKey, indexes: Iterable[BlobId]) -> None:
    under = f"{stage_prefix(key)}{Kind.SNAPSHOTS}/"
    for index in indexes:
        if not checked_blob_id(index).startswith(under):
            raise BadName("snapshot of this stage", index)


def _check_repeated(known: SnapshotRow, report: SnapshotReport) -> SnapshotRow:
    contents = (report.lineage, report.batch, {name: each.marker.index for name, each in report.markers.items()})
    if contents != (known.lineage, known.batch_id, {name: marker.index for name, marker in known.markers.items()}):
        raise SnapshotConflict(f"commit {report.checkpoint} was reported before with other contents: each commit needs a new id")
    return known


async def _check_order(tx: ReadTransaction, key: StageKey, row: StageStateRow, report: SnapshotReport) -> None:
    if row.lineage != report.lineage:
        raise SnapshotConflict(f"stage {key.stage} of task {key.task} has lineage {row.lineage}, not {report.lineage}")
    if row.chosen:
        raise SnapshotConflict(f"an operator chose snapshot {row.head}: restore it and begin a new lineage before the next commit")
    head = None if row.head is None else await tx.snapshots.get(key, row.head)
    if head is not None and head.lineage == report.lineage and _before(report.batch, head.batch_id):
        raise SnapshotConflict(f"the newest snapshot of the stage has batch {head.batch_id}; this one ends with {report.batch}")
    earlier = [] if head is None else [each for each in await tx.snapshots.of_stage(key) if each.seq <= head.seq]
    for name, marked in report.markers.items():
        newest = next((each.markers[name].index for each in earlier if name in each.markers), None)
        optional = head is None or name not in head.markers
        if marked.previous != newest and not (optional and marked.previous is None):
            raise SnapshotConflict(
                f"in blob store {name} the newest snapshot of stage {key.stage} of task {key.task} is {newest}, not {marked.previous}"
            )


def _before(batch: int | None, other: int | None) -> bool:
    return other is not None and (batch is None or batch < other)


def _snapshot(key: StageKey, seq: int, run_id: RunId, report: SnapshotReport, now: datetime) -> SnapshotRow:
    return SnapshotRow(
        job=key.job,
        seq=seq,
        task=key.task,
        stage=key.stage,
        checkpoint=report.checkpoint,
        lineage=report.lineage,
        batch_id=report.batch,
        generation=report.generation,
        run_id=run_id,
        reported_at=now,
        offsets=dict(report.offsets),
        markers={name: each.marker for name, each in report.markers.items()},
    )


def _with_head(row: StageStateRow, made: SnapshotRow) -> StageStateRow:
    row = replace(row, head=made.checkpoint)
    if not _before(row.batch_id, made.batch_id):
        return row
    return replace(row, batch_id=made.batch_id, offsets=made.offsets, generation=made.generation, reported_at=made.reported_at)


async def _queue(tx: WriteTransaction, made: SnapshotRow) -> None:
    for name in made.markers:
        await tx.cleanup.put(keeping(made, name, made.reported_at))
    await tx.cleanup.put(retirement(made.key, made.reported_at))
