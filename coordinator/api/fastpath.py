"""Two requests that are answered without the web framework, for speed: valid heartbeats, and 304 for unchanged job models.

The server calls `FastPaths.answer` as soon as it has read a request, and writes the answer immediately (`coordinator.connections`). Other
requests, such as pipelined ones, pass through ASGI, where `FastPaths.before` answers them.

The routes of the same paths are in `coordinator.api`. They answer all requests that are not answered here. Both give the same answers:
`tests/integration/coordinator/test_fastpath.py` compares them.
"""

from __future__ import annotations

from collections.abc import Container
from urllib.parse import unquote_plus

from coordinator.api.browsers import HostCheck
from coordinator.api.middleware import App, Receive, Scope, Send
from coordinator.fleet.leases import LeaseEntry, Leases, term_headers
from coordinator.jobmodels.cache import JobModels, Served
from sluice.core.errors import StoreUnavailable
from sluice.wire.body import HeaderList, header_lines

ALIVE = b'{"alive": true}'

_HEARTBEAT = b"/containerHeartbeat?"
_JOB_MODEL = b"/jobModel?"
_PARAMETER = b"executionContainerId="
_BEARER = b"Bearer "
_OF_BROWSERS = (b"origin", b"sec-fetch-site")
"""Headers that `coordinator.api.browsers` checks."""


def _json_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), (b"content-length", b"%d" % len(body))]


_ALIVE_HEADERS = _json_headers(ALIVE)
_ALIVE_BODY = {"type": "http.response.body", "body": ALIVE}
_EMPTY_BODY = {"type": "http.response.body", "body": b""}

_ALIVE_HEAD = b"HTTP/1.1 200 OK\r\n" + header_lines(_ALIVE_HEADERS)
_UNCHANGED_HEAD = b"HTTP/1.1 304 Not Modified\r\n"


class FastPaths:
    """`for_all`: requests need no token. Otherwise only heartbeats with the token of their container are answered here."""

    def __init__(self, leases: Leases, models: JobModels, hosts: HostCheck, *, for_all: bool = True) -> None:
        self._for_all = for_all
        self._leases = leases
        self._models = models
        self._hosts: Container[bytes] = hosts.known

    def answer(self, url: bytes, headers: HeaderList) -> tuple[bytes, bytes] | None:
        """The answer to a GET request without a body: status line and headers, without the empty line after them, and the body. `url`: path
        and query, as in the request line. None: the application must answer the request."""
        if url.startswith(_HEARTBEAT):
            entry = None if b"#" in url else self._renewed(url[len(_HEARTBEAT) :], headers)
            return None if entry is None else (_ALIVE_HEAD + entry.header_lines, ALIVE)
        if url.startswith(_JOB_MODEL):
            served = None if b"#" in url else self._unchanged(url[len(_JOB_MODEL) :], headers)
            return (
                None if served is None else (_UNCHANGED_HEAD + served.unchanged_lines + header_lines(term_headers(self._leases.term)), b"")
            )
        return None

    def before(self, app: App) -> App:
        """Answer the two requests without `app`. Requests in an uncommon form, or for a host that was not accepted before, are passed to
        `app`."""

        async def front(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "GET":
                path = scope["path"]
                if path == "/containerHeartbeat":
                    entry = self._renewed(scope["query_string"], scope["headers"])
                    if entry is not None:
                        await send({"type": "http.response.start", "status": 200, "headers": [*_ALIVE_HEADERS, *entry.headers]})
                        await send(_ALIVE_BODY)
                        return
                elif path == "/jobModel":
                    served = self._unchanged(scope["query_string"], scope["headers"])
                    if served is not None:
                        unchanged = [*served.unchanged_headers, *term_headers(self._leases.term)]
                        await send({"type": "http.response.start", "status": 304, "headers": unchanged})
                        await send(_EMPTY_BODY)
                        return
            await app(scope, receive, send)

        return front

    def _renewed(self, query: bytes, headers: HeaderList) -> LeaseEntry | None:
        """Renew the lease of the valid container that sent this heartbeat, and return its entry. None: pass the request on. The route looks
        up how the run of an invalid container ended, and whether the run of a bare container is stopping."""
        if not query.startswith(_PARAMETER) or b"&" in query or len(query) == len(_PARAMETER):
            return None
        sent = self._sent(headers)
        if sent is None:
            return None
        epoch, term, authorization = sent
        raw = query[len(_PARAMETER) :].decode("ascii", "replace")
        execution_id = unquote_plus(raw) if "%" in raw or "+" in raw else raw
        if epoch is None and self._leases.is_bare(execution_id):
            return None
        if not self._for_all and not self._is_its_own(execution_id, authorization):
            return None
        try:
            return self._leases.beat(execution_id, epoch, term)
        except StoreUnavailable:
            return None

    def _sent(self, headers: HeaderList) -> tuple[int | None, bytes, bytes | None] | None:
        """The epoch, the term and the value of `Authorization`. None: a header has an uncommon form; pass the request on."""
        epoch: int | None = None
        term = b""
        authorization: bytes | None = None
        for name, value in headers:
            if name == b"sluice-epoch":
                if not value.isdigit() or len(value) > 9 or epoch is not None:
                    return None
                epoch = int(value)
            elif name == b"sluice-term":
                term = value
            elif name == b"authorization":
                if authorization is not None:
                    return None
                authorization = value
            elif name in _OF_BROWSERS or (name == b"host" and value not in self._hosts):
                return None
        return epoch, term, authorization

    def _is_its_own(self, execution_id: str, authorization: bytes | None) -> bool:
        """Whether the header has the token of this valid container."""
        if authorization is None or not authorization.startswith(_BEARER):
            return False
        return self._leases.has_token(execution_id, authorization[len(_BEARER) :].decode("latin-1"))

    def _unchanged(self, query: bytes, headers: HeaderList) -> Served | None:
        """The job model, if the client already has it. None: pass the request on."""
        if not self._for_all or not query.startswith(b"job=") or b"&" in query or b"%" in query or b"+" in query:
            return None
        known = None
        for name, value in headers:
            if name == b"if-none-match" and known is None:
                known = value
            elif name in _OF_BROWSERS or (name == b"host" and value not in self._hosts):
                return None
        served = self._models.find(query[4:].decode("ascii", "replace")) if known is not None else None
        if served is None or known != served.etag:
            return None
        self._models.answered_unchanged += 1
        return served
