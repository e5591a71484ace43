"""A blob store that is asked only so many things at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime, timedelta

from sluice.blobs.port import About, BlobStore, Listed, Sink
from sluice.core.snapshot import BlobId


class LimitedBlobs:
    """`inner`; at most `concurrency` requests are under way, the others wait for their turn."""

    def __init__(self, inner: BlobStore, concurrency: int) -> None:
        self._inner = inner
        self._turn = asyncio.Semaphore(concurrency)

    async def open(self, *, create: bool) -> None:
        async with self._turn:
            await self._inner.open(create=create)

    async def put(self, blob: BlobId, body: bytes | memoryview, about: About, *, ttl: timedelta | None = None) -> None:
        async with self._turn:
            await self._inner.put(blob, body, about, ttl=ttl)

    async def put_if_absent(self, blob: BlobId, body: bytes, about: About) -> bool:
        async with self._turn:
            return await self._inner.put_if_absent(blob, body, about)

    async def get(self, blob: BlobId, sink: Sink, about: About, *, start: int = 0, length: int | None = None) -> None:
        async with self._turn:
            await self._inner.get(blob, sink, about, start=start, length=length)

    async def delete(self, blobs: Collection[BlobId], about: About) -> None:
        async with self._turn:
            await self._inner.delete(blobs, about)

    async def remove_ttl(self, blob: BlobId, about: About) -> None:
        async with self._turn:
            await self._inner.remove_ttl(blob, about)

    async def list(self, prefix: str, about: About, *, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        """Whoever takes their time between two pages keeps nobody waiting."""
        pages = self._inner.list(prefix, about, after=after)
        while True:
            async with self._turn:
                page = await anext(pages, None)
            if page is None:
                return
            yield page

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        async with self._turn:
            return await self._inner.sweep_expired(now, limit)

    async def close(self) -> None:
        await self._inner.close()
