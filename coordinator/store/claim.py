"""The claim: one coordinator per database. Leases are in memory, so two coordinators on one database would grant them independently.

With SQLite it is a lock on a file next to the database. The operating system releases it when the process ends.

With PostgreSQL it is a lease by the database's time: a row of the table `claims` with the holder, its term and its expiry. The holder
renews it every second, and every write transaction checks it. The session in which the holder writes also has an advisory lock. It shows
immediately that the holder has ended, and excludes coordinators of releases without leases. A coordinator that starts while the lock is
held waits. If it sees that the claim is renewed, it is refused. If the claim expires, it terminates the sessions of the holder, which may
be frozen, and takes the claim. Timeouts of sessions are shorter than the lease, so a frozen holder blocks others no longer than that.

Terms increase with each holder, and are at least the database's time in seconds, so that a database that was restored from an older copy
gives higher terms than those that containers know. SQLite has no terms: the lock is free only when no process has it, so there cannot be a
former coordinator that still sends answers.

A lost claim is taken again, unless another coordinator has had it since, because then the state in memory is out of date.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Protocol

from sqlalchemy import Row, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sluice.core.errors import DatabaseInUse, StoreUnavailable
from sluice.randomness import new_uuid

log = logging.getLogger(__name__)

_NAME = "coordinator"
_LOCK = 7355609
CLAIM_SECONDS = 10.0
"""How long a claim on PostgreSQL is valid after it was renewed."""

SESSION_LIMIT = timedelta(seconds=8)
"""Timeout of statements and of idle transactions. Less than CLAIM_SECONDS."""

LOOK_SECONDS = 0.25
"""How often a coordinator that waits for a claim looks at it."""

_READS_UNTIL_WARNING = 8
"""After this many reads it logs that it is waiting."""

_KEEP_ALIVE = ("tcp_keepalives_idle = 10", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 3")
_HOLDER = text(
    "SELECT a.pid, a.backend_start, a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 0 AND l.objid = :lock AND l.objsubid = 1 "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)

_END_SESSIONS = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE application_name = :name AND datname = current_database() AND pid <> pg_backend_pid()"
)
_IS_LEASE = text("SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('claims') AND attname = 'expires_at'")
_ROW = text("SELECT holder, term, expires_at, expires_at < clock_timestamp() AS over FROM claims WHERE name = :name")
_RENEW = text(
    "UPDATE claims SET expires_at = clock_timestamp() + make_interval(secs => :seconds) "
    "WHERE name = :name AND holder = :holder AND term = :term"
)
_SIGN = text(
    "INSERT INTO claims (name, holder, term, expires_at) VALUES "
    "(:name, :holder, floor(extract(epoch FROM clock_timestamp())), clock_timestamp() + make_interval(secs => :seconds)) "
    "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, term = greatest(claims.term + 1, excluded.term), "
    "expires_at = excluded.expires_at RETURNING term"
)


def new_holder() -> str:
    """The name of this process as a client of the database, at most 55 characters, since PostgreSQL truncates names after 63."""
    return f"{socket.gethostname()[:24]} pid {os.getpid()} {new_uuid().hex[:12]}"


def session_settings(holder: str, limit: timedelta = SESSION_LIMIT) -> dict[str, str]:
    """Settings of PostgreSQL for all sessions of the process. A statement that waits for a lock fails earlier than others, so that the
    error names the lock."""
    limits = {"statement_timeout": limit, "lock_timeout": limit * 0.75, "idle_in_transaction_session_timeout": limit}
    return {"application_name": _session_name(holder)} | {name: f"{each.total_seconds() * 1000:.0f}" for name, each in limits.items()}


def _session_name(holder: str) -> str:
    return f"sluice: {holder}"[:63]


class _Held(DatabaseInUse):
    """Another coordinator uses this database.

    Its claim expires at `expires_at`, unless it is renewed. None: its release has no leases."""

    slug = DatabaseInUse.slug

    def __init__(self, detail: str, expires_at: datetime | None) -> None:
        super().__init__(detail)
        self.expires_at = expires_at


class _Changing(StoreUnavailable):
    """The coordinator's database cannot be read or written.

    The claim is about to be free, or another coordinator is taking it."""

    slug = StoreUnavailable.slug


class Claim(Protocol):
    @property
    def held(self) -> bool:
        """Whether the claim was held when it was last checked."""
        ...

    @property
    def term(self) -> int:
        """The number of the claim, higher than those of all former coordinators. 0: there are no terms, because a former
        coordinator cannot still be running."""
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
    """Lock the file until the process ends or the result is closed; None if another process has locked it. Other users of the machine
    cannot open it, and so not lock it. Raises OSError."""
    opened = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb")
    with suppress(PermissionError):  # a file of another user
        os.fchmod(opened.fileno(), 0o600)
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

    @property
    def term(self) -> int:
        return 0

    async def take(self) -> bool:
        if self._database is None or self._lock is not None:
            return False
        try:
            self._lock = lock_file(self._database.with_name(f"{self._database.name}.lock"))
            os.close(os.open(self._database, os.O_RDONLY | os.O_CREAT, 0o600))  # SQLite gives its other files the same rights
        except OSError as error:
            await self.release()
            raise StoreUnavailable(f"the coordinator's database: {error.filename}: {error.strerror}") from error
        if self._lock is None:
            raise DatabaseInUse(f"{self._database} is in use by another coordinator: stop it, or choose another database")
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
        """Close the session without waiting for the server, which may not answer."""
        with suppress(DBAPIError, OSError):
            self.driver.terminate()
            await self.connection.close()


class SessionClaim:
    """The claim on a PostgreSQL database. `holder`: the name of this process there. `answer_within`: time limit of a renewal, in seconds,
    after which the session is closed. `seconds`: how long the claim is valid."""

    def __init__(self, engine: AsyncEngine, holder: str, answer_within: float = 8.0, seconds: float = CLAIM_SECONDS) -> None:
        self._engine = engine
        self._answer_within = answer_within
        self._seconds = seconds
        self._holder = holder
        self._wanted = False
        self._term = 0
        """0 until the claim was written."""
        self._session: _Session | None = None
        self._former: tuple[Any, ...] | None = None

    @property
    def held(self) -> bool:
        return self._session is not None and not self._session.closed

    @property
    def term(self) -> int:
        return self._term

    async def take(self) -> bool:
        again, self._wanted = bool(self._term), True
        session = self._session
        if session is not None and not await self._answers(session):
            await self._drop(session)
        opened = self._session is None
        if self._session is None:
            self._session = await self._open() if again else await self._open_when_free()
        if not self._term:
            async with self._session.connection.begin():
                await self._sign(self._session.connection)
        return again and opened

    async def ensure(self) -> bool:
        if not self._wanted or self.held:
            return False
        try:
            return await self.take()
        except DatabaseInUse as error:
            raise StoreUnavailable(f"{error} This coordinator stops.") from error

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
                await self._renew(session.connection)
                yield session.connection
        except DatabaseInUse as error:
            raise StoreUnavailable(f"{error} This coordinator stops.") from error
        except DBAPIError:
            with suppress(DatabaseInUse):
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
        """Renew the claim. False if the session has ended, or does not answer. Raises DatabaseInUse."""
        if session.closed:
            return False
        try:
            async with asyncio.timeout(self._answer_within), session.connection.begin():
                await self._renew(session.connection)
        except (DBAPIError, OSError):
            return False
        return True

    async def _renew(self, connection: AsyncConnection) -> None:
        """Renew the claim. In a write transaction this also prevents others from taking it before the transaction ends. Raises
        DatabaseInUse."""
        if not self._term:
            await connection.exec_driver_sql("SELECT 1")
            return
        values = {"name": _NAME, "holder": self._holder, "term": self._term, "seconds": self._seconds}
        if (await connection.execute(_RENEW, values)).rowcount == 0:
            await self._check_signature(connection)

    async def _drop(self, session: _Session) -> None:
        if self._session is session:
            self._session, self._former = None, session.backend
        await session.drop()

    async def _open_when_free(self) -> _Session:
        """Wait until the claim is free or has expired. Raises DatabaseInUse if its holder renews it, StoreUnavailable if the database does
        not say for CLAIM_SECONDS who holds it."""
        expires_at: datetime | None = None
        reads = changes = 0
        while True:
            try:
                return await self._open()
            except _Held as held:
                if held.expires_at is None or expires_at not in (None, held.expires_at):
                    raise
                expires_at, reads, changes = held.expires_at, reads + 1, 0
                if reads == _READS_UNTIL_WARNING:
                    log.warning("%s Its claim is not renewed and expires at %s: waiting until then", held, expires_at)
            except _Changing as changing:
                if changes == 0:
                    log.warning("%s", changing)
                changes += 1
                if changes * LOOK_SECONDS > CLAIM_SECONDS:
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    async def _open(self) -> _Session:
        connection = await self._engine.connect()
        try:
            driver = (await connection.get_raw_connection()).driver_connection
            await connection.run_sync(lambda bound: bound.detach())  # takes it from the pool, so that closing it ends the session
            async with connection.begin():
                return _Session(connection, driver, await self._lock(connection))
        except BaseException:
            await connection.close()
            raise

    async def _lock(self, connection: AsyncConnection) -> tuple[Any, ...]:
        """Take the lock for this session. Returns the session's backend."""
        for setting in _KEEP_ALIVE:
            await connection.exec_driver_sql(f"SET {setting}")
        if not await connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
            await self._refused(connection)
        own = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        backend = tuple((await connection.exec_driver_sql(own)).one())
        if self._term:
            await self._check_signature(connection)
        return backend

    async def _refused(self, connection: AsyncConnection) -> None:
        """Another session has the lock. Terminate it if it is the former session of this coordinator, which the server still considers
        alive. Also terminate the sessions of a coordinator whose claim has expired, unless this coordinator had the claim before. Always
        raises StoreUnavailable or DatabaseInUse."""
        other: Row[Any] | None = (await connection.execute(_HOLDER, {"lock": _LOCK})).first()
        if other is None:
            raise _Changing(f"{self._where}: another coordinator is taking or releasing the claim")
        if (other.pid, other.backend_start) == self._former:
            await connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": other.pid})
            raise StoreUnavailable(f"{self._where}: the former session of this coordinator is ending")
        who = f"{other.application_name or 'a session of another user'}, since {other.backend_start:%Y-%m-%d %H:%M:%S %Z}"
        row = (await connection.execute(_ROW, {"name": _NAME})).first() if await connection.scalar(_IS_LEASE) else None
        leased = row is not None and other.application_name == _session_name(row.holder)
        if row is not None and leased and row.over and not self._term:
            await connection.execute(_END_SESSIONS, {"name": other.application_name})
            raise _Changing(f"{self._where} was in use by another coordinator ({who}), whose claim has expired: terminating its sessions")
        raise _Held(
            f"{self._where} is in use by another coordinator ({who}): stop it, or choose another database.",
            row.expires_at if row is not None and leased else None,
        )

    async def _check_signature(self, connection: AsyncConnection) -> None:
        row = (await connection.execute(_ROW, {"name": _NAME})).first()
        if row is None or (row.holder, row.term) != (self._holder, self._term):
            holder = "the row does not exist" if row is None else row.holder
            raise DatabaseInUse(
                f"{self._where} was used by another coordinator in the meantime ({holder}): the state in memory is out of date."
            )

    async def _sign(self, connection: AsyncConnection) -> None:
        """Write the holder and a new term, unless the table does not exist yet: the lock is taken before the first migration."""
        if await connection.scalar(_IS_LEASE):
            values = {"name": _NAME, "holder": self._holder, "seconds": self._seconds}
            self._term = int(await connection.scalar(_SIGN, values) or 0)

    @property
    def _where(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)
