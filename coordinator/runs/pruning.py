"""Chore: delete the history of jobs that no later request reads. `sluice.core.pruning` has the rule."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TypeVar

from coordinator.store.runs import RunRow
from coordinator.store.snapshots import PinRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.waits import DeletionHold
from sluice.clock import Clock
from sluice.core.ids import JobName, RunId, StageName, StreamId
from sluice.core.lifecycle import RunState
from sluice.core.pruning import (
    HistoryPolicy,
    JobHistory,
    PastVersion,
    PruningPlan,
    plan_pruning,
    prunes_notices,
    surplus_containers,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

ALL_VERSIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class PruneHistory:
    """A transaction deletes at most `rows` rows, so that other writers wait only briefly. What belongs to a run is deleted before the run,
    so that an interrupted deletion is resumed. Suspended while deletions are on hold."""

    store: Store
    clock: Clock
    hold: DeletionHold
    policy: HistoryPolicy
    rows: int = 500
    every: timedelta = timedelta(hours=1)
    name: str = "prune_history"

    async def run_once(self) -> Mapping[str, int]:
        if self.hold.active():
            return {"held_back": 1}
        done: Counter[str] = Counter()
        async with self.store.read() as tx:
            jobs = [each.job for each in await tx.runs.jobs()]
        for job in jobs:
            async with self.store.read() as tx:
                plan = await self.plan(tx, job)
                runs = [each.run_id for each in await tx.history.runs(job)]
                pins = {each.pin_id for each in await tx.snapshots.pins(job) if self._has_expired(each)}
            if plan != PruningPlan():
                log.info("job %s: deleting %s, which ended more than %s ago", job, plan, self.policy.keep)
            done += await self._execute(job, plan)
            for pin_id in sorted(pins):
                done["pins"] += await self._written(partial(self._drop_pin, pin_id))
            for run_id in [each for each in runs if each not in set(plan.runs)]:
                done["containers"] += await self._containers(run_id)
                done["notices"] += await self._notices(run_id)
        return {kind: count for kind, count in done.items() if count}

    async def plan(self, tx: ReadTransaction, job: JobName) -> PruningPlan:
        """What may be deleted of the job, without containers and notices of runs that are kept."""
        current = await tx.runs.current(job)
        if current is None:
            return PruningPlan()
        used = await tx.history.references(job, current.run_id)
        history = JobHistory(
            current=current.run_id,
            runs=await tx.history.runs(job),
            versions=[PastVersion(each.version, each.created_at) for each in await tx.jobmodels.page(job, None, ALL_VERSIONS)],
            drains=await tx.history.drains(job),
            readers={run.run_id: _reads(run) for run in await tx.runs.history(job, current.first_run)},
            used_runs=used.runs,
            used_versions=used.versions,
            adopted=used.adopted,
        )
        return plan_pruning(history, self.policy, self.clock.now())

    async def _execute(self, job: JobName, plan: PruningPlan) -> Counter[str]:
        await self._in_batches(plan.drains, lambda tx, some: tx.history.drop_drains(some))
        for run_id in plan.runs:
            while await self._written(lambda tx, run_id=run_id: tx.history.drop_of_run(run_id, self.rows)):  # type: ignore[misc]
                pass
        await self._in_batches(plan.versions, lambda tx, some: tx.history.drop_versions(job, some))
        return Counter(drains=len(plan.drains), runs=len(plan.runs), versions=len(plan.versions))

    async def _containers(self, run_id: RunId) -> int:
        dropped, after = 0, None
        while True:
            async with self.store.read() as tx:
                found = await tx.history.surplus_containers(run_id, self.policy.incarnations, after, self.rows)
            if not found:
                return dropped
            after = found[-1][0]
            surplus = surplus_containers([each for _, each in found], self.policy)
            await self._in_batches(surplus, lambda tx, some: tx.history.drop_containers(some))
            dropped += len(surplus)

    async def _notices(self, run_id: RunId) -> int:
        dropped = 0
        while count := await self._written(lambda tx: self._drop_notices(tx, run_id)):
            dropped += count
        return dropped

    async def _drop_notices(self, tx: WriteTransaction, run_id: RunId) -> int:
        run = await tx.runs.get(run_id)
        stopping, draining = run is not None and run.stop_requested_at is not None, run is not None and run.state is RunState.DRAINING
        if run is None or not prunes_notices(run.state.ended, stopping, draining):
            return 0
        return await tx.history.drop_notices(run_id, self.clock.now() - self.policy.keep, self.rows)

    def _has_expired(self, pin: PinRow) -> bool:
        """Whether the pin has held nothing for as long as history is kept."""
        return pin.expires_at is not None and pin.expires_at < self.clock.now() - self.policy.keep

    async def _drop_pin(self, pin_id: str, tx: WriteTransaction) -> int:
        """Delete an expired pin, unless it was set again meanwhile."""
        if not all(self._has_expired(each) for each in await tx.snapshots.pin(pin_id)):
            return 0
        await tx.snapshots.drop_pin(pin_id)
        return 1

    async def _in_batches(self, items: Sequence[T], drop: Callable[[WriteTransaction, Sequence[T]], Awaitable[None]]) -> None:
        remaining = iter(items)
        while some := list(islice(remaining, self.rows)):
            async with self.store.begin() as tx:
                await drop(tx, some)

    async def _written(self, write: Callable[[WriteTransaction], Awaitable[int]]) -> int:
        async with self.store.begin() as tx:
            return await write(tx)


def _reads(run: RunRow) -> frozenset[tuple[StreamId, StageName]]:
    return frozenset((stream, stage) for stage in run.spec.stage_names for stream in run.spec.reads(stage))
