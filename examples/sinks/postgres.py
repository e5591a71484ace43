"""PostgreSQL as an exactly-once sink: the functions for `task.foreach_batch`. docs/sinks.md explains them.

`insert_once` adds each row once, with a marker in the same transaction. `upsert` keeps the newest row of each key, without a marker. Both
compute the batch before they check whether it was written: a batch that runs again must run completely, because its state is committed with
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
from pyspark.sql import DataFrame

from sluice import Task

MARKERS = """
CREATE TABLE IF NOT EXISTS sluice_marker (
    writer text PRIMARY KEY, lineage text NOT NULL, batch bigint NOT NULL, generation bigint NOT NULL)
"""


class Superseded(Exception):
    """A later owner of the task has written."""


def insert_once(task: Task, writer: str, url: str, table: str) -> Callable[[DataFrame, int], None]:
    """Insert each row of a batch once. `writer`: a name for the stage of the task, unique in the database; include `task.name`. `url`: in
    libpq's format. The function raises Superseded, and what asyncpg raises."""

    async def write(connection: asyncpg.Connection[Any], columns: Sequence[str], rows: Sequence[tuple[Any, ...]], batch: int) -> None:
        async with connection.transaction():
            first = "INSERT INTO sluice_marker VALUES ($1, $2, -1, $3) ON CONFLICT DO NOTHING"
            await connection.execute(first, writer, task.lineage, task.generation)
            marker = await connection.fetchrow("SELECT lineage, batch, generation FROM sluice_marker WHERE writer = $1 FOR UPDATE", writer)
            assert marker is not None
            if marker["generation"] > task.generation:
                raise Superseded(f"{writer} was written under generation {marker['generation']}; this is {task.generation}")
            if marker["lineage"] == task.lineage and marker["batch"] >= batch:
                return  # it was written before the container was killed
            await connection.copy_records_to_table(table, columns=columns, records=rows)
            update = "UPDATE sluice_marker SET lineage = $2, batch = $3, generation = $4 WHERE writer = $1"
            await connection.execute(update, writer, task.lineage, batch, task.generation)

    return _writes(url, write)


def upsert(task: Task, url: str, table: str, key: str) -> Callable[[DataFrame, int], None]:
    """Insert the rows of a batch, or replace those with the same `key`, which is the table's primary key. The table has the columns
    `generation` and `batch`, too. A row of a later owner, or of a later batch, is not replaced by an earlier one."""

    async def write(connection: asyncpg.Connection[Any], columns: Sequence[str], rows: Sequence[tuple[Any, ...]], batch: int) -> None:
        names = [*columns, "generation", "batch"]
        listed, values = ", ".join(f'"{name}"' for name in names), ", ".join(f"${number}" for number in range(1, len(names) + 1))
        changes = ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in names if name != key)
        statement = (
            f'INSERT INTO "{table}" AS old ({listed}) VALUES ({values}) ON CONFLICT ("{key}") DO UPDATE SET {changes} '
            "WHERE (old.generation, old.batch) <= (EXCLUDED.generation, EXCLUDED.batch)"
        )
        async with connection.transaction():
            await connection.executemany(statement, [(*row, task.generation, batch) for row in rows])

    return _writes(url, write)


Write = Callable[["asyncpg.Connection[Any]", Sequence[str], Sequence[tuple[Any, ...]], int], Awaitable[None]]


def _writes(url: str, write: Write) -> Callable[[DataFrame, int], None]:
    def function(rows: DataFrame, batch: int) -> None:
        found = rows.toArrow()
        values = list(zip(*(column.to_pylist() for column in found.columns), strict=True))

        async def connected() -> None:
            connection = await asyncpg.connect(url)
            try:
                await write(connection, found.column_names, values, batch)
            finally:
                await connection.close()

        asyncio.run(connected())

    return function
