"""Another client of a coordinator's PostgreSQL, which can end its sessions and take the claim from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine


class Other:
    """Another client of the database, which can take the lock and end sessions."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def ask(self, statement: str, **values: object) -> Any:
        return await self._connection.scalar(text(statement), values)

    async def holder(self) -> int | None:
        """The server's process whose session has the claim."""
        found = await self.ask("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = 7355609")
        return None if found is None else int(found)

    async def end(self, pid: int | None) -> None:
        """End a session, and see it gone."""
        await self.ask("SELECT pg_terminate_backend(:pid, 20000)", pid=pid)

    async def take_over(self) -> None:
        """End the session that has the claim, and have it: we wait in line for it, so that nobody can come between."""
        async with self._new() as ender:
            waiting = asyncio.create_task(self.ask("SELECT pg_advisory_lock(7355609)"))
            while not await ender.ask("SELECT count(*) FROM pg_locks WHERE objid = 7355609 AND NOT granted"):
                pass
            await ender.ask("SELECT pg_terminate_backend(:pid)", pid=await ender.holder())
            await waiting

    @asynccontextmanager
    async def _new(self) -> AsyncIterator[Other]:
        async with self._connection.engine.connect() as connection:
            yield Other(connection)


@asynccontextmanager
async def another_client(url: str) -> AsyncIterator[Other]:
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            yield Other(connection)
    finally:
        await engine.dispose()
