"""Shared by the aggregates: base classes with a connection and an upsert, and offsets as JSON columns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Executable, Row, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from sluice.core.ids import Ssp

Columns = dict[str, Any]

ROWS_PER_STATEMENT = 1_000
ROWS_PER_TURN = 25

Made = TypeVar("Made")


class Reads:
    """Queries of one aggregate within a transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def _all(self, query: Executable, make: Callable[[Row[Any]], Made]) -> list[Made]:
        """Read many rows. The event loop processes other requests after every few rows, because decoding takes longer than reading."""
        found: list[Made] = []
        for rows in (await self._connection.execute(query)).partitions(ROWS_PER_TURN):
            found += map(make, rows)
            if len(rows) == ROWS_PER_TURN:
                await asyncio.sleep(0)
        return found


class Writes(Reads):
    """Queries and changes of one aggregate within a transaction."""

    async def _put(self, table: Table, columns: Iterable[Columns], *, overwrite: bool = True) -> None:
        """Write whole rows. A row replaces an older one with the same key; without `overwrite` the older one is kept."""
        await self._for_each(_upsert(table, self._connection.dialect.name, overwrite=overwrite), columns)

    async def _for_each(self, statement: Executable, parameters: Iterable[Columns]) -> None:
        """Execute a statement for each row of parameters. Many rows are sent together, because the database executes a row much faster than
        it answers a request."""
        remaining = iter(parameters)
        while batch := list(islice(remaining, ROWS_PER_STATEMENT)):
            await self._connection.execute(statement, batch)


@cache
def _upsert(table: Table, dialect: str, *, overwrite: bool) -> Executable:
    """Cached, because SQLAlchemy takes longer to build the statement than the database to run it."""
    insert_into: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect]
    statement = insert_into(table)
    keys = [column.name for column in table.primary_key]
    if not overwrite:
        skipping: Executable = statement.on_conflict_do_nothing(index_elements=keys)
        return skipping
    rest = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in keys}
    replacing: Executable = statement.on_conflict_do_update(index_elements=keys, set_=rest)
    return replacing


def offset_list(offsets: Mapping[Ssp, int]) -> list[list[Any]]:
    return [[ssp.system, ssp.stream, ssp.partition, offset] for ssp, offset in sorted(offsets.items())]


def offsets_of(listed: list[list[Any]]) -> dict[Ssp, int]:
    return {Ssp(system, stream, partition): offset for system, stream, partition, offset in listed}
