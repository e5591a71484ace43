"""Logins of browsers with an OpenID Connect provider: the authorization code flow (OpenID Connect Core 1.0, section 3.1) with PKCE
(RFC 7636).

A login that has begun is kept in memory until the provider sends the browser back. `state` belongs to one login, and `browser`, which is in
a cookie, to one browser, so that an attacker's link cannot log a user in. After a restart of the coordinator, logins begin again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote, urlencode, urlsplit

from coordinator.identity.providers import IdentityProviders
from sluice.clock import Clock
from sluice.core.access.providers import Identity, RefusedToken
from sluice.core.access.tokens import SECRET_BYTES, Digest, digest, encoded, is_same
from sluice.core.errors import IdentityProviderUnavailable, UnknownPage
from sluice.core.ids import Instant

LOGIN_LASTS = timedelta(minutes=10)
"""Maximum time between the two halves of a login."""

MAX_LOGINS = 1_000
"""Maximum number of logins that have begun. A further one ends the oldest."""

CALLBACK = "/ui/login/{provider}/callback"


@dataclass(frozen=True, slots=True)
class _Begun:
    """`verifier`: of PKCE. `returns_to`: the URL to which the provider sends the browser. `began`: on the clock of leases."""

    provider: str
    nonce: str
    verifier: str
    returns_to: str
    browser: Digest
    began: Instant


class Logins:
    """`random_bytes` returns the given number of unpredictable bytes. `public_url`: of the coordinator, "" for that of each request."""

    def __init__(self, providers: IdentityProviders, clock: Clock, random_bytes: Callable[[int], bytes], public_url: str) -> None:
        self._providers = providers
        self._clock = clock
        self._random_bytes = random_bytes
        self._public_url = public_url.rstrip("/")
        self._begun: dict[str, _Begun] = {}

    @property
    def providers(self) -> Sequence[str]:
        """The names of the providers with which browsers may log in."""
        return [name for name, client in self._providers.clients.items() if client.settings.client_id]

    async def begin(self, provider: str, host: str, scheme: str) -> tuple[str, str]:
        """The URL of the provider to which the browser is sent, and the value of its cookie. `host`, `scheme`: of the request. Raises
        UnknownPage, IdentityProviderUnavailable."""
        if provider not in self.providers:
            raise UnknownPage(f"there is no identity provider {provider!r} for logins")
        client = self._providers.clients[provider]
        endpoint = str((await client.document()).get("authorization_endpoint", ""))
        state, nonce, verifier, browser = (encoded(self._random_bytes(SECRET_BYTES)) for _ in range(4))
        returns_to = f"{self._public_url or f'{scheme}://{host}'}{CALLBACK.format(provider=quote(provider))}"
        self._forget_old()
        self._begun[state] = _Begun(provider, nonce, verifier, returns_to, digest(browser), self._clock.elapsed())
        query = {
            "response_type": "code",
            "client_id": client.settings.client_id,
            "redirect_uri": returns_to,
            "scope": client.settings.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": encoded(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", browser

    def _forget_old(self) -> None:
        oldest = self._clock.elapsed() - LOGIN_LASTS.total_seconds()
        self._begun = {state: each for state, each in self._begun.items() if each.began > oldest}
        while len(self._begun) >= MAX_LOGINS:
            del self._begun[next(iter(self._begun))]

    async def end(self, provider: str, query: Mapping[str, str], browser: str) -> tuple[Identity, str]:
        """The identity that has logged in, and the path of the web pages for the browser. `query`: of the request to which the provider has
        sent the browser. Raises RefusedToken, IdentityProviderUnavailable."""
        self._forget_old()
        begun = self._begun.pop(query.get("state", ""), None)
        if begun is None or begun.provider != provider or not is_same(digest(browser), begun.browser):
            raise RefusedToken("this login was not begun here, or too long ago: log in again")
        if "code" not in query:
            raise RefusedToken(f"the provider answered {query.get('error', 'without a code')[:100]}")
        client = self._providers.clients[provider]
        if query.get("iss", client.settings.provider.issuer) != client.settings.provider.issuer:  # RFC 9207
            raise RefusedToken("the answer is of another issuer")
        form = {
            "grant_type": "authorization_code",
            "code": query["code"],
            "redirect_uri": begun.returns_to,
            "client_id": client.settings.client_id,
            "code_verifier": begun.verifier,
        }
        secret = client.client_secret()
        endpoint = str((await client.document()).get("token_endpoint", ""))
        auth = (quote(client.settings.client_id, safe=""), quote(secret, safe="")) if secret else None
        token = (await client.post(endpoint, form, auth)).get("id_token")
        if not isinstance(token, str):
            raise IdentityProviderUnavailable(f"the provider {provider} answered without an ID token: its scopes must include openid")
        identity = await self._providers.identify_login(provider, token, begun.nonce)
        return identity, urlsplit(begun.returns_to).path.partition("/login/")[0]
