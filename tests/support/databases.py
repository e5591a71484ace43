"""Empty databases for tests that do not test the database, and a second client of a coordinator's PostgreSQL, which can terminate its
sessions and take over its claim.
"""

from __future__ import annotations

import asyncio
import sqlite3
from atexit import register
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, closing
from functools import cache, partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, TypeVar
from weakref import finalize

import aiosqlite
from alembic import command
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from coordinator.store.migrate import alembic_config
from coordinator.store.sql import Store, new_engine, open_store
from coordinator.store.sqlite import Connection
from coordinator.store.tables import metadata
from tests.simulation.loop import SimulatedLoop

AnyStore = TypeVar("AnyStore", bound=Store)


class _Inline:
    """Replaces the queue of a connection's thread: runs the work immediately."""

    def put_nowait(self, item: tuple[asyncio.Future[Any] | None, Callable[[], object]]) -> None:
        future, work = item
        try:
            result = work()
        except Exception as error:
            if future is not None and not future.done():
                future.set_exception(error)
        else:
            if future is not None and not future.done():
                future.set_result(result)


class _InlineConnection(Connection):
    """Runs statements in the event loop's own thread. For a file in the page cache this is several times faster."""

    def __await__(self) -> Generator[Any, None, aiosqlite.Connection]:
        self._tx = _Inline()  # type: ignore[assignment]
        return self._connect().__await__()


def _connect_inline(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
    parameters["async_creator_fn"] = lambda *arguments, **named: _InlineConnection(partial(sqlite3.connect, *arguments, **named), 64)


class _Turns(_Inline):
    """Runs each statement in a turn of the event loop of its own, so that other tasks run between two statements."""

    def put_nowait(self, item: tuple[asyncio.Future[Any] | None, Callable[[], object]]) -> None:
        future, _ = item
        if future is None:
            super().put_nowait(item)
        else:
            future.get_loop().call_soon(super().put_nowait, item)


class _VirtualConnection(Connection):
    """In virtual time there are no threads."""

    def __await__(self) -> Generator[Any, None, aiosqlite.Connection]:
        if isinstance(asyncio.get_running_loop(), SimulatedLoop):
            self._tx = _Turns()  # type: ignore[assignment]
            return self._connect().__await__()
        return super().__await__()


def _connect_on_loop(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
    parameters["async_creator_fn"] = lambda *arguments, **named: _VirtualConnection(partial(sqlite3.connect, *arguments, **named), 64)


def _do_not_sync(connection: Any, _record: object) -> None:
    connection.cursor().execute("PRAGMA synchronous=OFF")


_unused: list[AsyncEngine] = []
"""SQLAlchemy compiles each statement once per engine, which takes longer than executing it. Engines are therefore reused."""


def temporary_store(kind: type[AnyStore]) -> AnyStore:
    """An empty store of that class in an SQLite file.

    It need not be closed: its file is reused when nothing refers to the store. Several event loops may use it one after the other. It does
    not sync the file to disk, because no test cuts the power.
    """
    engine = _unused.pop() if _unused else _new_database()
    with closing(sqlite3.connect(str(engine.url.database))) as connection:
        for table in metadata.tables:
            connection.execute(f"DELETE FROM {table}")
        connection.commit()
    store = kind(engine)
    finalize(store, _unused.append, engine)
    return store


def _new_database() -> AsyncEngine:
    directory = mkdtemp(prefix="sluice-tests-")
    register(rmtree, directory, ignore_errors=True)
    file = f"{directory}/coordinator.db"
    schema = create_engine(f"sqlite:///{file}")
    metadata.create_all(schema)
    schema.dispose()
    engine = new_engine(f"sqlite+aiosqlite:///{file}")
    event.listen(engine.sync_engine, "do_connect", _connect_inline)
    event.listen(engine.sync_engine, "connect", _do_not_sync)
    return engine


def quick_store(url: str) -> Store:
    """`open_store`. For SQLite statements are compiled once a process instead of once a coordinator, and the file is not synced to disk."""
    store = open_store(url)
    if store.engine.dialect.name == "sqlite":
        event.listen(store.engine.sync_engine, "do_connect", _connect_on_loop)
        share_compiled(store.engine.sync_engine)
        event.listen(store.engine.sync_engine, "connect", _do_not_sync)
    return store


def share_compiled(engine: Engine) -> None:
    """Compile each statement for SQLite once a process instead of once an engine. This takes longer than executing it."""
    if not _first:
        _first.append(engine)
    engine.dialect, engine._compiled_cache = _first[0].dialect, _first[0]._compiled_cache


_first: list[Engine] = []
"""The first engine of this process. Statements are compiled for its dialect. An event of dialects, such as `do_connect`, that is listened
for on another engine afterwards is never sent."""


def create_migrated(home: Path) -> None:
    """Create the SQLite database of a coordinator that has not started yet, unless it exists. The migrations, which
    tests/integration/store/test_migrations.py tests, would take most of the time of a test."""
    file = home / "coordinator.db"
    if not file.exists():
        home.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_migrated())


@cache
def _migrated() -> bytes:
    with TemporaryDirectory(prefix="sluice-tests-") as directory:
        file = Path(directory) / "coordinator.db"
        engine = create_engine(f"sqlite:///{file}")
        with engine.begin() as connection:
            command.upgrade(alembic_config(connection), "head")
        engine.dispose()
        return file.read_bytes()


_CLAIM = "locktype = 'advisory' AND objid = 7355609 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
"""Other tests use other databases of the server at the same time."""


class Other:
    """A second client of the database, which can take the lock and terminate sessions."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def request(self, statement: str, **values: object) -> Any:
        return await self._connection.scalar(text(statement), values)

    async def holder(self) -> int | None:
        """The PID of the server process whose session has the claim."""
        found = await self.request(f"SELECT pid FROM pg_locks WHERE granted AND {_CLAIM}")
        return None if found is None else int(found)

    async def end(self, pid: int | None) -> None:
        """Terminate a session, and wait until it is gone."""
        await self.request("SELECT pg_terminate_backend(:pid, 20000)", pid=pid)

    async def take_over(self) -> None:
        """Terminate the session that has the claim, and take the claim. This client is already waiting for the lock, so that no other
        client gets it.
        """
        async with self._new() as ender:
            waiting = asyncio.create_task(self.request("SELECT pg_advisory_lock(7355609)"))
            while not await ender.request(f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {_CLAIM}"):
                pass
            await ender.request("SELECT pg_terminate_backend(:pid)", pid=await ender.holder())
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
