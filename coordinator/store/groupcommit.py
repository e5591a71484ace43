"""Group commit: requests that arrive while a transaction is running share the next one.

A request that arrives when none is running does not wait for others. Under load, as when thousands of containers register, requests share
the fixed cost of a transaction, above all its fsync.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from sluice.core.errors import SluiceError

Request = TypeVar("Request")
Result = TypeVar("Result")


class GroupCommit(Generic[Request, Result]):
    """`run_batch` gets up to `limit` requests in the order of arrival and returns a result or an error for each. If it raises, every
    request of the batch fails. For one event loop; there are no locks."""

    def __init__(self, run_batch: Callable[[Sequence[Request]], Awaitable[Sequence[Result | SluiceError]]], limit: int = 100) -> None:
        self._run_batch = run_batch
        self._limit = limit
        self._waiting: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        self._runner: asyncio.Task[None] | None = None

    async def submit(self, request: Request) -> Result:
        """Returns the request's result, or raises its error. Cancelling it does not undo the work."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, result))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run(), name="group commit")
        return await result

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
                for (_, future), result in zip(batch, await self._results([request for request, _ in batch]), strict=True):
                    if future.done():  # cancelled
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            self._runner = None

    async def _results(self, requests: Sequence[Request]) -> Sequence[Result | Exception]:
        try:
            return await self._run_batch(requests)
        except Exception as error:
            return [error] * len(requests)
