"""Runs and their jobs, start offsets and notices: rows, columns and SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, insert, literal, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables
from coordinator.store.columns import Columns, Reads, Writes
from coordinator.store.origin import OriginWrites
from coordinator.store.runspec import spec_json, spec_of, streams_json
from sluice.core.drain import KeptHistory
from sluice.core.ids import JobName, RunId, Ssp, StageName
from sluice.core.jobmodels.spec import RunSpec
from sluice.core.lifecycle import RunState


@dataclass(frozen=True, slots=True)
class RunRow:
    """One deployment. `spec`: its deploy request, with the resolved streams and the current number of containers. `first_run`: the first
    run of its history. `failing`: the run ends as FAILED when its containers have stopped. `backup`: the blob stores that its state is
    written to and restored from (`coordinator.blobpool.Backup`); None for those of the settings. `kept`: the earlier histories with whose
    state this history continued, newest first."""

    run_id: RunId
    job: JobName
    state: RunState
    first_run: RunId
    spec: RunSpec
    model_version: int
    created_at: datetime
    started_at: datetime | None = None
    stop_requested_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""
    failing: bool = False
    backup: Mapping[str, Any] | None = None
    kept: Sequence[KeptHistory] = ()


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with its current run, that run's state, and the number of its runs."""

    job: JobName
    current_run: RunId
    state: RunState
    runs: int


LINEAGE = "LINEAGE"
"""The kind of a notice that a stage has begun a new lineage. It is for people (`coordinator.runs.timeline`), not for containers."""


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """A message to the containers of a run. `seq` counts from 1 within the run."""

    run_id: RunId
    seq: int
    kind: str
    at: datetime
    detail: Mapping[str, Any]


_ACTIVE = [state.value for state in RunState if not state.ended]


class RunReads(Reads):
    async def get(self, run_id: RunId) -> RunRow | None:
        found = (await self._connection.execute(select(tables.runs).where(tables.runs.c.run_id == run_id))).first()
        return run_row(found) if found else None

    async def current(self, job: JobName) -> RunRow | None:
        """The job's newest run, ended or not."""
        joined = select(tables.runs).join(tables.jobs, tables.jobs.c.current_run == tables.runs.c.run_id)
        found = (await self._connection.execute(joined.where(tables.jobs.c.job == job))).first()
        return run_row(found) if found else None

    async def active(self) -> Sequence[RunRow]:
        """The runs that have not ended, oldest first."""
        table = tables.runs
        query = select(table).where(table.c.ended_at.is_(None), table.c.state.in_(_ACTIVE)).order_by(table.c.created_at, table.c.run_id)
        return [run_row(found) for found in await self._connection.execute(query)]

    async def page(self, job: JobName | None, older_than: RunRow | None, limit: int) -> Sequence[RunRow]:
        """Up to `limit` runs of the job, or of all jobs, newest first; with `older_than`, only runs older than that one."""
        table = tables.runs
        query = select(table).order_by(table.c.created_at.desc(), table.c.run_id.desc()).limit(limit)
        if job is not None:
            query = query.where(table.c.job == job)
        if older_than is not None:
            at, run_id = literal(older_than.created_at, tables.Utc()), literal(older_than.run_id)
            query = query.where(tuple_(table.c.created_at, table.c.run_id) < tuple_(at, run_id))
        return [run_row(found) for found in await self._connection.execute(query)]

    async def history(self, job: JobName, first_run: RunId) -> Sequence[RunRow]:
        """The runs of one history, newest first."""
        table = tables.runs
        query = select(table).where(table.c.job == job, table.c.origin == first_run)
        found = await self._connection.execute(query.order_by(table.c.created_at.desc(), table.c.run_id.desc()))
        return [run_row(each) for each in found]

    async def jobs(self, after: JobName | None = None, limit: int | None = None) -> Sequence[JobRow]:
        """The jobs, ordered by name; with `after`, only those that follow it."""
        counts = select(tables.runs.c.job, func.count().label("runs")).group_by(tables.runs.c.job).subquery()
        query = (
            select(tables.jobs.c.job, tables.jobs.c.current_run, tables.runs.c.state, counts.c.runs)
            .join(tables.runs, tables.jobs.c.current_run == tables.runs.c.run_id)
            .join(counts, counts.c.job == tables.jobs.c.job)
            .order_by(tables.jobs.c.job)
            .limit(limit)
        )
        if after is not None:
            query = query.where(tables.jobs.c.job > after)
        return [JobRow(f.job, f.current_run, RunState(f.state), f.runs) for f in await self._connection.execute(query)]

    async def start_offsets(self, run_id: RunId) -> Mapping[Ssp, int]:
        table = tables.starts.c
        query = select(table.system, table.stream, table.partition, table.offset).where(table.run_id == run_id)
        return dict(await self._all(query, _start_offset))

    async def last_notice(self, run_id: RunId) -> int:
        """The `seq` of the run's newest notice; 0 if it has none."""
        newest = select(func.max(tables.notices.c.seq)).where(tables.notices.c.run_id == run_id)
        return int(await self._connection.scalar(newest) or 0)

    async def notices(self, run_id: RunId, after: int, limit: int = 1_000) -> Sequence[NoticeRow]:
        """Up to `limit` of the run's notices for containers with a greater `seq`, in order."""
        table = tables.notices
        newer = select(table).where(table.c.run_id == run_id, table.c.seq > after, table.c.kind != LINEAGE)
        return [NoticeRow(**found._asdict()) for found in await self._connection.execute(newer.order_by(table.c.seq).limit(limit))]

    async def lineages(self, run_id: RunId, limit: int) -> Sequence[NoticeRow]:
        """The newest `limit` notices of lineages that have begun in the run, newest first."""
        table = tables.notices
        query = select(table).where(table.c.run_id == run_id, table.c.kind == LINEAGE).order_by(table.c.seq.desc()).limit(limit)
        return [NoticeRow(**found._asdict()) for found in await self._connection.execute(query)]


class RunWrites(RunReads, Writes):
    """`origin` issues the numbers of notices."""

    def __init__(self, connection: AsyncConnection, origin: OriginWrites) -> None:
        super().__init__(connection)
        self._origin = origin

    async def put(self, row: RunRow) -> None:
        """Write a run. A new one becomes its job's current run."""
        new = await self.get(row.run_id) is None
        await self._put(tables.runs, [run_columns(row)])
        if not new:
            return
        moved = update(tables.jobs).where(tables.jobs.c.job == row.job).values(current_run=row.run_id)
        if (await self._connection.execute(moved)).rowcount == 0:
            await self._connection.execute(insert(tables.jobs).values(job=row.job, current_run=row.run_id, grouping=""))

    async def put_start_offsets(self, run_id: RunId, starts: Mapping[Ssp, int]) -> None:
        rows = (
            {"run_id": run_id, "system": s.system, "stream": s.stream, "partition": s.partition, "offset": offset}
            for s, offset in starts.items()
        )
        await self._put(tables.starts, rows)

    async def add_notice(self, run_id: RunId, kind: str, at: datetime, detail: Mapping[str, Any]) -> int:
        """Append a notice. Returns its `seq`."""
        seq = await self._origin.next_number(await self.last_notice(run_id))
        await self._connection.execute(insert(tables.notices).values(run_id=run_id, seq=seq, kind=kind, at=at, detail=dict(detail)))
        return seq


def _start_offset(found: Row[Any]) -> tuple[Ssp, int]:
    columns: tuple[Any, ...] = tuple(found)
    system, stream, partition, offset = columns
    return Ssp(system, stream, partition), offset


def run_columns(row: RunRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    del columns["first_run"]
    return columns | {
        "state": row.state.value,
        "origin": row.first_run,
        "spec": spec_json(row.spec),
        "streams": streams_json(row.spec),
        "backup": None if row.backup is None else dict(row.backup),
        "kept": [[each.first_run, sorted(each.without)] for each in row.kept] or None,
    }


def run_row(found: Row[Any]) -> RunRow:
    columns = found._asdict()
    spec, first_run = spec_of(columns.pop("spec"), columns.pop("streams")), columns.pop("origin")
    kept = tuple(KeptHistory(RunId(of), frozenset(map(StageName, without))) for of, without in columns.pop("kept") or ())
    return RunRow(**{**columns, "state": RunState(found.state), "first_run": first_run, "spec": spec, "kept": kept})
