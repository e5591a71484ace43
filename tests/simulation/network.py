"""The path of a request from a process to the coordinator and back, with the faults of a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import httpx

from tests.simulation.loop import Process, SimulatedLoop

CONNECT_FAILS_AFTER = 0.001

ONCE = ("operator", "impostor")
"""Machines whose requests are not repeated: a deployment that is sent twice makes two runs (docs/reference/api.md)."""


@dataclass
class Server:
    """A coordinator's process and its ASGI application."""

    process: Process
    app: httpx.ASGITransport


@dataclass
class Network:
    """`cut`: machines whose packets are dropped in both directions; a request then ends with its timeout. `lossy`: how likely it is that a
    request, and then its answer, is lost although the connection was made. `slow`: the longest delay of one direction, in seconds. `deaf`:
    machines that get no answers, although their requests arrive. `repeating`: how likely it is that a container's request arrives a second
    time, as a proxy may send it."""

    loop: SimulatedLoop
    chance: Random
    server: Server | None = None
    ways: dict[str, Server] = field(default_factory=dict)
    """Machines that reach another coordinator than `server`, as with old answers of a name server."""
    cut: set[str] = field(default_factory=set)
    lossy: float = 0.0
    slow: float = 0.01
    deaf: set[str] = field(default_factory=set)
    repeating: float = 0.0
    broken: list[str] = field(default_factory=list)
    """Answers that no coordinator may give."""
    requests: int = 0
    on_answer: Callable[[str], None] = lambda what: None


class Way(httpx.AsyncBaseTransport):
    """The transport from one machine to the coordinator."""

    def __init__(self, network: Network, machine: str) -> None:
        self._network = network
        self._machine = machine

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        limits = request.extensions.get("timeout", {})
        network, loop = self._network, self._network.loop
        network.requests += 1
        await asyncio.sleep(network.chance.uniform(0, network.slow))
        if self._machine in network.cut:
            await asyncio.sleep(limits.get("connect") or 3600)
            raise httpx.ConnectTimeout("no answer to a connection", request=request)
        server = network.ways.get(self._machine, network.server)
        if server is None or server.process.dead:
            await asyncio.sleep(CONNECT_FAILS_AFTER)
            raise httpx.ConnectError("connection refused", request=request)
        body = await request.aread()
        answer: asyncio.Future[httpx.Response] = loop.create_future()
        if network.chance.random() >= network.lossy:
            sent = httpx.Request(request.method, request.url, headers=request.headers, content=body)
            self._serve(server, sent, answer)
            if self._machine not in ONCE and network.repeating and network.chance.random() < network.repeating:
                loop.call_later(network.chance.uniform(0, 5), lambda: self._repeat(sent))
        try:
            return await asyncio.wait_for(answer, limits.get("read"))
        except TimeoutError:
            raise httpx.ReadTimeout("no answer", request=request) from None

    def _repeat(self, request: httpx.Request) -> None:
        server = self._network.ways.get(self._machine, self._network.server)
        if server is not None and not server.process.dead:
            self._serve(server, request, self._network.loop.create_future())

    def _serve(self, server: Server, request: httpx.Request, answer: asyncio.Future[httpx.Response]) -> None:
        network, loop = self._network, self._network.loop

        def deliver(act: Callable[[], None]) -> None:
            def arrive() -> None:
                if not answer.done() and self._machine not in network.cut | network.deaf:
                    act()

            loop.call_later(network.chance.uniform(0, network.slow), arrive)

        def died() -> None:
            deliver(lambda: answer.set_exception(httpx.ReadError("connection reset", request=request)))

        async def serve() -> None:
            try:
                response = await server.app.handle_async_request(request)
                content = await response.aread()
            except Exception as error:
                response, content = httpx.Response(500), repr(error).encode()
            if response.status_code == 500:
                network.broken.append(f"{request.method} {request.url.path} is answered with 500: {content[:300].decode(errors='replace')}")
            server.process.on_death.remove(died)
            network.on_answer(f"{self._machine}: {request.method} {request.url.raw_path.decode()}: {response.status_code}")
            whole = httpx.Response(response.status_code, headers=response.headers, content=content, request=request)
            if network.chance.random() >= network.lossy:
                deliver(lambda: answer.set_result(whole))

        server.process.on_death.append(died)
        loop.create_task(serve(), context=server.process.context())
