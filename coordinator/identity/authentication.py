"""Authentication: finds the principal of a request from its header."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from coordinator.identity.sessions import Sessions
from coordinator.identity.tokens import Tokens
from sluice.clock import Clock
from sluice.core.access.tokens import BadLogins, Digest, Grant, TokenId, id_of
from sluice.core.errors import NotAuthenticated, TooManyBadTokens

log = logging.getLogger(__name__)

SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Principal:
    """`token_id`: of the token that the request carried, or that the browser has logged in with. `session`: that of the browser, if any."""

    name: str
    grant: Grant
    token_id: TokenId
    session: Digest | None = None


class Authentication:
    """`required`: whether requests need a token. Otherwise all requests are allowed. `failed`: the number of refused requests, by
    reason."""

    def __init__(self, tokens: Tokens, sessions: Sessions, clock: Clock, *, required: bool) -> None:
        self.required = required
        self.tokens = tokens
        self.sessions = sessions
        self.failed: Counter[str] = Counter(dict.fromkeys(("missing", "wrong", "too-many"), 0))
        self._clock = clock
        self._bad_logins = BadLogins()

    async def first_token(self) -> str | None:
        """A new token for a first administrator, if tokens are required and no administrator has a valid one. Raises StoreUnavailable."""
        first = await self.tokens.first() if self.required else None
        return None if first is None else first.token

    def token_of(self, authorization: Sequence[str], address: str) -> str:
        """The token in the values of the header `Authorization`. `address`: of the client. Raises NotAuthenticated, TooManyBadTokens."""
        if not authorization:
            self.failed["missing"] += 1
            raise NotAuthenticated(
                "send a token in the header Authorization: Bearer TOKEN (Sluice reads SLUICE_TOKEN or SLUICE_TOKEN_FILE)"
            )
        scheme, _, token = authorization[0].partition(" ")
        if len(authorization) != 1 or scheme.lower() != SCHEME:
            raise self.refusal("", address)
        return token.strip()

    def identify(self, token: str, address: str) -> Principal:
        """Raises NotAuthenticated, TooManyBadTokens."""
        row = self.tokens.find(token)
        if row is None:
            raise self.refusal(token, address)
        return Principal(row.name, row.grant, row.token_id)

    def of_session(self, session_id: str) -> Principal:
        """The principal whose token began the session. Session ids are too long to be guessed, so wrong ones are not counted as attempts.
        Raises NotAuthenticated."""
        session = self.sessions.find(session_id)
        row = None if session is None else self.tokens.of_id(session.token_id)
        if session is None or row is None:
            self.failed["missing"] += 1
            raise NotAuthenticated("the session has ended: log in again")
        return Principal(row.name, row.grant, row.token_id, session.digest)

    def is_valid(self, principal: Principal) -> bool:
        """Whether its token is still valid, and its session, if it has one."""
        return self.tokens.is_valid(principal.token_id) and (principal.session is None or self.sessions.is_valid(principal.session))

    def refusal(self, token: str, address: str) -> NotAuthenticated | TooManyBadTokens:
        """The error for a wrong token. Only its id is logged, which is not secret."""
        token_id = id_of(token)
        known = token_id is not None and any(row.token_id == token_id for row in self.tokens.all())
        keys = {"address": address} | ({"token": token_id} if token_id is not None and known else {})
        wait = self._bad_logins.refused(keys, self._clock.elapsed())
        if wait is not None:
            self.failed["too-many"] += 1
            return TooManyBadTokens(f"{address} sent too many wrong tokens: try again later", ceil(wait.total_seconds()))
        self.failed["wrong"] += 1
        log.warning("a wrong token%s was sent by %s", f" with the id {token_id}" if known else "", address)
        return NotAuthenticated("the token is wrong, has expired or was revoked: ask an administrator for a new one (sluice token create)")
