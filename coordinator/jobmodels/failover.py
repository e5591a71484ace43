"""Chore: reassign the tasks of slots without a live container to other slots, and return them when the slot has a container again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from coordinator.blobpool import BlobStores
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.versions import ChangeReason, ModelChange, ModelVersions, reassigned_slots
from coordinator.store.fleet import ContainerState
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store
from coordinator.waits import Waits
from sluice.clock import Clock
from sluice.core.errors import RunIsDraining, SluiceError, StaleRun, VersionConflict
from sluice.core.ids import ProcessorId, RunId, TaskName
from sluice.core.jobmodels.placement import Homes
from sluice.core.leases.failover import FailOver, Slot, slots_to_reassign
from sluice.core.lifecycle import RunState

log = logging.getLogger(__name__)

WHO = "fail-over"
VERSIONS_SEARCHED = 20
"""Maximum number of model versions that are searched for the former tasks of a returning slot."""


SLOTS_PER_TURN = 200
"""Slots that are looked at before the event loop processes other requests: a run may have ten thousand."""

_Waiting = tuple[RunId, ProcessorId, datetime]
"""A slot, and when its current state was recorded."""


@dataclass(slots=True)
class ReassignTasks:
    """Chore: reassign the tasks of slots without a container, for runs that are backed up. Without a backup another slot could not
    restore the state. `rule`: for runs whose configuration sets no rule."""

    store: Store
    versions: ModelVersions
    models: JobModels
    blob_stores: BlobStores
    clock: Clock
    rule: FailOver
    every: timedelta = timedelta(seconds=1)
    name: str = "fail_over"
    _waits: Waits[_Waiting] = field(init=False)

    def __post_init__(self) -> None:
        self._waits = Waits(self.clock)

    async def run_once(self) -> Mapping[str, int]:
        looked_at: set[_Waiting] = set()
        async with self.store.read() as tx:
            found = [(run, await self._change(tx, run, looked_at)) for run in await tx.runs.active()]
        self._waits.end_round(looked_at)
        done: Counter[str] = Counter()
        for run, change_and_why in found:
            if change_and_why is None:
                continue
            change, why = change_and_why
            try:
                changed = await self.versions.change(run.run_id, change, ChangeReason(WHO, why, run.model_version))
            except (StaleRun, RunIsDraining, VersionConflict):  # another change came first: decide again in the next round
                continue
            except SluiceError as error:
                log.warning("run %s: %s, but %s", run.run_id, why, error)
                done["failed"] += 1
                continue
            done["moved"] += len(changed.proposal.effect.moves)
        return +done

    async def _change(self, tx: ReadTransaction, run: RunRow, looked_at: set[_Waiting]) -> tuple[ModelChange, str] | None:
        """The change of the run's slots, and its reason; None if nothing changes. Adds the slots whose waiting time was used to
        `looked_at`."""
        rule = self.rule.of_config(run.spec.config)
        current = await tx.runs.current(run.job)
        if rule.after is None or run.state is not RunState.RUNNING or run.stop_requested_at is not None:
            return None
        if current is None or current.run_id != run.run_id or not self.blob_stores.backup(run.backup).to:
            return None
        away = reassigned_slots(run, await self.models.decoded(tx, run))
        if not away and (await tx.fleet.counts(run.run_id, run.job)).containers.get(ContainerState.LIVE, 0) >= run.spec.containers:
            return None
        now = self.clock.now()
        wanted = slots_to_reassign(await self._slots(tx, run, away, now, looked_at), away, rule, now)
        if wanted == away:
            return None
        lost, back = sorted(wanted - away), sorted(away - wanted)
        reasons = [f"slot {pid} has had no container for {rule.after.total_seconds():g} s" for pid in lost]
        why = "; ".join([*reasons, *(f"slot {pid} is back" for pid in back)])
        return ModelChange(away=wanted, homes=await self._before(tx, run, back)), why

    async def _slots(
        self, tx: ReadTransaction, run: RunRow, away: frozenset[ProcessorId], now: datetime, looked_at: set[_Waiting]
    ) -> Mapping[ProcessorId, Slot]:
        newest = {row.processor_id: row for row in await tx.fleet.slots(run.run_id)}
        (version,) = await tx.jobmodels.page(run.job, run.model_version + 1, 1)
        started = max(run.started_at or run.created_at, version.created_at)

        def slot(pid: ProcessorId) -> Slot:
            row = newest.get(pid)
            live = row is not None and row.live
            recorded = started if row is None else row.since
            if live and pid not in away:
                return Slot(live=True, since=recorded)  # how long it has been live does not matter
            key = (run.run_id, pid, recorded)
            looked_at.add(key)
            return Slot(live=live, since=now - self._waits.waited(key, recorded))

        found = {}
        for number, pid in enumerate(run.spec.slots, 1):
            found[pid] = slot(pid)
            if number % SLOTS_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    async def _before(self, tx: ReadTransaction, run: RunRow, back: Sequence[ProcessorId]) -> Homes:
        """The tasks that the returning slots had before they were reassigned."""
        found: dict[TaskName, Sequence[ProcessorId]] = {}
        left = set(back)
        for head in await tx.jobmodels.page(run.job, run.model_version, VERSIONS_SEARCHED) if left else ():
            containers = (await self.models.of_version(tx, run.job, head.version)).containers
            for pid in sorted(left & containers.keys()):
                found |= {task: [pid] for task in containers[pid].tasks}
                left.discard(pid)
            if not left:
                break
        return found
