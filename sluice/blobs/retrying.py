"""A blob store that tries again while another does not answer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from io import BytesIO
from typing import TypeVar

from sluice.blobs.port import About, BlobStore, Listed, Sink
from sluice.clock import Clock
from sluice.core.backoff import Backoff
from sluice.core.errors import BlobUnavailable
from sluice.core.snapshot import BlobId

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class RetryingBlobs:
    """`inner`; what raises BlobUnavailable runs again, after pauses, until the budget of that call is spent. A `get` and a `list` go on
    where they were."""

    def __init__(
        self,
        inner: BlobStore,
        backoff: Backoff,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._inner = inner
        self._backoff = backoff
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    async def open(self, *, create: bool) -> None:
        await self._persist("open", lambda: self._inner.open(create=create))

    async def put(self, blob: BlobId, body: bytes | memoryview, about: About, *, ttl: timedelta | None = None) -> None:
        await self._persist("put", lambda: self._inner.put(blob, body, about, ttl=ttl))

    async def put_if_absent(self, blob: BlobId, body: bytes, about: About) -> bool:
        """One whose answer was lost may have won; it finds its own bytes then."""
        attempts = 0

        async def attempt() -> bool:
            nonlocal attempts
            attempts += 1
            won = await self._inner.put_if_absent(blob, body, about)
            return won or (attempts > 1 and await self._holds(blob, body, about))

        return await self._persist("put_if_absent", attempt)

    async def _holds(self, blob: BlobId, body: bytes, about: About) -> bool:
        found = BytesIO()
        await self._inner.get(blob, found, about)
        return found.getvalue() == body

    async def get(self, blob: BlobId, sink: Sink, about: About, *, start: int = 0, length: int | None = None) -> None:
        written = _Written(sink)

        async def attempt() -> None:
            begun = written.count
            await self._inner.get(blob, written, about, start=start + begun, length=None if length is None else length - begun)

        await self._persist("get", attempt)

    async def delete(self, blobs: Collection[BlobId], about: About) -> None:
        await self._persist("delete", lambda: self._inner.delete(blobs, about))

    async def remove_ttl(self, blob: BlobId, about: About) -> None:
        await self._persist("remove_ttl", lambda: self._inner.remove_ttl(blob, about))

    async def list(self, prefix: str, about: About, *, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        pages = _Pages(self._inner, prefix, about, after)
        while (page := await self._persist("list", pages.next)) is not None:
            yield page

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        return await self._persist("sweep_expired", lambda: self._inner.sweep_expired(now, limit))

    async def close(self) -> None:
        await self._inner.close()

    async def _persist(self, name: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        begun = self._clock.elapsed()
        failures = 0
        while True:
            try:
                return await attempt()
            except BlobUnavailable as error:
                failures += 1
                spent = timedelta(seconds=self._clock.elapsed() - begun)
                pause = self._backoff.pause(failures, spent, self._chance())
                if pause is None:
                    raise BlobUnavailable(f"{error}; given up after {failures} attempts in {spent.total_seconds():.1f} s") from error
                _log.info("%s failed (%s); again in %.2f s", name, error, pause.total_seconds())
            await self._sleep(pause.total_seconds())


class _Written:
    """A sink, and how many bytes it has got."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.count = 0

    def write(self, part: bytes | memoryview, /) -> None:
        self._sink.write(part)
        self.count += len(part)


class _Pages:
    """The pages of a list; after a failure a new list goes on behind the last of them."""

    def __init__(self, inner: BlobStore, prefix: str, about: About, after: str) -> None:
        self._inner = inner
        self._prefix = prefix
        self._about = about
        self._after = after
        self._pages: AsyncIterator[Sequence[Listed]] | None = None

    async def next(self) -> Sequence[Listed] | None:
        if self._pages is None:
            self._pages = self._inner.list(self._prefix, self._about, after=self._after)
        try:
            page = await anext(self._pages, None)
        except BlobUnavailable:
            self._pages = None
            raise
        if page:
            self._after = page[-1].blob
        return page
