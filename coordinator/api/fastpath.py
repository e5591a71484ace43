"""Two routes without a framework around them: the heartbeat, which every container sends all the time, and the job model's 304.

They answer as the routes of the same paths in `api.py` do, which stay in the OpenAPI document and take whatever is not answered here;
`tests/integration/coordinator/test_fastpath.py` compares the two.
"""

from __future__ import annotations

from urllib.parse import unquote_plus

from coordinator.api.middleware import App, Receive, Scope, Send
from coordinator.fleet.leases import LeaseEntry, Leases
from coordinator.jobmodels.cache import JobModels, Served

ALIVE = b'{"alive": true}'

_PARAMETER = b"executionContainerId="


def _json_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), (b"content-length", b"%d" % len(body))]


_ALIVE_HEADERS = _json_headers(ALIVE)
_ALIVE_BODY = {"type": "http.response.body", "body": ALIVE}
_EMPTY_BODY = {"type": "http.response.body", "body": b""}


def fast_paths(app: App, leases: Leases, models: JobModels) -> App:
    """`app` with the two paths answered before it. Anything but the plainest form of a request is left to `app`."""

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            path = scope["path"]
            if path == "/containerHeartbeat":
                entry = _renewed(scope, leases)
                if entry is not None:
                    await send({"type": "http.response.start", "status": 200, "headers": [*_ALIVE_HEADERS, *entry.headers]})
                    await send(_ALIVE_BODY)
                    return
            elif path == "/jobModel":
                served = _unchanged(scope, models)
                if served is not None:
                    models.answered_unchanged += 1
                    await send({"type": "http.response.start", "status": 304, "headers": served.unchanged_headers})
                    await send(_EMPTY_BODY)
                    return
        await app(scope, receive, send)

    return front


def _renewed(scope: Scope, leases: Leases) -> LeaseEntry | None:
    """The valid container whose heartbeat this is, its lease renewed; None is for `app`, which looks up how an invalid one's run ended."""
    query: bytes = scope["query_string"]
    if not query.startswith(_PARAMETER) or b"&" in query or len(query) == len(_PARAMETER):
        return None
    epoch: int | None = None
    for name, value in scope["headers"]:
        if name == b"sluice-epoch":
            if not value.isdigit() or len(value) > 9 or epoch is not None:
                return None
            epoch = int(value)
    raw = query[len(_PARAMETER) :].decode("ascii", "replace")
    return leases.beat(unquote_plus(raw) if "%" in raw or "+" in raw else raw, epoch)


def _unchanged(scope: Scope, models: JobModels) -> Served | None:
    """The job model that the asker has already; None for `app`."""
    query: bytes = scope["query_string"]
    if not query.startswith(b"job=") or b"&" in query or b"%" in query or b"+" in query:
        return None
    known = next((value for name, value in scope["headers"] if name == b"if-none-match"), None)
    served = models.find(query[4:].decode("ascii", "replace")) if known is not None else None
    return served if served is not None and known == served.etag else None
