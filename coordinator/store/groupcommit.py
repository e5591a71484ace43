"""Questions that come while others are being answered are answered together: a transaction for many costs little more than one for one.

Nobody waits for company: a question that comes alone is answered alone, at once. Under load, as when a fleet of thousands starts, a
transaction's fixed costs, and above all its fsync, are shared.
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
    """`answer_all` answers up to `most` questions in the order in which they came: a reply or an error for each. What it raises is
    everybody's answer. One event loop's; no locks."""

    def __init__(self, answer_all: Callable[[Sequence[Request]], Awaitable[Sequence[Result | SluiceError]]], most: int = 100) -> None:
        self._answer_all = answer_all
        self._most = most
        self._waiting: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        self._answering: asyncio.Task[None] | None = None

    async def ask(self, question: Request) -> Result:
        """The reply. Raises the error that is the answer. Who stops waiting does not undo what is done for the question."""
        told: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, told))
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer(), name="gathering")
        return await told

    async def _answer(self) -> None:
        try:
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
                for (_, told), reply in zip(some, await self._replies([question for question, _ in some]), strict=True):
                    if told.done():  # nobody waits any more
                        continue
                    if isinstance(reply, Exception):
                        told.set_exception(reply)
                    else:
                        told.set_result(reply)
        finally:
            self._answering = None

    async def _replies(self, questions: Sequence[Request]) -> Sequence[Result | Exception]:
        try:
            return await self._answer_all(questions)
        except Exception as error:
            return [error] * len(questions)
