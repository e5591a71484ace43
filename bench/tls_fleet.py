"""Containers that heartbeat over TLS, each on a connection of its own that stays open.

`python -m bench.tls_fleet URL CERTIFICATE TOKENS EVERY SECONDS` opens a connection for each container, a few at a time, and writes a line
of JSON when all have been answered. Each container sends a heartbeat every EVERY seconds from then on. The second line has the latencies of
the SECONDS after the first. TOKENS is a file with a token per line, one for each container; CERTIFICATE is that of the authority.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from pathlib import Path
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

import uvloop

from bench.bare import BODY
from bench.deployment import CONTAINER, EPOCH

AT_ONCE = 32
"""Handshakes at the same time."""


class _Fleet:
    """What its containers share. `taken`: milliseconds from when each heartbeat was due to its answer. `closed`: connections that the
    coordinator has closed, and that are not opened again."""

    def __init__(self, every: float) -> None:
        self.every = every
        self.taken: list[float] = []
        self.sent = 0
        self.closed = 0


class _Container(asyncio.Protocol):
    def __init__(self, fleet: _Fleet, request: bytes) -> None:
        self._fleet = fleet
        self._request = request
        self._due = 0.0
        self._received = b""
        self.answered = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._beat(perf_counter())

    def _beat(self, due: float) -> None:
        self._due, self._received = due, b""
        if not self._transport.is_closing():
            self._fleet.sent += 1
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.startswith(b"HTTP/1.1 200") and self._received.endswith(BODY):
            now = perf_counter()
            self._fleet.taken.append((now - self._due) * 1000)
            self.answered.set()
            due = self._due + self._fleet.every
            asyncio.get_running_loop().call_later(due - now, self._beat, due)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fleet.closed += 1
        self.answered.set()


async def _run(url: str, certificate: str, tokens: list[str], every: float, seconds: float) -> None:
    place = urlsplit(url)
    host, port = place.hostname or "", place.port or 443
    context = ssl.create_default_context(cafile=certificate)
    loop, gate, fleet = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE), _Fleet(every)

    async def open_one(number: int) -> None:
        lines = (
            f"GET /containerHeartbeat?executionContainerId={CONTAINER % number} HTTP/1.1",
            f"Host: {host}:{port}",
            f"Sluice-Epoch: {EPOCH}",
            f"Authorization: Bearer {tokens[number]}",
        )
        request = "\r\n".join([*lines, "", ""]).encode()
        async with gate:
            _, container = await loop.create_connection(lambda: _Container(fleet, request), host, port, ssl=context)
            await container.answered.wait()

    began = perf_counter()
    await asyncio.gather(*map(open_one, range(len(tokens))))
    took = perf_counter() - began
    fleet.taken, fleet.sent = [], 0
    print(json.dumps({"open": len(tokens) - fleet.closed, "seconds": took}), flush=True)
    await asyncio.sleep(seconds)
    print(json.dumps({"sent": fleet.sent, "closed": fleet.closed, "milliseconds": fleet.taken}), flush=True)


if __name__ == "__main__":
    uvloop.run(_run(sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_text().split(), float(sys.argv[4]), float(sys.argv[5])))
