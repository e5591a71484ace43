"""Tokens and the events of the audit log: rows, columns and SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, insert, select, update

from coordinator.store import tables
from coordinator.store.columns import Columns, Reads, Writes
from sluice.core.access.roles import Role
from sluice.core.access.tokens import Digest, Grant, TokenId


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token without its secret. `name`: the principal's name; several tokens may have the same name."""

    token_id: TokenId
    name: str
    digest: Digest
    grant: Grant
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of the audit log. `seq`: 0 before it is stored. `status`: of the answer, None before it. `job`: the job that the request
    names, "" if none. `before`, `after`: what was different before and after the change, as texts by name; None if unknown."""

    at: datetime
    actor: str
    authenticated: bool
    source: str
    action: str
    subject: str
    request_id: str
    status: int | None
    reason: str
    seq: int = 0
    job: str = ""
    before: Mapping[str, str] | None = None
    after: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is added to an event when its request was answered; see `EventRow`."""

    status: int
    reason: str
    job: str
    before: Mapping[str, str] | None = None
    after: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A browser that has logged in: with a static token, or with an identity provider, whose `provider`, `name`, `subject` and `groups` are
    those of its ID token. `digest`: of its session id. `token_id`: "" for a login with a provider."""

    digest: Digest
    token_id: TokenId
    created_at: datetime
    expires_at: datetime
    provider: str = ""
    name: str = ""
    subject: str = ""
    groups: tuple[str, ...] = ()


class AccessReads(Reads):
    async def events(self, before: int | None, limit: int, job: str | None = None) -> Sequence[EventRow]:
        """The events, newest first; with `before`, only those with smaller numbers; with `job`, only those of that job."""
        table = tables.audit_events
        query = select(table).order_by(table.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.seq < before)
        if job is not None:
            query = query.where(table.c.job == job)
        return [EventRow(**found._asdict()) for found in await self._connection.execute(query)]

    async def tokens(self) -> Sequence[TokenRow]:
        """All tokens, oldest first."""
        table = tables.tokens
        found = await self._connection.execute(select(table).order_by(table.c.created_at, table.c.token_id))
        return [_token_row(each) for each in found]

    async def sessions(self) -> Sequence[SessionRow]:
        """All sessions, oldest first."""
        table = tables.browser_sessions
        found = await self._connection.execute(select(table).order_by(table.c.created_at, table.c.digest))
        return [SessionRow(**each._asdict() | {"groups": tuple(each.groups)}) for each in found]


class AccessWrites(AccessReads, Writes):
    async def add_event(self, row: EventRow) -> int:
        """Append an event. Returns its `seq`."""
        table = tables.audit_events
        seq = int(await self._connection.scalar(select(func.max(table.c.seq))) or 0) + 1
        columns = {name: getattr(row, name) for name in row.__slots__} | {"seq": seq}
        await self._connection.execute(insert(table).values(**columns))
        return seq

    async def set_outcome(self, seq: int, outcome: Outcome) -> None:
        """Set the outcome of an event. If it has one already, nothing changes."""
        table = tables.audit_events
        statement = update(table).where(table.c.seq == seq, table.c.status.is_(None)).values(**asdict(outcome))
        await self._connection.execute(statement)

    async def delete_events(self, before: datetime, limit: int) -> int:
        """Delete up to `limit` events before this time, except the newest one, because the next event continues its number. Returns their
        number."""
        table = tables.audit_events
        newest = select(func.max(table.c.seq)).scalar_subquery()
        query = select(table.c.seq).where(table.c.at < before, table.c.seq < newest).order_by(table.c.at).limit(limit)
        old = list(
            await self._connection.scalars(query)
        )  # a separate statement, because PostgreSQL would read the whole table for a subquery
        return (await self._connection.execute(delete(table).where(table.c.seq.in_(old)))).rowcount if old else 0

    async def put_token(self, row: TokenRow) -> None:
        await self._put(tables.tokens, [_token_columns(row)])

    async def drop_tokens(self, token_ids: Sequence[TokenId]) -> None:
        table = tables.tokens
        await self._connection.execute(delete(table).where(table.c.token_id.in_(token_ids)))

    async def put_session(self, row: SessionRow) -> None:
        columns = {name: getattr(row, name) for name in row.__slots__} | {"groups": list(row.groups)}
        await self._put(tables.browser_sessions, [columns])

    async def drop_sessions(self, digests: Sequence[Digest]) -> None:
        table = tables.browser_sessions
        await self._connection.execute(delete(table).where(table.c.digest.in_(digests)))


def _token_columns(row: TokenRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__ if name != "grant"}
    return columns | {"roles": sorted(row.grant.roles), "jobs": list(row.grant.jobs)}


def _token_row(found: Row[Any]) -> TokenRow:
    columns = found._asdict()
    roles, jobs = columns.pop("roles"), columns.pop("jobs")
    return TokenRow(**columns, grant=Grant(frozenset(map(Role, roles)), tuple(jobs)))
