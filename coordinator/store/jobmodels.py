"""Versions of job models, and the streams whose growth makes new ones: rows, columns and SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Row, delete, insert, select

from coordinator.store import tables
from coordinator.store.columns import Columns
from coordinator.store.drains import SqlDrainReading, SqlDrainWriting
from sluice.core.expansion import Verdict
from sluice.core.ids import JobName, RunId, StreamId


@dataclass(frozen=True, slots=True)
class ModelHead:
    """A version of a job's model without the model: for which run it was made, when, why, and by whom ("" where nobody said)."""

    job: JobName
    version: int
    run_id: RunId
    content_hash: str
    created_at: datetime
    why: str
    who: str


@dataclass(frozen=True, slots=True)
class ModelRow(ModelHead):
    """One version of a job's model; `document` is its JSON. Versions of a job are never reused or changed."""

    document: str


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """An input of a job's run as the partition monitor found it last: `known` partitions by the job model, `seen` by the system, None when
    that could not be found out. `since`: when the verdict with its reason began. `kept_from`: a count that was taken back by a roll back;
    the stream is not grown to it unless somebody asks."""

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


class VersionReading(Protocol):
    async def model(self, job: JobName, version: int | None = None) -> ModelRow | None:
        """That version of the model, or the newest."""
        ...

    async def models(self, job: JobName, before: int | None, limit: int) -> Sequence[ModelHead]:
        """Up to `limit` versions of the job's, newest first, those numbered below `before`."""
        ...

    async def watched(self, job: JobName) -> Sequence[WatchedRow]:
        """By system and stream."""
        ...


class VersionWriting(VersionReading, Protocol):
    async def add_model(self, row: ModelRow) -> None: ...

    async def put_watched(self, job: JobName, rows: Collection[WatchedRow]) -> None:
        """Replace the job's as a whole: rows of streams that it reads no more go."""
        ...


class SqlVersionReading(SqlDrainReading):
    """Reads of one transaction."""

    async def model(self, job: JobName, version: int | None = None) -> ModelRow | None:
        query = select(tables.job_models).where(tables.job_models.c.job == job)
        if version is not None:
            query = query.where(tables.job_models.c.version == version)
        found = (await self._connection.execute(query.order_by(tables.job_models.c.version.desc()).limit(1))).first()
        return model_row(found) if found else None

    async def models(self, job: JobName, before: int | None, limit: int) -> Sequence[ModelHead]:
        table = tables.job_models
        heads = [column for column in table.c if column.name != "document"]  # which may be megabytes
        query = select(*heads).where(table.c.job == job).order_by(table.c.version.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.version < before)
        return [ModelHead(**found._asdict()) for found in await self._connection.execute(query)]

    async def watched(self, job: JobName) -> Sequence[WatchedRow]:
        table = tables.watched_streams
        query = select(table).where(table.c.job == job).order_by(table.c.system, table.c.stream)
        return [watched_row(found) for found in await self._connection.execute(query)]


class SqlVersionWriting(SqlVersionReading, SqlDrainWriting):
    """Reads and writes of one transaction."""

    async def add_model(self, row: ModelRow) -> None:
        await self._connection.execute(insert(tables.job_models).values(model_columns(row)))

    async def put_watched(self, job: JobName, watched: Collection[WatchedRow]) -> None:
        await self._connection.execute(delete(tables.watched_streams).where(tables.watched_streams.c.job == job))
        await self._put(tables.watched_streams, [watched_columns(row) for row in watched])


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


def watched_columns(row: WatchedRow) -> Columns:
    return asdict(row) | {"verdict": row.verdict.value}


def watched_row(found: Row[Any]) -> WatchedRow:
    return WatchedRow(**{**found._asdict(), "verdict": Verdict(found.verdict)})
