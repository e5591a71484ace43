"""The database engine and its transactions: SQLite (default) and, with the same statements, PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from coordinator.store.access import AccessReads, AccessWrites
from coordinator.store.claim import SESSION_LIMIT, Claim, FileClaim, SessionClaim, new_holder, session_settings
from coordinator.store.cleanup import CleanupReads, CleanupWrites
from coordinator.store.drains import DrainReads, DrainWrites
from coordinator.store.fleet import FleetReads, FleetWrites
from coordinator.store.history import HistoryReads, HistoryWrites
from coordinator.store.jobmodels import JobModelReads, JobModelWrites
from coordinator.store.origin import OriginReads, OriginWrites
from coordinator.store.promises import PromiseReads, PromiseWrites
from coordinator.store.runs import RunReads, RunWrites
from coordinator.store.snapshots import SnapshotReads, SnapshotWrites
from coordinator.store.sqlite import connect
from sluice import disks
from sluice.core.errors import SluiceError, StoreUnavailable, UnstorableText
from sluice.core.text import is_storable

log = logging.getLogger(__name__)

_BEGIN_WRITING = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(7355608)"}
"""Serializes write transactions, including those of other processes. The number identifies Sluice's lock."""

_BEGIN_READING = {"sqlite": "BEGIN", "postgresql": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"}

WAL_BYTES = 16 << 20
"""SQLite: a write-ahead log that grows beyond a multiple of this size is checkpointed and truncated. SQLite itself reuses the log from its
start only when there is no reader, which never happens while readers overlap."""

_BUSY_MILLIS = 10_000
_READERS_MILLIS = 1_000
"""How long a truncation waits for readers. It blocks the writers of this process."""

KEEP_CLAIM_SECONDS = 1.0
"""Interval at which the claim is renewed."""

_WITHIN = {"sqlite": None, "postgresql": 30.0}
"""Time limit of a transaction, in seconds. SQLite needs none, because it already limits the wait for a lock."""


class ReadTransaction:
    """A consistent view of the database, by aggregate."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.runs = RunReads(connection)
        self.fleet = FleetReads(connection)
        self.jobmodels = JobModelReads(connection)
        self.drains = DrainReads(connection)
        self.snapshots = SnapshotReads(connection)
        self.cleanup = CleanupReads(connection)
        self.history = HistoryReads(connection)
        self.promises = PromiseReads(connection)
        self.origin = OriginReads(connection)
        self.access = AccessReads(connection)


class WriteTransaction(ReadTransaction):
    """A transaction with writes. Other writers wait until it ends."""

    runs: RunWrites
    fleet: FleetWrites
    jobmodels: JobModelWrites
    drains: DrainWrites
    snapshots: SnapshotWrites
    cleanup: CleanupWrites
    history: HistoryWrites
    promises: PromiseWrites
    origin: OriginWrites
    access: AccessWrites

    def __init__(self, connection: AsyncConnection) -> None:
        self.origin = OriginWrites(connection)
        self.runs = RunWrites(connection, self.origin)
        self.fleet = FleetWrites(connection)
        self.jobmodels = JobModelWrites(connection)
        self.drains = DrainWrites(connection)
        self.snapshots = SnapshotWrites(connection)
        self.cleanup = CleanupWrites(connection)
        self.history = HistoryWrites(connection)
        self.promises = PromiseWrites(connection)
        self.access = AccessWrites(connection)


class Store:
    """A database; see `open_store`. Writers of this process wait for one another in this class, not in the database."""

    def __init__(self, engine: AsyncEngine, wal_bytes: int = WAL_BYTES, claim: Claim | None = None) -> None:
        self.engine = engine
        self.failures = 0
        """Transactions that the database failed."""
        self.numbers_issued = 0
        """Numbers that were issued since the start; see `coordinator.store.origin`."""
        self.sequence = 0
        """The `Issued.sequence` of the last transaction that was committed; 0 before the first that has one."""
        self._writing = asyncio.Lock()
        self._resynchronise: Callable[[], Awaitable[None]] | None = None
        self._in_doubt = False
        """Whether memory may differ from the database: a commit failed, so it is unknown what was written, or the claim was lost."""
        self._claim: Claim = claim or FileClaim(engine)
        self._wal = _wal_of(engine)
        self._wal_bytes = wal_bytes

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[WriteTransaction]:
        """A transaction with writes. All of them become durable when the block ends, or none if the block raises. Raises StoreUnavailable.
        If this is raised at the end of the block, it is unknown whether the writes are durable. Memory is then resynchronised before the
        next write transaction begins; see `resynchronise_with`."""
        async with self._writing:
            await self._settle()
            before, committing = _size(self._wal), False
            try:
                async with self._translated(), self._claim.writer() as connection:
                    await connection.exec_driver_sql(_BEGIN_WRITING[self.engine.dialect.name])
                    tx = WriteTransaction(connection)
                    yield tx
                    await tx.origin.write()
                    committing = True
                self.numbers_issued += tx.origin.numbers
                self.sequence = tx.origin.sequence or self.sequence
                if _size(self._wal) // self._wal_bytes > before // self._wal_bytes:
                    await self._truncate_wal()
            except BaseException:
                self._in_doubt = self._in_doubt or committing
                raise

    def resynchronise_with(self, resynchronise: Callable[[], Awaitable[None]]) -> None:
        """Set a function that is called whenever memory may differ from the database, before anything else is written. It must not
        write."""
        self._resynchronise = resynchronise

    async def _settle(self) -> None:
        """Take the claim if it was lost, and resynchronise memory if needed. The former session of the claim has ended before the claim is
        taken again, so its transaction has been committed or rolled back."""
        async with self._translated():
            retaken = await self._claim.ensure()
        self._in_doubt = self._in_doubt or retaken
        if self._in_doubt and self._resynchronise is not None:
            await self._resynchronise()
            log.info("resynchronised memory with the database")
        self._in_doubt = False

    @asynccontextmanager
    async def read(self) -> AsyncIterator[ReadTransaction]:
        """A transaction without writes. Raises StoreUnavailable."""
        async with self._translated(), self.engine.connect() as connection:
            await connection.exec_driver_sql(_BEGIN_READING[self.engine.dialect.name])
            yield ReadTransaction(connection)

    async def _truncate_wal(self) -> None:
        """Move the WAL's contents into the database file and truncate the WAL. If a reader uses it for too long, the next attempt is made
        when the WAL has grown by the same size again. The caller's transaction is committed, so a failure is ignored."""
        with suppress(SQLAlchemyError, OSError):
            async with self.engine.connect() as connection:
                await connection.exec_driver_sql(f"PRAGMA busy_timeout={_READERS_MILLIS}")
                try:
                    await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                finally:
                    await connection.exec_driver_sql(f"PRAGMA busy_timeout={_BUSY_MILLIS}")

    async def claim(self) -> None:
        """Become the only coordinator of this database, until `close`. A repeated call checks the claim, takes it again if it was lost, and
        resynchronises memory if needed.

        Raises DatabaseInUse if another coordinator has the claim or has had it since, and StoreUnavailable."""
        async with self._writing:
            async with self._translated():
                self._in_doubt = await self._claim.take() or self._in_doubt
            await self._settle()

    @asynccontextmanager
    async def keeping_claim(self) -> AsyncIterator[None]:
        """Renew the claim periodically during a long block. If a renewal fails, the next write raises StoreUnavailable."""
        keeper = asyncio.create_task(self._keep_claim(), name="keep the claim")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _keep_claim(self) -> None:
        while True:
            await asyncio.sleep(KEEP_CLAIM_SECONDS)
            with suppress(SluiceError):
                await self.claim()

    @property
    def claimed(self) -> bool:
        """Whether the claim was held when it was last checked."""
        return self._claim.held

    @property
    def term(self) -> int:
        """See `Claim.term`."""
        return self._claim.term

    async def close(self) -> None:
        await self._claim.release()
        await self.engine.dispose()

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        within = _WITHIN[self.engine.dialect.name]
        try:
            async with asyncio.timeout(within):
                yield
        except PoolTimeout as error:
            self.failures += 1
            raise StoreUnavailable("the coordinator's database: all connections are in use; try again") from error
        except (DBAPIError, OSError) as error:
            self.failures += 1
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreUnavailable(
                f"the coordinator's database: {str(cause) or f'no answer within {within} s'}{self._disk_note()}"
            ) from error

    def _disk_note(self) -> str:
        """A note for the error if the database is an SQLite file and its disk is full."""
        return "" if self._wal is None else disks.note(self._wal.parent)


def _wal_of(engine: AsyncEngine) -> Path | None:
    """The write-ahead log of an SQLite database in a file."""
    name = engine.url.database or ":memory:"
    return None if engine.dialect.name != "sqlite" or name.startswith((":memory:", "file:")) else Path(f"{name}-wal")


def _size(file: Path | None) -> int:
    try:
        return 0 if file is None else file.stat().st_size
    except OSError:
        return 0


def open_store(url: str) -> Store:
    """Open the database at an SQLAlchemy URL with an async driver: `sqlite+aiosqlite:///FILE` or `postgresql+asyncpg://…`."""
    holder = new_holder()
    engine = new_engine(url, holder)
    return Store(engine, claim=FileClaim(engine) if engine.dialect.name == "sqlite" else SessionClaim(engine, holder))


def new_engine(url: str, holder: str = "", limit: timedelta = SESSION_LIMIT) -> AsyncEngine:
    """`holder`: the name of this process as a client of the database. `limit`: see `SESSION_LIMIT`; only for PostgreSQL."""
    sqlite = url.startswith("sqlite")
    arguments = {} if sqlite else {"server_settings": session_settings(holder, limit)}
    engine = create_async_engine(
        url, pool_pre_ping=not sqlite, hide_parameters=True, connect_args=arguments
    )  # rows contain users' settings
    event.listen(engine.sync_engine, "before_cursor_execute", _check_text)
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "do_connect", _connect_sqlite)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    return engine


def _check_text(_connection: Any, _cursor: Any, _statement: str, parameters: Any, _context: Any, _many: bool) -> None:
    """All text passes here on its way to the database, so that both databases refuse the same. SQLite would store it, and PostgreSQL would
    fail as if it were unavailable. Raises UnstorableText."""
    for row in parameters if isinstance(parameters, list) else [parameters or ()]:
        for value in row.values() if isinstance(row, Mapping) else row:
            if isinstance(value, str) and not is_storable(value):
                raise UnstorableText(f"{value[:80]!r} has NUL or lone surrogates")


def _connect_sqlite(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
    parameters["async_creator_fn"] = connect


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Set WAL mode, so that readers never wait for the writer. Transactions begin with explicit statements, not implicitly in the
    driver."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MILLIS}")
    cursor.close()
