"""Static tokens: created, listed and revoked by administrators. All of them are in memory, so that no request waits for the database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from coordinator.store.access import TokenRow
from coordinator.store.sql import Store
from coordinator.waits import DeletionHold
from sluice.clock import Clock
from sluice.core.access.roles import Role
from sluice.core.access.tokens import ID_BYTES, SECRET_BYTES, Grant, TokenId, digest, id_of, is_same, is_valid, new_token
from sluice.core.errors import UnknownToken

log = logging.getLogger(__name__)

FIRST = "first-admin"
"""The name of the administrator whose token is printed at the first start."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """`token` is not stored and cannot be read again."""

    row: TokenRow
    token: str


class Tokens:
    """`random_bytes` returns the given number of unpredictable bytes. `on_revoked` is called after a revocation."""

    def __init__(self, store: Store, clock: Clock, random_bytes: Callable[[int], bytes], on_revoked: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._random_bytes = random_bytes
        self._on_revoked = on_revoked
        self._rows: dict[TokenId, TokenRow] = {}

    async def recover(self) -> None:
        """Read all tokens from the database. Raises StoreUnavailable."""
        async with self._store.read() as tx:
            self._rows = {row.token_id: row for row in await tx.access.tokens()}

    async def first(self) -> NewToken | None:
        """Create an administrator's token if no administrator has a valid one."""
        now = self._clock.now()
        if any(Role.ADMIN in row.grant.roles and is_valid(row.expires_at, row.revoked_at, now) for row in self._rows.values()):
            return None
        return await self.create(FIRST, Grant(frozenset({Role.ADMIN})), None, "")

    async def create(self, name: str, grant: Grant, lasts: timedelta | None, actor: str) -> NewToken:
        """`lasts`: None for a token that does not expire. Raises StoreUnavailable."""
        token_id = TokenId(self._random_bytes(ID_BYTES).hex())
        token, now = new_token(token_id, self._random_bytes(SECRET_BYTES)), self._clock.now()
        row = TokenRow(token_id, name, digest(token), grant, now, actor, None if lasts is None else now + lasts)
        await self._put(row)
        roles = ", ".join(sorted(grant.roles))
        log.info("token %s of %s with the roles %s was created by %s", token_id, name, roles, actor or "the coordinator")
        return NewToken(row, token)

    async def revoke(self, token_id: TokenId, actor: str) -> TokenRow:
        """Revoke a token. Idempotent. Raises UnknownToken, StoreUnavailable."""
        row = self._rows.get(token_id)
        if row is None:
            raise UnknownToken(f"there is no token with the id {token_id!r}")
        if row.revoked_at is None:
            row = replace(row, revoked_at=self._clock.now())
            await self._put(row)
            log.info("token %s of %s was revoked by %s", token_id, row.name, actor)
            self._on_revoked()
        return row

    async def _put(self, row: TokenRow) -> None:
        async with self._store.begin() as tx:
            await tx.access.put_token(row)
        self._rows[row.token_id] = row

    def all(self) -> Sequence[TokenRow]:
        """All tokens, oldest first, including expired and revoked ones."""
        return sorted(self._rows.values(), key=lambda row: (row.created_at, row.token_id))

    def page(self, after: TokenId | None, limit: int) -> Sequence[TokenRow]:
        """Up to `limit` tokens that follow the token `after`, oldest first. Raises UnknownToken."""
        rows = self.all()
        if after is None:
            return rows[:limit]
        if after not in self._rows:
            raise UnknownToken(f"there is no token with the id {after!r}")
        start = [row.token_id for row in rows].index(after) + 1
        return rows[start : start + limit]

    async def drop_ended(self, before: datetime) -> int:
        """Delete the tokens that expired or were revoked before then. Returns their number. Raises StoreUnavailable."""
        ended = [
            row.token_id for row in self._rows.values() if any(at is not None and at < before for at in (row.expires_at, row.revoked_at))
        ]
        if ended:
            async with self._store.begin() as tx:
                await tx.access.drop_tokens(ended)
            for token_id in ended:
                self._rows.pop(token_id, None)
        return len(ended)

    def find(self, token: str) -> TokenRow | None:
        """The row of a valid token."""
        token_id = id_of(token)
        row = None if token_id is None else self._rows.get(token_id)
        if row is None or not is_same(digest(token), row.digest) or not is_valid(row.expires_at, row.revoked_at, self._clock.now()):
            return None
        return row

    def of_id(self, token_id: TokenId) -> TokenRow | None:
        """The row of a valid token."""
        row = self._rows.get(token_id)
        return row if row is not None and is_valid(row.expires_at, row.revoked_at, self._clock.now()) else None

    def is_valid(self, token_id: TokenId) -> bool:
        return self.of_id(token_id) is not None


@dataclass(frozen=True, slots=True)
class PruneTokens:
    """Chore: delete the tokens that ended longer than `keep` ago. Suspended while deletions are held."""

    tokens: Tokens
    clock: Clock
    hold: DeletionHold
    keep: timedelta
    every: timedelta = timedelta(hours=1)
    name: str = "prune_tokens"

    async def run_once(self) -> Mapping[str, int]:
        if self.hold.active():
            return {"held_back": 1}
        deleted = await self.tokens.drop_ended(self.clock.now() - self.keep)
        return {"deleted": deleted} if deleted else {}
