"""The numbers that this database has issued, and whether it was restored: rows, columns and SQL. See `sluice.core.leases.issued`.

Every epoch, generation, version and number of a notice is issued here, in the transaction that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables
from coordinator.store.columns import Reads, Writes
from sluice.core.leases.issued import Issued


class OriginReads(Reads):
    async def issued(self) -> Issued | None:
        """None before the first start of a coordinator."""
        columns = [column for column in tables.issued.c if column.name != "name"]
        found = (await self._connection.execute(select(*columns).where(tables.issued.c.name == tables.ONLY))).first()
        return Issued(**found._asdict()) if found else None

    async def highest_number(self) -> int:
        """The highest number of any kind that the rows have; 0 without any. Scans whole tables, so it is used only for a database that has
        no row of `issued` yet."""
        numbers = (tables.containers.c.epoch, tables.holds.c.generation, tables.job_models.c.version, tables.notices.c.seq)
        return max([int(await self._connection.scalar(select(func.max(each))) or 0) for each in numbers])

    async def generations(self) -> Mapping[str, int]:
        """The last generation of each task, by "job/task"."""
        found = await self._connection.execute(select(tables.holds.c.job, tables.holds.c.task, tables.holds.c.generation))
        return {f"{row.job}/{row.task}": row.generation for row in found}

    async def is_marked(self) -> bool:
        """Whether `sluice db restore` has put this database in place; see `coordinator.store.copies`."""
        if self._connection.dialect.name != "sqlite":
            return False
        return bool(await self._connection.scalar(text("PRAGMA user_version")))


class OriginWrites(OriginReads, Writes):
    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__(connection)
        self.numbers = 0
        """Numbers that were issued in this transaction."""
        self.sequence = 0
        """The last `Issued.sequence` that was written in this transaction; 0 for none."""
        self._issued: Issued | None = None
        """The row as it is after the numbers that this transaction has issued; None before it is needed."""
        self._changed = False

    async def issued(self) -> Issued | None:
        if self._issued is None:
            self._issued = await super().issued()
        return self._issued

    async def next_number(self, known: int) -> int:
        """Issue the number after `known`, the last of its kind. Raises NumbersNotReserved."""
        issued = await self.issued()
        if issued is None:
            return known + 1
        number = issued.after(known)
        self.numbers += 1
        self._issued, self._changed = issued.noted(number), True
        return number

    async def note(self) -> None:
        """Count the registration of a snapshot."""
        issued = await self.issued()
        if issued is not None:
            self._issued, self._changed = issued.noted(), True

    async def write(self) -> None:
        """Write the row if numbers were issued. Called once, at the end of the transaction, because one may issue a hundred numbers."""
        if self._changed and self._issued is not None:
            await self.put_issued(self._issued)

    async def put_issued(self, issued: Issued) -> None:
        await self._put(tables.issued, [{"name": tables.ONLY, **asdict(issued)}])
        self.sequence = issued.sequence
        self._issued, self._changed = issued, False

    async def unmark(self) -> None:
        """Remove the mark of `sluice db restore`, because this transaction handles it."""
        if self._connection.dialect.name == "sqlite":
            await self._connection.execute(text("PRAGMA user_version=0"))
