"""The peer of the heartbeat benchmark: an ASGI function that only answers, under the same server with the same settings.

It sends what the coordinator sends to a valid container, the same body and the same number of headers, and reads nothing. The difference is
what Sluice costs on top of uvicorn. Usage: `python -m bench.bare PORT [CERTIFICATE KEY]`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

HEADERS = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"content-length", b"15"),
    (b"sluice-epoch", b"1"),
    (b"sluice-lease-seconds", b"30"),
    (b"sluice-next-heartbeat-seconds", b"5"),
    (b"sluice-job-model-version", b"1"),
]
BODY = b'{"alive": true}'

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def answer(_scope: MutableMapping[str, Any], _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


def main(port: int, certificate: str | None = None, key: str | None = None) -> None:
    """Serve with the settings of `coordinator.server.server`."""
    uvicorn.run(
        answer,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
