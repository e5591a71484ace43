"""A blob store that retries requests which failed because the store was unavailable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from io import BytesIO
from typing import TypeVar

from sluice.blobs.port import BlobStore, ListedBlob, RequestContext, Sink
from sluice.blobs.wrapper import Request, WrappedBlobs
from sluice.clock import Clock
from sluice.core.errors import BlobUnavailable
from sluice.core.snapshots.snapshot import BlobId
from sluice.core.waits import Backoff
from sluice.randomness import fraction

T = TypeVar("T")
log = logging.getLogger(__name__)


class RetryingBlobs(WrappedBlobs):
    """A request that raises BlobUnavailable is retried with back-off until its time limit. `get` and `list` continue where they were
    interrupted."""

    def __init__(
        self,
        inner: BlobStore,
        backoff: Backoff,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = fraction,
    ) -> None:
        super().__init__(inner)
        self._backoff = backoff
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    async def _request(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        started = self._clock.elapsed()
        failures = 0
        while True:
            try:
                return await send()
            except BlobUnavailable as error:
                failures += 1
                spent = timedelta(seconds=self._clock.elapsed() - started)
                pause = self._backoff.pause(failures, spent, self._chance())
                if pause is None:
                    raise BlobUnavailable(f"{error}; given up after {failures} attempts in {spent.total_seconds():.1f} s") from error
                log.info("%s failed (%s); retrying in %.2f s", request.operation, error, pause.total_seconds())
            await self._sleep(pause.total_seconds())

    async def put_if_absent(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        """Put the blob, with retries. If an earlier attempt succeeded and its answer was lost, the blob has exactly these bytes."""
        attempts = 0

        async def send() -> bool:
            nonlocal attempts
            attempts += 1
            won = await self._inner.put_if_absent(blob, body, about)
            return won or (attempts > 1 and await self._has(blob, body, about))

        return await self._request(Request("put_if_absent", about.purpose, blob, len(body)), send)

    async def _has(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        found = BytesIO()
        await self._inner.get(blob, found, about)
        return found.getvalue() == body

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        written = _Written(sink)

        async def send() -> None:
            done = written.count
            await self._inner.get(blob, written, about, start=start + done, length=None if length is None else length - done)

        await self._request(Request("get", about.purpose, blob), send)

    async def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        pages = _Pages(self._inner, prefix, about, after)
        while (page := await self._request(Request("list", about.purpose), pages.next)) is not None:
            yield page


class _Written:
    """A sink that counts the bytes written."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.count = 0

    def write(self, part: bytes | memoryview, /) -> None:
        self._sink.write(part)
        self.count += len(part)


class _Pages:
    """The pages of a list. After a failure, a new list continues after the last page."""

    def __init__(self, inner: BlobStore, prefix: str, about: RequestContext, after: str) -> None:
        self._inner = inner
        self._prefix = prefix
        self._about = about
        self._after = after
        self._pages: AsyncIterator[Sequence[ListedBlob]] | None = None

    async def next(self) -> Sequence[ListedBlob] | None:
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
