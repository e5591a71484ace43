"""A blob store with a limit on concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sluice.blobs.port import BlobStore
from sluice.blobs.wrapper import Request, WrappedBlobs

T = TypeVar("T")


class LimitedBlobs(WrappedBlobs):
    """At most `concurrency` requests at a time; others wait. A list counts only while it reads a page."""

    def __init__(self, inner: BlobStore, concurrency: int) -> None:
        super().__init__(inner)
        self._places = asyncio.Semaphore(concurrency)

    async def _request(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        async with self._places:
            return await send()
