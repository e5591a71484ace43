"""Waits of Spark's threads for work on the agent's event loop. They are interrupted when the query stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from sluice.core.errors import Unavailable

T = TypeVar("T")


class BatchInterrupted(Unavailable):
    """The batch was interrupted, and runs again."""


class BatchWaits:
    """The waits of one stage's batches. Created on the agent's loop. `submit` and `result` may be called on any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pending: dict[Future[Any], None] = {}
        self._interrupted = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the work on the loop. It is cancelled by `interrupt`, and immediately if that was called before."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._pending[future] = None
        future.add_done_callback(lambda ended: self._pending.pop(ended, None))
        if self._interrupted:
            future.cancel()
        return future

    def result(self, future: Future[T]) -> T:
        """Block until the work has ended. Raises BatchInterrupted, and what the work raises."""
        try:
            return future.result()
        except CancelledError as error:
            raise BatchInterrupted("the query is stopping, so this batch is interrupted: it runs again at the next start") from error

    def interrupt(self) -> None:
        """Cancel all waits, present and future, until `resume`: the query stops without waiting for its batch. The work of a wait is
        cancelled with it; scheduled commits are not."""
        self._interrupted = True
        for future in list(self._pending):
            future.cancel()

    def resume(self) -> None:
        """Let batches wait again, after the interrupted query has stopped and before another one replaces it."""
        self._interrupted = False
