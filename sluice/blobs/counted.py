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
    of blobs by purpose. `errors`: the error of each kind of request whose last attempt failed. Read them on the event loop of the store."""

    def __init__(self) -> None:
        self.requests: Counter[RequestKind] = Counter()
        self.failed: Counter[RequestKind] = Counter()
        self.sent: Counter[Purpose] = Counter()
        self.received: Counter[Purpose] = Counter()
        self.errors: dict[RequestKind, str] = {}

    @property
    def put_error(self) -> str | None:
        """Why the last attempt to put a blob failed; None if it did not."""
        return next((error for kind, error in self.errors.items() if kind.operation in PUTS), None)


PUTS = ("put", "put_if_absent")


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
        except BaseException as error:
            self._requests.failed[kind] += 1
            self._requests.errors[kind] = str(error) or f"{request.operation} of {request.blob} was not answered"
            raise
        self._requests.errors.pop(kind, None)
        if request.operation in PUTS:
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
