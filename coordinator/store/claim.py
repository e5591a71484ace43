"""The claim: one coordinator per database. Leases are in memory, and two coordinators on one database would each have their own.

With SQLite it is a lock on a file beside the database, which the operating system releases when the process ends. With PostgreSQL it is
an advisory lock of a session, and every transaction that writes runs in that session: if the session is lost, the claim is lost with it,
and nothing can be written without it. A lost claim is taken again, unless another coordinator had it meanwhile: then the state in memory
is out of date. To detect that even after the other coordinator has ended, each one writes its name to the table `claims`.

If a client vanishes without closing its connection, the server releases the lock when its keep-alives fail, after about 25 seconds.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from sqlalchemy import Row, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from coordinator.store import tables
from sluice.core.errors import DatabaseInUse, StoreUnavailable
from sluice.randomness import new_uuid

_NAME = "coordinator"
_LOCK = 7355609
_KEEP_ALIVE = ("tcp_keepalives_idle = 10", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 3")
_HOLDER = text(
    "SELECT a.pid, a.backend_start, a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 0 AND l.objid = :lock AND l.objsubid = 1 "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class Claim(Protocol):
    @property
    def held(self) -> bool:
        """Whether the claim was held when it was last checked."""
        ...

    async def take(self) -> bool:
        """Take the claim, or check it and take it again if it was lost. Returns whether it was taken again. Raises DatabaseInUse,
        StoreUnavailable."""
        ...

    async def ensure(self) -> bool:
        """After the first `take`: take the claim again if it is known to be lost. Returns whether it was taken again. Raises
        StoreUnavailable."""
        ...

    def writer(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that writes. After the first `take`, raises StoreUnavailable unless the claim is held."""
        ...

    async def release(self) -> None: ...


def lock_file(file: Path) -> IO[bytes] | None:
    """Lock the file until the process ends or the result is closed; None if another process has locked it. Raises OSError."""
    opened = file.open("wb")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.close()
        return None
    return opened


class FileClaim:
    """The claim on an SQLite database. A database in memory or of a `file:` URI needs none."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        name = engine.url.database or ":memory:"
        self._database = None if name.startswith((":memory:", "file:")) else Path(name).resolve()
        self._lock: IO[bytes] | None = None

    @property
    def held(self) -> bool:
        return self._lock is not None or self._database is None

    async def take(self) -> bool:
        if self._database is None or self._lock is not None:
            return False
        try:
            self._lock = lock_file(self._database.with_name(f"{self._database.name}.lock"))
        except OSError as error:
            raise StoreUnavailable(f"the coordinator's database: {error.filename}: {error.strerror}") from error
        if self._lock is None:
            raise DatabaseInUse(f"{self._database} is another coordinator's: stop that one, or name another database")
        return False

    async def ensure(self) -> bool:
        return False

    def writer(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return self._engine.begin()

    async def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@dataclass(frozen=True, slots=True)
class _Session:
    """`backend` is the server's process id and start time, which together identify the session."""

    connection: AsyncConnection
    driver: Any
    backend: tuple[Any, ...]

    @property
    def closed(self) -> bool:
        return self.connection.invalidated or bool(self.driver.is_closed())

    async def drop(self) -> None:
        """Close it without waiting for a server that may not answer."""
        with suppress(DBAPIError, OSError):
            self.driver.terminate()
            await self.connection.close()


class SessionClaim:
    """The claim on a PostgreSQL database. `answer_within`: time limit of `SELECT 1`, in seconds, after which the session is closed."""

    def __init__(self, engine: AsyncEngine, answer_within: float = 10.0) -> None:
        self._engine = engine
        self._answer_within = answer_within
        self._holder = f"{socket.gethostname()} pid {os.getpid()} {new_uuid().hex[:12]}"
        self._wanted = False
        self._signed = False
        self._session: _Session | None = None
        self._former: tuple[Any, ...] | None = None

    @property
    def held(self) -> bool:
        return self._session is not None and not self._session.closed

    async def take(self) -> bool:
        again, self._wanted = self._signed, True
        session = self._session
        if session is not None and not await self._answers(session):
            await self._drop(session)
        opened = self._session is None
        if self._session is None:
            self._session = await self._open()
        if not self._signed:
            async with self._session.connection.begin():
                await self._sign(self._session.connection)
        return again and opened

    async def ensure(self) -> bool:
        if not self._wanted or self.held:
            return False
        try:
            return await self.take()
        except DatabaseInUse as error:
            raise StoreUnavailable(f"{error} This coordinator ends.") from error

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[AsyncConnection]:
        if not self._wanted:
            async with self._engine.begin() as connection:
                yield connection
            return
        session = self._session
        if session is None or session.closed:
            raise StoreUnavailable(f"{self._where}: the session of the claim has just ended")
        try:
            async with session.connection.begin():
                yield session.connection
        except DBAPIError:
            if not await self._answers(session):  # a driver may report the end of the session as another error
                await self._drop(session)
            raise
        finally:
            if session.closed:
                await self._drop(session)

    async def release(self) -> None:
        if self._session is not None:
            await self._drop(self._session)

    async def _answers(self, session: _Session) -> bool:
        if session.closed:
            return False
        try:
            async with asyncio.timeout(self._answer_within), session.connection.begin():
                await session.connection.exec_driver_sql("SELECT 1")
        except (DBAPIError, OSError):
            return False
        return True

    async def _drop(self, session: _Session) -> None:
        if self._session is session:
            self._session, self._former = None, session.backend
        await session.drop()

    async def _open(self) -> _Session:
        connection = await self._engine.connect()
        try:
            driver = (await connection.get_raw_connection()).driver_connection
            await connection.run_sync(lambda bound: bound.detach())  # takes it from the pool: closing it ends the session
            async with connection.begin():
                return _Session(connection, driver, await self._lock(connection))
        except BaseException:
            await connection.close()
            raise

    async def _lock(self, connection: AsyncConnection) -> tuple[Any, ...]:
        """Take the lock for this session. Returns the session's backend."""
        for setting in _KEEP_ALIVE:
            await connection.exec_driver_sql(f"SET {setting}")
        await connection.execute(text("SELECT set_config('application_name', :name, false)"), {"name": f"sluice: {self._holder}"[:63]})
        if not await connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
            await self._refused(connection)
        own = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        backend = tuple((await connection.exec_driver_sql(own)).one())
        if self._signed:
            await self._check_signature(connection)
        return backend

    async def _refused(self, connection: AsyncConnection) -> None:
        """Another session has the lock. If it is our former one, which the server still considers alive, it is terminated."""
        other: Row[Any] | None = (await connection.execute(_HOLDER, {"lock": _LOCK})).first()
        if other is None:
            raise StoreUnavailable(f"{self._where}: another coordinator is just taking or releasing the claim")
        if (other.pid, other.backend_start) == self._former:
            await connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": other.pid})
            raise StoreUnavailable(f"{self._where}: the former session of this coordinator is ending")
        who = f"{other.application_name or 'a session of another user'}, since {other.backend_start:%Y-%m-%d %H:%M:%S %Z}"
        raise DatabaseInUse(f"{self._where} is another coordinator's ({who}): stop that one, or name another database.")

    async def _check_signature(self, connection: AsyncConnection) -> None:
        holder = await connection.scalar(select(tables.claims.c.holder).where(tables.claims.c.name == _NAME))
        if holder != self._holder:
            raise DatabaseInUse(f"{self._where} was used by another coordinator meanwhile ({holder}): the state in memory is out of date.")

    async def _sign(self, connection: AsyncConnection) -> None:
        """Write our name, unless the table does not exist yet: the lock is taken before the first migration."""
        if await connection.scalar(text("SELECT to_regclass('claims')")) is None:
            return
        row = postgresql.insert(tables.claims).values(name=_NAME, holder=self._holder)
        await connection.execute(row.on_conflict_do_update(index_elements=["name"], set_={"holder": self._holder}))
        self._signed = True

    @property
    def _where(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)
