"""The store in memory: the same port, for tests and for a look at the API that leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from coordinator.store.backups_memory import BackupRows, MemoryBackupReading, MemoryBackupWriting, in_utc
from coordinator.store.drains_memory import DrainRows, MemoryDrainReading, MemoryDrainWriting
from coordinator.store.port import ContainerRow, ContainerState, HoldRow, JobRow, NoticeRow, Reading, RunRow, StoreRow, Tally, Writing
from coordinator.store.versions_memory import MemoryVersionReading, MemoryVersionWriting, VersionRows
from sluice.core.grouping import Previous
from sluice.core.ids import ExecutionContainerId, JobName, ProcessorId, RunId, Ssp, StageName, TaskName

_STANDING = (ContainerState.LIVE, ContainerState.REPLACED)


@dataclass(slots=True)
class _Rows:
    """All rows, by their keys."""

    runs: dict[RunId, RunRow] = field(default_factory=dict)
    current: dict[JobName, RunId] = field(default_factory=dict)
    assignments: dict[JobName, Previous] = field(default_factory=dict)
    starts: dict[RunId, dict[Ssp, int]] = field(default_factory=dict)
    containers: dict[ExecutionContainerId, ContainerRow] = field(default_factory=dict)
    holds: dict[tuple[JobName, TaskName], HoldRow] = field(default_factory=dict)
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

    async def holds(self, job: JobName) -> Sequence[HoldRow]:
        return [row for key, row in sorted(self._rows.holds.items()) if key[0] == job]

    async def hold(self, job: JobName, task: TaskName) -> HoldRow | None:
        return self._rows.holds.get((job, task))

    async def holds_of(self, execution_id: ExecutionContainerId) -> Sequence[HoldRow]:
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

    async def put_hold(self, row: HoldRow) -> None:
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
