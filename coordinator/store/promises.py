"""Bounds of granted leases, which every later coordinator must respect: rows, columns and SQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Row, select

from coordinator.store import tables
from coordinator.store.columns import Columns, Reads, Writes
from sluice.core.leases.lease import LeaseBounds


class PromiseReads(Reads):
    async def lease_bounds(self) -> LeaseBounds | None:
        """The stored bounds; None if no coordinator has stored any."""
        query = select(tables.lease_bounds).where(tables.lease_bounds.c.name == tables.ONLY)
        found = (await self._connection.execute(query)).first()
        return _lease_bounds(found) if found else None


class PromiseWrites(PromiseReads, Writes):
    async def put_lease_bounds(self, bounds: LeaseBounds) -> None:
        await self._put(tables.lease_bounds, [_lease_bounds_columns(bounds)])


def _lease_bounds_columns(bounds: LeaseBounds) -> Columns:
    return {"name": tables.ONLY, **{name: getattr(bounds, name).total_seconds() for name in bounds.__slots__}}


def _lease_bounds(found: Row[Any]) -> LeaseBounds:
    return LeaseBounds(**{name: timedelta(seconds=getattr(found, name)) for name in LeaseBounds.__slots__})
