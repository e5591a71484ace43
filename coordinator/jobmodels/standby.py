"""Standby copies: the snapshots that a container keeps on its disk for tasks of other slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.blobpool import BlobStores
from coordinator.jobmodels.cache import JobModels
from coordinator.store.fleet import ContainerRow, StageStateRow
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import SnapshotRow
from coordinator.store.sql import ReadTransaction, Store
from coordinator.transitions import get_run
from sluice.core.errors import UnknownContainer
from sluice.core.ids import ExecutionContainerId, ProcessorId, RunId, StageKey, TaskName
from sluice.core.placement import Homes, Hosts, Placement, replicas_of, standbys


@dataclass(frozen=True, slots=True)
class Copy:
    """A stage of a task, and the snapshot from which it would be restored now."""

    store: StageStateRow
    snapshot: SnapshotRow


@dataclass(frozen=True, slots=True)
class StandbyPlan:
    """The copies that a container must keep, by task and stage, and the tasks of its own slot."""

    copies: Sequence[Copy]
    own: frozenset[TaskName]


@dataclass(frozen=True, slots=True)
class Standbys:
    store: Store
    models: JobModels
    blob_stores: BlobStores

    async def of_container(self, run_id: RunId, execution_id: ExecutionContainerId) -> StandbyPlan:
        """Without copies unless the run is configured for them and is backed up. Raises UnknownRun, UnknownContainer."""
        async with self.store.read() as tx:
            run = await get_run(tx, run_id)
            rows = await tx.fleet.containers(run_id)
            container = next((row for row in rows if row.execution_id == execution_id), None)
            if container is None:
                raise UnknownContainer(f"run {run_id} has no container {execution_id!r}")
            placement = (await self.models.decoded(tx, run)).placement
            own = frozenset(task for task, slot in placement.items() if slot == container.processor_id)
            if run.state.ended or not replicas_of(run.spec.config) or not self.blob_stores.backup(run.backup).restore_from:
                return StandbyPlan([], own)
            return StandbyPlan(await self._copies(tx, run, container.processor_id, placement, rows), own)

    async def _copies(
        self, tx: ReadTransaction, run: RunRow, slot: ProcessorId, placement: Placement, rows: Sequence[ContainerRow]
    ) -> Sequence[Copy]:
        wanted = {task for task, keeper in standbys(placement, hosts_of(rows)).items() if keeper == slot}
        found = []
        for task in sorted(wanted):
            for store in sorted(await tx.fleet.stage_states(run.job, task), key=lambda row: row.stage):
                key = StageKey(run.job, task, store.stage)
                snapshot = None if store.head is None else await tx.snapshots.get(key, store.head)
                if snapshot is not None:
                    found.append(Copy(store, snapshot))
        return found


def hosts_of(rows: Sequence[ContainerRow]) -> Hosts:
    """The host of each slot's newest container; the rows are sorted by slot and epoch."""
    return {row.processor_id: row.host for row in rows if row.host}


def with_standbys(homes: Homes, run: RunRow, placement: Placement, rows: Sequence[ContainerRow]) -> Homes:
    """The preferred slots of tasks: first those that may have the state itself, then those that have a copy of it."""
    if not replicas_of(run.spec.config):
        return homes
    copies = standbys(placement, hosts_of(rows))
    return {**homes, **{task: [*homes.get(task, ()), keeper] for task, keeper in copies.items()}}
