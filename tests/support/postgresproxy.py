"""A proxy in front of PostgreSQL that cuts the connection between a COMMIT and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import make_url

_READY = b"Z\x00\x00\x00\x05"
"""The beginning of ReadyForQuery: the server has executed the statements."""


class _Statements:
    """The statements of a client on one connection: whether its transaction writes to a table, and when it commits."""

    def __init__(self) -> None:
        self._rest = b""
        self._started = False
        self._prepared: dict[bytes, bytes] = {}
        self._written = b""

    def commits(self, data: bytes) -> bytes | None:
        """If these bytes contain a COMMIT, returns the writing statements of its transaction."""
        self._rest += data
        found = None
        while len(self._rest) >= 5:
            head = 1 if self._started else 0  # the start-up message has no type
            length = head + int.from_bytes(self._rest[head : head + 4], "big")
            if len(self._rest) < length:
                break
            kind, body, self._rest = self._rest[:head], self._rest[head + 4 : length], self._rest[length:]
            self._started = self._started or length > 8  # a request for SSL may come before the start-up message
            if kind == b"P":
                name, statement, *_ = body.split(b"\0")
                self._prepared[name] = statement
            elif kind == b"B":
                _, name, *_ = body.split(b"\0")
                self._written += self._prepared.get(name, b"")
            elif kind == b"Q" and body.startswith((b"COMMIT", b"ROLLBACK")):
                found = self._written if body.startswith(b"COMMIT") else None
                self._written = b""
        return found


class PostgresProxy:
    """`cut_commit_of`: the name of a table. The next COMMIT of a transaction that writes to it is executed, and the connection is closed
    instead of answered. `cut` counts such commits. `hold_commit_of`: the same, but the answer is delayed until `release` is set, and `held`
    is set meanwhile. `hold_transaction_of`: the COMMIT itself is delayed. `hold_statement`: the next statement with this text is delayed.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut_commit_of = ""
        self.cut = 0
        self.hold_commit_of = ""
        self.hold_transaction_of = ""
        self.hold_statement = ""
        self.held = asyncio.Event()
        self.release = asyncio.Event()
        self.url = ""

    async def _hold(self, data: bytes, written: bytes | None) -> None:
        """Wait before these bytes are sent to the server, if they are to be delayed."""
        if written is not None and self.hold_transaction_of and _writes_to(self.hold_transaction_of, written):
            self.hold_transaction_of = ""
        elif self.hold_statement and self.hold_statement.encode() in data:
            self.hold_statement = ""
        else:
            return
        self.held.set()
        await self.release.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        statements, cutting, holding = _Statements(), False, False

        async def to_server() -> None:
            nonlocal cutting, holding
            with suppress(OSError):
                while data := await reader.read(1 << 16):
                    written = statements.commits(data)
                    if written is not None and self.cut_commit_of and _writes_to(self.cut_commit_of, written):
                        cutting, self.cut_commit_of = True, ""
                    if written is not None and self.hold_commit_of and _writes_to(self.hold_commit_of, written):
                        holding, self.hold_commit_of = True, ""
                    await self._hold(data, written)
                    server_writer.write(data)
                    await server_writer.drain()
            server_writer.close()

        async def to_client() -> None:
            with suppress(OSError):
                while data := await server_reader.read(1 << 16):
                    if cutting and _READY in data:
                        self.cut += 1
                        break
                    if holding and _READY in data:
                        self.held.set()
                        await self.release.wait()
                    writer.write(data)
                    await writer.drain()
            writer.close()
            server_writer.close()

        with suppress(asyncio.CancelledError):  # the event loop ends
            await asyncio.gather(to_server(), to_client())


def _writes_to(table: str, written: bytes) -> bool:
    """Whether these statements add rows to the table or delete some."""
    return any(f"{verb} {table} ".encode() in written for verb in ("INTO", "DELETE FROM"))


@asynccontextmanager
async def postgres_proxy(url: str) -> AsyncIterator[PostgresProxy]:
    """A proxy in front of the database at that URL."""
    target = make_url(url)
    assert target.port is not None
    proxy = PostgresProxy(target.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = target.set(port=server.sockets[0].getsockname()[1]).render_as_string(hide_password=False)
    async with server:
        yield proxy
        server.close()
