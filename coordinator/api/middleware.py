"""ASGI middleware: counts requests by route, limits the size of bodies, and answers HEAD as GET without the body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from coordinator.api.errors import problem_of
from sluice.clock import Clock
from sluice.core.errors import BodyTooLarge
from sluice.core.histogram import Histogram

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def with_head(app: App) -> App:
    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await app(scope, receive, send)
            return

        async def bodiless(message: MutableMapping[str, Any]) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await app({**scope, "method": "GET"}, receive, bodiless)

    return inner


BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds. A poll for notices may be held for 30."""

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})

UNKNOWN = "unknown"
"""The route of a path that is none of ours, and a method that nobody knows: what others ask for must not make series."""


class Traffic:
    """One event loop's; no locks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._durations: dict[tuple[str, str], Histogram] = {}

    @property
    def answers(self) -> Mapping[tuple[str, str, int], int]:
        """By method, route and status; 0 where no answer was begun."""
        return self._answers

    @property
    def durations(self) -> Mapping[tuple[str, str], Histogram]:
        """By method and route."""
        return self._durations

    def counted(self, app: App) -> App:
        """`app` with its requests counted when they have been answered, or given up."""

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
                self._count(scope, status, self._clock.elapsed() - began)

        return inner

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", UNKNOWN)
        method = scope["method"] if scope["method"] in METHODS else UNKNOWN
        self._answers[method, route, status] += 1
        self._durations.setdefault((method, route), Histogram(BOUNDS)).add(seconds)


def limited(app: App, max_body_bytes: int) -> App:
    """`app` with bodies above the limit refused before they are read, or cut off where their length was not announced."""

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
            if not refused:  # else the framework has made an answer of its own of the error
                answered = True
                await send(message)

        with suppress(BodyTooLarge):
            await app(scope, counted, noted)
        if refused:
            await refusal(scope, receive, send)

    return inner
