"""Versions of job models in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields

from coordinator.store.backups_memory import in_utc
from coordinator.store.versions import ModelHead, ModelRow, WatchedRow
from sluice.core.ids import JobName


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
