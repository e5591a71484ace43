"""A proxy in front of a Kafka broker that holds a request of a client, or the broker's answer to it.

Brokers name their own address in answers, and clients connect to that. The proxy replaces the broker's port by its own, which does not
change the length of the answer.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum

from tests.support.processes import WAIT_SECONDS

HOST = "127.0.0.1"


class Request(IntEnum):
    """Keys of requests in Kafka's protocol."""

    PRODUCE = 0
    OFFSET_FETCH = 9
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


@dataclass(frozen=True, slots=True)
class Hold:
    """A request that contains the bytes `about`, which is held on its way to the broker, or whose answer is held on its way back
    (`executed`)."""

    request: Request
    executed: bool
    about: bytes = b""
    _reached: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _dropped: threading.Event = field(default_factory=threading.Event)

    def await_reached(self, seconds: float = WAIT_SECONDS) -> None:
        assert self._reached.wait(seconds), f"{self.request.name}: no such request within {seconds:g} s"

    def release(self) -> None:
        """Forward the request or the answer."""
        self._over.set()

    def drop(self) -> None:
        """Lose the request or the answer, and close the connection."""
        self._dropped.set()
        self._over.set()

    def passes(self) -> bool:
        """Called by the proxy: wait until the test decides. Returns whether it continues."""
        self._reached.set()
        self._over.wait()
        return not self._dropped.is_set()


class KafkaProxy:
    """`rewrite` gets the key of each request and the answer without its length, and returns the answer to pass on, of the same length."""

    def __init__(self, broker: str, rewrite: Callable[[int, bytes], bytes] = lambda _, answer: answer) -> None:
        self._broker_port = int(broker.rpartition(":")[2])
        self._rewrite = rewrite
        self._listener = socket.create_server((HOST, 0))
        self._port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._holds: list[Hold] = []
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="kafka-proxy", daemon=True).start()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port}"

    def hold(self, request: Request, *, executed: bool = False, about: str = "") -> Hold:
        """Hold the next request of this kind that contains the text, or its answer. Later ones pass."""
        hold = Hold(request, executed, about.encode())
        with self._lock:
            self._holds.append(hold)
        return hold

    def close(self) -> None:
        """Close all connections, also those with a held request or answer."""
        self._listener.close()
        with self._lock:
            for hold in self._holds:
                hold.drop()
            for each in self._sockets:
                _end(each)
                each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection((HOST, self._broker_port))
                except OSError:  # the broker is down
                    client.close()
                    continue
                with self._lock:
                    self._sockets |= {client, broker}
                pending: deque[tuple[int, Hold | None]] = deque()
                for serve in (self._to_broker, self._to_client):
                    threading.Thread(target=serve, args=(client, broker, pending), name="kafka-proxy", daemon=True).start()

    def _taken(self, request: int, frame: bytes) -> Hold | None:
        with self._lock:
            found = next((hold for hold in self._holds if hold.request == request and hold.about in frame), None)
            if found is not None:
                self._holds.remove(found)
            return found

    def _to_broker(self, client: socket.socket, broker: socket.socket, pending: deque[tuple[int, Hold | None]]) -> None:
        with suppress(OSError):
            for frame in _frames(client):
                request = int.from_bytes(frame[:2], "big")
                hold = self._taken(request, frame)
                if hold is not None and not hold.executed and not hold.passes():
                    break
                pending.append((request, hold if hold is not None and hold.executed else None))
                broker.sendall(len(frame).to_bytes(4, "big") + frame)
        _end(client)
        _end(broker)

    def _to_client(self, client: socket.socket, broker: socket.socket, pending: deque[tuple[int, Hold | None]]) -> None:
        of_broker, of_proxy = (HOST.encode() + port.to_bytes(4, "big") for port in (self._broker_port, self._port))
        with suppress(OSError):
            for frame in _frames(broker):
                request, hold = pending.popleft()  # a broker answers the requests of a connection in their order
                if hold is not None and not hold.passes():
                    break
                answer = self._rewrite(request, frame.replace(of_broker, of_proxy))
                client.sendall(len(answer).to_bytes(4, "big") + answer)
        _end(client)
        _end(broker)


def _frames(source: socket.socket) -> Iterator[bytes]:
    """The requests or answers on a connection, without their lengths."""
    with source.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            length = int.from_bytes(head, "big")
            if len(frame := stream.read(length)) < length:
                return
            yield frame


def _end(connection: socket.socket) -> None:
    """Shut the connection down, which wakes the threads that read from it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def kafka_proxy(broker: str, rewrite: Callable[[int, bytes], bytes] = lambda _, answer: answer) -> Iterator[KafkaProxy]:
    """A proxy in front of the broker at "host:port"."""
    proxy = KafkaProxy(broker, rewrite)
    try:
        yield proxy
    finally:
        proxy.close()
