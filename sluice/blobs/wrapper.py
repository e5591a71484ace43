"""A blob store around another one. Subclasses add one property each: `retrying`, `limited`, `timeouts`, `counted`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from sluice.blobs.port import BlobStore, ListedBlob, Purpose, RequestContext, Sink
from sluice.core.snapshots.snapshot import BlobId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """`operation`: the method of the port; each page of a list is a separate request. `size`: of a put in bytes, of a delete in blobs,
    otherwise 0."""

    operation: str
    purpose: Purpose
    blob: str = ""
    size: int = 0

    def __str__(self) -> str:
        return f"{self.operation} of {self.blob}" if self.blob else self.operation


class WrappedBlobs:
    """Passes every request to `inner` through `_request`, which a subclass overrides."""

    def __init__(self, inner: BlobStore) -> None:
        self._inner = inner

    async def _request(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        return await send()

    async def open(self, *, create: bool) -> None:
        await self._request(Request("open", Purpose.OPEN), lambda: self._inner.open(create=create))

    async def put(self, blob: BlobId, body: bytes | memoryview, about: RequestContext, *, ttl: timedelta | None = None) -> None:
        request = Request("put", about.purpose, blob, len(body))
        await self._request(request, lambda: self._inner.put(blob, body, about, ttl=ttl))

    async def put_if_absent(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        request = Request("put_if_absent", about.purpose, blob, len(body))
        return await self._request(request, lambda: self._inner.put_if_absent(blob, body, about))

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        request = Request("get", about.purpose, blob)
        await self._request(request, lambda: self._inner.get(blob, sink, about, start=start, length=length))

    async def delete(self, blobs: Collection[BlobId], about: RequestContext) -> None:
        await self._request(Request("delete", about.purpose, "", len(blobs)), lambda: self._inner.delete(blobs, about))

    async def remove_ttl(self, blob: BlobId, about: RequestContext) -> None:
        await self._request(Request("remove_ttl", about.purpose, blob), lambda: self._inner.remove_ttl(blob, about))

    async def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        pages = self._inner.list(prefix, about, after=after)
        while (page := await self._request(Request("list", about.purpose), lambda: anext(pages, None))) is not None:
            yield page

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        return await self._request(Request("sweep_expired", Purpose.COLLECTION), lambda: self._inner.sweep_expired(now, limit))

    async def close(self) -> None:
        await self._inner.close()
