"""The store in memory: the same port, for tests."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from coordinator.store.drains import DrainRow, DrainStageRow
from coordinator.store.jobmodels import ModelHead, ModelRow, WatchedRow
from coordinator.store.port import (
    ContainerRow,
    ContainerState,
    JobRow,
    NoticeRow,
    Reading,
    RunRow,
    StoreRow,
    Tally,
    TaskOwnershipRow,
    Writing,
)
from coordinator.store.snapshots import CleanupKind, CleanupRow, CondemnedRow, PinRow, QueueTally, SnapshotRow
from sluice.core.drain import DrainId, Phase, Step
from sluice.core.grouping import Previous
from sluice.core.ids import ExecutionContainerId, JobName, ProcessorId, RunId, Ssp, StageKey, StageName, TaskName
from sluice.core.snapshot import BlobId, BlobStoreName, CommitId

_Row = TypeVar("_Row")


def in_utc(row: _Row) -> _Row:
    """A copy of the row that shares nothing with its writer, its times in UTC."""
    copied = deepcopy(row)
    times = {name: at.astimezone(UTC) for name in row.__slots__ if isinstance(at := getattr(row, name), datetime)}  # type: ignore[attr-defined]
    return replace(copied, **times)  # type: ignore[type-var]


@dataclass(slots=True)
class BackupRows:
    """All rows, by their keys."""

    snapshots: dict[tuple[JobName, int], SnapshotRow] = field(default_factory=dict)
    pins: dict[tuple[str, JobName, TaskName, StageName], PinRow] = field(default_factory=dict)
    cleanups: dict[tuple[CleanupKind, BlobStoreName, str], CleanupRow] = field(default_factory=dict)
    condemned: dict[tuple[BlobStoreName, BlobId], CondemnedRow] = field(default_factory=dict)
    registries: dict[BlobStoreName, str] = field(default_factory=dict)

    def copy(self) -> BackupRows:
        """Tables of their own; the rows in them are values and shared."""
        return BackupRows(**{name: dict(getattr(self, name)) for name in self.__slots__})


class MemoryBackupReading:
    """Reads of one transaction."""

    def __init__(self, backups: BackupRows) -> None:
        self._backups = backups

    async def newest_snapshot(self, job: JobName) -> int:
        return max((seq for of, seq in self._backups.snapshots if of == job), default=0)

    async def snapshot(self, store: StageKey, checkpoint: CommitId) -> SnapshotRow | None:
        return next((row for row in await self.snapshots_of(store) if row.checkpoint == checkpoint), None)

    async def snapshots_of(self, store: StageKey) -> Sequence[SnapshotRow]:
        return self._newest_first(lambda row: StageKey(row.job, row.task, row.stage) == store)

    async def snapshots(
        self, job: JobName, task: TaskName | None, stage: StageName | None, before: int | None, limit: int
    ) -> Sequence[SnapshotRow]:
        def wanted(row: SnapshotRow) -> bool:
            return row.job == job and task in (None, row.task) and stage in (None, row.stage) and (before is None or row.seq < before)

        return self._newest_first(wanted)[:limit]

    def _newest_first(self, wanted: Callable[[SnapshotRow], bool]) -> list[SnapshotRow]:
        return sorted((row for row in self._backups.snapshots.values() if wanted(row)), key=lambda row: row.seq, reverse=True)

    async def snapshot_jobs(self) -> Sequence[JobName]:
        return sorted({job for job, _ in self._backups.snapshots})

    async def snapshot_stores(self, job: JobName) -> Sequence[StageKey]:
        found = {(row.task, row.stage) for row in self._backups.snapshots.values() if row.job == job}
        return [StageKey(job, task, stage) for task, stage in sorted(found)]

    async def pins(self, job: JobName) -> Sequence[PinRow]:
        return [row for _, row in sorted(self._backups.pins.items()) if row.job == job]

    async def pin(self, pin_id: str) -> Sequence[PinRow]:
        return [row for _, row in sorted(self._backups.pins.items()) if row.pin_id == pin_id]

    async def cleanups(self, due: datetime, limit: int) -> Sequence[CleanupRow]:
        found = [row for row in self._backups.cleanups.values() if row.due_at <= due]
        return sorted(found, key=lambda row: (row.due_at, *row.key))[:limit]

    async def cleanup(self, like: CleanupRow) -> CleanupRow | None:
        return self._backups.cleanups.get(like.key)

    async def cleanup_tally(self) -> Sequence[QueueTally]:
        by_kind: defaultdict[CleanupKind, list[CleanupRow]] = defaultdict(list)
        for row in self._backups.cleanups.values():
            by_kind[row.kind].append(row)
        return [
            QueueTally(kind, len(found), min(row.queued_at for row in found), sum(1 for row in found if row.tries))
            for kind, found in sorted(by_kind.items())
        ]

    async def condemned(self, blob_store: BlobStoreName, after: str, until: str | None) -> Sequence[CondemnedRow]:
        kept = sorted(self._backups.condemned.items())
        return [row for (where, blob), row in kept if where == blob_store and blob > after and (until is None or blob <= until)]

    async def registry(self, blob_store: BlobStoreName) -> str | None:
        return self._backups.registries.get(blob_store)


class MemoryBackupWriting(MemoryBackupReading):
    """Reads and writes of one transaction."""

    async def put_snapshot(self, row: SnapshotRow) -> None:
        self._backups.snapshots[row.job, row.seq] = in_utc(row)

    async def drop_snapshot(self, job: JobName, seq: int) -> None:
        self._backups.snapshots.pop((job, seq), None)

    async def put_pin(self, row: PinRow) -> None:
        self._backups.pins[row.pin_id, row.job, row.task, row.stage] = in_utc(row)

    async def drop_pin(self, pin_id: str) -> int:
        gone = [key for key in self._backups.pins if key[0] == pin_id]
        for key in gone:
            del self._backups.pins[key]
        return len(gone)

    async def put_cleanup(self, row: CleanupRow) -> None:
        self._backups.cleanups[row.key] = in_utc(row)

    async def drop_cleanup(self, row: CleanupRow) -> None:
        known = self._backups.cleanups.get(row.key)
        if known is not None and known.queued_at == row.queued_at:
            del self._backups.cleanups[row.key]

    async def condemn(self, condemned: Iterable[CondemnedRow]) -> None:
        for row in condemned:
            self._backups.condemned.setdefault((row.blob_store, row.blob), in_utc(row))

    async def pardon(self, blob_store: BlobStoreName, blobs: Collection[BlobId]) -> None:
        for blob in blobs:
            self._backups.condemned.pop((blob_store, blob), None)

    async def put_registry(self, blob_store: BlobStoreName, registry: str) -> None:
        self._backups.registries[blob_store] = registry


@dataclass(slots=True)
class DrainRows:
    """All rows, by their keys."""

    drains: dict[DrainId, DrainRow] = field(default_factory=dict)
    stages: dict[tuple[DrainId, TaskName, StageName], DrainStageRow] = field(default_factory=dict)

    def copy(self) -> DrainRows:
        """Tables of their own; the rows in them are values and shared."""
        return DrainRows(dict(self.drains), dict(self.stages))


class MemoryDrainReading:
    """Reads of one transaction."""

    _drains: DrainRows

    async def drain(self, drain_id: DrainId) -> DrainRow | None:
        return self._drains.drains.get(drain_id)

    async def newest_drain(self, run_id: RunId) -> DrainRow | None:
        return max((row for row in self._drains.drains.values() if row.run_id == run_id), key=lambda row: row.seq, default=None)

    async def last_drained(self, job: JobName) -> DrainRow | None:
        return next((row for row in self._drains_of(job) if row.phase is Phase.DRAINED), None)

    async def drains(self, job: JobName, before: int | None, limit: int) -> Sequence[DrainRow]:
        return [row for row in self._drains_of(job) if before is None or row.seq < before][:limit]

    def _drains_of(self, job: JobName) -> Sequence[DrainRow]:
        return sorted((row for row in self._drains.drains.values() if row.job == job), key=lambda row: row.seq, reverse=True)

    async def active_drains(self) -> Sequence[DrainRow]:
        return sorted((row for row in self._drains.drains.values() if row.ended_at is None), key=lambda row: (row.job, row.seq))

    async def failed_flushes(self, job: JobName) -> Sequence[DrainId]:
        return [row.drain_id for row in reversed(self._drains_of(job)) if row.phase is Phase.FAILED and row.flushing_at is not None]

    async def drain_outcomes(self) -> Mapping[Phase, int]:
        return Counter(row.phase for row in self._drains.drains.values())

    async def drain_stages(self, drain_id: DrainId) -> Sequence[DrainStageRow]:
        return [row for key, row in sorted(self._drains.stages.items()) if key[0] == drain_id]

    async def drain_stage(self, drain_id: DrainId, task: TaskName, stage: StageName) -> DrainStageRow | None:
        return self._drains.stages.get((drain_id, task, stage))

    async def drain_tally(self, drain_id: DrainId) -> Mapping[Step, int]:
        return Counter(row.step for row in self._drains.stages.values() if row.drain_id == drain_id)

    async def lowest_step(self, drain_id: DrainId) -> Step:
        return min((row.step for row in self._drains.stages.values() if row.drain_id == drain_id), default=Step.COMMITTED)

    async def is_behind(self, drain_id: DrainId, stage: StageName, step: Step) -> bool:
        return any(row.step < step for row in self._drains.stages.values() if (row.drain_id, row.stage) == (drain_id, stage))


class MemoryDrainWriting(MemoryDrainReading):
    """Reads and writes of one transaction."""

    async def put_drain(self, row: DrainRow) -> None:
        self._drains.drains[row.drain_id] = in_utc(row)

    async def put_drain_stages(self, rows: Iterable[DrainStageRow]) -> None:
        for row in rows:
            self._drains.stages[row.drain_id, row.task, row.stage] = in_utc(row)


@dataclass(slots=True)
class VersionRows:
    """All rows, by their keys."""

    models: dict[tuple[JobName, int], ModelRow] = field(default_factory=dict)
    watched: dict[JobName, tuple[WatchedRow, ...]] = field(default_factory=dict)

    def copy(self) -> VersionRows:
        """Tables of their own; the rows in them are values and shared."""
        return VersionRows(dict(self.models), dict(self.watched))


class MemoryVersionReading:
    """Reads of one transaction."""

    _versions: VersionRows

    async def model(self, job: JobName, version: int | None = None) -> ModelRow | None:
        newest = max((v for j, v in self._versions.models if j == job), default=0)
        return self._versions.models.get((job, newest if version is None else version))

    async def models(self, job: JobName, before: int | None, limit: int) -> Sequence[ModelHead]:
        found = [row for (of, version), row in self._versions.models.items() if of == job and (before is None or version < before)]
        newest_first = sorted(found, key=lambda row: row.version, reverse=True)[:limit]
        return [ModelHead(**{each.name: getattr(row, each.name) for each in fields(ModelHead)}) for row in newest_first]

    async def watched(self, job: JobName) -> Sequence[WatchedRow]:
        return sorted(self._versions.watched.get(job, ()), key=lambda row: row.stream_id)


class MemoryVersionWriting(MemoryVersionReading):
    """Reads and writes of one transaction."""

    async def add_model(self, row: ModelRow) -> None:
        self._versions.models[row.job, row.version] = in_utc(row)

    async def put_watched(self, job: JobName, watched: Collection[WatchedRow]) -> None:
        self._versions.watched[job] = tuple(map(in_utc, watched))


_STANDING = (ContainerState.LIVE, ContainerState.REPLACED)


@dataclass(slots=True)
class _Rows:
    """All rows, by their keys."""

    runs: dict[RunId, RunRow] = field(default_factory=dict)
    current: dict[JobName, RunId] = field(default_factory=dict)
    assignments: dict[JobName, Previous] = field(default_factory=dict)
    starts: dict[RunId, dict[Ssp, int]] = field(default_factory=dict)
    containers: dict[ExecutionContainerId, ContainerRow] = field(default_factory=dict)
    holds: dict[tuple[JobName, TaskName], TaskOwnershipRow] = field(default_factory=dict)
    stores: dict[tuple[JobName, TaskName, StageName], StoreRow] = field(default_factory=dict)
    notices: dict[RunId, tuple[NoticeRow, ...]] = field(default_factory=dict)
    backups: BackupRows = field(default_factory=BackupRows)
    drains: DrainRows = field(default_factory=DrainRows)
    versions: VersionRows = field(default_factory=VersionRows)

    def copy(self) -> _Rows:
        """Tables of their own; the rows in them are values and shared."""
        apart = ("backups", "drains", "versions")
        copied = {name: dict(getattr(self, name)) for name in self.__slots__ if name not in apart}
        return _Rows(**copied, backups=self.backups.copy(), drains=self.drains.copy(), versions=self.versions.copy())


class MemoryReading(MemoryBackupReading, MemoryDrainReading, MemoryVersionReading):
    """Reads of one transaction."""

    def __init__(self, rows: _Rows) -> None:
        super().__init__(rows.backups)
        self._drains = rows.drains
        self._versions = rows.versions
        self._rows = rows

    async def run(self, run_id: RunId) -> RunRow | None:
        return self._rows.runs.get(run_id)

    async def current_run(self, job: JobName) -> RunRow | None:
        current = self._rows.current.get(job)
        return self._rows.runs[current] if current else None

    async def active_runs(self) -> Sequence[RunRow]:
        active = [run for run in self._rows.runs.values() if not run.state.ended]
        return sorted(active, key=lambda run: (run.created_at, run.run_id))

    async def runs(self, job: JobName | None, older_than: RunRow | None, limit: int) -> Sequence[RunRow]:
        def age(run: RunRow) -> tuple[datetime, RunId]:
            return run.created_at, run.run_id

        found = [run for run in self._rows.runs.values() if job in (None, run.job) and (older_than is None or age(run) < age(older_than))]
        return sorted(found, key=age, reverse=True)[:limit]

    async def jobs(self) -> Sequence[JobRow]:
        runs = self._rows.runs
        return [
            JobRow(job, current, runs[current].state, sum(1 for run in runs.values() if run.job == job))
            for job, current in sorted(self._rows.current.items())
        ]

    async def assignment(self, job: JobName) -> Previous:
        return self._rows.assignments.get(job, Previous())

    async def starts(self, run_id: RunId) -> Mapping[Ssp, int]:
        return dict(self._rows.starts.get(run_id, {}))

    async def container(self, execution_id: ExecutionContainerId) -> ContainerRow | None:
        return self._rows.containers.get(execution_id)

    async def containers(self, run_id: RunId, processor_id: ProcessorId | None = None) -> Sequence[ContainerRow]:
        def slot(row: ContainerRow) -> tuple[ProcessorId, int]:
            return row.processor_id, row.epoch

        found = (row for row in self._rows.containers.values() if row.run_id == run_id and processor_id in (None, row.processor_id))
        return sorted(found, key=slot)

    async def has_standing(self, run_id: RunId) -> bool:
        return any(row.run_id == run_id and row.ended_at is None for row in self._rows.containers.values())

    async def standing_containers(self) -> Sequence[ContainerRow]:
        standing = [row for row in self._rows.containers.values() if row.state in _STANDING and row.ended_at is None]
        return sorted(standing, key=lambda row: row.execution_id)

    async def holds(self, job: JobName) -> Sequence[TaskOwnershipRow]:
        return [row for key, row in sorted(self._rows.holds.items()) if key[0] == job]

    async def hold(self, job: JobName, task: TaskName) -> TaskOwnershipRow | None:
        return self._rows.holds.get((job, task))

    async def holds_of(self, execution_id: ExecutionContainerId) -> Sequence[TaskOwnershipRow]:
        return [row for _, row in sorted(self._rows.holds.items()) if row.hold.holder == execution_id and not row.hold.released]

    async def tally(self, run_id: RunId, job: JobName) -> Tally:
        containers = Counter(row.state for row in self._rows.containers.values() if row.run_id == run_id)
        held = [row for row in await self.holds(job) if row.run_id == run_id and not row.hold.released]
        live = [row for row in self._rows.containers.values() if row.run_id == run_id and row.state is ContainerState.LIVE]
        return Tally(dict(containers), len(held), dict(Counter(row.model_version for row in live)))

    async def stores(self, job: JobName, task: TaskName | None = None) -> Sequence[StoreRow]:
        return [row for key, row in sorted(self._rows.stores.items()) if key[0] == job and task in (None, key[1])]

    async def newest_notice(self, run_id: RunId) -> int:
        return len(self._rows.notices.get(run_id, ()))

    async def notices(self, run_id: RunId, after: int) -> Sequence[NoticeRow]:
        return [row for row in self._rows.notices.get(run_id, ()) if row.seq > after]


class MemoryWriting(MemoryReading, MemoryBackupWriting, MemoryDrainWriting, MemoryVersionWriting):
    """Reads and writes of one transaction."""

    async def put_run(self, row: RunRow) -> None:
        if row.run_id not in self._rows.runs:
            self._rows.current[row.job] = row.run_id
        self._rows.runs[row.run_id] = in_utc(row)

    async def put_assignment(self, job: JobName, assignment: Previous) -> None:
        self._rows.assignments[job] = deepcopy(assignment)

    async def put_starts(self, run_id: RunId, starts: Mapping[Ssp, int]) -> None:
        self._rows.starts[run_id] = self._rows.starts.get(run_id, {}) | dict(starts)

    async def put_container(self, row: ContainerRow) -> None:
        self._rows.containers[row.execution_id] = in_utc(row)

    async def seen(self, seen: Iterable[tuple[ExecutionContainerId, datetime]]) -> None:
        for execution_id, at in seen:
            if row := self._rows.containers.get(execution_id):
                self._rows.containers[execution_id] = in_utc(replace(row, last_seen_at=at))

    async def put_hold(self, row: TaskOwnershipRow) -> None:
        self._rows.holds[row.job, row.task] = in_utc(row)

    async def put_store(self, row: StoreRow) -> None:
        self._rows.stores[row.job, row.task, row.stage] = in_utc(row)

    async def drop_store(self, row: StoreRow) -> None:
        self._rows.stores.pop((row.job, row.task, row.stage), None)

    async def drop_stores(self, job: JobName) -> None:
        for key in [key for key in self._rows.stores if key[0] == job]:
            del self._rows.stores[key]

    async def add_notice(self, run_id: RunId, kind: str, at: datetime, detail: Mapping[str, Any]) -> int:
        known = self._rows.notices.get(run_id, ())
        self._rows.notices[run_id] = (*known, in_utc(NoticeRow(run_id, len(known) + 1, kind, at, detail)))
        return len(known) + 1


class MemoryStore:
    """A transaction works on a copy of the tables, which takes their place when it ends."""

    def __init__(self) -> None:
        self._rows = _Rows()
        self._writing = asyncio.Lock()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Writing]:
        async with self._writing:
            draft = self._rows.copy()
            yield MemoryWriting(draft)
            self._rows = draft

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Reading]:
        yield MemoryReading(self._rows)

    async def claim(self) -> None:
        """Nobody else can have it."""

    @property
    def claimed(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is held open."""
