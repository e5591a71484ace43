"""A blob store whose every request ends: one that shows no sign of life is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import TypeVar

from sluice.blobs.port import About, BlobStore, Listed, Sink
from sluice.core.errors import BlobUnavailable
from sluice.core.snapshot import BlobId

_T = TypeVar("_T")
_SLOWEST = 512 * 1024
"""Bytes a second that a put must make: nothing of it can be seen before its end. (16 at once are 8 MiB a second.)"""


class PatientBlobs:
    """`inner`; a request that does nothing for `patience` raises BlobUnavailable. A sweep may take as long as it does."""

    def __init__(self, inner: BlobStore, patience: timedelta) -> None:
        self._inner = inner
        self._seconds = patience.total_seconds()

    async def open(self, *, create: bool) -> None:
        await self._within("open", self._seconds, self._inner.open(create=create))

    async def put(self, blob: BlobId, body: bytes | memoryview, about: About, *, ttl: timedelta | None = None) -> None:
        await self._within(f"put of {blob}", self._seconds + len(body) / _SLOWEST, self._inner.put(blob, body, about, ttl=ttl))

    async def put_if_absent(self, blob: BlobId, body: bytes, about: About) -> bool:
        return await self._within(f"put of {blob}", self._seconds + len(body) / _SLOWEST, self._inner.put_if_absent(blob, body, about))

    async def get(self, blob: BlobId, sink: Sink, about: About, *, start: int = 0, length: int | None = None) -> None:
        fenced = _FencedSink(sink)
        try:
            async with asyncio.timeout(None) as limit:
                self._watch(fenced, limit)
                await self._inner.get(blob, fenced, about, start=start, length=length)
        except TimeoutError as error:
            raise self._given_up(f"get of {blob}") from error
        finally:
            fenced.close()

    async def delete(self, blobs: Collection[BlobId], about: About) -> None:
        await self._within("delete", self._seconds * (1 + len(blobs) / 100), self._inner.delete(blobs, about))

    async def remove_ttl(self, blob: BlobId, about: About) -> None:
        await self._within(f"remove_ttl of {blob}", self._seconds, self._inner.remove_ttl(blob, about))

    async def list(self, prefix: str, about: About, *, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        pages = self._inner.list(prefix, about, after=after)
        while (page := await self._within("list", self._seconds, anext(pages, None))) is not None:
            yield page

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        return await self._inner.sweep_expired(now, limit)

    async def close(self) -> None:
        await self._inner.close()

    async def _within(self, what: str, seconds: float, request: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(seconds):
                return await request
        except TimeoutError as error:
            raise self._given_up(what) from error

    def _watch(self, fenced: _FencedSink, limit: asyncio.Timeout) -> None:
        """Look every now and then whether something was written since; end the request if not."""
        loop = asyncio.get_running_loop()
        before = fenced.signs

        def look() -> None:
            if fenced.closed:
                return
            if fenced.signs == before and fenced.close_if_idle():
                limit.reschedule(loop.time())
            else:
                self._watch(fenced, limit)

        fenced.timer = loop.call_later(self._seconds, look)

    def _given_up(self, what: str) -> BlobUnavailable:
        return BlobUnavailable(f"{what}: no sign of life for {self._seconds:g} s")


class _FencedSink:
    """A sink that takes nothing any more once its request was given up, though the request's thread may go on."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = Lock()
        self._busy = False
        self.closed = False
        self.signs = 0
        self.timer: asyncio.TimerHandle | None = None

    def write(self, part: bytes | memoryview, /) -> None:
        with self._lock:
            if self.closed:
                raise BlobUnavailable("the request was given up")
            self._busy = True
        try:
            self._sink.write(part)
        finally:
            self._busy = False
            self.signs += 1

    def close_if_idle(self) -> bool:
        """False while a write is under way: then it is not the store that hangs."""
        with self._lock:
            if not self._busy:
                self.closed = True
            return self.closed

    def close(self) -> None:
        with self._lock:
            self.closed = True
        if self.timer is not None:
            self.timer.cancel()
