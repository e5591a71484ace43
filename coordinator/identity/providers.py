"""Tokens of OpenID Connect providers and of Kubernetes: fetches a provider's public keys and verifies its signatures.

The keys are kept while the provider's server is unavailable, for at most `keys_kept`. A token with an unknown key makes the coordinator
fetch the keys again, at most once in `FETCH_PAUSE`, so that forged tokens cannot make it flood the provider. No redirect to another host is
followed: a provider's server could otherwise make the coordinator send requests to hosts of its own network.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt

from sluice.clock import Clock
from sluice.core.access.providers import ALGORITHMS, Claims, Identity, Provider, RefusedToken, identity_of
from sluice.core.errors import IdentityProviderUnavailable, SluiceError
from sluice.core.ids import Instant

log = logging.getLogger(__name__)

FETCH_PAUSE = timedelta(seconds=10)
"""Minimum time between two fetches of a provider's keys."""

REFRESH_INTERVAL = timedelta(minutes=5)
"""Interval at which keys are fetched, so that a key that a provider has withdrawn is not accepted for longer."""

TIMEOUT = timedelta(seconds=10)
MAX_DOCUMENT = 1 << 20
"""Maximum size in bytes of an answer of a provider."""

MAX_REDIRECTS = 3
DISCOVERY = "/.well-known/openid-configuration"

_SIGNATURE_ONLY = {"verify_signature": True} | dict.fromkeys(
    (f"verify_{name}" for name in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")), False
)
"""`identity_of` checks the claims, with the coordinator's clock."""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """`client_id`: of the web pages and of `sluice login`, "" for neither. `keys_url`: of the public keys; "": the one that the issuer
    publishes. `ca_file`: authorities that may sign the certificate of the provider's server. `bearer_token_file`: has a token for requests
    for the keys, which Kubernetes needs."""

    provider: Provider
    client_id: str = ""
    client_secret_file: Path | None = None
    scopes: str = "openid"
    keys_url: str = ""
    ca_file: Path | None = None
    bearer_token_file: Path | None = None
    keys_kept: timedelta = timedelta(days=1)


class ProviderClient:
    """The HTTP requests to one provider. Files are read for each request, so that renewed ones are used."""

    def __init__(self, settings: ProviderSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._document: tuple[Instant, Mapping[str, Any]] | None = None

    @property
    def _name(self) -> str:
        return self.settings.provider.name

    async def document(self) -> Mapping[str, Any]:
        """The addresses of the provider (OpenID Connect Discovery 1.0), not older than REFRESH_INTERVAL. Raises
        IdentityProviderUnavailable."""
        now, issuer = self._clock.elapsed(), self.settings.provider.issuer
        if self._document is not None and now < self._document[0] + REFRESH_INTERVAL.total_seconds():
            return self._document[1]
        found = await self.get(issuer.rstrip("/") + DISCOVERY)
        if found.get("issuer") != issuer:
            raise IdentityProviderUnavailable(f"the provider {self._name} says that its issuer is {found.get('issuer')!r}, not {issuer!r}")
        self._document = now, found
        return found

    async def keys(self) -> Sequence[Mapping[str, Any]]:
        """The public keys (JWKS, RFC 7517). Raises IdentityProviderUnavailable."""
        url = self.settings.keys_url or str((await self.document()).get("jwks_uri", ""))
        token = self._bearer_token() if self.settings.keys_url else ""
        found = (await self.get(url, {"Authorization": f"Bearer {token}"} if token else {})).get("keys")
        if not isinstance(found, list):
            raise IdentityProviderUnavailable(f"the provider {self._name} answers {url} without keys")
        return [each for each in found if isinstance(each, dict)]

    def _bearer_token(self) -> str:
        file = self.settings.bearer_token_file
        try:
            return "" if file is None else file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise IdentityProviderUnavailable(f"the provider {self._name}: bearer_token_file {file} cannot be read: {error}") from error

    def client_secret(self) -> str:
        """The secret of the client, "" if it has none. Raises IdentityProviderUnavailable."""
        file = self.settings.client_secret_file
        try:
            return "" if file is None else file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise IdentityProviderUnavailable(f"the provider {self._name}: client_secret_file {file} cannot be read: {error}") from error

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """A JSON object. Raises IdentityProviderUnavailable."""
        return await self._request("GET", url, headers=dict(headers or {}))

    async def post(self, url: str, form: Mapping[str, str], auth: tuple[str, str] | None = None) -> Mapping[str, Any]:
        """The JSON object with which the provider answers a form. Raises IdentityProviderUnavailable, RefusedToken if it refuses."""
        return await self._request("POST", url, data=dict(form), auth=auth)

    async def _request(self, method: str, url: str, **more: Any) -> Mapping[str, Any]:
        try:
            async with (
                asyncio.timeout(TIMEOUT.total_seconds()),
                httpx.AsyncClient(verify=self._verification(), timeout=TIMEOUT.total_seconds()) as http,
            ):
                return _object(*await self._answer(http, method, httpx.URL(url), **more))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ssl.SSLError, OSError, ValueError, ImportError) as error:  # SOCKS
            if isinstance(error, RefusedToken):
                raise
            raise IdentityProviderUnavailable(
                f"the provider {self._name} does not answer {url}: {type(error).__name__} {error}".rstrip()
            ) from error

    async def _answer(self, http: httpx.AsyncClient, method: str, url: httpx.URL, **more: Any) -> tuple[int, bytes]:
        for _ in range(1 + (MAX_REDIRECTS if method == "GET" else 0)):
            async with http.stream(method, url, **more) as answer:
                if not answer.is_redirect:
                    return answer.status_code, await _limited(answer)
                target = url.join(answer.headers.get("location", ""))
            if (target.scheme, target.host, target.port) != (url.scheme, url.host, url.port):
                raise ValueError(f"a redirect to another host, {target.scheme}://{target.host}, is not followed")
            url = target
        raise ValueError("too many redirects")

    def _verification(self) -> ssl.SSLContext | bool:
        file = self.settings.ca_file
        return True if file is None else ssl.create_default_context(cafile=file)


async def _limited(answer: httpx.Response) -> bytes:
    """The body. Raises ValueError if it is too large."""
    body = b""
    async for part in answer.aiter_bytes():
        body += part
        if len(body) > MAX_DOCUMENT:
            raise ValueError(f"the answer is larger than {MAX_DOCUMENT} bytes")
    return body


def _object(status: int, body: bytes) -> Mapping[str, Any]:
    """Raises ValueError, and RefusedToken for an error of OAuth (RFC 6749, section 5.2)."""
    found = json.loads(body) if body.strip() else {}
    if not isinstance(found, dict):
        raise ValueError("the answer is not a JSON object")
    if status in (400, 401, 403) and isinstance(found.get("error"), str):
        raise RefusedToken(f"the provider answered {found['error'][:100]}")
    if status != 200:
        raise ValueError(f"the answer has status {status}")
    return found


class Keys:
    """The public keys of one provider, in memory. `fetched`: when, None before the first time."""

    def __init__(self, client: ProviderClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._keys: Sequence[Mapping[str, Any]] = ()
        self._tried: Instant | None = None
        self._lock = asyncio.Lock()
        self.fetched: Instant | None = None

    async def find(self, key_id: str | None, algorithm: str) -> Mapping[str, Any] | None:
        """The key that a token names as its signing key; None if the provider has no such key. Raises IdentityProviderUnavailable if there
        are no keys, or none that are recent enough."""
        found = self._find(key_id, algorithm) if self._recent else None
        if found is None:
            await self.refresh(before=self._clock.elapsed())
            found = self._find(key_id, algorithm)
        if not self._recent:
            raise IdentityProviderUnavailable(f"the keys of the provider {self._client.settings.provider.name} cannot be fetched")
        return found

    @property
    def _recent(self) -> bool:
        kept = self._client.settings.keys_kept.total_seconds()
        return self.fetched is not None and self._clock.elapsed() < self.fetched + kept

    def _find(self, key_id: str | None, algorithm: str) -> Mapping[str, Any] | None:
        usable = [each for each in self._keys if each.get("use", "sig") == "sig" and each.get("alg", algorithm) == algorithm]
        if key_id is None:
            return usable[0] if len(usable) == 1 else None
        return next((each for each in usable if each.get("kid") == key_id), None)

    async def refresh(self, before: Instant) -> None:
        """Fetch the keys, unless that was tried after `before`, or shortly before it. Errors are logged, and the former keys stay."""
        async with self._lock:
            if self._tried is not None and before < self._tried + FETCH_PAUSE.total_seconds():
                return
            self._tried = self._clock.elapsed()
            try:
                self._keys = await self._client.keys()
            except SluiceError as error:
                log.warning("%s", error)
            except RefusedToken as refused:
                log.warning("the keys of the provider %s: %s", self._client.settings.provider.name, refused)
            else:
                self.fetched = self._clock.elapsed()


class IdentityProviders:
    """The configured providers, and their keys."""

    def __init__(self, settings: Sequence[ProviderSettings], clock: Clock) -> None:
        self._clock = clock
        self.clients = {each.provider.name: ProviderClient(each, clock) for each in settings}
        self.keys = {name: Keys(client, clock) for name, client in self.clients.items()}
        self._names = {each.provider.issuer: each.provider.name for each in settings}

    def provider(self, name: str) -> Provider | None:
        found = self.clients.get(name)
        return None if found is None else found.settings.provider

    async def identify(self, token: str) -> Identity:
        """The identity of a request's token. Raises RefusedToken, IdentityProviderUnavailable."""
        header, issuer = _unverified(token)
        name = self._names.get(issuer)
        if name is None:
            raise RefusedToken("its issuer is not one of the setting identity_providers")
        return self._identity(name, await self._verified(name, token, header), for_client=False)

    async def identify_login(self, name: str, token: str, nonce: str) -> Identity:
        """The identity in the ID token of a login. `nonce`: that of the login's request. Raises RefusedToken,
        IdentityProviderUnavailable."""
        header, _ = _unverified(token)
        claims = await self._verified(name, token, header)
        if claims.get("nonce") != nonce:
            raise RefusedToken("its nonce is not that of the login")
        return self._identity(name, claims, for_client=True)

    def _identity(self, name: str, claims: Claims, *, for_client: bool) -> Identity:
        settings = self.clients[name].settings
        audiences = {settings.client_id} if for_client else settings.provider.audiences
        return identity_of(settings.provider, claims, audiences, self._clock.now())

    async def _verified(self, name: str, token: str, header: Mapping[str, Any]) -> Claims:
        """The claims, after the signature was verified with the provider's key. Raises RefusedToken, IdentityProviderUnavailable."""
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise RefusedToken("its algorithm is not accepted")
        found = await self.keys[name].find(key_id if isinstance(key_id, str) else None, algorithm)
        if found is None:
            raise RefusedToken("the provider has no such key")
        try:
            key = jwt.PyJWK(dict(found), algorithm)
            return jwt.decode(token, key, algorithms=[algorithm], options=_SIGNATURE_ONLY)  # type: ignore[arg-type]
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise RefusedToken("its signature is not that of the provider's key") from error


def _unverified(token: str) -> tuple[Mapping[str, Any], str]:
    """Header and issuer of a token whose signature has not been verified. They are used only to choose the key. Raises RefusedToken."""
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise RefusedToken("it cannot be decoded") from error
    issuer = claims.get("iss")
    return header, issuer if isinstance(issuer, str) else ""


@dataclass(frozen=True, slots=True)
class RefreshKeys:
    """Chore: fetch the keys of the providers whose keys are in use."""

    providers: IdentityProviders
    clock: Clock
    every: timedelta = REFRESH_INTERVAL
    name: str = "refresh_keys"

    async def run_once(self) -> Mapping[str, int]:
        used = [each for each in self.providers.keys.values() if each.fetched is not None]
        for each in used:
            await each.refresh(before=self.clock.elapsed())
        return {}
