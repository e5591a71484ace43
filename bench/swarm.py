"""Many small HTTP requests from one thread, with plain sockets and epoll and the standard library only.

A container sends a heartbeat every few seconds, and by then idle connections have been closed. Each request may therefore use a new
connection (`fresh`), like those of a real fleet. A load generator in Python must do little to be faster than its subject: this one needs
about 50 µs per request with a new connection.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, TypeVar
from urllib.parse import urlsplit

Token = TypeVar("Token")

CHUNK = 65536


class SwarmFailed(Exception):
    """The server could not be reached, or did not answer in HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`head` is the status line and the headers, in lower case. `sent` and `done` are times of the monotonic clock, in seconds."""

    status: int
    head: bytes
    body: bytes
    sent: float
    done: float

    def header(self, name: bytes) -> bytes | None:
        """A header by its lower-case name."""
        at = self.head.find(b"\r\n" + name + b":")
        if at < 0:
            return None
        start = at + len(name) + 3
        return self.head[start : self.head.find(b"\r\n", start)].strip()


class _Connection(Generic[Token]):
    __slots__ = ("fresh", "received", "sent", "sock", "token", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fresh = False
        self.unsent = b""
        self.received = b""
        self.sent = 0.0
        self.token: Token | None = None


class Swarm(Generic[Token]):
    """`answered` is called with the token of a request and its answer; an error that it raises ends `turn`.

    `broken` is called if a connection ends before its answer; without it SwarmFailed is raised. At most `connections` are open at once;
    further requests wait in a queue.
    """

    def __init__(
        self,
        url: str,
        answered: Callable[[Token, Answer], None],
        *,
        connections: int,
        broken: Callable[[Token, str], None] | None = None,
    ) -> None:
        place = urlsplit(url)
        if place.scheme != "http" or not place.hostname:
            raise SwarmFailed(f"{url} is not an HTTP URL: http://HOST:PORT is required")
        self._family, _, _, _, self._address = self._resolved(place.hostname, place.port or 80)
        self.host = f"{place.hostname}:{place.port or 80}".encode()
        self._answered = answered
        self._broken = broken
        self._most = connections
        self._waiting: deque[tuple[bytes, Token, bool]] = deque()
        self._idle: list[_Connection[Token]] = []
        self._busy: dict[int, _Connection[Token]] = {}
        self._epoll = select.epoll()

    def _resolved(self, host: str, port: int) -> tuple[int, int, int, str, tuple[object, ...]]:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise SwarmFailed(f"cannot resolve {host}: {error}") from error

    def __len__(self) -> int:
        """The number of unanswered requests."""
        return len(self._busy) + len(self._waiting)

    def request(self, method: bytes, target: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
        """Encode a request. `headers` are whole lines."""
        length = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body) if body else b""
        return b"%s %s HTTP/1.1\r\nHost: %s\r\n%s%s\r\n%s" % (method, target, self.host, headers, length, body)

    def send(self, request: bytes, token: Token, *, fresh: bool = False) -> None:
        """Send now, or when a connection is free. A `fresh` request uses a new connection, which is closed after its answer."""
        if len(self._busy) >= self._most:
            self._waiting.append((request, token, fresh))
            return
        began = perf_counter()
        connection = self._idle.pop() if self._idle and not fresh else self._opened()
        connection.token, connection.sent, connection.unsent, connection.fresh = token, began, request, fresh
        self._busy[connection.sock.fileno()] = connection
        self._write(connection)

    def _opened(self) -> _Connection[Token]:
        """A connection that is being opened. It is closed with a reset after its answer, so that no port stays in TIME_WAIT."""
        sock = socket.socket(self._family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        failed = sock.connect_ex(self._address)
        if failed not in (0, errno.EINPROGRESS):
            raise SwarmFailed(f"cannot connect to {self.host.decode()}: {os.strerror(failed)}")
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        return _Connection(sock)

    def _write(self, connection: _Connection[Token]) -> None:
        """Write the unsent bytes; the rest when the connection is established and has room."""
        try:
            written = connection.sock.send(connection.unsent)
        except BlockingIOError:
            written = 0
        except OSError as error:
            self._break(connection, f"cannot send: {error}")
            return
        if written == len(connection.unsent):
            connection.unsent = b""
            return
        connection.unsent = connection.unsent[written:]
        self._epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def turn(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for answers, and process all that have arrived."""
        for fileno, events in self._epoll.poll(timeout):
            connection = self._busy.get(fileno)
            if connection is None:
                self._forget_idle(fileno)
            elif events & select.EPOLLOUT and not events & select.EPOLLERR:
                self._epoll.modify(fileno, select.EPOLLIN)
                self._write(connection)
            elif self._read(connection):
                self._next()

    def _forget_idle(self, fileno: int) -> None:
        """The server has closed an idle connection."""
        for connection in [each for each in self._idle if each.sock.fileno() == fileno]:
            self._idle.remove(connection)
            connection.sock.close()

    def _break(self, connection: _Connection[Token], why: str) -> None:
        token = connection.token
        assert token is not None
        del self._busy[connection.sock.fileno()]
        connection.sock.close()
        if self._broken is None:
            raise SwarmFailed(f"{self.host.decode()}: {why}")
        self._broken(token, why)

    def _read(self, connection: _Connection[Token]) -> bool:
        """Returns whether the connection is done with its request, successfully or not."""
        try:
            found = connection.sock.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            self._break(connection, f"it closed a connection: {error}")
            return True
        if not found:
            self._break(connection, "it closed a connection before it answered")
            return True
        received = connection.received = connection.received + found if connection.received else found
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = received[: end + 2].lower()
        answer = Answer(int(head[9:12]), head, received[end + 4 :], connection.sent, perf_counter())
        if len(answer.body) < int(answer.header(b"content-length") or 0):
            return False
        self._finish(connection, answer)
        return True

    def _finish(self, connection: _Connection[Token], answer: Answer) -> None:
        token = connection.token
        assert token is not None
        del self._busy[connection.sock.fileno()]
        connection.received, connection.token = b"", None
        if connection.fresh or answer.header(b"connection") == b"close":
            connection.sock.close()
        else:
            self._idle.append(connection)
        self._answered(token, answer)

    def _next(self) -> None:
        while self._waiting and len(self._busy) < self._most:
            request, token, fresh = self._waiting.popleft()
            self.send(request, token, fresh=fresh)

    def finish(self, within: float) -> None:
        """Wait for all answers. Raises SwarmFailed if some are missing after that many seconds."""
        until = perf_counter() + within
        while len(self):
            left = until - perf_counter()
            if left <= 0:
                raise SwarmFailed(f"{len(self)} requests were not answered within {within:g} s")
            self.turn(left)

    def close(self) -> None:
        for connection in [*self._idle, *self._busy.values()]:
            connection.sock.close()
        self._epoll.close()
