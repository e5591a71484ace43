"""Snapshots and pins: rows, columns and SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, and_, bindparam, delete, func, select

from coordinator.store import tables
from coordinator.store.columns import Columns, Reads, Writes, offset_list, offsets_of
from sluice.core.ids import Generation, JobName, Lineage, RunId, Ssp, StageKey, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId


@dataclass(frozen=True, slots=True)
class MarkerRow:
    """A snapshot in one blob store. `kept`: its blobs no longer have a time to live. `puts`: number of requests. `files`, `bytes`: of
    the whole directory. `uploaded_…`: of the new files."""

    index: BlobId
    files: int = 0
    bytes: int = 0
    uploaded_files: int = 0
    uploaded_bytes: int = 0
    puts: int = 0
    kept: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A retained snapshot of a stage. `seq` counts the job's reports. `batch_id`: its last batch; None before the first. `reported_at`: by
    the coordinator's clock."""

    job: JobName
    seq: int
    task: TaskName
    stage: StageName
    checkpoint: CommitId
    lineage: Lineage
    batch_id: int | None
    generation: Generation
    run_id: RunId
    reported_at: datetime
    offsets: Mapping[Ssp, int] = field(default_factory=dict)
    markers: Mapping[BlobStoreName, MarkerRow] = field(default_factory=dict)

    @property
    def key(self) -> StageKey:
        return StageKey(self.job, self.task, self.stage)


@dataclass(frozen=True, slots=True)
class HeadRow:
    """The head of a stage: the snapshot that a restore starts from, and its last batch. `same_lineage`: the stage still has the lineage of
    the snapshot. `chosen`: an operator chose it, and no container has restored it yet."""

    task: TaskName
    stage: StageName
    checkpoint: CommitId
    batch_id: int | None
    same_lineage: bool
    chosen: bool
    reported_at: datetime
    blob_stores: frozenset[BlobStoreName]


@dataclass(frozen=True, slots=True)
class PinRow:
    """Keeps a snapshot regardless of the retention policy until `expires_at` (None: until the pin is deleted). One pin may be on snapshots
    of several stages of a job."""

    pin_id: str
    job: JobName
    task: TaskName
    stage: StageName
    checkpoint: CommitId
    reason: str
    created_at: datetime
    expires_at: datetime | None = None

    @property
    def key(self) -> StageKey:
        return StageKey(self.job, self.task, self.stage)


class SnapshotReads(Reads):
    async def last_seq(self, job: JobName) -> int:
        """The `seq` of the job's newest snapshot; 0 if it has none."""
        newest = select(func.max(tables.snapshots.c.seq)).where(tables.snapshots.c.job == job)
        return int(await self._connection.scalar(newest) or 0)

    async def get(self, key: StageKey, checkpoint: CommitId) -> SnapshotRow | None:
        query = _of_stage(key).where(tables.snapshots.c.checkpoint == checkpoint)
        found = (await self._connection.execute(query)).first()
        return snapshot_row(found) if found else None

    async def of_stage(self, key: StageKey) -> Sequence[SnapshotRow]:
        """All snapshots of a stage, newest first."""
        found = await self._connection.execute(_of_stage(key).order_by(tables.snapshots.c.seq.desc()))
        return [snapshot_row(each) for each in found]

    async def page(
        self, job: JobName, task: TaskName | None, stage: StageName | None, before: int | None, limit: int
    ) -> Sequence[SnapshotRow]:
        """Up to `limit` snapshots of the job, newest first, with a `seq` below `before`. `stage` without `task`: the stage in all tasks."""
        table = tables.snapshots
        query = select(table).where(table.c.job == job).order_by(table.c.seq.desc()).limit(limit)
        if task is not None:
            query = query.where(table.c.task == task)
        if stage is not None:
            query = query.where(table.c.stage == stage)
        if before is not None:
            query = query.where(table.c.seq < before)
        return [snapshot_row(each) for each in await self._connection.execute(query)]

    async def heads(self, job: JobName, task: TaskName | None = None) -> Sequence[HeadRow]:
        """The heads of the stages of a job, or of one task, by task and stage. A stage without a snapshot has none."""
        found, state = tables.snapshots, tables.stores
        same = (state.c.job == found.c.job, state.c.task == found.c.task, state.c.stage == found.c.stage)
        query = (
            select(
                found.c.task,
                found.c.stage,
                found.c.checkpoint,
                found.c.batch_id,
                (found.c.lineage == state.c.lineage).label("same_lineage"),
                state.c.chosen,
                found.c.reported_at,
                found.c.markers,
            )
            .join(state, and_(*same, state.c.head == found.c.checkpoint))
            .where(state.c.job == job, found.c.job == job)
            .order_by(found.c.task, found.c.stage)
        )
        if task is not None:
            query = query.where(state.c.task == task)
        return await self._all(query, _head_row)

    async def jobs(self) -> Sequence[JobName]:
        """The jobs that have snapshots."""
        query = select(tables.snapshots.c.job).distinct().order_by(tables.snapshots.c.job)
        return [JobName(job) for job in await self._connection.scalars(query)]

    async def stages(self, job: JobName) -> Sequence[StageKey]:
        """The stages of the job that have snapshots."""
        table = tables.snapshots
        query = select(table.c.task, table.c.stage).where(table.c.job == job).distinct().order_by(table.c.task, table.c.stage)
        return [StageKey(job, TaskName(found.task), StageName(found.stage)) for found in await self._connection.execute(query)]

    async def runs(self, job: JobName) -> Collection[RunId]:
        """The runs that have reported the job's snapshots."""
        query = select(tables.snapshots.c.run_id).where(tables.snapshots.c.job == job).distinct()
        return {RunId(run_id) for run_id in await self._connection.scalars(query)}

    async def pins(self, job: JobName) -> Sequence[PinRow]:
        """The job's pins, including expired ones."""
        table = tables.pins
        query = select(table).where(table.c.job == job).order_by(table.c.pin_id, table.c.task, table.c.stage)
        return await self._all(query, pin_row)

    async def pins_of(self, key: StageKey) -> Sequence[PinRow]:
        """The pins on snapshots of a stage, including expired ones."""
        table = tables.pins
        query = select(table).where(table.c.job == key.job, table.c.task == key.task, table.c.stage == key.stage).order_by(table.c.pin_id)
        return await self._all(query, pin_row)

    async def pin(self, pin_id: str) -> Sequence[PinRow]:
        """The snapshots that the pin is on."""
        table = tables.pins
        query = select(table).where(table.c.pin_id == pin_id).order_by(table.c.job, table.c.task, table.c.stage)
        return await self._all(query, pin_row)


class SnapshotWrites(SnapshotReads, Writes):
    async def put_all(self, rows: Iterable[SnapshotRow]) -> None:
        await self._put(tables.snapshots, map(snapshot_columns, rows))

    async def drop(self, job: JobName, seqs: Iterable[int]) -> None:
        """Delete the snapshots of the job that have these numbers."""
        table = tables.snapshots
        statement = delete(table).where(table.c.job == bindparam("of_job"), table.c.seq == bindparam("number"))
        await self._for_each(statement, ({"of_job": job, "number": seq} for seq in seqs))

    async def put_pins(self, rows: Iterable[PinRow]) -> None:
        await self._put(tables.pins, map(pin_columns, rows))

    async def drop_pin(self, pin_id: str) -> int:
        """Delete a pin. Returns the number of its snapshots."""
        return (await self._connection.execute(delete(tables.pins).where(tables.pins.c.pin_id == pin_id))).rowcount


def _of_stage(key: StageKey) -> Select[Any]:
    table = tables.snapshots
    return select(table).where(table.c.job == key.job, table.c.task == key.task, table.c.stage == key.stage)


def pin_columns(row: PinRow) -> Columns:
    return {name: getattr(row, name) for name in row.__slots__}


def pin_row(found: Row[Any]) -> PinRow:
    return PinRow(**found._asdict())


def snapshot_columns(row: SnapshotRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    return columns | {"offsets": offset_list(row.offsets), "markers": {name: asdict(marker) for name, marker in row.markers.items()}}


def _head_row(found: Row[Any]) -> HeadRow:
    columns = found._asdict()
    return HeadRow(blob_stores=frozenset(columns.pop("markers")), **columns)


def snapshot_row(found: Row[Any]) -> SnapshotRow:
    markers = {name: MarkerRow(**marker) for name, marker in found.markers.items()}
    return SnapshotRow(**{**found._asdict(), "offsets": offsets_of(found.offsets), "markers": markers})
