"""The claim: one coordinator per database. Leases are in memory, and two coordinators on one database would each have their own.

With SQLite it is a lock on a file beside the database, which the operating system releases when the process ends.

With PostgreSQL it is a lease by the database's time: a row of the table `claims` with the holder, its term and an end, which the holder
renews every second, and which every transaction that writes checks. An advisory lock of the session in which the holder writes shows at
once that the holder has ended, and keeps out coordinators of releases that know no lease. A coordinator that starts while the lock is held
waits until it sees the claim renewed, and is refused then, or until the claim has run out: then it ends the sessions of the holder, which
may be frozen, and takes the claim. Sessions are limited to less than the lease in what they wait for, so a frozen holder blocks no one for
longer.

Terms grow with each holder, and are at least the database's time in seconds: a database that was restored from an older copy gives terms
above those that containers know. On SQLite there are none: the lock is free only when no process has it, so there is no former coordinator
whose answers could be mistaken for those of this one.

A lost claim is taken again, unless another coordinator had it meanwhile: then the state in memory is out of date.
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
from datetime import datetime
from itertools import count
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

SESSION_MILLIS = 8_000
"""How long a statement may take, wait for a lock, or be waited for within a transaction. Less than CLAIM_SECONDS."""

LOOK_SECONDS = 0.25
"""How often a coordinator that waits for a claim looks at it."""

_LOOKS_UNTIL_SILENT = 8
"""After so many looks it says that it waits."""

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
    """A name for this process as a client of the database: of at most 55 characters, since PostgreSQL cuts names after 63."""
    return f"{socket.gethostname()[:24]} pid {os.getpid()} {new_uuid().hex[:12]}"


def session_settings(holder: str) -> dict[str, str]:
    """Settings of PostgreSQL for all sessions of the process."""
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    return {"application_name": _session_name(holder), **dict.fromkeys(limits, str(SESSION_MILLIS))}


def _session_name(holder: str) -> str:
    return f"sluice: {holder}"[:63]


class _Held(DatabaseInUse):
    """Another coordinator uses this database.

    It has the claim until `expires_at`, unless it renews it. None: it knows no lease."""

    slug = DatabaseInUse.slug

    def __init__(self, detail: str, expires_at: datetime | None) -> None:
        super().__init__(detail)
        self.expires_at = expires_at


class _Ending(StoreUnavailable):
    """The coordinator's database cannot be read or written.

    The sessions of a holder whose claim has run out are being ended."""

    slug = StoreUnavailable.slug


class Claim(Protocol):
    @property
    def held(self) -> bool:
        """Whether the claim was held when it was last checked."""
        ...

    @property
    def term(self) -> int:
        """The number of the claim, higher than those of all former coordinators. 0: there are no terms, because a former coordinator cannot
        run beside this one."""
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

    @property
    def term(self) -> int:
        return 0

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
    """The claim on a PostgreSQL database, for the process that is called `holder` there. `answer_within`: time limit of a renewal, in
    seconds, after which the session is closed; `seconds`: how long the claim is valid."""

    def __init__(self, engine: AsyncEngine, holder: str, answer_within: float = 8.0, seconds: float = CLAIM_SECONDS) -> None:
        self._engine = engine
        self._answer_within = answer_within
        self._seconds = seconds
        self._holder = holder
        self._wanted = False
        self._term = 0
        """0 until the claim was signed."""
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
                await self._renew(session.connection)
                yield session.connection
        except DatabaseInUse as error:
            raise StoreUnavailable(f"{error} This coordinator ends.") from error
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
        """Raises DatabaseInUse. In a transaction that writes it also keeps others from taking the claim before the transaction ends."""
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
        """Wait until the claim is free or has run out. Raises DatabaseInUse when its holder renews it."""
        expires_at: datetime | None = None
        for look in count():
            try:
                return await self._open()
            except _Held as held:
                if held.expires_at is None or expires_at not in (None, held.expires_at):
                    raise
                expires_at = held.expires_at
                if look == _LOOKS_UNTIL_SILENT:
                    log.warning("%s It does not renew its claim, which runs out at %s: waiting until then", held, expires_at)
            except _Ending as ending:
                log.warning("%s", ending)
            await asyncio.sleep(LOOK_SECONDS)
        raise AssertionError("unreachable")

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
        if not await connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
            await self._refused(connection)
        own = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        backend = tuple((await connection.exec_driver_sql(own)).one())
        if self._term:
            await self._check_signature(connection)
        return backend

    async def _refused(self, connection: AsyncConnection) -> None:
        """Another session has the lock. If it is our former one, which the server still considers alive, it is terminated; so are the
        sessions of a coordinator whose claim has run out, unless we had the claim before."""
        other: Row[Any] | None = (await connection.execute(_HOLDER, {"lock": _LOCK})).first()
        if other is None:
            raise StoreUnavailable(f"{self._where}: another coordinator is just taking or releasing the claim")
        if (other.pid, other.backend_start) == self._former:
            await connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": other.pid})
            raise StoreUnavailable(f"{self._where}: the former session of this coordinator is ending")
        who = f"{other.application_name or 'a session of another user'}, since {other.backend_start:%Y-%m-%d %H:%M:%S %Z}"
        row = (await connection.execute(_ROW, {"name": _NAME})).first() if await connection.scalar(_IS_LEASE) else None
        leased = row is not None and other.application_name == _session_name(row.holder)
        if row is not None and leased and row.over and not self._term:
            await connection.execute(_END_SESSIONS, {"name": other.application_name})
            raise _Ending(f"{self._where} was another coordinator's ({who}), whose claim has run out: its sessions are ended")
        raise _Held(
            f"{self._where} is another coordinator's ({who}): stop that one, or name another database.",
            row.expires_at if row is not None and leased else None,
        )

    async def _check_signature(self, connection: AsyncConnection) -> None:
        row = (await connection.execute(_ROW, {"name": _NAME})).first()
        if row is None or (row.holder, row.term) != (self._holder, self._term):
            holder = "the row does not exist" if row is None else row.holder
            raise DatabaseInUse(f"{self._where} was used by another coordinator meanwhile ({holder}): the state in memory is out of date.")

    async def _sign(self, connection: AsyncConnection) -> None:
        """Write our name, with a new term, unless the table is not there yet: the lock is taken before the first migration."""
        if await connection.scalar(_IS_LEASE):
            values = {"name": _NAME, "holder": self._holder, "seconds": self._seconds}
            self._term = int(await connection.scalar(_SIGN, values) or 0)

    @property
    def _where(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)
