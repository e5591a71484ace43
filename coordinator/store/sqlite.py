"""aiosqlite with one thread switch per statement.

aiosqlite switches to the connection's thread for each of four calls: to open a cursor, execute a statement, fetch its rows and close the
cursor. SQLAlchemy makes all four for each statement, and the switches cost more than the statement. Here one switch does all four: a
registration, which has seven statements, took 24 switches and takes 7.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, TypeVar

import aiosqlite

_Result = TypeVar("_Result")


class Cursor:
    """The part of an aiosqlite cursor that SQLAlchemy uses. The rows are fetched with the statement."""

    arraysize = 1

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    def __await__(self) -> Generator[Any, None, Cursor]:
        yield from ()
        return self

    async def __aenter__(self) -> Cursor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def execute(self, statement: str, parameters: Iterable[Any] = ()) -> Cursor:
        return await self._run(lambda cursor: cursor.execute(statement, parameters))  # type: ignore[arg-type]

    async def executemany(self, statement: str, parameters: Iterable[Iterable[Any]]) -> Cursor:
        return await self._run(lambda cursor: cursor.executemany(statement, parameters))  # type: ignore[arg-type]

    async def _run(self, call: Callable[[sqlite3.Cursor], object]) -> Cursor:
        def everything(opened: sqlite3.Connection) -> None:
            cursor = opened.cursor()
            try:
                call(cursor)
                self.description, self.rowcount, self.lastrowid = cursor.description, cursor.rowcount, cursor.lastrowid
                self._rows = cursor.fetchall() if cursor.description else []
            finally:
                cursor.close()

        await self._connection.in_thread(everything)
        return self

    async def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        self._rows = []


class Connection(aiosqlite.Connection):
    _stopped: asyncio.Future[Any] | None = None

    def stop(self) -> asyncio.Future[Any] | None:
        """End the thread after its queued work. Idempotent: aiosqlite (0.22) calls it again for a connection that is discarded while it is
        being closed, and would otherwise wait forever for a thread that has ended."""
        if self._stopped is None:
            self._stopped = super().stop()
        return None if self._stopped is None else asyncio.shield(self._stopped)

    def cursor(self) -> Cursor:  # type: ignore[override]
        return Cursor(self)

    async def in_thread(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        def run() -> _Result:
            return work(self._conn)

        found: _Result = await self._execute(run)  # type: ignore[no-untyped-call]
        return found


def connect(*arguments: Any, **named: Any) -> Connection:
    """Like `aiosqlite.connect`, but with a daemon thread, so that it does not keep the process alive."""
    made = Connection(partial(sqlite3.connect, *arguments, **named), iter_chunk_size=64)
    made._thread.daemon = True
    return made
