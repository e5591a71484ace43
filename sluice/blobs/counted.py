"""A blob store that counts what it is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import NamedTuple

from sluice.blobs.port import About, BlobStore, Listed, Purpose, Sink
from sluice.core.snapshot import BlobId


class Kind(NamedTuple):
    """The operation of the port, and what it was for."""

    operation: str
    purpose: Purpose


class Requests:
    """What was asked since the beginning: every attempt, failed ones too; of a list every page. `sent` and `received` are bytes of blobs,
    by purpose. To be read on the event loop of the store."""

    def __init__(self) -> None:
        self.asked: Counter[Kind] = Counter()
        self.failed: Counter[Kind] = Counter()
        self.sent: Counter[Purpose] = Counter()
        self.received: Counter[Purpose] = Counter()

    @contextmanager
    def count(self, operation: str, purpose: Purpose) -> Iterator[None]:
        kind = Kind(operation, purpose)
        self.asked[kind] += 1
        try:
            yield
        except BaseException:
            self.failed[kind] += 1
            raise


class CountedBlobs:
    """`inner`, and all that it is asked is counted in `requests`, which several stores may share."""

    def __init__(self, inner: BlobStore, requests: Requests) -> None:
        self._inner = inner
        self._requests = requests

    async def open(self, *, create: bool) -> None:
        with self._requests.count("open", Purpose.OPEN):
            await self._inner.open(create=create)

    async def put(self, blob: BlobId, body: bytes | memoryview, about: About, *, ttl: timedelta | None = None) -> None:
        with self._requests.count("put", about.purpose):
            await self._inner.put(blob, body, about, ttl=ttl)
        self._requests.sent[about.purpose] += len(body)

    async def put_if_absent(self, blob: BlobId, body: bytes, about: About) -> bool:
        with self._requests.count("put_if_absent", about.purpose):
            won = await self._inner.put_if_absent(blob, body, about)
        self._requests.sent[about.purpose] += len(body)
        return won

    async def get(self, blob: BlobId, sink: Sink, about: About, *, start: int = 0, length: int | None = None) -> None:
        measured = _MeasuredSink(sink)
        try:
            with self._requests.count("get", about.purpose):
                await self._inner.get(blob, measured, about, start=start, length=length)
        finally:
            self._requests.received[about.purpose] += measured.bytes

    async def delete(self, blobs: Collection[BlobId], about: About) -> None:
        with self._requests.count("delete", about.purpose):
            await self._inner.delete(blobs, about)

    async def remove_ttl(self, blob: BlobId, about: About) -> None:
        with self._requests.count("remove_ttl", about.purpose):
            await self._inner.remove_ttl(blob, about)

    async def list(self, prefix: str, about: About, *, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        pages = self._inner.list(prefix, about, after=after)
        while True:
            with self._requests.count("list", about.purpose):
                page = await anext(pages, None)
            if page is None:
                return
            yield page

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        with self._requests.count("sweep_expired", Purpose.COLLECTION):
            return await self._inner.sweep_expired(now, limit)

    async def close(self) -> None:
        await self._inner.close()


class _MeasuredSink:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.bytes = 0

    def write(self, part: bytes | memoryview, /) -> None:
        self._sink.write(part)
        self.bytes += len(part)
