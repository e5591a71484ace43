"""SQLite without a thread: statements run on the event loop, each without interruption, some after a pause in which other tasks run."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, cast
from weakref import WeakSet

from sqlalchemy import event

from coordinator.store.claim import FileClaim, SessionClaim
from coordinator.store.sql import Store, new_engine
from coordinator.store.sqlite import Connection
from tests.simulation import postgresql
from tests.simulation.loop import Process
from tests.support.databases import share_compiled

PAUSES = 0.2
"""The probability of a pause before a statement. A higher one takes time and finds no more faults: a transaction has several statements."""


@dataclass
class DatabaseFaults:
    """`away`: every statement fails. `lose_commits`: how many of the next commits succeed and report an error, after `spare_commits`
    commits that report none."""

    chance: Random
    away: bool = False
    lose_commits: int = 0
    spare_commits: int = 0

    def run(self, function: Callable[[], Any]) -> Any:
        if self.away:
            raise sqlite3.OperationalError("the database is away")
        result = function()
        if self.lose_commits and getattr(getattr(function, "func", None), "__name__", "") == "commit":
            if self.spare_commits:
                self.spare_commits -= 1
                return result
            self.lose_commits -= 1
            raise sqlite3.OperationalError("the answer of a commit is lost")
        return result


class _LoopQueue:
    """Replaces the queue of aiosqlite's thread: the event loop runs the functions that are put into it."""

    def __init__(self, faults: DatabaseFaults) -> None:
        self._faults = faults

    def put_nowait(self, work: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        future, function = work
        if future is None:
            function()
            return

        def run() -> None:
            try:
                result = self._faults.run(function)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        if self._faults.chance.random() < PAUSES:
            future.get_loop().call_soon(run)
        else:
            run()


class _Sqlite(sqlite3.Connection):
    """Closes its cursors before itself, because SQLite keeps a closed connection and its locks while one of its statements is in use."""

    server: postgresql.Server | None = None
    session: postgresql.Session | None = None
    writes = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, *arguments: Any, **named: Any) -> Any:
        if self.session is None or self.server is None:
            made = super().cursor(*arguments, **named)
        else:
            made = super().cursor(postgresql.Cursor)
            made.session, made.server = self.session, self.server
        self.cursors.add(made)
        return made

    def close(self) -> None:
        super().close()
        if self.session is not None and self.server is not None:
            self.server.close(self.session)

    def end(self) -> None:
        for each in list(self.cursors):
            each.close()
        self.close()


class LoopConnection(Connection):
    def __init__(self, faults: DatabaseFaults, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tx = _LoopQueue(faults)  # type: ignore[assignment]

    def is_closed(self) -> bool:
        """Of asyncpg's connections."""
        connection = cast("_Sqlite | None", self._connection)
        return connection is None or (connection.session is not None and connection.session.ended)

    def terminate(self) -> None:
        """Of asyncpg's connections."""
        self.end()

    def __await__(self) -> Any:
        return self._connect().__await__()

    def end(self) -> None:
        """Close the connection at once, as the end of its process does. An open transaction is rolled back."""
        self._running = False
        connection, self._connection = self._connection, None
        if connection is not None:
            cast("_Sqlite", connection).end()

    def __del__(self) -> None:
        self.end()


def simulated_store(url: str, process: Process, faults: DatabaseFaults, server: postgresql.Server | None = None) -> Store:
    """A database whose connections end with the process. `server`: of PostgreSQL, which the file then is a part of."""
    engine = new_engine(url)
    opened: WeakSet[_Sqlite] = WeakSet()

    def open_file(*arguments: Any, **named: Any) -> _Sqlite:
        if process.dead:
            raise sqlite3.OperationalError("the process has ended")
        made = sqlite3.connect(*arguments, factory=_Sqlite, **named)
        if server is not None:
            made.server, made.session = server, server.connected(f"sluice: {process.name}", made)
        opened.add(made)  # here, because the process may end before the result of a connect is used
        return made

    def connect(*arguments: Any, **named: Any) -> LoopConnection:
        return LoopConnection(faults, partial(open_file, *arguments, **named), iter_chunk_size=64)

    def use(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        parameters["async_creator_fn"] = connect

    event.listen(engine.sync_engine, "do_connect", use)
    share_compiled(engine.sync_engine)
    store = Store(engine, claim=None if server is None else SessionClaim(engine, process.name))

    def end() -> None:
        for each in list(opened):
            each.end()
        if isinstance(store._claim, FileClaim) and store._claim._lock is not None:
            store._claim._lock.close()  # the operating system releases the locks of a process that has ended

    process.on_death.append(end)
    return store
