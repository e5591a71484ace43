"""Versions of job models, the assignment of partitions to tasks, former hosts, and the monitored inputs: rows, columns and SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select, update

from coordinator.store import tables
from coordinator.store.columns import Columns, Reads, Writes
from sluice.core.ids import JobName, ProcessorId, RunId, Ssp, StreamId, TaskName
from sluice.core.jobmodels.expansion import Verdict
from sluice.core.jobmodels.grouping import PreviousAssignment


@dataclass(frozen=True, slots=True)
class ModelHead:
    """A version of a job's model without the model. `run_id`: the run that it was created for. `who`: "" if unknown."""

    job: JobName
    version: int
    run_id: RunId
    content_hash: str
    created_at: datetime
    why: str
    who: str


@dataclass(frozen=True, slots=True)
class ModelRow(ModelHead):
    """One version of a job's model; `document` is its JSON. Versions are never reused or changed."""

    document: str


@dataclass(frozen=True, slots=True)
class MonitoredStreamRow:
    """The last result of the partition monitor for an input of a job's run. `known`: partitions in the job model. `seen`: partitions in the
    system; None if the lookup failed. `since`: the start of the verdict and its reason. `kept_from`: a count that a rollback has reverted;
    the stream grows to it again only on request."""

    job: JobName
    system: str
    stream: str
    run_id: RunId
    name: str
    known: int
    seen: int | None
    verdict: Verdict
    reason: str
    since: datetime
    kept_from: int | None = None

    @property
    def stream_id(self) -> StreamId:
        return StreamId(self.system, self.stream)


class JobModelReads(Reads):
    async def get(self, job: JobName, version: int | None = None) -> ModelRow | None:
        """The given version of the model, or the newest."""
        query = select(tables.job_models).where(tables.job_models.c.job == job)
        if version is not None:
            query = query.where(tables.job_models.c.version == version)
        found = (await self._connection.execute(query.order_by(tables.job_models.c.version.desc()).limit(1))).first()
        return model_row(found) if found else None

    async def page(self, job: JobName, before: int | None, limit: int) -> Sequence[ModelHead]:
        """Up to `limit` versions of the job's model, newest first, below version `before`."""
        table = tables.job_models
        heads = [column for column in table.c if column.name != "document"]  # the document may be megabytes
        query = select(*heads).where(table.c.job == job).order_by(table.c.version.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.version < before)
        return [ModelHead(**found._asdict()) for found in await self._connection.execute(query)]

    async def monitored(self, job: JobName) -> Sequence[MonitoredStreamRow]:
        """The monitored streams of the job, ordered by system and stream."""
        table = tables.watched_streams
        query = select(table).where(table.c.job == job).order_by(table.c.system, table.c.stream)
        return [monitored_stream_row(found) for found in await self._connection.execute(query)]

    async def assignment(self, job: JobName) -> PreviousAssignment:
        """The assignment of the newest model, and of the streams that it does not read but may read again; empty before the first model."""
        owners, counts = tables.assignments, tables.baselines
        grouping = await self._connection.scalar(select(tables.jobs.c.grouping).where(tables.jobs.c.job == job))
        return PreviousAssignment(
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

    async def former_hosts(self, job: JobName) -> Mapping[ProcessorId, str]:
        """The host of the last container of each slot in the runs before the current one."""
        table = tables.localities
        found = await self._connection.execute(select(table.c.processor_id, table.c.host).where(table.c.job == job))
        return {ProcessorId(processor_id): host for processor_id, host in found}


class JobModelWrites(JobModelReads, Writes):
    async def add(self, row: ModelRow) -> None:
        await self._connection.execute(insert(tables.job_models).values(model_columns(row)))

    async def put_monitored(self, job: JobName, watched: Collection[MonitoredStreamRow]) -> None:
        """Replace all monitored streams of the job, so that rows of streams that it no longer reads are deleted."""
        await self._connection.execute(delete(tables.watched_streams).where(tables.watched_streams.c.job == job))
        await self._put(tables.watched_streams, [monitored_stream_columns(row) for row in watched])

    async def put_former_hosts(self, job: JobName, hosts: Mapping[ProcessorId, str]) -> None:
        """Set the former hosts of these slots. Other slots do not change."""
        await self._put(tables.localities, ({"job": job, "processor_id": pid, "host": host} for pid, host in hosts.items()))

    async def put_assignment(self, job: JobName, assignment: PreviousAssignment) -> None:
        """Replace the job's assignment as a whole."""
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


def model_columns(row: ModelRow) -> Columns:
    return {
        "job": row.job,
        "version": row.version,
        "run_id": row.run_id,
        "document": row.document,
        "content_hash": row.content_hash,
        "created_at": row.created_at,
        "why": row.why,
        "who": row.who,
    }


def model_row(found: Row[Any]) -> ModelRow:
    return ModelRow(**found._asdict())


def monitored_stream_columns(row: MonitoredStreamRow) -> Columns:
    return asdict(row) | {"verdict": row.verdict.value}


def monitored_stream_row(found: Row[Any]) -> MonitoredStreamRow:
    return MonitoredStreamRow(**{**found._asdict(), "verdict": Verdict(found.verdict)})
