"""The logins of this user: an ID token for each coordinator, in a file that only the user can read.

A login is renewed when its token is about to expire, if the provider has given a refresh token (RFC 6749, section 6).
"""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from sluice.clock import Clock
from sluice.core.errors import BadSettings, ClientError, CoordinatorUnreachable

EARLY = timedelta(minutes=1)
"""A token is renewed this long before it expires."""

TIMEOUT = timedelta(seconds=10)

DISCOVERY = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class Login:
    """`token`: the ID token, valid until `expires_at` (seconds since 1970). `refresh_token`: "" if the provider gives none."""

    token: str
    expires_at: float
    token_endpoint: str
    client_id: str
    refresh_token: str = ""


def file_of_logins() -> Path:
    """Raises BadSettings if this user has no home."""
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "sluice" / "logins.json"
    except RuntimeError as error:
        raise BadSettings(
            f"there is no directory for logins, because user {os.getuid()} has no home: set HOME or XDG_CONFIG_HOME"
        ) from error


def _read(file: Path) -> dict[str, Any]:
    """Empty if there is no such file, or its directory may not be looked into, as the home of another user. Raises BadSettings."""
    try:
        found = json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        if not os.access(file.parent, os.X_OK):
            return {}
        raise BadSettings(f"{file} cannot be read: {error.strerror}; make it readable for user {os.getuid()}, or delete it") from error
    except (OSError, ValueError) as error:
        raise BadSettings(f"{file} cannot be read: {error}; delete it and log in again") from error
    return found if isinstance(found, dict) else {}


def keep(coordinator: str, login: Login | None) -> None:
    """Store the login for a coordinator, or remove it (None). Raises BadSettings."""
    file = file_of_logins()
    logins = _read(file)
    logins.pop(coordinator.rstrip("/"), None)
    if login is not None:
        logins[coordinator.rstrip("/")] = asdict(login)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = file.with_name(f".{file.name}.{os.getpid()}")
        made.unlink(missing_ok=True)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            json.dump(logins, out)
        made.replace(file)
    except OSError as error:
        raise BadSettings(f"{file} cannot be written: {error.strerror}") from error


def kept(coordinator: str) -> Login | None:
    """Raises BadSettings."""
    try:
        file = file_of_logins()
    except BadSettings:  # who has no home has not logged in
        return None
    found = _read(file).get(coordinator.rstrip("/"))
    try:
        return None if found is None else Login(**found)
    except TypeError:
        return None


def token_for(coordinator: str, clock: Clock) -> str:
    """The token of the login for a coordinator, renewed if it is about to expire; "" if there is none. Raises BadSettings, ClientError,
    CoordinatorUnreachable."""
    login, now = kept(coordinator), clock.now()
    if login is None:
        return ""
    if now.timestamp() < login.expires_at - EARLY.total_seconds():
        return login.token
    if login.refresh_token:
        form = {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "client_id": login.client_id}
        _, answer = post_form(login.token_endpoint, form)
        if "id_token" in answer:
            renewed = login_of(answer, login.token_endpoint, login.client_id)
            keep(coordinator, renewed if renewed.refresh_token else Login(**{**asdict(renewed), "refresh_token": login.refresh_token}))
            return renewed.token
    raise ClientError(f"the login for {coordinator} expired at {datetime.fromtimestamp(login.expires_at, UTC):%H:%M:%S} UTC: sluice login")


def login_of(answer: Mapping[str, Any], token_endpoint: str, client_id: str) -> Login:
    """From an answer of the token endpoint. Raises ClientError if it has no ID token that can be read."""
    token = str(answer["id_token"])
    try:
        payload = token.split(".")[1]
        expires_at = float(json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ClientError("the provider answered with an ID token that cannot be read") from error
    return Login(token, expires_at, token_endpoint, client_id, str(answer.get("refresh_token", "")))


def post_form(url: str, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
    """Status and JSON object of the answer; errors of OAuth are answers. Raises CoordinatorUnreachable."""
    return _answer("POST", url, data=dict(form))


def discovered(issuer: str) -> Mapping[str, Any]:
    """The addresses of a provider. Raises CoordinatorUnreachable, ClientError."""
    if not issuer.startswith("https://") and httpx.URL(issuer).host not in ("127.0.0.1", "localhost", "::1"):
        raise ClientError(f"the coordinator names {issuer}, but the URL of an identity provider must begin with https://")
    _, found = _answer("GET", issuer.rstrip("/") + DISCOVERY)
    if found.get("issuer") != issuer:
        raise ClientError(f"{issuer} says that its issuer is {found.get('issuer')!r}")
    return found


def _answer(method: str, url: str, **more: Any) -> tuple[int, Mapping[str, Any]]:
    try:
        answer = httpx.request(method, url, timeout=TIMEOUT.total_seconds(), **more)
        found = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, ImportError) as error:  # ImportError: HTTPS_PROXY names a SOCKS proxy
        raise CoordinatorUnreachable(f"the identity provider does not answer {url}: {type(error).__name__} {error}".rstrip()) from error
    return answer.status_code, found if isinstance(found, dict) else {}
