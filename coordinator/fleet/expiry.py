"""Chores: release the tasks of containers whose lease has expired, store the bounds of leases, and store the time of each container's last
heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from coordinator.chores import log
from coordinator.fleet.leases import Leases
from coordinator.fleet.notices import Notices, TaskWaiters
from coordinator.store.fleet import ContainerRow, ContainerState, TaskOwnershipRow
from coordinator.store.sql import Store
from coordinator.transitions import end_container, get_run, settle_run
from sluice.clock import Clock
from sluice.core.ids import RunId


@dataclass(frozen=True, slots=True)
class ExpireLeases:
    """Release the tasks of containers whose lease has expired, after the grace period."""

    store: Store
    leases: Leases
    notices: Notices
    clock: Clock
    task_waiters: TaskWaiters = field(default_factory=TaskWaiters)
    batch: int = 500
    every: timedelta = timedelta(seconds=0.5)
    name: str = "expire_leases"

    async def run_once(self) -> Mapping[str, int]:
        if not self.leases.overdue(1):
            return {}
        touched: set[RunId] = set()
        lost, freed = list[ContainerRow](), list[TaskOwnershipRow]()
        async with self.store.begin() as tx:
            overdue = self.leases.overdue(self.batch)  # no container can register during the transaction
            for execution_id in overdue:
                container = await tx.fleet.container(execution_id)
                if container is None or container.ended_at is not None:
                    continue
                _, holds = await end_container(tx, container, ContainerState.LOST, self.clock.now(), reason="its lease expired")
                lost.append(container)
                freed += holds
                touched.add(container.run_id)
            for run_id in touched:
                await settle_run(tx, await get_run(tx, run_id), self.clock.now())
        for execution_id in overdue:
            log.warning("container %s is lost: its lease and the grace period have expired", execution_id)
            self.leases.drop(execution_id)
        self.task_waiters.notify_ended(lost, freed)
        for run_id in touched:
            self.notices.notify(run_id)
        return {"expired": len(overdue)}


@dataclass(frozen=True, slots=True)
class LowerLeaseBounds:
    """After a start with shorter leases: store the shorter bounds as soon as the leases of earlier coordinators have expired."""

    store: Store
    leases: Leases
    every: timedelta = timedelta(seconds=10)
    name: str = "lower_lease_bounds"

    async def run_once(self) -> Mapping[str, int]:
        if self.leases.lower_bounds() is None:
            return {}
        async with self.store.begin() as tx:
            bounds = self.leases.lower_bounds()  # no container can register during the transaction
            if bounds is not None:
                await tx.promises.put_lease_bounds(bounds)
        if bounds is None:
            return {}
        self.leases.set_bounds(bounds)
        return {"lowered": 1}


@dataclass(frozen=True, slots=True)
class FlushLastSeen:
    """Store the time of each container's last heartbeat, in small batches, so that no other transaction waits long."""

    store: Store
    leases: Leases
    clock: Clock
    batch: int = 500
    every: timedelta = timedelta(seconds=30)
    name: str = "flush_last_seen"

    async def run_once(self) -> Mapping[str, int]:
        renewed = self.leases.take_renewed()
        if not renewed:
            return {}
        now = self.clock.now()
        for first in range(0, len(renewed), self.batch):
            async with self.store.begin() as tx:
                await tx.fleet.set_last_seen((execution_id, now) for execution_id in renewed[first : first + self.batch])
        return {"flushed": len(renewed)}
