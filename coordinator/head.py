"""HEAD, answered as GET is, without the body (RFC 9110), for load balancers and `curl -I`."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from coordinator.fastpaths import App, Receive, Scope, Send


def with_head(app: App) -> App:
    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await app(scope, receive, send)
            return

        async def bodiless(message: MutableMapping[str, Any]) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await app({**scope, "method": "GET"}, receive, bodiless)

    return inner
