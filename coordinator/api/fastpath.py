"""Two requests that are answered without the web framework, for speed: valid heartbeats, and 304 for unchanged job models.

The routes of the same paths stay in `coordinator.api`. They answer everything that is not answered here, and in the same way:
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
    """Answer the two requests before `app`. Requests in any but the most common form are passed on to `app`."""

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
    """The entry of the valid container that sent this heartbeat, with its lease renewed. None: pass the request on to `app`, which looks up
    how the run of an invalid container ended, and whether that of a bare one is stopping."""
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
    execution_id = unquote_plus(raw) if "%" in raw or "+" in raw else raw
    if (epoch is None and leases.is_bare(execution_id)) or not leases.may_renew:
        return None
    return leases.beat(execution_id, epoch)


def _unchanged(scope: Scope, models: JobModels) -> Served | None:
    """The job model, if the client has it already. None: pass the request on to `app`."""
    query: bytes = scope["query_string"]
    if not query.startswith(b"job=") or b"&" in query or b"%" in query or b"+" in query:
        return None
    known = next((value for name, value in scope["headers"] if name == b"if-none-match"), None)
    served = models.find(query[4:].decode("ascii", "replace")) if known is not None else None
    return served if served is not None and known == served.etag else None
