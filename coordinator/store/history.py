"""The history of jobs: queries and deletions over several tables. `sluice.core.pruning` has the rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Table, and_, delete, exists, func, select, tuple_

from coordinator.store import tables
from coordinator.store.columns import Reads, Writes
from coordinator.store.fleet import ContainerRow, container_row
from sluice.core.drain import DrainId, Mode, Phase
from sluice.core.ids import ExecutionContainerId, JobName, RunId
from sluice.core.pruning import PastContainer, PastDrain, PastRun

_OF_A_JOB: Sequence[Table] = (
    tables.job_models,
    tables.assignments,
    tables.baselines,
    tables.watched_streams,
    tables.localities,
    tables.stores,
    tables.snapshots,
    tables.pins,
    tables.cleanups,
    tables.containers,
    tables.drains,
    tables.runs,
)
"""Tables with a column `job`, without the jobs and the owners of tasks."""


@dataclass(frozen=True, slots=True)
class References:
    """References that prevent deletions. `runs`: the runs of snapshots and of task owners. `versions`: the versions that task owners run.
    `adopted`: the newest version that a container of the job's current run has adopted or acquired a task under."""

    runs: frozenset[RunId]
    versions: frozenset[int]
    adopted: int


class HistoryReads(Reads):
    async def runs(self, job: JobName) -> Sequence[PastRun]:
        """The runs of the job, newest first."""
        table, containers = tables.runs, tables.containers
        active = exists().where(containers.c.run_id == table.c.run_id, containers.c.ended_at.is_(None))
        query = select(table.c.run_id, table.c.created_at, table.c.ended_at, table.c.origin, table.c.model_version, active)
        newest_first = query.where(table.c.job == job).order_by(table.c.created_at.desc(), table.c.run_id.desc())
        return [PastRun(*found) for found in await self._connection.execute(newest_first)]

    async def drains(self, job: JobName) -> Sequence[PastDrain]:
        """The drains of the job, newest first."""
        table = tables.drains
        emptied = and_(table.c.flushing_at.is_not(None), table.c.mode == Mode.DEFAULT.value)
        columns = table.c.drain_id, table.c.run_id, table.c.seq, table.c.phase, table.c.ended_at, table.c.model_version, emptied
        query = select(*columns).where(table.c.job == job).order_by(table.c.seq.desc())
        return [
            PastDrain(DrainId(f[0]), RunId(f[1]), f[2], Phase(f[3]), f[4], f[5], bool(f[6])) for f in await self._connection.execute(query)
        ]

    async def containers(self, run_id: RunId, after: ContainerRow | None, limit: int) -> Sequence[ContainerRow]:
        """Up to `limit` containers of a run, ordered by slot and epoch; with `after`, only those that follow that one."""
        table = tables.containers
        query = select(table).where(table.c.run_id == run_id).order_by(table.c.processor_id, table.c.epoch).limit(limit)
        if after is not None:
            query = query.where(tuple_(table.c.processor_id, table.c.epoch) > (after.processor_id, after.epoch))
        return [container_row(each) for each in await self._connection.execute(query)]

    async def references(self, job: JobName, current: RunId) -> References:
        owners, containers, snapshots = tables.holds.c, tables.containers.c, tables.snapshots.c
        owned = (await self._connection.execute(select(owners.run_id, owners.model_version).where(owners.job == job).distinct())).all()
        saved = await self._connection.scalars(select(snapshots.run_id).where(snapshots.job == job).distinct())
        adopted = await self._connection.scalar(select(func.max(containers.model_version)).where(containers.run_id == current))
        return References(
            runs=frozenset(RunId(each) for each in [*saved, *(run_id for run_id, _ in owned)]),
            versions=frozenset(version for _, version in owned),
            adopted=max([int(adopted or 0), *(version for run_id, version in owned if run_id == current)]),
        )

    async def surplus_containers(
        self, run_id: RunId, keep: int, after: tuple[str, int] | None, limit: int
    ) -> Sequence[tuple[tuple[str, int], PastContainer]]:
        """Up to `limit` containers of the run that have `keep` newer ones in their slot, ordered by slot and epoch. Each has the cursor for
        the next call."""
        table, owners = tables.containers, tables.holds
        newest = (
            select(table.c.processor_id, func.max(table.c.epoch).label("epoch"))
            .where(table.c.run_id == run_id)
            .group_by(table.c.processor_id)
            .subquery()
        )
        owner = exists().where(owners.c.holder == table.c.execution_id)
        query = (
            select(table.c.processor_id, table.c.execution_id, table.c.epoch, newest.c.epoch, table.c.ended_at.is_not(None), owner)
            .join(newest, newest.c.processor_id == table.c.processor_id)
            .where(table.c.run_id == run_id, table.c.epoch <= newest.c.epoch - keep)
            .order_by(table.c.processor_id, table.c.epoch)
            .limit(limit)
        )
        if after is not None:
            query = query.where(tuple_(table.c.processor_id, table.c.epoch) > after)
        return [
            ((slot, epoch), PastContainer(ExecutionContainerId(execution_id), epoch, last, bool(ended), bool(owns)))
            for slot, execution_id, epoch, last, ended, owns in await self._connection.execute(query)
        ]

    async def rows_of_job(self, job: JobName) -> Mapping[str, int]:
        """The number of the job's rows in each table, by the name of the table."""
        found = {}
        for table in _OF_A_JOB:
            rows = select(func.count()).select_from(table).where(table.c.job == job)
            found[table.name] = int(await self._connection.scalar(rows) or 0)
        return found


class HistoryWrites(HistoryReads, Writes):
    async def drop_containers(self, execution_ids: Collection[ExecutionContainerId]) -> None:
        await self._connection.execute(delete(tables.containers).where(tables.containers.c.execution_id.in_(execution_ids)))

    async def drop_notices(self, run_id: RunId, before: datetime, limit: int) -> int:
        """Delete up to `limit` notices of the run that were added before this time, except the newest one. Returns their number."""
        table = tables.notices
        newest = select(func.max(table.c.seq)).where(table.c.run_id == run_id).scalar_subquery()
        old = select(table.c.seq).where(table.c.run_id == run_id, table.c.at < before, table.c.seq < newest).order_by(table.c.seq)
        found = list(await self._connection.scalars(old.limit(limit)))
        if found:
            await self._connection.execute(delete(table).where(table.c.run_id == run_id, table.c.seq.in_(found)))
        return len(found)

    async def drop_versions(self, job: JobName, versions: Collection[int]) -> None:
        table = tables.job_models
        await self._connection.execute(delete(table).where(table.c.job == job, table.c.version.in_(versions)))

    async def drop_drains(self, drain_ids: Collection[DrainId]) -> None:
        for table in (tables.drain_stages, tables.drains):
            await self._connection.execute(delete(table).where(table.c.drain_id.in_(drain_ids)))

    async def drop_of_run(self, run_id: RunId, limit: int) -> int:
        """Delete up to `limit` containers or notices of an ended run; when there are none, the run with its start offsets, unless it is
        its job's current run. Returns how many rows."""
        for table, key in ((tables.containers, tables.containers.c.execution_id), (tables.notices, tables.notices.c.seq)):
            found = list(await self._connection.scalars(select(key).where(table.c.run_id == run_id).limit(limit)))
            if found:
                await self._connection.execute(delete(table).where(table.c.run_id == run_id, key.in_(found)))
                return len(found)
        table, jobs = tables.runs, tables.jobs
        current = exists().where(jobs.c.job == table.c.job, jobs.c.current_run == table.c.run_id)
        former = delete(table).where(table.c.run_id == run_id, table.c.ended_at.is_not(None), ~current)
        dropped = (await self._connection.execute(former)).rowcount
        if dropped:
            await self._connection.execute(delete(tables.starts).where(tables.starts.c.run_id == run_id))
        return dropped

    async def drop_job(self, job: JobName) -> None:
        """Delete all rows of a job except the owners of its tasks, because their generations must never be granted again."""
        of_job = select(tables.runs.c.run_id).where(tables.runs.c.job == job)
        for table in (tables.notices, tables.starts):
            await self._connection.execute(delete(table).where(table.c.run_id.in_(of_job)))
        drains = select(tables.drains.c.drain_id).where(tables.drains.c.job == job)
        await self._connection.execute(delete(tables.drain_stages).where(tables.drain_stages.c.drain_id.in_(drains)))
        for table in (*_OF_A_JOB, tables.jobs):
            await self._connection.execute(delete(table).where(table.c.job == job))
