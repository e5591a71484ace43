"""Authentication: finds the principal of a request from its header."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any

from coordinator.identity.providers import IdentityProviders
from coordinator.identity.sessions import Sessions
from coordinator.identity.tokens import Tokens
from coordinator.store.access import SessionRow
from sluice.clock import Clock
from sluice.core.access.certificates import CertificateRow, expiry_of, name_of, rights_of
from sluice.core.access.providers import CLOCK_SKEW, Identity, RefusedToken, looks_like_jwt
from sluice.core.access.tokens import BadLogins, Digest, Rights, TokenId, id_of
from sluice.core.errors import NotAuthenticated, TooManyBadTokens

log = logging.getLogger(__name__)

SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Principal:
    """`token_id`: of the static token that the request carried, or that the browser has logged in with; None for a token of an identity
    provider, which is valid until `expires_at`. `session`: that of the browser, if any."""

    name: str
    rights: Rights
    token_id: TokenId | None = None
    session: Digest | None = None
    expires_at: datetime | None = None


class Authentication:
    """`required`: whether requests need a token. Otherwise all requests are allowed. `failed`: the number of refused requests, by
    reason."""

    def __init__(
        self,
        tokens: Tokens,
        sessions: Sessions,
        providers: IdentityProviders,
        certificates: tuple[CertificateRow, ...],
        clock: Clock,
        *,
        required: bool,
    ) -> None:
        self.required = required
        self.tokens = tokens
        self.sessions = sessions
        self.providers = providers
        self._certificates = certificates
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

    async def identify(self, token: str, address: str) -> Principal:
        """Raises NotAuthenticated, TooManyBadTokens, IdentityProviderUnavailable."""
        if looks_like_jwt(token) and self.providers.clients:
            return await self._of_provider(token, address)
        row = self.tokens.find(token)
        if row is None:
            raise self.refusal(token, address)
        return Principal(row.name, Rights((row.grant,)), row.token_id)

    async def _of_provider(self, token: str, address: str) -> Principal:
        try:
            found = await self.providers.identify(token)
        except RefusedToken as refused:
            raise self.refusal("", address, str(refused)) from refused
        return self.of_identity(found)

    def of_certificate(self, certificate: Mapping[str, Any]) -> Principal | None:
        """The principal of a connection with this client certificate; None if the settings give its name no role, or it has expired."""
        name = name_of(certificate)
        rights, expires_at = rights_of(name, self._certificates), expiry_of(certificate)
        if not rights.grants or self._clock.now() >= expires_at:
            return None
        return Principal(f"certificate:{name}", rights, expires_at=expires_at)

    def of_identity(self, identity: Identity) -> Principal:
        provider = self.providers.clients[identity.provider].settings.provider
        return Principal(identity.name, provider.rights(identity.subject, identity.groups), expires_at=identity.expires_at)

    def of_session(self, session_id: str) -> Principal:
        """The principal that began the session. Session ids are too long to be guessed, so wrong ones are not counted as attempts. Raises
        NotAuthenticated."""
        session = self.sessions.find(session_id)
        principal = None if session is None else self._of_row(session)
        if principal is None:
            self.failed["missing"] += 1
            raise NotAuthenticated("the session has ended: log in again")
        return principal

    def _of_row(self, session: SessionRow) -> Principal | None:
        """None if the token was revoked, or the provider is no longer configured. The roles are those of the present table."""
        if session.token_id:
            row = self.tokens.of_id(session.token_id)
            return None if row is None else Principal(row.name, Rights((row.grant,)), row.token_id, session.digest)
        provider = self.providers.provider(session.provider)
        return None if provider is None else Principal(session.name, provider.rights(session.subject, session.groups), None, session.digest)

    async def end_sessions(self, name: str) -> int:
        """End all sessions of a principal. Returns their number. Raises StoreUnavailable."""
        return await self.sessions.end_all(name, {row.token_id for row in self.tokens.all() if row.name == name})

    def is_valid(self, principal: Principal) -> bool:
        """Whether its token is still valid, and its session, if it has one."""
        if principal.token_id is not None and not self.tokens.is_valid(principal.token_id):
            return False
        if principal.session is not None and not self.sessions.is_valid(principal.session):
            return False
        return principal.expires_at is None or self._clock.now() < principal.expires_at + CLOCK_SKEW

    def refusal(self, token: str, address: str, reason: str = "") -> NotAuthenticated | TooManyBadTokens:
        """The error for a wrong token. Only its id is logged, which is not secret. `reason`: why a provider's token is not accepted."""
        token_id = id_of(token)
        known = token_id is not None and any(row.token_id == token_id for row in self.tokens.all())
        keys = {"address": address} | ({"token": token_id} if token_id is not None and known else {})
        wait = self._bad_logins.refused(keys, self._clock.elapsed())
        if wait is not None:
            self.failed["too-many"] += 1
            return TooManyBadTokens(f"{address} sent too many wrong tokens: try again later", ceil(wait.total_seconds()))
        self.failed["wrong"] += 1
        log.warning("a wrong token%s was sent by %s%s", f" with the id {token_id}" if known else "", address, reason and f": {reason}")
        if reason:
            return NotAuthenticated(f"the token is not accepted: {reason}")
        return NotAuthenticated("the token is wrong, has expired or was revoked: ask an administrator for a new one (sluice token create)")
