"""aiosqlite with one visit to its thread per statement.

aiosqlite goes to a connection's thread for a cursor, for its statement, for its rows and for its end: four times, and each time two threads
hand the interpreter to each other, which costs more than the statement does. SQLAlchemy asks for all four in turn. Here a cursor goes once
and brings everything along: a registration, with its seven statements, took 24 visits and takes 7.
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
    """What SQLAlchemy uses of an aiosqlite cursor; its rows are fetched with its statement."""

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

    async def _run(self, ask: Callable[[sqlite3.Cursor], object]) -> Cursor:
        def everything(opened: sqlite3.Connection) -> None:
            cursor = opened.cursor()
            try:
                ask(cursor)
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
        """The thread ends after what it was asked before. May come again, and is one and the same end: aiosqlite (0.22) asks a thread that
        has ended once more, and would wait for ever for a connection that is given up while it is being closed."""
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
    """As `aiosqlite.connect`: a connection to await. Its thread does not keep the process from ending."""
    made = Connection(partial(sqlite3.connect, *arguments, **named), iter_chunk_size=64)
    made._thread.daemon = True
    return made
