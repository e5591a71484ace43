"""Drains in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.store.backups_memory import in_utc
from coordinator.store.drains import DrainRow, DrainStageRow
from sluice.core.drain import DrainId, Phase, Step
from sluice.core.ids import JobName, RunId, StageName, TaskName


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
