"""A blob store that counts its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from sluice.blobs.port import BlobStore, Purpose, RequestContext, Sink
from sluice.blobs.wrapper import Request, WrappedBlobs
from sluice.core.snapshots.snapshot import BlobId

T = TypeVar("T")


class RequestKind(NamedTuple):
    """A method of the port, and the purpose of the call."""

    operation: str
    purpose: Purpose


class Requests:
    """Counts of requests since the start: every attempt, including failed ones, and every page of a list. `sent` and `received` are bytes
    of blobs by purpose. Read them on the event loop of the store."""

    def __init__(self) -> None:
        self.requests: Counter[RequestKind] = Counter()
        self.failed: Counter[RequestKind] = Counter()
        self.sent: Counter[Purpose] = Counter()
        self.received: Counter[Purpose] = Counter()


class CountedBlobs(WrappedBlobs):
    """Counts in `requests`, which several stores may share."""

    def __init__(self, inner: BlobStore, requests: Requests) -> None:
        super().__init__(inner)
        self._requests = requests

    async def _request(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        kind = RequestKind(request.operation, request.purpose)
        self._requests.requests[kind] += 1
        try:
            answer = await send()
        except BaseException:
            self._requests.failed[kind] += 1
            raise
        if request.operation in ("put", "put_if_absent"):
            self._requests.sent[request.purpose] += request.size
        return answer

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        counted = _CountedSink(sink)
        try:
            await super().get(blob, counted, about, start=start, length=length)
        finally:
            self._requests.received[about.purpose] += counted.bytes


class _CountedSink:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.bytes = 0

    def write(self, part: bytes | memoryview, /) -> None:
        self._sink.write(part)
        self.bytes += len(part)
