"""Identities from OpenID Connect providers and Kubernetes clusters: which claims of a token are accepted, and which roles they give.

A provider signs tokens (JWT, RFC 7519). `coordinator.identity.providers` verifies the signature; the rules here check the claims (OpenID
Connect Core 1.0, section 3.1.3.7) and look the roles up in the table of the settings. The names of principals begin with the name of their
provider, so that one provider cannot issue the names of another, or of a static token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sluice.core.access.tokens import Grant, Rights

Claims = Mapping[str, object]

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""Signatures with a public key (RFC 7518). With others, such as HS256 and none, everyone who can verify a token can forge it."""

CLOCK_SKEW = timedelta(seconds=60)
"""By how much the clocks of a provider and of the coordinator may differ."""

MAX_JWT = 16 * 1024
"""Maximum length in characters. Longer tokens are not decoded."""

MAX_NAME = 200
"""Maximum length of a principal's name."""

SERVICE_ACCOUNTS = "system:serviceaccounts"
_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9-]{1,63}):([a-z0-9.-]{1,253})")


class RefusedToken(ValueError):
    """The token is not accepted. The message says why, without the token."""


@dataclass(frozen=True, slots=True)
class RoleRow:
    """A row of a provider's table. `group`, `subject`: to which the row applies; one of them is ""."""

    group: str
    subject: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class Provider:
    """`audiences`: a token must be for one of them. `name_claim`: the claim with the principal's name. `groups_claim`: the claim with its
    groups; a dot separates the names of nested claims. `kubernetes`: the tokens are those of service accounts, bound to a pod."""

    name: str
    issuer: str
    audiences: frozenset[str]
    rows: tuple[RoleRow, ...]
    name_claim: str = "sub"
    groups_claim: str = "groups"
    kubernetes: bool = False

    def rights(self, subject: str, groups: Collection[str]) -> Rights:
        """The grants of the rows for this subject and for these groups."""
        return Rights(tuple(row.grant for row in self.rows if (row.subject == subject if row.subject else row.group in groups)))

    def known_groups(self, groups: Collection[str]) -> tuple[str, ...]:
        """Those of the groups that the table names, in alphabetical order."""
        return tuple(sorted({row.group for row in self.rows if row.group} & set(groups)))


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity in a verified token. `name`: of the principal. `groups`: those that the provider's table names."""

    provider: str
    name: str
    subject: str
    groups: tuple[str, ...]
    expires_at: datetime


def looks_like_jwt(token: str) -> bool:
    """Whether the text has the form of a signed JWT: a JSON object and two other parts in base64url."""
    return token.startswith("eyJ") and token.count(".") == 2 and len(token) <= MAX_JWT and token.isascii()


def identity_of(provider: Provider, claims: Claims, audiences: Collection[str], now: datetime) -> Identity:
    """The identity in the claims of a token whose signature is that of the provider. Raises RefusedToken."""
    if claims.get("iss") != provider.issuer:
        raise RefusedToken("it is of another issuer")
    given = claims.get("aud")
    if not any(isinstance(each, str) and each in audiences for each in (given if isinstance(given, list) else [given])):
        raise RefusedToken("it is for another audience")
    expires_at = _check_times(claims, now)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise RefusedToken("it has no subject")
    if provider.kubernetes:
        name, groups = _service_account(claims, subject)
    else:
        name, groups = _text(claims.get(provider.name_claim)), _names(_nested(claims, provider.groups_claim))
    full = f"{provider.name}:{name}"
    if not name or len(full) > MAX_NAME or not full.isascii() or not full.isprintable():
        raise RefusedToken(f"its claim {provider.name_claim} is not a name of printable ASCII characters, at most {MAX_NAME}")
    return Identity(provider.name, full, subject, provider.known_groups(groups), expires_at)


def _check_times(claims: Claims, now: datetime) -> datetime:
    """Returns the time at which the token expires. Raises RefusedToken."""
    expires_at = _time(claims, "exp")
    if expires_at is None:
        raise RefusedToken("it has no expiry")
    if now >= expires_at + CLOCK_SKEW:
        raise RefusedToken(f"it expired at {expires_at:%Y-%m-%d %H:%M:%S} UTC")
    for name in ("nbf", "iat"):
        begins_at = _time(claims, name)
        if begins_at is not None and now < begins_at - CLOCK_SKEW:
            raise RefusedToken(f"it is valid from {begins_at:%Y-%m-%d %H:%M:%S} UTC; compare the clocks")
    return expires_at


def _time(claims: Claims, name: str) -> datetime | None:
    """A NumericDate (RFC 7519, section 2). None if the token has none. Raises RefusedToken."""
    given = claims.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or not 0 <= given < 1e11:
        raise RefusedToken(f"its claim {name} is not a time")
    return datetime.fromtimestamp(given, UTC)


def _service_account(claims: Claims, subject: str) -> tuple[str, Sequence[str]]:
    """Name and groups of a service account. Its name contains the uid of the pod that the token is bound to, so that one pod cannot act for
    another one with the same account. The groups are those that Kubernetes itself gives. Raises RefusedToken."""
    found = _SERVICE_ACCOUNT.fullmatch(subject)
    if found is None:
        raise RefusedToken("its subject is not a service account")
    uid = _nested(claims, "kubernetes.io", "pod", "uid")
    if not isinstance(uid, str) or not re.fullmatch(r"[0-9a-zA-Z-]{1,64}", uid):
        raise RefusedToken("it is not bound to a pod: mount a projected service account token")
    namespace, account = found.groups()
    return f"{namespace}:{account}:{uid}", (SERVICE_ACCOUNTS, f"{SERVICE_ACCOUNTS}:{namespace}")


def _nested(claims: Claims, *path: str) -> object:
    """The claim at the path. A single name may contain dots between nested names, unless a claim has the whole name."""
    if len(path) == 1 and path[0] not in claims:
        path = tuple(path[0].split("."))
    found: object = claims
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _text(given: object) -> str:
    return given if isinstance(given, str) else ""


def _names(given: object) -> tuple[str, ...]:
    """A claim with one name or with a list of names."""
    if isinstance(given, str):
        return (given,)
    return tuple(each for each in given if isinstance(each, str)) if isinstance(given, list) else ()
