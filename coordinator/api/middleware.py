"""ASGI middleware: counts requests by route, limits the size of bodies, and adds the coordinator's term to answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from prometheus_client import Counter, Histogram

from coordinator.api.errors import problem_of
from coordinator.fleet.leases import Leases, term_headers
from sluice import tracing
from sluice.clock import Clock
from sluice.core.errors import BodyTooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds. A long poll for notices takes up to 30."""

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})

UNKNOWN = "unknown"
"""Replaces unknown paths and methods, so that such requests cannot create an unlimited number of series."""


class Traffic:
    """Counts requests when they have been answered or abandoned. `status` is 0 if no answer was started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.requests = Counter(
            "sluice_http_requests",
            "Requests by route and status, except heartbeats of valid containers and job models that had not changed.",
            ["method", "route", "status"],
            registry=None,
        )
        self.durations = Histogram(
            "sluice_http_request_duration_seconds", "Duration of the same requests.", ["method", "route"], buckets=BOUNDS, registry=None
        )

    def counted(self, app: App) -> App:
        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status = 0

            async def noted(message: MutableMapping[str, Any]) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            began = self._clock.elapsed()
            try:
                await app(scope, receive, noted)
            finally:
                method = scope["method"] if scope["method"] in METHODS else UNKNOWN
                route = _route(scope) or UNKNOWN
                self.requests.labels(method, route, str(status)).inc()
                self.durations.labels(method, route).observe(self._clock.elapsed() - began)

        return inner


def _route(scope: Scope) -> str:
    """The path of the request's route; "" before it is looked up, and for unknown paths."""
    return getattr(scope.get("route"), "path", "")


def traced(app: App) -> App:
    """Handle requests with the header `traceparent` within their trace. Without traces, `app` itself."""
    if not tracing.is_on():
        return app

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        parent = next((value for name, value in scope.get("headers", ()) if name == b"traceparent"), None)
        if scope["type"] != "http" or parent is None:
            await app(scope, receive, send)
            return
        with tracing.continued(parent.decode("latin-1"), f"{scope['method']} {scope['path']}"):
            await app(scope, receive, send)

    return inner


def with_term(app: App, leases: Leases) -> App:
    """Add the coordinator's term to every answer, if it has one. Answers to heartbeats already contain it."""

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        term = term_headers(leases.term)
        if scope["type"] != "http" or not term:
            await app(scope, receive, send)
            return

        async def named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                others = (each for each in message.get("headers", ()) if each[0] != term[0][0])
                message = {**message, "headers": [*others, *term]}
            await send(message)

        await app(scope, receive, named)

    return inner


def limited(app: App, max_body_bytes: int) -> App:
    """Refuse bodies above the limit: before they are read if their length is announced, otherwise when they reach the limit."""

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        refusal = problem_of(BodyTooLarge(f"send at most {max_body_bytes} bytes"), scope["path"])
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not announced.isdigit() or int(announced) > max_body_bytes:
            await refusal(scope, receive, send)
            return
        received = 0
        answered = refused = False

        async def counted() -> MutableMapping[str, Any]:
            nonlocal received, refused
            message = await receive()
            received += len(message.get("body", b""))
            if received > max_body_bytes:
                refused = not answered
                raise BodyTooLarge(f"send at most {max_body_bytes} bytes")
            return message

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            if not refused:  # if refused, this message is the framework's own answer to the exception
                answered = True
                await send(message)

        with suppress(BodyTooLarge):
            await app(scope, counted, noted)
        if refused:
            await refusal(scope, receive, send)

    return inner
