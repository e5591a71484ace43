"""Sessions of browsers. A login, with a token or with an identity provider, is exchanged for a session id, which the browser keeps in a
cookie. The database has its digest only.

All sessions are in memory, so that no request waits for the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from coordinator.store.access import SessionRow
from coordinator.store.sql import Store
from sluice.clock import Clock
from sluice.core.access.providers import Identity
from sluice.core.access.tokens import SECRET_BYTES, Digest, TokenId, digest, encoded
from sluice.core.waits import is_ahead

SESSION_LASTS = timedelta(hours=12)
MAX_SESSIONS_OF_A_TOKEN = 100
"""A login beyond it ends the oldest session of the token."""


class Sessions:
    """`random_bytes` returns the given number of unpredictable bytes. `on_ended` is called after a session was ended."""

    def __init__(self, store: Store, clock: Clock, random_bytes: Callable[[int], bytes], on_ended: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._random_bytes = random_bytes
        self._on_ended = on_ended
        self._rows: dict[Digest, SessionRow] = {}

    async def recover(self) -> None:
        """Read all sessions from the database. Raises StoreUnavailable."""
        async with self._store.read() as tx:
            self._rows = {row.digest: row for row in await tx.access.sessions()}

    async def begin(self, token_id: TokenId) -> str:
        """A new session id for the holder of this token. It is not stored and cannot be read again. Expired sessions are deleted. Raises
        StoreUnavailable."""
        return await self._begin(lambda key, now: SessionRow(key, token_id, now, now + SESSION_LASTS))

    async def begin_with(self, identity: Identity) -> str:
        """The same for a user who has logged in with a provider. Raises StoreUnavailable."""
        return await self._begin(
            lambda key, now: SessionRow(
                key, TokenId(""), now, now + SESSION_LASTS, identity.provider, identity.name, identity.subject, identity.groups
            )
        )

    async def _begin(self, make: Callable[[Digest, datetime], SessionRow]) -> str:
        session_id, now = encoded(self._random_bytes(SECRET_BYTES)), self._clock.now()
        row = make(digest(session_id), now)
        same = sorted((each for each in self._rows.values() if _owner(each) == _owner(row)), key=lambda each: each.created_at)
        surplus = same[: max(0, len(same) + 1 - MAX_SESSIONS_OF_A_TOKEN)]
        over = {each.digest for each in self._rows.values() if each.expires_at <= now} | {each.digest for each in surplus}
        async with self._store.begin() as tx:
            await tx.access.drop_sessions(sorted(over))
            await tx.access.put_session(row)
        self._rows = {key: each for key, each in self._rows.items() if key not in over} | {row.digest: row}
        return session_id

    async def end(self, session_id: str) -> None:
        """End a session. Idempotent. Raises StoreUnavailable."""
        key = digest(session_id)
        if key in self._rows:
            async with self._store.begin() as tx:
                await tx.access.drop_sessions([key])
            self._rows.pop(key, None)
            self._on_ended()

    async def end_all(self, name: str, token_ids: Collection[TokenId]) -> int:
        """End all sessions of the user of a provider with this name, and those that began with one of the tokens. Returns their number.
        Raises StoreUnavailable."""
        keys = [key for key, row in self._rows.items() if (row.token_id in token_ids if row.token_id else row.name == name)]
        if keys:
            async with self._store.begin() as tx:
                await tx.access.drop_sessions(keys)
            for key in keys:
                self._rows.pop(key, None)
            self._on_ended()
        return len(keys)

    def find(self, session_id: str) -> SessionRow | None:
        """The session, unless it has ended."""
        key = digest(session_id)
        return self._rows.get(key) if self.is_valid(key) else None

    def is_valid(self, key: Digest) -> bool:
        row = self._rows.get(key)
        now = self._clock.now()
        return row is not None and now < row.expires_at and not is_ahead(row.created_at, now)


def _owner(row: SessionRow) -> tuple[str, str]:
    return row.token_id, row.name
