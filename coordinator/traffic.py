"""Requests, counted by route: how many, how they were answered, how long it took. The fast paths are not among them and have counts of
their own, which cost them an addition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping
from typing import Any

from coordinator.fastpaths import App, Receive, Scope, Send
from sluice.clock import Clock
from sluice.core.histogram import Histogram

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
