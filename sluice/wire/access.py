"""Bodies of tokens and of the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from sluice.core.access.roles import Role
from sluice.wire.body import Body, FailFast, Reply

Pattern = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._*?-]+$")]
TokenName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")]


class TokenRequest(Body):
    """A new token. `name`: the name of the principal that uses it. `jobs`: names of the jobs that its roles are for; `*` stands for any
    text."""

    name: TokenName
    roles: Annotated[tuple[Role, ...], FailFast(), Field(min_length=1, max_length=20)]
    jobs: Annotated[tuple[Pattern, ...], FailFast(), Field(min_length=1, max_length=100)] = ("*",)
    expires_seconds: Annotated[float | None, Field(gt=0, le=1e9, description="default: it does not expire")] = None


class TokenReply(Reply):
    token_id: str
    name: str
    roles: tuple[Role, ...]
    jobs: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class NewTokenReply(TokenReply):
    """`token` is returned only here."""

    token: str


class TokensReply(Reply):
    tokens: tuple[TokenReply, ...]
    next: str | None = None


class SessionsEndedReply(Reply):
    """`ended`: the number of sessions."""

    ended: int


class IdentityProviderReply(Reply):
    """An OpenID Connect provider with which people log in. `scopes`: separated by spaces."""

    name: str
    issuer: str
    client_id: str
    scopes: str


class IdentityProvidersReply(Reply):
    providers: tuple[IdentityProviderReply, ...]


class AuditEventReply(Reply):
    """`authenticated`: whether `actor` was authenticated. `status`: of the answer; null if the coordinator ended before it.
    `job`: the job that the request names, "" if none. `before`, `after`: the values that the change has changed, as texts by name; null
    for requests that were refused, and where it is not known."""

    seq: int
    at: datetime
    actor: str
    authenticated: bool
    source: str
    action: str
    subject: str
    request_id: str
    status: int | None
    reason: str
    job: str = ""
    before: dict[str, str] | None = None
    after: dict[str, str] | None = None


class AuditLogReply(Reply):
    """Newest first. `next` is the `before` of the following page, null on the last."""

    events: tuple[AuditEventReply, ...]
    next: int | None = None
