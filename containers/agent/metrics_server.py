"""The HTTP server that serves a container's metrics to Prometheus. Clients get few threads and little memory."""

from __future__ import annotations

import hmac
import io
import logging
import re
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from sluice.clock import SystemClock
from sluice.core.ids import Instant
from sluice.renewals.versions import FileVersion, version_of
from sluice.wire import body as wire_body

log = logging.getLogger(__name__)

WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104
"""Hosts that mean every address of the machine. Other machines need its name instead."""

MAX_CONNECTIONS = 8
"""Each connection has a thread. A new connection beyond this number replaces the oldest one."""

MAX_HEAD_BYTES = 16 * 1024

TIMEOUT = timedelta(seconds=10)
"""The time limit for a scrape: request and answer."""


class _Request(WSGIRequestHandler):
    """Reads a request head of at most MAX_HEAD_BYTES, and answers it."""

    def handle(self) -> None:
        head = b""
        while b"\n\r\n" not in head and b"\n\n" not in head:
            part = self.request.recv(MAX_HEAD_BYTES)
            if not part:
                return
            head += part
            if len(head) > MAX_HEAD_BYTES:
                self.requestline = self.request_version = self.command = ""
                self.close_connection = True
                self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, explain=f"send at most {MAX_HEAD_BYTES} bytes")
                return
        self.rfile = io.BufferedReader(io.BytesIO(head))
        super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """Serves each connection on a thread of its own, at most MAX_CONNECTIONS at a time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, timeout: timedelta) -> None:
        self.address_family, _, _, _, _ = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self._clock = SystemClock()
        self._timeout = timeout
        self._open: dict[socket.socket, Instant] = {}
        """Open connections and when they were opened, the oldest first."""
        self._lock = threading.Lock()
        super().__init__((host, port), _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                self._end(next(iter(self._open)))
            self._open[request] = self._clock.elapsed()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections that are too old. The server calls this after each connection, and at least twice a second."""
        late = self._clock.elapsed() - self._timeout.total_seconds()
        with self._lock:
            for request in [each for each, since in self._open.items() if since <= late]:
                self._end(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape failed", exc_info=True)

    def _end(self, request: socket.socket) -> None:
        """End a connection: this wakes its thread, which closes the socket."""
        del self._open[request]
        with suppress(OSError):  # the client has closed it
            request.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """The HTTP server of the metrics. `address`: its "host:port" for other machines; None if the host name is not a valid one."""

    server: WSGIServer
    address: str | None

    @property
    def port(self) -> int:
        return int(self.server.server_port)

    def close(self) -> None:
        """Stop the server within half a second. Returns immediately."""
        threading.Thread(target=self._end, name="sluice-metrics-end", daemon=True).start()

    def _end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class TokenFile:
    """The token that scrapes must send. The file is read again when it has changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._version: FileVersion | None = None
        self._token = b""

    def accepts(self, authorization: str) -> bool:
        """Whether this value of the header `Authorization` has the token. Compares in constant time. Raises OSError if the file cannot be
        read and could not be read before."""
        try:
            found = version_of(self._file)
            if found != self._version:
                self._token, self._version = self._file.read_bytes().strip(), found
        except OSError:
            if self._version is None:
                raise
            log.warning("cannot read %s; using the former token", self._file)
        scheme, _, token = authorization.partition(" ")
        right = hmac.compare_digest(token.strip().encode("latin-1", "replace"), self._token)
        return right and scheme.lower() == "bearer" and self._token != b""


def guarded(app: WSGIApplication, token: TokenFile) -> WSGIApplication:
    """Refuse requests without the token."""

    def inner(environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            accepted = token.accepts(environment.get("HTTP_AUTHORIZATION", ""))
        except OSError as error:
            log.warning("metrics are refused, because the file of SLUICE_METRICS_TOKEN_FILE cannot be read: %s", error)
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"the token of this container cannot be read\n"]
        if not accepted:
            start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [b"send the token of SLUICE_METRICS_TOKEN_FILE in the header Authorization: Bearer TOKEN\n"]
        return app(environment, start_response)

    return inner


def serve_metrics(
    collector: Collector, host: str, port: int, known_as: str, timeout: timedelta = TIMEOUT, token_file: Path | None = None
) -> MetricsServer:
    """Serve on the address; port 0 takes a free one. If the host means every address of the machine, the server's address has the name
    `known_as`. `token_file`: has the token that requests must send; None: they need none. Blocks while the machine's name is looked up.
    Raises OSError when the address cannot be used."""
    registry = CollectorRegistry()
    registry.register(collector)
    server = _Server(host, port, timeout)
    app = make_wsgi_app(registry)
    server.set_app(app if token_file is None else guarded(app, TokenFile(token_file)))
    poll_seconds = min(0.5, timeout.total_seconds() / 4)
    threading.Thread(target=server.serve_forever, args=(poll_seconds,), name="sluice-metrics", daemon=True).start()
    name = known_as if host in WILDCARDS else host
    address = f"[{name}]:{server.server_port}" if ":" in name else f"{name}:{server.server_port}"
    return MetricsServer(server, address if re.match(wire_body.HOST_AND_PORT, address) else None)
