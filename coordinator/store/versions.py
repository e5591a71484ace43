"""The store port's part about versions of job models, and about the streams whose growth makes new ones. See `coordinator.store.port` for
the promises that hold of all rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

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
