"""PostgreSQL as a wrapper over SQLite: sessions, their end by the server, the advisory lock, and the claim with terms.

The real `SessionClaim` runs on it. Its statements, which SQLite does not know, are answered by the server of this module. All others run in
SQLite, whose readers see a snapshot, as those of Sluice do in PostgreSQL. A session in a transaction that is idle for longer than its limit
is ended when another one writes. The time of the server is true time.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from coordinator.store.claim import SESSION_LIMIT

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(eq=False)
class Session:
    """`name`: of the client. `used_at`: when its last statement ran, in virtual seconds."""

    pid: int
    started: datetime
    name: str
    connection: sqlite3.Connection
    used_at: float = 0.0
    ended: bool = False


@dataclass
class Server:
    """`elapsed`: the virtual time, in seconds."""

    elapsed: Callable[[], float]
    sessions: dict[int, Session] = field(default_factory=dict)
    lock: Session | None = None
    """The session that has the advisory lock."""
    ended: Counter[str] = field(default_factory=Counter)
    """How many sessions of each client the server has ended."""
    _pids: Any = field(default_factory=lambda: count(100))

    @property
    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.elapsed())

    def connected(self, name: str, connection: sqlite3.Connection) -> Session:
        made = Session(next(self._pids), self.now, name, connection, self.elapsed())
        self.sessions[made.pid] = made
        return made

    def close(self, session: Session) -> None:
        """End the session, with its transaction and its lock."""
        if not session.ended:
            session.ended = True
            del self.sessions[session.pid]
            if self.lock is session:
                self.lock = None
            session.connection.end()  # type: ignore[attr-defined]

    def terminate(self, session: Session) -> None:
        self.ended[session.name] += 1
        self.close(session)

    def terminate_all(self, name: str | None = None, but: Session | None = None) -> int:
        """End the sessions of a client, or all, as a failover does."""
        ended = [each for each in self.sessions.values() if each is not but and name in (None, each.name)]
        for each in ended:
            self.terminate(each)
        return len(ended)

    def make_room(self, session: Session) -> None:
        """Before a transaction that writes. Raises sqlite3.OperationalError if another one does not end in time."""
        for other in list(self.sessions.values()):
            if other is not session and other.connection.in_transaction and getattr(other.connection, "writes", False):
                if self.elapsed() - other.used_at < SESSION_LIMIT.total_seconds():
                    raise sqlite3.OperationalError("canceling statement due to lock timeout")
                self.terminate(other)


class Cursor(sqlite3.Cursor):
    """Answers PostgreSQL's own statements. `session` is set before the first of them."""

    session: Session
    server: Server
    _rows: list[tuple[Any, ...]] | None = None
    _columns: Sequence[str] = ()

    def execute(self, statement: str, parameters: Any = ()) -> Cursor:
        self._rows = None
        if self.session.ended:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        self.session.used_at = self.server.elapsed()
        if not self._answered(statement, parameters):
            super().execute(statement, parameters)
        return self

    @property
    def description(self) -> Any:
        if self._rows is None:
            return super().description
        return tuple((name, None, None, None, None, None, None) for name in self._columns)

    def fetchall(self) -> list[Any]:
        return super().fetchall() if self._rows is None else self._rows

    def _reply(self, columns: str, *rows: tuple[Any, ...]) -> None:
        self._columns, self._rows = columns.split(), list(rows)

    def _answered(self, statement: str, parameters: Any) -> bool:
        """Answer the statement if SQLite cannot."""
        for part, answer in ANSWERS:
            if part in statement:
                answer(self, parameters)
                return True
        if statement == "BEGIN":
            self.connection.writes = False  # type: ignore[attr-defined]
        return False

    def _begin_writing(self, _: Any) -> None:
        self._begin()

    def _nothing(self, _: Any) -> None:
        """Settings of a session change nothing here."""

    def _try_lock(self, _: Any) -> None:
        self.server.lock = self.server.lock or self.session
        self._reply("locked", (self.server.lock is self.session,))

    def _backend(self, _: Any) -> None:
        self._reply("pid backend_start", (self.session.pid, self.session.started))

    def _holder(self, _: Any) -> None:
        holder = self.server.lock
        rows = [] if holder is None else [(holder.pid, holder.started, holder.name)]
        self._reply("pid backend_start application_name", *rows)

    def _terminate_named(self, parameters: Any) -> None:
        self._reply("count", (self.server.terminate_all(parameters[0], self.session),))

    def _terminate(self, parameters: Any) -> None:
        found = self.server.sessions.get(parameters[0])
        if found is not None:
            self.server.terminate(found)
        self._reply("terminated", (found is not None,))

    def _has_leases(self, _: Any) -> None:
        super().execute("SELECT count(*) FROM pragma_table_info('claims') WHERE name = 'expires_at'")

    def _claim(self, parameters: Any) -> None:
        super().execute("SELECT holder, term, expires_at FROM claims WHERE name = ?", parameters)
        rows = [(holder, term, datetime.fromisoformat(at)) for holder, term, at in super().fetchall()]
        self._reply("holder term expires_at over", *((holder, term, at, at < self.server.now) for holder, term, at in rows))

    def _renew(self, parameters: Any) -> None:
        seconds, name, who, term = parameters
        self._begin()
        super().execute(
            "UPDATE claims SET expires_at = ? WHERE name = ? AND holder = ? AND term = ?", (self._until(seconds), name, who, term)
        )

    def _sign(self, parameters: Any) -> None:
        name, who, seconds = parameters
        self._begin()
        super().execute(
            "INSERT INTO claims (name, holder, term, expires_at) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "holder = excluded.holder, term = max(claims.term + 1, excluded.term), expires_at = excluded.expires_at RETURNING term",
            (name, who, int(self.server.now.timestamp()), self._until(seconds)),
        )

    def _begin(self) -> None:
        if not self.connection.in_transaction:
            self.server.make_room(self.session)
            super().execute("BEGIN IMMEDIATE")
            self.connection.writes = True  # type: ignore[attr-defined]

    def _until(self, seconds: float) -> str:
        return (self.server.now + timedelta(seconds=seconds)).isoformat()


ANSWERS: Sequence[tuple[str, Callable[[Cursor, Any], None]]] = (
    ("BEGIN IMMEDIATE", Cursor._begin_writing),
    ("SET tcp_", Cursor._nothing),
    ("pg_try_advisory_lock", Cursor._try_lock),
    ("SELECT pid, backend_start", Cursor._backend),
    ("FROM pg_locks", Cursor._holder),
    ("count(pg_terminate_backend(pid))", Cursor._terminate_named),
    ("pg_terminate_backend", Cursor._terminate),
    ("to_regclass('claims')", Cursor._has_leases),
    ("SELECT holder, term, expires_at", Cursor._claim),
    ("UPDATE claims SET expires_at", Cursor._renew),
    ("INSERT INTO claims", Cursor._sign),
)
"""A part of each statement of `coordinator.store.claim` that SQLite does not know, and its answer."""
