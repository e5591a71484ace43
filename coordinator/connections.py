"""The server's connections: how many there may be, how much a client may send before its request is complete, and how long it may take.
docs/limits.md has the figures, docs/decisions/0027-connections.md the reasons.

`Pool` has the rule, `Connections` applies it and counts, and `Connection` is uvicorn's protocol for one connection.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from typing import Any, Generic, TypeVar

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from coordinator.api.errors import problem_of
from coordinator.api.middleware import Receive, Scope, Send
from sluice.client import IDLE_CONNECTION
from sluice.clock import Clock
from sluice.core.access.certificates import PEER_CERTIFICATE
from sluice.core.errors import BadSettings, RequestHeadTooLarge, RequestTimeout, SluiceError, TooManyRequests, UrlTooLong
from sluice.wire.body import HeaderList, header_lines

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
"""Maximum size of a request line with its headers; also of the trailers of a body, and of the extensions of a chunk."""

RESERVED_SHARE = 0.2
"""The share of all connections that is reserved for heartbeats, probes and scrapes."""

OTHER_FILES = 256
"""Open files that the coordinator needs for other purposes than connections: databases, streams, blob stores, logs, and connections that
are being closed. If none were left, libuv would close the next connection, even that of a heartbeat."""

MOST_CONNECTIONS = 300_000
"""Maximum of the default limit, even if the process may open more files."""

CONNECTIONS_PER_CONTAINER = 3
"""A heartbeat, a long poll and one other request at the same time."""

FEW_CONTAINERS = 1000
"""The coordinator logs a warning if its limit of open files is too low for this many containers."""

C = TypeVar("C")


class Pool(Generic[C]):
    """The rule for the connections of a server, or of one peer. At most `limit` are open. A new connection replaces the one that has been
    idle longest, so idle connections never block new ones. Reserved requests are always served. Other requests are served on at most four
    fifths of `limit` connections at a time, and refused beyond that. Therefore some connection is always idle, and a heartbeat can always
    connect."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._most_served = limit - int(limit * RESERVED_SHARE)
        self._open: set[C] = set()
        self._serving: set[C] = set()
        self._waiting: dict[C, None] = {}
        """Idle connections, in the order in which they became idle."""
        self._waiting_reserved: dict[C, None] = {}
        """Idle connections whose last request was a reserved one. They are replaced after all others."""

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: C) -> C | None:
        """Add a new connection. Returns the one that must be closed, if any: an idle one, or the new one if none is idle."""
        displaced: C | None = None
        if len(self._open) >= self.limit:
            displaced = next(iter(self._waiting), None) or next(iter(self._waiting_reserved), connection)
            self.leave(displaced)
        if displaced is not connection:
            self._open.add(connection)
            self._waiting[connection] = None
        return displaced

    def leave(self, connection: C) -> None:
        """Remove a closed connection. Idempotent."""
        self._open.discard(connection)
        self._serving.discard(connection)
        self._waiting.pop(connection, None)
        self._waiting_reserved.pop(connection, None)

    def begin(self, connection: C, *, reserved: bool) -> bool:
        """A request has arrived. Returns whether it may be served."""
        self._waiting.pop(connection, None)
        self._waiting_reserved.pop(connection, None)
        if not reserved and connection in self._open:
            if len(self._serving) >= self._most_served:
                return False
            self._serving.add(connection)
        return True

    def end(self, connection: C, *, reserved: bool) -> None:
        """The request was answered."""
        self._serving.discard(connection)
        if connection in self._open:
            (self._waiting_reserved if reserved else self._waiting)[connection] = None

    def answered(self, connection: C, *, reserved: bool) -> None:
        """A request was answered immediately. `begin` and `end` are not called for it."""
        self._waiting.pop(connection, None)
        self._waiting_reserved.pop(connection, None)
        if connection in self._open:
            (self._waiting_reserved if reserved else self._waiting)[connection] = None


def is_reserved(url: bytes) -> bool:
    """Whether a request is a heartbeat, a probe or a scrape."""
    if url.startswith(b"/containerHeartbeat?"):
        return True
    path = url.partition(b"?")[0]
    return path.endswith(b"/containerHeartbeat") or path in (b"/livez", b"/readyz", b"/metrics")


def raise_file_limit() -> None:
    """Raise the limit of open files as far as the system allows, at most to what the default limit of connections needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    wanted = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def file_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS + OTHER_FILES if soft == resource.RLIM_INFINITY else soft


def connection_limit(chosen: int | None, files: int) -> int:
    """The limit of connections of a process that may open `files` files. `chosen`: the setting. Raises BadSettings if it needs more
    files."""
    most = files - min(OTHER_FILES, files // 2)
    if chosen is not None and chosen > most:
        raise BadSettings(
            f"max_connections: {chosen} connections need {chosen + files - most} open files, and this process may open {files}: raise that "
            f"limit (ulimit -n, LimitNOFILE= of systemd, ulimits of the container runtime), or set at most {most}"
        )
    return chosen or min(most, MOST_CONNECTIONS)


def supported_containers(limit: int) -> int:
    """The number of containers that this limit of connections is enough for."""
    return limit // CONNECTIONS_PER_CONTAINER


class Refusal(StrEnum):
    """Why a connection was closed or a request was refused."""

    HEAD = "head-too-large"
    LATE = "timeout"
    IDLE = "idle"
    """An idle connection was replaced by a new one."""
    FULL = "limit"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a client may take. `head`: from the connection, or from the first byte of a later request, to the end of the headers.
    `body`: from there to the end of the body. `read`: to read the part of an answer that does not fit into the sockets' buffers. `idle`:
    from an answer to the next request."""

    head: timedelta = timedelta(seconds=10)
    body: timedelta = timedelta(seconds=60)
    read: timedelta = timedelta(seconds=60)
    idle: timedelta = IDLE_CONNECTION


WARN_EVERY = timedelta(minutes=1)


class Connections:
    """The connections of a server. `limit`: maximum in total. `per_peer`: maximum of one address; None: no such limit."""

    def __init__(self, limit: int, per_peer: int | None, clock: Clock) -> None:
        self._clock = clock
        self._per_peer = per_peer
        self._all: Pool[Connection] = Pool(limit)
        self._peers: dict[str, Pool[Connection]] = {}
        self._warned: float | None = None
        self._unwarned: Counter[Refusal] = Counter()
        self._refused: Counter[Refusal] = Counter(dict.fromkeys(Refusal, 0))

    @property
    def open(self) -> int:
        return len(self._all)

    @property
    def limit(self) -> int:
        return self._all.limit

    @property
    def refused(self) -> Mapping[Refusal, int]:
        return self._refused

    def enter(self, connection: Connection) -> None:
        """Add a new connection. If there are too many, an idle one or this one is closed."""
        for pool in self._pools(connection):
            displaced = pool.enter(connection)
            if displaced is not None:
                self.count(Refusal.FULL if displaced is connection else Refusal.IDLE)
                displaced.give_way()
            if displaced is connection:
                break

    def leave(self, connection: Connection) -> None:
        for pool in self._pools(connection):
            pool.leave(connection)
        if connection.peer in self._peers and not len(self._peers[connection.peer]):
            del self._peers[connection.peer]

    def begin(self, connection: Connection, *, reserved: bool) -> bool:
        """A request has arrived. Returns whether it may be served."""
        if self._per_peer is None:
            served = self._all.begin(connection, reserved=reserved)
        else:
            served = all([pool.begin(connection, reserved=reserved) for pool in self._pools(connection)])  # noqa: C419  (both must begin)
        if not served:
            self.count(Refusal.FULL)
        return served

    def end(self, connection: Connection, *, reserved: bool) -> None:
        """The request was answered."""
        if self._per_peer is None:
            self._all.end(connection, reserved=reserved)
            return
        for pool in self._pools(connection):
            pool.end(connection, reserved=reserved)

    def answered(self, connection: Connection, *, reserved: bool) -> None:
        """A request was answered immediately. `begin` and `end` are not called for it."""
        if self._per_peer is None:
            self._all.answered(connection, reserved=reserved)
            return
        for pool in self._pools(connection):
            pool.answered(connection, reserved=reserved)

    def count(self, refusal: Refusal) -> None:
        self._refused[refusal] += 1
        if refusal in (Refusal.IDLE, Refusal.FULL):
            self._unwarned[refusal] += 1
            now = self._clock.elapsed()
            if self._warned is None or now >= self._warned + WARN_EVERY.total_seconds():
                log.warning(
                    "%d of at most %d connections are open: closed %d idle ones, refused %d requests. Raise max_connections and the "
                    "limit of open files, or find out which clients open them",
                    self.open,
                    self.limit,
                    self._unwarned[Refusal.IDLE],
                    self._unwarned[Refusal.FULL],
                )
                self._warned = now
                self._unwarned.clear()

    def _pools(self, connection: Connection) -> tuple[Pool[Connection], ...]:
        if self._per_peer is None:
            return (self._all,)
        return (self._all, self._peers.setdefault(connection.peer, Pool(self._per_peer)))


class _Waits(Enum):
    """What a connection waits for."""

    HEAD = "head"
    BODY = "body"
    READ = "read"


AnswerAtOnce = Callable[[bytes, HeaderList], tuple[bytes, bytes] | None]
"""Answers a GET request without a body, from its URL and headers; see `coordinator.api.fastpath.FastPaths.answer`."""

NOT_AT_ONCE = frozenset({b"content-length", b"transfer-encoding", b"expect", b"upgrade"})
"""Headers of requests that uvicorn must handle, because a body may follow or an interim answer is needed."""


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with three differences: a request must arrive within limits of size and time, the connection is one of
    `Connections`, and requests that `at_once` answers need no task.

    httptools keeps a header in memory until it is complete, and uvicorn keeps a head. Therefore the parser gets at most MAX_HEAD_BYTES
    until it has found the end of a head, a part of a body, or the end of a request.

    The idle timer is not reset for each request, because that would cost as much as the answer to a heartbeat. When it expires, it is set
    to the time that remains since the last answer."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
        timeouts: Timeouts,
        at_once: AnswerAtOnce,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        self.peer = ""
        """The client's address without its port."""
        self._served_app = self.app
        self._connections_of_server = connections
        self._at_once = at_once
        self._answered_at_once = False
        """Whether `at_once` answered the last request."""
        self._idle_since = 0.0
        """The time of the event loop at the last answer, in seconds."""
        self._durations = {_Waits.HEAD: timeouts.head, _Waits.BODY: timeouts.body, _Waits.READ: timeouts.read}
        self._unparsed = 0
        """Bytes given to the parser since it last found an end."""
        self._in_body = False
        self._reserved = False
        """Whether the last request was a reserved one."""
        self._timer: asyncio.TimerHandle | None = None
        self._waits: _Waits | None = None
        """What the timer is for."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, PEER_CERTIFICATE: certificate}
        self._wait(_Waits.HEAD)
        self._connections_of_server.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._connections_of_server.leave(self)
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Close the connection immediately. No request is being answered on it."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if len(data) <= MAX_HEAD_BYTES - self._unparsed:  # nearly always
            self._unparsed += len(data)
            self._answered_at_once = False
            super().data_received(data)
            if not self._answering or self._in_body or self._waits is not None:
                self._watch(idle=self._answered_at_once)
            return
        start = 0
        while start < len(data) and not self.transport.is_closing():
            end = start + MAX_HEAD_BYTES - self._unparsed
            if end == start:
                self._refuse(self._too_large(), Refusal.HEAD)
                break
            piece = data[start:end]
            self._unparsed += len(piece)
            self._answered_at_once = False
            super().data_received(piece)
            start = end
        self._watch(idle=self._answered_at_once)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        if self._answer_at_once():
            return
        self._in_body = True
        if not self._answering:  # otherwise the request is queued, and needs no admission of its own
            self._reserved = is_reserved(self.url)
            served = self._connections_of_server.begin(self, reserved=self._reserved)
            self.app = self._served_app if served else _too_many
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        if self._in_body:
            self._in_body = False
            super().on_message_complete()

    def _answer_at_once(self) -> bool:
        """Answer the request whose headers have been read without a task, if possible. Returns whether it was answered."""
        if (
            self._answering
            or self.flow.write_paused
            or self.transport.is_closing()
            or self.parser.get_method() != b"GET"
            or self.parser.get_http_version() != "1.1"
            or not NOT_AT_ONCE.isdisjoint([name for name, _ in self.headers])
        ):
            return False
        answer = self._at_once(self.url, self.headers)
        if answer is None:
            return False
        head, body = answer
        last = not self.parser.should_keep_alive()
        lines = header_lines(self.server_state.default_headers) + (b"connection: close\r\n" if last else b"")
        self.transport.write(b"%b%b\r\n%b" % (head, lines, body))
        if last:
            self.transport.close()
        self.server_state.total_requests += 1
        self.scope = None  # type: ignore[assignment]  # no head has begun
        self._answered_at_once = True
        self._reserved = is_reserved(self.url)
        self._connections_of_server.answered(self, reserved=self._reserved)
        self._time_idleness()
        return True

    def on_response_complete(self) -> None:
        """As in uvicorn, except for the timer."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                cycle, app = self.pipeline.pop()
                self._start_asgi_task(cycle, app)
            else:
                self._time_idleness()
        if not self._answering:
            self._connections_of_server.end(self, reserved=self._reserved)
            if self._in_head or self._in_body or self._waits is not None or self.transport.is_closing():
                self._watch(idle=True)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(idle=False)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch(idle=True)

    def _time_idleness(self) -> None:
        """The connection is idle from now on: start the timer if it is not running."""
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        """The timer continues; see `timeout_keep_alive_handler`."""

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._answering or self._in_head or self._in_body or self._waits is _Waits.HEAD:
            return  # the next answer sets it again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
            return
        super().timeout_keep_alive_handler()
        self._watch(idle=True)

    @property
    def _in_head(self) -> bool:
        """Whether a head has begun whose end has not been found."""
        return self.scope is not None and (self.cycle is None or self.scope is not self.cycle.scope)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self, *, idle: bool) -> None:
        """Limit the time of the client's next action. `idle`: the client need not send anything; uvicorn's timer limits that time."""
        if self.transport.is_closing() or self.flow.write_paused:
            self._wait(_Waits.READ)
        elif self._in_body:
            self._wait(_Waits.BODY)
        elif self._answering:
            self._wait(None)
        elif self._in_head or not idle:
            self._wait(_Waits.HEAD)
        else:
            self._wait(None)

    def _wait(self, waits: _Waits | None) -> None:
        """Start the timer for `waits`. A running timer for the same purpose continues."""
        if waits is self._waits:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._waits = waits
        self._timer = None if waits is None else self.loop.call_later(self._durations[waits].total_seconds(), self._late)

    def _late(self) -> None:
        self._timer = None
        match self._waits:
            case _Waits.READ:
                self._connections_of_server.count(Refusal.LATE)
                self.transport.abort()
            case _Waits.BODY:
                seconds = self._durations[_Waits.BODY].total_seconds()
                self._refuse(RequestTimeout(f"the body was not complete {seconds:g} s after the headers"), Refusal.LATE)
            case _ if self._in_head:
                seconds = self._durations[_Waits.HEAD].total_seconds()
                self._refuse(RequestTimeout(f"the headers were not complete within {seconds:g} s"), Refusal.LATE)
            case _:
                self._connections_of_server.count(Refusal.LATE)
                self.transport.close()

    def _too_large(self) -> SluiceError:
        if not self._in_body and 2 * len(self.url) > MAX_HEAD_BYTES:
            return UrlTooLong(f"send at most {MAX_HEAD_BYTES} bytes of request line and headers")
        return RequestHeadTooLarge(f"send at most {MAX_HEAD_BYTES} bytes of request line and headers, and of trailers")

    def _refuse(self, error: SluiceError, refusal: Refusal) -> None:
        """Answer with the error, unless another answer has begun, and close the connection."""
        self._connections_of_server.count(refusal)
        if not self._answering or (self._in_body and not self.cycle.response_started and not self.pipeline):
            answer = problem_of(error)
            headers = [*self.server_state.default_headers, *answer.raw_headers, (b"connection", b"close")]
            self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[error.status], header_lines(headers), bytes(answer.body)))
        if self.cycle is not None:
            self.cycle.disconnected = True  # what the application sends after this answer is not written
        self.transport.close()
        self._watch(idle=True)


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuses a request because too many are being served."""
    answer = problem_of(TooManyRequests("the coordinator is serving the maximum number of concurrent requests; retry later"), scope["path"])
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)


def protocol(connections: Connections, timeouts: Timeouts, at_once: AnswerAtOnce) -> type[HttpToolsProtocol]:
    """The protocol of a server."""

    class Limited(Connection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs, connections=connections, timeouts=timeouts, at_once=at_once)

    return Limited
