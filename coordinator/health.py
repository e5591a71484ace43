"""The checks of `/readyz`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from coordinator.blobpool import BlobStores
from coordinator.chores import ChoreScheduler
from coordinator.disks import MeasureDisks
from coordinator.fleet.leases import Leases
from coordinator.store.sql import Store
from sluice.core.errors import SluiceError, UnknownStream
from sluice.core.snapshots.snapshot import BlobStoreName
from sluice.disks import Room
from sluice.streams.port import StreamSystem

TIMEOUT = timedelta(seconds=4)
"""A check that takes longer has failed. Probes of `/readyz` wait only a few seconds, while the timeouts of stream systems are longer."""


@dataclass(frozen=True, slots=True)
class Check:
    """`vital`: the coordinator is not ready if this check fails. Other checks are only displayed."""

    name: str
    ok: bool
    text: str
    vital: bool = True


@dataclass(frozen=True, slots=True)
class Health:
    store: Store
    systems: Mapping[str, StreamSystem]
    leases: Leases
    maintenance: ChoreScheduler
    blob_stores: BlobStores
    degraded_backups: Callable[[], Sequence[str]]
    disks: MeasureDisks
    issued: Callable[[], Sequence[str]] = tuple
    timeout: timedelta = TIMEOUT

    async def check(self) -> Sequence[Check]:
        """Check all parts concurrently, each with a cheap request. Blob stores are not contacted: their check is the outcome of the last
        attempt to open them."""
        checks = {"database": self._database()} | {f"system {name}": self._system(name) for name in sorted(self.systems)}
        *answers, measured = await asyncio.gather(
            *(self._in_time(name, check) for name, check in checks.items()), self._in_time("disks", self._measure_disks())
        )
        return [
            *answers,
            *([] if measured.ok else [measured]),
            *self.known(),
            self._backups(),
            self._lease_window(),
        ]

    def known(self) -> Sequence[Check]:
        """The checks that send no requests: they return what chores and earlier requests have found."""
        blobs = [self._blob_store(name) for name in self.blob_stores.names]
        return [*self._disks(), *blobs, self._catalog(), self._chores()]

    async def _database(self) -> Check:
        try:
            async with self.store.read() as tx:
                active = await tx.runs.active()
        except SluiceError as error:
            return Check("database", False, str(error))
        if not self.store.claimed:
            return Check("database", False, "another coordinator may be using it; nothing is written until the claim is renewed")
        return Check("database", True, f"{len(active)} active runs")

    async def _system(self, name: str) -> Check:
        try:
            await self.systems[name].partitions("sluice-readiness-probe")
        except UnknownStream:
            pass
        except SluiceError as error:
            return Check(f"system {name}", False, str(error))
        return Check(f"system {name}", True, "answers")

    async def _measure_disks(self) -> Check:
        await self.disks.measure()
        return Check("disks", True, "measured")

    def _disks(self) -> Sequence[Check]:
        """One check for each disk. It is vital only if the disk is full; low space is only displayed."""
        found = {name: (space, self.disks.thresholds.judge(space)) for name, space in self.disks.found.items()}
        return [
            Check(f"disk {name}", room is Room.ENOUGH, self.disks.text(name, space), vital=room is Room.FULL)
            for name, (space, room) in found.items()
        ]

    def _blob_store(self, name: BlobStoreName) -> Check:
        problem = self.blob_stores.problem(name)
        return Check(f"blob store {name}", problem is None, problem or "open", vital=False)

    def _backups(self) -> Check:
        degraded = self.degraded_backups()
        return Check("backups", not degraded, "; ".join(degraded) or "as the runs request", vital=False)

    def _catalog(self) -> Check:
        problems = self.issued()
        return Check("catalog", not problems, "; ".join(problems) or "as new as the blob stores", vital=False)

    def _chores(self) -> Check:
        dead = self.maintenance.dead
        return Check("chores", not dead, f"ended: {', '.join(dead)}" if dead else "running")

    def _lease_window(self) -> Check:
        overlap = self.leases.policy.overlap(self.leases.terms).total_seconds()
        terms, unacknowledged = self.leases.terms, self.leases.unacknowledged
        waiting = f", {unacknowledged} of them not acknowledged" if unacknowledged else ""
        return Check(
            "leases",
            True,
            f"{len(self.leases)} valid{waiting}; lease {terms.lease.total_seconds():g} s, "
            f"heartbeat every {terms.interval.total_seconds():g} s, "
            f"two incarnations can overlap by {overlap:g} s at worst",
        )

    async def _in_time(self, name: str, check: Awaitable[Check]) -> Check:
        try:
            async with asyncio.timeout(self.timeout.total_seconds()):
                return await check
        except TimeoutError:
            return Check(name, False, f"no answer within {self.timeout.total_seconds():g} s")
