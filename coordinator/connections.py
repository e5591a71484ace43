"""The server's side of a connection: how much a client may send before its request is complete, and how long it may take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from coordinator.api.errors import problem_of
from sluice.client import IDLE_CONNECTION
from sluice.core.errors import RequestHeadTooLarge, RequestTimeout, SluiceError, UrlTooLong

MAX_HEAD_BYTES = 16 * 1024
"""Maximum size of a request line with its headers; also of the trailers of a body, and of the extensions of a chunk."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a client may take. `head`: from the connection, or from the first byte of a later request, to the end of the headers.
    `body`: from there to the end of the body. `idle`: from an answer to the next request."""

    head: timedelta = timedelta(seconds=10)
    body: timedelta = timedelta(seconds=60)
    idle: timedelta = IDLE_CONNECTION


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, except that a request must arrive within limits of size and time.

    httptools keeps a header in memory until it ends, and uvicorn a head. Therefore the parser is given at most MAX_HEAD_BYTES until it has
    found the end of a head, a part of a body, or the end of a request."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        timeouts: Timeouts,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        self._timeouts = timeouts
        self._unparsed = 0
        """Bytes given to the parser since it last found an end."""
        self._in_head = False
        self._in_body = False
        self._timer: asyncio.TimerHandle | None = None
        self._timed: timedelta | None = None
        """The timeout that the timer is for."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_time(self._timeouts.head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit_time(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        start = 0
        while start < len(data) and not self.transport.is_closing():
            end = start + MAX_HEAD_BYTES - self._unparsed
            if end == start:
                self._refuse(self._too_large())
                break
            piece = data[start:end]
            self._unparsed += len(piece)
            super().data_received(piece)
            start = end
        if self.transport.is_closing():
            self._limit_time(None)
        elif self._in_body:
            self._limit_time(self._timeouts.body)
        elif self._answering:
            self._limit_time(None)
        else:
            self._limit_time(self._timeouts.head)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._in_head = False
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_head and not self._answering:
            self._unset_keepalive_if_required()
            self._limit_time(self._timeouts.head)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _limit_time(self, timeout: timedelta | None) -> None:
        """The client has this much time for what it sends next. A time limit of the same kind goes on. None: the request is complete."""
        if timeout is self._timed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timed = timeout
        self._timer = None if timeout is None else self.loop.call_later(timeout.total_seconds(), self._late)

    def _late(self) -> None:
        if self._in_body:
            self._refuse(RequestTimeout(f"the body was not complete {self._timeouts.body.total_seconds():g} s after the headers"))
        elif self._in_head:
            self._refuse(RequestTimeout(f"the headers were not complete within {self._timeouts.head.total_seconds():g} s"))
        else:
            self.transport.close()

    def _too_large(self) -> SluiceError:
        if not self._in_body and 2 * len(self.url) > MAX_HEAD_BYTES:
            return UrlTooLong(f"send at most {MAX_HEAD_BYTES} bytes of request line and headers")
        return RequestHeadTooLarge(f"send at most {MAX_HEAD_BYTES} bytes of request line and headers, and of trailers")

    def _refuse(self, error: SluiceError) -> None:
        """Answer with the error, unless another answer has begun, and close the connection."""
        if not self._answering or (self._in_body and not self.cycle.response_started and not self.pipeline):
            answer = problem_of(error)
            headers = [*self.server_state.default_headers, *answer.raw_headers, (b"connection", b"close")]
            lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[error.status], lines, bytes(answer.body)))
        if self.cycle is not None:
            self.cycle.disconnected = True  # what the application still sends is not written after this answer
        self.transport.close()


def connections(timeouts: Timeouts) -> type[HttpToolsProtocol]:
    """The protocol of a server."""

    class Limited(Connection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs, timeouts=timeouts)

    return Limited
