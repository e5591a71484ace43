"""ASGI middleware: refuses requests that pages of other sites make browsers send (`sluice.core.access.browsers`), and adds headers that
limit what a browser does with an answer. docs/decisions/0030-browsers.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes

from coordinator.api.errors import problem_of
from coordinator.api.middleware import App, Receive, Scope, Send
from sluice.core.access.browsers import is_cross_site, is_host_allowed
from sluice.core.access.tokens import has_token
from sluice.core.errors import CrossSiteRequest, HostNotAllowed, SluiceError, TokenInUrl

POLICY = b"content-security-policy"

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers send `Origin: null` with a form, which looks like another site
    (b"cross-origin-resource-policy", b"same-origin"),
)
NO_CONTENT = (POLICY, b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
"""The policy of answers that set none."""

MAX_KNOWN = 64
"""Maximum number of accepted values that are cached. Clients of one coordinator use a few."""

_EXEMPT = frozenset({"/livez", "/readyz"})


class HostCheck:
    """Which values of the `Host` header are accepted: see `is_host_allowed`. `names` is None where every name is accepted."""

    def __init__(self, names: Collection[str] | None) -> None:
        self._names = None if names is None else frozenset(name.lower().removesuffix(".") for name in names)
        self.known: set[bytes] = set()
        """Accepted values, cached for the fast path."""

    def accepts(self, value: bytes) -> bool:
        if value in self.known:
            return True
        accepted = self._names is None or is_host_allowed(value.decode("latin-1"), self._names)
        if accepted and len(self.known) < MAX_KNOWN:
            self.known.add(value)
        return accepted


def guarded(app: App, hosts: HostCheck) -> App:
    """Refuse requests for an unknown `Host` (421), from pages of other sites (403), and with a token in the URL (400). Probes may send any
    `Host`, because they use the addresses and names of their platform, and their answers contain no data."""

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def marked(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *HEADERS]
                if all(name != POLICY for name, _ in headers):
                    headers.append(NO_CONTENT)
                message = {**message, "headers": headers}
            await send(message)

        refusal = refused(scope, hosts)
        if refusal is not None:
            await problem_of(refusal)(scope, receive, marked)
        else:
            await app(scope, receive, marked)

    return inner


def refused(scope: Scope, hosts: HostCheck) -> SluiceError | None:
    """Why the request is refused; None if it is not."""
    values = _values(scope, b"host")
    probe = scope["path"] in _EXEMPT and not scope["query_string"]
    if not probe and (len(values) > 1 or not all(map(hosts.accepts, values))):
        shown = ", ".join(value.decode("latin-1")[:200] for value in values)
        return HostNotAllowed(
            f"the coordinator is not known as {shown!r}: use its address, or add the name to its setting allowed_hosts "
            "(SLUICE_ALLOWED_HOSTS, a JSON list)"
        )
    if has_token(unquote_to_bytes(scope.get("raw_path") or b"") + unquote_to_bytes(scope["query_string"])):
        return TokenInUrl(
            "send it in the header Authorization: Bearer TOKEN. Revoke this one and create another, because logs may contain it"
        )
    authority = b"".join(values[:1]).decode("latin-1")
    origin, site, mode = (_one(scope, name) for name in (b"origin", b"sec-fetch-site", b"sec-fetch-mode"))
    if is_cross_site(scope["method"], authority, origin, site, mode):
        return CrossSiteRequest(f"a page of {(origin or 'another site')[:200]} may not send requests to the coordinator")
    return None


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for each, value in scope["headers"] if each == name]


def _one(scope: Scope, name: bytes) -> str | None:
    """The header's value. Several values are joined with commas, and the result matches no accepted value."""
    found = _values(scope, name)
    return ",".join(value.decode("latin-1") for value in found) if found else None
