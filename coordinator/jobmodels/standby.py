"""Standby copies: the snapshots that a container keeps on its disk for tasks of other slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
from sluice.core.jobmodels.placement import Homes, Hosts, Placement, replicas_of, standbys

LAYOUTS = 100
"""Maximum number of runs whose layout is cached."""


@dataclass(frozen=True, slots=True)
class StandbyCopy:
    """A stage of a task, and the snapshot from which it would be restored now."""

    store: StageStateRow
    snapshot: SnapshotRow


@dataclass(frozen=True, slots=True)
class StandbyPlan:
    """The copies that a container must keep, by task and stage, and the tasks of its own slot."""

    copies: Sequence[StandbyCopy]
    own: frozenset[TaskName]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The tasks that each slot runs, and those that it keeps copies of, at a version of the job model and a number of registrations."""

    version: int
    registrations: int
    own: Mapping[ProcessorId, frozenset[TaskName]]
    kept: Mapping[ProcessorId, Sequence[TaskName]]


class Standbys:
    """Determines the standby copies of containers. The layout of a run is cached. It depends on the version of the job model and on the
    hosts of the slots, so it is computed again after a registration. `registrations` returns the number of registrations of a run."""

    def __init__(self, store: Store, models: JobModels, blob_stores: BlobStores, registrations: Callable[[RunId], int]) -> None:
        self._store = store
        self._models = models
        self._blob_stores = blob_stores
        self._registrations = registrations
        self._layouts: dict[RunId, _Layout] = {}

    async def of_container(self, run_id: RunId, execution_id: ExecutionContainerId) -> StandbyPlan:
        """The copies that a container keeps: none unless the run is configured for them and is backed up. Raises UnknownRun,
        UnknownContainer."""
        registrations = self._registrations(run_id)  # before the transaction, so that the transaction sees at least these
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            container = await tx.fleet.container(execution_id)
            if container is None or container.run_id != run_id:
                raise UnknownContainer(f"run {run_id} has no container {execution_id!r}")
            layout = await self._layout(tx, run, registrations)
            own = layout.own.get(container.processor_id, frozenset())
            if run.state.ended or not self._blob_stores.backup(run.backup).restore_from:
                return StandbyPlan([], own)
            return StandbyPlan(await self._copies(tx, run, layout.kept.get(container.processor_id, ())), own)

    async def _layout(self, tx: ReadTransaction, run: RunRow, registrations: int) -> _Layout:
        known = self._layouts.get(run.run_id)
        if known is not None and (known.version, known.registrations) == (run.model_version, registrations):
            return known
        placement = (await self._models.decoded(tx, run)).placement
        hosts = hosts_of(await tx.fleet.containers(run.run_id)) if replicas_of(run.spec.config) else {}
        own, kept = _by_slot(placement), _by_slot(standbys(placement, hosts))
        layout = _Layout(run.model_version, registrations, {slot: frozenset(tasks) for slot, tasks in own.items()}, kept)
        self._layouts.pop(run.run_id, None)
        self._layouts[run.run_id] = layout
        if len(self._layouts) > LAYOUTS:
            del self._layouts[next(iter(self._layouts))]
        return layout

    async def _copies(self, tx: ReadTransaction, run: RunRow, wanted: Sequence[TaskName]) -> Sequence[StandbyCopy]:
        found = []
        for task in wanted:
            for store in sorted(await tx.fleet.stage_states(run.job, task), key=lambda row: row.stage):
                key = StageKey(run.job, task, store.stage)
                snapshot = None if store.head is None else await tx.snapshots.get(key, store.head)
                if snapshot is not None:
                    found.append(StandbyCopy(store, snapshot))
        return found


def _by_slot(slots: Placement) -> Mapping[ProcessorId, Sequence[TaskName]]:
    """The tasks of each slot, by name."""
    found: defaultdict[ProcessorId, list[TaskName]] = defaultdict(list)
    for task, slot in sorted(slots.items()):
        found[slot].append(task)
    return found


def hosts_of(rows: Sequence[ContainerRow]) -> Hosts:
    """The host of each slot's newest container; the rows are sorted by slot and epoch."""
    return {row.processor_id: row.host for row in rows if row.host}


def with_standbys(homes: Homes, run: RunRow, placement: Placement, rows: Sequence[ContainerRow]) -> Homes:
    """The preferred slots of tasks: first those that may have the state, then those that have a standby copy."""
    if not replicas_of(run.spec.config):
        return homes
    copies = standbys(placement, hosts_of(rows))
    return {**homes, **{task: [*homes.get(task, ()), keeper] for task, keeper in copies.items()}}
