"""Lease bounds that coordinators have promised: what each database must do; inherited by `StoreContract`."""

from __future__ import annotations

from datetime import timedelta

from coordinator.store.sql import Store
from sluice.core.leases.lease import LeasePolicy


class PromisesContract:
    async def test_the_lease_bounds_are_those_that_were_written_last(self, store: Store) -> None:
        first, last = (LeasePolicy(lease=timedelta(seconds=lease)) for lease in (300, 40.5))
        async with store.read() as tx:
            assert await tx.promises.lease_bounds() is None
        for policy in (first, last):
            async with store.begin() as tx:
                await tx.promises.put_lease_bounds(policy.bounds(policy.terms(1)))
        async with store.read() as tx:
            assert await tx.promises.lease_bounds() == last.bounds(last.terms(1))
