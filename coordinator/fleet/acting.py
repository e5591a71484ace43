"""Which containers may still run the tasks of a slot: those that own tasks, and bare containers, which acquire none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from datetime import timedelta

from coordinator.fleet.leases import Leases
from coordinator.store.fleet import ContainerRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction
from sluice.clock import Clock
from sluice.core.errors import NoJobModel
from sluice.core.ids import ExecutionContainerId, ProcessorId, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.leases.ownership import Wait

ModelOf = Callable[[ReadTransaction, RunRow], Awaitable[JobModel]]


class Acting:
    """Each method returns how long the last of these containers may still act; None if there is none."""

    def __init__(self, leases: Leases, clock: Clock, model_of: ModelOf) -> None:
        self._leases = leases
        self._clock = clock
        self._model_of = model_of

    async def owners(self, tx: ReadTransaction, run: RunRow, tasks: Collection[TaskName] = ()) -> Wait | None:
        """Owners of these tasks, and of any task under a former run."""
        owners = await tx.fleet.owners(run.job)
        return self._last(
            each.owner.holder for each in owners if not each.owner.released and (each.run_id != run.run_id or each.task in tasks)
        )

    async def in_slot(self, tx: ReadTransaction, run: RunRow, slot: ProcessorId, but: ExecutionContainerId) -> Wait | None:
        """Both kinds, for all tasks of the slot."""
        found = (await self._model_of(tx, run)).containers.get(slot)
        tasks = found.tasks.keys() if found is not None else frozenset[TaskName]()
        return await self.bare(tx, run, slot, tasks, but) or await self.owners(tx, run, tasks)

    async def bare(
        self, tx: ReadTransaction, run: RunRow, slot: ProcessorId, tasks: Collection[TaskName], but: ExecutionContainerId
    ) -> Wait | None:
        """Bare containers, except `but`, which may run one of these tasks of the slot: all of former runs and of this slot, and those of
        other slots which may have read a version of the model that assigned such a task to them."""
        if not self._leases.bare:
            return None
        containers = [each for each in await tx.fleet.active_containers(bare_of=run.job) if each.execution_id != but]
        return self._last([each.execution_id for each in containers if await self._may_run(tx, run, each, slot, tasks)])

    async def _may_run(
        self, tx: ReadTransaction, run: RunRow, container: ContainerRow, slot: ProcessorId, tasks: Collection[TaskName]
    ) -> bool:
        if container.run_id != run.run_id or container.processor_id == slot:
            return True
        for version in range(container.model_version, run.model_version):
            try:
                read = (await self._model_of(tx, replace(run, model_version=version))).containers.get(container.processor_id)
            except NoJobModel:  # its history was pruned
                return True
            if read is not None and not read.tasks.keys().isdisjoint(tasks):
                return True
        return False

    def _last(self, holders: Iterable[ExecutionContainerId]) -> Wait | None:
        now = self._clock.elapsed()
        ends = ((holder, self._leases.free_at(holder)) for holder in holders)
        waits = [Wait(holder, timedelta(seconds=free_at - now)) for holder, free_at in ends if free_at is not None and free_at > now]
        return max(waits, key=lambda wait: wait.delay, default=None)
