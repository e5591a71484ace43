"""A blob store that cancels requests without progress, so that every request ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from threading import Lock
from typing import TypeVar

from sluice.blobs.port import BlobStore, RequestContext, Sink
from sluice.blobs.wrapper import Request, WrappedBlobs
from sluice.core.errors import BlobUnavailable
from sluice.core.snapshots.snapshot import BlobId

T = TypeVar("T")

_SLOWEST = 512 * 1024
"""Minimum rate of a put in bytes per second, because its progress cannot be observed. (16 concurrent puts: 8 MiB/s.)"""


class TimeoutBlobs(WrappedBlobs):
    """A request without progress for `timeout` raises BlobUnavailable. A sweep has no time limit."""

    def __init__(self, inner: BlobStore, timeout: timedelta) -> None:
        super().__init__(inner)
        self._seconds = timeout.total_seconds()

    async def _request(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._limit(request)):
                return await send()
        except TimeoutError as error:
            raise self._cancelled(request) from error

    def _limit(self, request: Request) -> float | None:
        match request.operation:
            case "put" | "put_if_absent":
                return self._seconds + request.size / _SLOWEST
            case "delete":
                return self._seconds * (1 + request.size / 100)
            case "sweep_expired":
                return None
            case _:
                return self._seconds

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        """Every write into the sink counts as progress."""
        fenced = _FencedSink(sink)
        try:
            async with asyncio.timeout(None) as limit:
                self._watch(fenced, limit)
                await self._inner.get(blob, fenced, about, start=start, length=length)
        except TimeoutError as error:
            raise self._cancelled(Request("get", about.purpose, blob)) from error
        finally:
            fenced.close()

    def _watch(self, fenced: _FencedSink, limit: asyncio.Timeout) -> None:
        """Check periodically whether something was written, and end the request if not."""
        loop = asyncio.get_running_loop()
        before = fenced.writes

        def check() -> None:
            if fenced.closed:
                return
            if fenced.writes == before and fenced.close_if_idle():
                limit.reschedule(loop.time())
            else:
                self._watch(fenced, limit)

        fenced.timer = loop.call_later(self._seconds, check)

    def _cancelled(self, request: Request) -> BlobUnavailable:
        return BlobUnavailable(f"{request}: no progress for {self._seconds:g} s")


class _FencedSink:
    """A sink that refuses writes after its request was cancelled: the thread of the request may still be running."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = Lock()
        self._busy = False
        self.closed = False
        self.writes = 0
        self.timer: asyncio.TimerHandle | None = None

    def write(self, part: bytes | memoryview, /) -> None:
        with self._lock:
            if self.closed:
                raise BlobUnavailable("the request was cancelled")
            self._busy = True
        try:
            self._sink.write(part)
        finally:
            self._busy = False
            self.writes += 1

    def close_if_idle(self) -> bool:
        """Close unless a write is running, because then the sink is slow and not the store. Returns whether it is closed."""
        with self._lock:
            if not self._busy:
                self.closed = True
            return self.closed

    def close(self) -> None:
        with self._lock:
            self.closed = True
        if self.timer is not None:
            self.timer.cancel()
