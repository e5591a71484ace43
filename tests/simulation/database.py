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

from coordinator.store.claim import FileClaim
from coordinator.store.sql import Store, new_engine
from coordinator.store.sqlite import Connection
from tests.simulation.loop import Process

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

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, *arguments: Any, **named: Any) -> Any:
        made = super().cursor(*arguments, **named)
        self.cursors.add(made)
        return made

    def end(self) -> None:
        for each in list(self.cursors):
            each.close()
        self.close()


class LoopConnection(Connection):
    def __init__(self, faults: DatabaseFaults, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tx = _LoopQueue(faults)  # type: ignore[assignment]

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


def simulated_store(url: str, process: Process, faults: DatabaseFaults) -> Store:
    """A database whose connections end with the process."""
    engine = new_engine(url)
    opened: WeakSet[_Sqlite] = WeakSet()

    def open_file(*arguments: Any, **named: Any) -> _Sqlite:
        if process.dead:
            raise sqlite3.OperationalError("the process has ended")
        made = sqlite3.connect(*arguments, factory=_Sqlite, **named)
        opened.add(made)  # here, because the process may end before the result of a connect is used
        return made

    def connect(*arguments: Any, **named: Any) -> LoopConnection:
        return LoopConnection(faults, partial(open_file, *arguments, **named), iter_chunk_size=64)

    def use(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        parameters["async_creator_fn"] = connect

    event.listen(engine.sync_engine, "do_connect", use)
    store = Store(engine)

    def end() -> None:
        for each in list(opened):
            each.end()
        _unlock(store)

    process.on_death.append(end)
    return store


def _unlock(store: Store) -> None:
    """Release the locks, as the operating system does for a process that has ended."""
    claim = store._claim
    assert isinstance(claim, FileClaim)
    if claim._lock is not None:
        claim._lock.close()
