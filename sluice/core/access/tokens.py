"""The format of tokens, their validity, and the limit of wrong attempts.

A token is `sluice-t.ID.SECRET`: 64 random bits in hexadecimal digits, and 256 as base64url. The database has the
SHA-256 of the whole token. A slow hash would add no protection: it is for passwords that users choose, not for 256 random bits.

An incarnation token is `sluice-i.SECRET.ID`, with the container's execution container id as base64url. A container chooses it and
registers with it, or gets one from the coordinator. It is valid as long as the container is valid.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import string
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import NewType

from sluice.core.access.roles import Role
from sluice.core.ids import ExecutionContainerId, Instant, JobName
from sluice.core.text import is_storable

TokenId = NewType("TokenId", str)
Digest = NewType("Digest", str)
"""The SHA-256 of a token, in hexadecimal digits."""

SECRET_BYTES = 32
ID_BYTES = 8
PREFIX = "sluice-t."
INCARNATION_PREFIX = "sluice-i."

_INCARNATION_TOKEN = re.compile(r"sluice-i\.[A-Za-z0-9_-]{43}\.[A-Za-z0-9_-]+")

MAX_TOKEN = 600
"""Maximum length in characters. Longer tokens are not hashed."""


def encoded(random: bytes) -> str:
    return urlsafe_b64encode(random).rstrip(b"=").decode()


def new_token(token_id: TokenId, secret: bytes) -> str:
    return f"{PREFIX}{token_id}.{encoded(secret)}"


def new_incarnation_token(execution_id: ExecutionContainerId, secret: bytes) -> str:
    return f"{INCARNATION_PREFIX}{encoded(secret)}.{encoded(execution_id.encode())}"


def incarnation_of(token: str) -> ExecutionContainerId | None:
    """The container that an incarnation token names; None if the text does not have this format."""
    parts = token.split(".")
    if len(parts) != 3 or not token.startswith(INCARNATION_PREFIX) or len(token) > MAX_TOKEN:
        return None
    try:
        named = urlsafe_b64decode(parts[2] + "=" * (-len(parts[2]) % 4)).decode()
    except ValueError:
        return None
    return ExecutionContainerId(named) if is_storable(named) else None


def is_incarnation_token(token: str, execution_id: ExecutionContainerId) -> bool:
    """Whether it is a complete incarnation token of this container. Whether its secret is random cannot be seen."""
    return _INCARNATION_TOKEN.fullmatch(token) is not None and incarnation_of(token) == execution_id


def digest(token: str) -> Digest:
    return Digest(hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest())


def is_same(one: Digest, other: Digest) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def id_of(token: str) -> TokenId | None:
    """The id of a token; None if the text does not have this format."""
    parts = token.split(".")
    if len(parts) != 3 or not token.startswith(PREFIX) or len(token) > MAX_TOKEN:
        return None
    return TokenId(parts[1])


_TOKEN = re.compile(rb"sluice-(t\.[0-9a-f]{%d}\.|i\.)[A-Za-z0-9_-]{16,}" % (2 * ID_BYTES))
_JSON = re.compile(rb"eyJ[A-Za-z0-9_-]{8,}")
_BASE64URL = (string.ascii_letters + string.digits + "_-").encode()


def has_token(text: bytes) -> bool:
    """Whether the text contains a token, or most of one."""
    return (b"sluice-" in text and _TOKEN.search(text) is not None) or (b"eyJ" in text and _has_signed_token(text))


def _has_signed_token(text: bytes) -> bool:
    """Whether the text has the header and the claims of a signed token, both followed by a dot: JSON objects in base64url. The end of each
    part is looked at once; one expression would search the rest of the text from each beginning of an object."""
    parts = text.split(b".")[:-1]
    return any(
        _JSON.fullmatch(claims) is not None and _JSON.search(header[len(header.rstrip(_BASE64URL)) :]) is not None
        for header, claims in pairwise(parts)
    )


@dataclass(frozen=True, slots=True)
class Grant:
    """The permissions of a principal: its roles, for jobs whose name matches one of the patterns (`*`: any text, `?`: one character)."""

    roles: frozenset[Role]
    jobs: tuple[str, ...] = ("*",)

    def covers(self, job: JobName) -> bool:
        return any(fnmatchcase(job, pattern) for pattern in self.jobs)

    @property
    def covers_all_jobs(self) -> bool:
        return "*" in self.jobs


@dataclass(frozen=True, slots=True)
class Rights:
    """All grants of a principal. A role counts for the jobs of its own grant only."""

    grants: tuple[Grant, ...]

    @property
    def roles(self) -> frozenset[Role]:
        return frozenset(role for each in self.grants for role in each.roles)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The patterns of all grants."""
        return tuple(dict.fromkeys(pattern for each in self.grants for pattern in each.jobs))

    def of(self, roles: frozenset[Role]) -> Rights:
        """The grants that have one of the roles."""
        return Rights(tuple(each for each in self.grants if not each.roles.isdisjoint(roles)))

    def covers(self, job: JobName) -> bool:
        return any(each.covers(job) for each in self.grants)

    @property
    def covers_all_jobs(self) -> bool:
        return any(each.covers_all_jobs for each in self.grants)


def is_valid(expires_at: datetime | None, revoked_at: datetime | None, now: datetime) -> bool:
    return revoked_at is None and (expires_at is None or now < expires_at)


BAD_LOGINS = 20
"""Maximum number of wrong tokens within `BAD_LOGINS_WITHIN` from one address, and with one token's id."""

BAD_LOGINS_WITHIN = timedelta(minutes=1)


class BadLogins:
    """Counts wrong tokens by address and by token id. Valid tokens are always accepted, so that a client with a wrong one does not lock out
    other clients with its address. Counts are reset in each period of `BAD_LOGINS_WITHIN`. `MAX_COUNTED` limits the memory."""

    MAX_COUNTED = 10_000

    def __init__(self) -> None:
        self._began = Instant(0.0)
        self._counts: Counter[str] = Counter()

    def refused(self, keys: Mapping[str, str], now: Instant) -> timedelta | None:
        """Count a wrong token under these keys (kind -> value). Returns how long to wait if there were too many, otherwise None."""
        period = BAD_LOGINS_WITHIN.total_seconds()
        if now >= self._began + period:
            self._began = now
            self._counts.clear()
        names = [f"{kind} {value}" for kind, value in keys.items()]
        if len(self._counts) < self.MAX_COUNTED:
            self._counts.update(names)
        if any(self._counts[name] > BAD_LOGINS for name in names):
            return timedelta(seconds=self._began + period - now)
        return None
