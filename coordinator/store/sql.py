"""The store on SQLite (default) and, with the same statements, PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, event, func, insert, literal, select, tuple_, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from coordinator.store import tables
from coordinator.store.claim import Claim, FileClaim, SessionClaim
from coordinator.store.columns import Columns, _offset_list, _offsets
from coordinator.store.jobmodels import SqlVersionReading, SqlVersionWriting
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
from coordinator.store.runspec import spec_json, spec_of, streams_json
from coordinator.store.sqlite import connect
from sluice.core.errors import StoreUnavailable
from sluice.core.grouping import Previous
from sluice.core.ids import (
    Epoch,
    ExecutionContainerId,
    Generation,
    JobName,
    Lineage,
    ProcessorId,
    RunId,
    Ssp,
    StageName,
    StreamId,
    TaskName,
)
from sluice.core.lifecycle import RunState
from sluice.core.ownership import TaskOwner
from sluice.core.snapshot import CommitId

_BEGIN_WRITING = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(7355608)"}
"""What makes a transaction that writes wait for the others, also for those of another process. The number is Sluice's in the database."""

_BEGIN_READING = {"sqlite": "BEGIN", "postgresql": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"}

_WITHIN = {"sqlite": None, "postgresql": 30.0}
"""Seconds that a transaction may take before the server counts as not answering. SQLite's own bound is on waiting for a lock."""

_ACTIVE = [state.value for state in RunState if not state.ended]


class SqlReading(SqlVersionReading):
    """Reads of one transaction."""

    async def run(self, run_id: RunId) -> RunRow | None:
        found = (await self._connection.execute(select(tables.runs).where(tables.runs.c.run_id == run_id))).first()
        return run_row(found) if found else None

    async def current_run(self, job: JobName) -> RunRow | None:
        joined = select(tables.runs).join(tables.jobs, tables.jobs.c.current_run == tables.runs.c.run_id)
        found = (await self._connection.execute(joined.where(tables.jobs.c.job == job))).first()
        return run_row(found) if found else None

    async def active_runs(self) -> Sequence[RunRow]:
        table = tables.runs
        query = select(table).where(table.c.ended_at.is_(None), table.c.state.in_(_ACTIVE)).order_by(table.c.created_at, table.c.run_id)
        return [run_row(found) for found in await self._connection.execute(query)]

    async def runs(self, job: JobName | None, older_than: RunRow | None, limit: int) -> Sequence[RunRow]:
        table = tables.runs
        query = select(table).order_by(table.c.created_at.desc(), table.c.run_id.desc()).limit(limit)
        if job is not None:
            query = query.where(table.c.job == job)
        if older_than is not None:
            at, run_id = literal(older_than.created_at, tables.Utc()), literal(older_than.run_id)
            query = query.where(tuple_(table.c.created_at, table.c.run_id) < tuple_(at, run_id))
        return [run_row(found) for found in await self._connection.execute(query)]

    async def jobs(self) -> Sequence[JobRow]:
        counts = select(tables.runs.c.job, func.count().label("runs")).group_by(tables.runs.c.job).subquery()
        query = (
            select(tables.jobs.c.job, tables.jobs.c.current_run, tables.runs.c.state, counts.c.runs)
            .join(tables.runs, tables.jobs.c.current_run == tables.runs.c.run_id)
            .join(counts, counts.c.job == tables.jobs.c.job)
            .order_by(tables.jobs.c.job)
        )
        return [JobRow(f.job, f.current_run, RunState(f.state), f.runs) for f in await self._connection.execute(query)]

    async def assignment(self, job: JobName) -> Previous:
        owners, counts = tables.assignments, tables.baselines
        grouping = await self._connection.scalar(select(tables.jobs.c.grouping).where(tables.jobs.c.job == job))
        return Previous(
            tasks={
                Ssp(f.system, f.stream, f.partition): TaskName(f.task)
                for f in await self._connection.execute(select(owners).where(owners.c.job == job))
            },
            baselines={
                StreamId(f.system, f.stream): f.partitions
                for f in await self._connection.execute(select(counts).where(counts.c.job == job))
            },
            grouping=grouping or "",
        )

    async def starts(self, run_id: RunId) -> Mapping[Ssp, int]:
        found = await self._connection.execute(select(tables.starts).where(tables.starts.c.run_id == run_id))
        return {Ssp(f.system, f.stream, f.partition): f.offset for f in found}

    async def container(self, execution_id: ExecutionContainerId) -> ContainerRow | None:
        query = select(tables.containers).where(tables.containers.c.execution_id == execution_id)
        found = (await self._connection.execute(query)).first()
        return container_row(found) if found else None

    async def containers(self, run_id: RunId, processor_id: ProcessorId | None = None) -> Sequence[ContainerRow]:
        table = tables.containers
        query = select(table).where(table.c.run_id == run_id)
        if processor_id is not None:
            query = query.where(table.c.processor_id == processor_id)
        found = await self._connection.execute(query.order_by(table.c.processor_id, table.c.epoch))
        return [container_row(each) for each in found]

    async def has_standing(self, run_id: RunId) -> bool:
        table = tables.containers
        query = select(table.c.execution_id).where(table.c.run_id == run_id, table.c.ended_at.is_(None)).limit(1)
        return await self._connection.scalar(query) is not None

    async def standing_containers(self) -> Sequence[ContainerRow]:
        table = tables.containers
        standing = [ContainerState.LIVE.value, ContainerState.REPLACED.value]
        query = select(table).where(table.c.state.in_(standing), table.c.ended_at.is_(None)).order_by(table.c.execution_id)
        return [container_row(found) for found in await self._connection.execute(query)]

    async def holds(self, job: JobName) -> Sequence[TaskOwnershipRow]:
        query = select(tables.holds).where(tables.holds.c.job == job).order_by(tables.holds.c.task)
        return [hold_row(found) for found in await self._connection.execute(query)]

    async def hold(self, job: JobName, task: TaskName) -> TaskOwnershipRow | None:
        query = select(tables.holds).where(tables.holds.c.job == job, tables.holds.c.task == task)
        found = (await self._connection.execute(query)).first()
        return hold_row(found) if found else None

    async def holds_of(self, execution_id: ExecutionContainerId) -> Sequence[TaskOwnershipRow]:
        table = tables.holds
        query = select(table).where(table.c.holder == execution_id, table.c.released.is_(False)).order_by(table.c.job, table.c.task)
        return [hold_row(found) for found in await self._connection.execute(query)]

    async def tally(self, run_id: RunId, job: JobName) -> Tally:
        states, holds = tables.containers.c.state, tables.holds.c
        by_state = select(states, func.count()).where(tables.containers.c.run_id == run_id).group_by(states)
        held = select(func.count()).where(holds.job == job, holds.run_id == run_id, holds.released.is_(False))
        version, live = tables.containers.c.model_version, states == ContainerState.LIVE.value
        by_version = select(version, func.count()).where(tables.containers.c.run_id == run_id, live).group_by(version)
        return Tally(
            containers={ContainerState(state): count for state, count in await self._connection.execute(by_state)},
            held=int(await self._connection.scalar(held) or 0),
            versions={found.model_version: found[1] for found in await self._connection.execute(by_version)},
        )

    async def stores(self, job: JobName, task: TaskName | None = None) -> Sequence[StoreRow]:
        query = select(tables.stores).where(tables.stores.c.job == job)
        if task is not None:
            query = query.where(tables.stores.c.task == task)
        found = await self._connection.execute(query.order_by(tables.stores.c.task, tables.stores.c.stage))
        return [store_row(each) for each in found]

    async def newest_notice(self, run_id: RunId) -> int:
        newest = select(func.max(tables.notices.c.seq)).where(tables.notices.c.run_id == run_id)
        return int(await self._connection.scalar(newest) or 0)

    async def notices(self, run_id: RunId, after: int) -> Sequence[NoticeRow]:
        table = tables.notices
        query = select(table).where(table.c.run_id == run_id, table.c.seq > after).order_by(table.c.seq)
        return [notice_row(found) for found in await self._connection.execute(query)]


class SqlWriting(SqlReading, SqlVersionWriting):
    """Reads and writes of one transaction."""

    async def put_run(self, row: RunRow) -> None:
        new = await self.run(row.run_id) is None
        await self._put(tables.runs, run_columns(row))
        if not new:
            return
        moved = update(tables.jobs).where(tables.jobs.c.job == row.job).values(current_run=row.run_id)
        if (await self._connection.execute(moved)).rowcount == 0:
            await self._connection.execute(insert(tables.jobs).values(job=row.job, current_run=row.run_id, grouping=""))

    async def put_assignment(self, job: JobName, assignment: Previous) -> None:
        for table in (tables.assignments, tables.baselines):
            await self._connection.execute(delete(table).where(table.c.job == job))
        await self._put(
            tables.assignments,
            [
                {"job": job, "system": s.system, "stream": s.stream, "partition": s.partition, "task": task}
                for s, task in assignment.tasks.items()
            ],
        )
        await self._put(
            tables.baselines,
            [{"job": job, "system": s.system, "stream": s.stream, "partitions": n} for s, n in assignment.baselines.items()],
        )
        await self._connection.execute(update(tables.jobs).where(tables.jobs.c.job == job).values(grouping=assignment.grouping))

    async def put_starts(self, run_id: RunId, starts: Mapping[Ssp, int]) -> None:
        await self._put(
            tables.starts,
            [
                {"run_id": run_id, "system": s.system, "stream": s.stream, "partition": s.partition, "offset": offset}
                for s, offset in starts.items()
            ],
        )

    async def put_container(self, row: ContainerRow) -> None:
        await self._put(tables.containers, container_columns(row))

    async def seen(self, seen: Iterable[tuple[ExecutionContainerId, datetime]]) -> None:
        table = tables.containers
        statement = update(table).where(table.c.execution_id == bindparam("which")).values(last_seen_at=bindparam("at"))
        if several := [{"which": execution_id, "at": at} for execution_id, at in seen]:
            await self._connection.execute(statement, several)

    async def put_hold(self, row: TaskOwnershipRow) -> None:
        await self._put(tables.holds, hold_columns(row))

    async def put_store(self, row: StoreRow) -> None:
        await self._put(tables.stores, store_columns(row))

    async def drop_store(self, row: StoreRow) -> None:
        table = tables.stores
        await self._connection.execute(delete(table).where(table.c.job == row.job, table.c.task == row.task, table.c.stage == row.stage))

    async def drop_stores(self, job: JobName) -> None:
        await self._connection.execute(delete(tables.stores).where(tables.stores.c.job == job))

    async def add_notice(self, run_id: RunId, kind: str, at: datetime, detail: Mapping[str, Any]) -> int:
        seq = await self.newest_notice(run_id) + 1
        await self._connection.execute(insert(tables.notices).values(run_id=run_id, seq=seq, kind=kind, at=at, detail=dict(detail)))
        return seq


class SqlStore:
    """The store behind an engine; see `open_store`. Writers of this process wait for one another here, not in the database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.failures = 0
        """How often the database did not do what it was asked."""
        self._writing = asyncio.Lock()
        self._claim: Claim = FileClaim(engine) if engine.dialect.name == "sqlite" else SessionClaim(engine)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Writing]:
        async with self._writing, self._translated(), self._claim.writer() as connection:
            await connection.exec_driver_sql(_BEGIN_WRITING[self.engine.dialect.name])
            yield SqlWriting(connection)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Reading]:
        async with self._translated(), self.engine.connect() as connection:
            await connection.exec_driver_sql(_BEGIN_READING[self.engine.dialect.name])
            yield SqlReading(connection)

    async def claim(self) -> None:
        async with self._writing, self._translated():
            await self._claim.take()

    @property
    def claimed(self) -> bool:
        return self._claim.held

    async def close(self) -> None:
        await self._claim.release()
        await self.engine.dispose()

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        within = _WITHIN[self.engine.dialect.name]
        try:
            async with asyncio.timeout(within):
                yield
        except (DBAPIError, OSError) as error:
            self.failures += 1
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreUnavailable(f"the coordinator's database: {str(cause) or f'no answer within {within} s'}") from error


def open_store(url: str) -> SqlStore:
    """The store at an SQLAlchemy URL with an async driver: `sqlite+aiosqlite:///FILE` or `postgresql+asyncpg://…`."""
    engine = create_async_engine(url, pool_pre_ping=not url.startswith("sqlite"), hide_parameters=True)  # rows hold what users configure
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "do_connect", _connect_sqlite)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    return SqlStore(engine)


def _connect_sqlite(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
    parameters["async_creator_fn"] = connect


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """WAL, so that readers never wait for the writer; transactions begin where we say, not where the driver guesses."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()


def run_columns(row: RunRow) -> Columns:
    return {
        "run_id": row.run_id,
        "job": row.job,
        "state": row.state.value,
        "origin": row.first_run,
        "spec": spec_json(row.spec),
        "streams": streams_json(row.spec),
        "model_version": row.model_version,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "stop_requested_at": row.stop_requested_at,
        "ended_at": row.ended_at,
        "reason": row.reason,
        "failing": row.failing,
        "backup": None if row.backup is None else dict(row.backup),
    }


def run_row(found: Row[Any]) -> RunRow:
    columns = found._asdict()
    spec, first_run = spec_of(columns.pop("spec"), columns.pop("streams")), columns.pop("origin")
    return RunRow(**{**columns, "state": RunState(columns["state"]), "first_run": first_run, "spec": spec})


def container_columns(row: ContainerRow) -> Columns:
    return {
        "execution_id": row.execution_id,
        "run_id": row.run_id,
        "job": row.job,
        "processor_id": row.processor_id,
        "epoch": row.epoch,
        "host": row.host,
        "bare": row.bare,
        "state": row.state.value,
        "registered_at": row.registered_at,
        "last_seen_at": row.last_seen_at,
        "ended_at": row.ended_at,
        "exit_code": row.exit_code,
        "reason": row.reason,
        "metrics_address": row.metrics_address,
        "model_version": row.model_version,
        "adopted_at": row.adopted_at,
    }


def container_row(found: Row[Any]) -> ContainerRow:
    columns = found._asdict()
    columns |= {
        "execution_id": ExecutionContainerId(columns["execution_id"]),
        "processor_id": ProcessorId(columns["processor_id"]),
        "epoch": Epoch(columns["epoch"]),
        "state": ContainerState(columns["state"]),
    }
    return ContainerRow(**columns)


def hold_columns(row: TaskOwnershipRow) -> Columns:
    return {
        "job": row.job,
        "task": row.task,
        "run_id": row.run_id,
        "generation": row.hold.generation,
        "holder": row.hold.holder,
        "released": row.hold.released,
        "acquired_at": row.acquired_at,
    }


def hold_row(found: Row[Any]) -> TaskOwnershipRow:
    hold = TaskOwner(Generation(found.generation), ExecutionContainerId(found.holder), found.released)
    return TaskOwnershipRow(JobName(found.job), TaskName(found.task), RunId(found.run_id), hold, found.acquired_at)


def store_columns(row: StoreRow) -> Columns:
    return {
        "job": row.job,
        "task": row.task,
        "stage": row.stage,
        "lineage": row.lineage,
        "batch_id": row.batch_id,
        "offsets": _offset_list(row.offsets),
        "generation": row.generation,
        "reported_at": row.reported_at,
        "head": row.head,
        "chosen": row.chosen,
        "former": row.former,
    }


def store_row(found: Row[Any]) -> StoreRow:
    return StoreRow(
        job=JobName(found.job),
        task=TaskName(found.task),
        stage=StageName(found.stage),
        lineage=Lineage(found.lineage),
        batch_id=found.batch_id,
        offsets=_offsets(found.offsets),
        generation=None if found.generation is None else Generation(found.generation),
        reported_at=found.reported_at,
        head=None if found.head is None else CommitId(found.head),
        chosen=found.chosen,
        former=None if found.former is None else Lineage(found.former),
    )


def notice_row(found: Row[Any]) -> NoticeRow:
    return NoticeRow(**found._asdict())
