"""A proxy in front of an S3 server with faults for chosen requests. It serves one request per connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """The `number`-th request, from 1."""

    number: int
    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with an S3 error; the server does not see the request."""

    status: int
    code: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The server executes the request, and the connection breaks before the answer."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks after that many bytes of the answer, including its head."""

    after: int


@dataclass(frozen=True, slots=True)
class Hang:
    """Neither an answer nor the end of the connection."""


@dataclass(frozen=True, slots=True)
class Late:
    """No answer. The server receives the request only at `arrive`, long after the client has given it up."""


Fault = Answer | Lost | Cut | Hang | Late
Plan = Callable[[Request], Fault | None]

SLOW_DOWN = Answer(503, "SlowDown")
INTERNAL = Answer(500, "InternalError")


class FaultyS3:
    """`endpoint` is the address of the proxy. `plan` may be changed at any time; `requests` are all requests so far."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self.endpoint = ""
        self.plan: Plan = lambda request: None
        self.requests: list[Request] = []
        self.gone = asyncio.Event()
        """The client of a hanging request has closed the connection."""
        self._late: list[bytes] = []

    def first(self, *faults: Fault) -> None:
        """The next requests have these faults, later ones none."""
        begun = len(self.requests)
        self.plan = lambda request: faults[request.number - begun - 1] if request.number - begun <= len(faults) else None

    async def arrive(self) -> int:
        """Let the server execute the late requests. Returns how many they were."""
        late, self._late = self._late, []
        for request in late:
            with suppress(ConnectionError):  # the server may refuse it before it has read the body
                await self._ask(request)
        return len(late)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            method, path = head.split(b" ", 2)[:2]
            request = Request(len(self.requests) + 1, method.decode(), path.decode())
            self.requests.append(request)
            await self._act(self.plan(request), head + await reader.readexactly(_length(head)), reader, writer)
        writer.close()

    async def _act(self, fault: Fault | None, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match fault:
            case Answer(status, code):
                body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>on purpose</Message></Error>'
                writer.write(f"HTTP/1.1 {status} {code}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
            case Hang():
                await reader.read()
                self.gone.set()
            case Late():
                self._late.append(request)
                await reader.read()
            case Lost():
                await self._ask(request)
            case Cut(after):
                writer.write((await self._ask(request))[:after])
            case None:
                writer.write(await self._ask(request))
        with suppress(ConnectionError):
            await writer.drain()

    async def _ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        writer.write(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        answer = await reader.read()
        writer.close()
        return answer


def _length(head: bytes) -> int:
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(lengths[0]) if lengths else 0


@asynccontextmanager
async def faulty_s3(upstream: str) -> AsyncIterator[FaultyS3]:
    faulty = FaultyS3(upstream)
    server = await asyncio.start_server(faulty.serve, "127.0.0.1", 0)
    faulty.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield faulty
    finally:
        server.close()
