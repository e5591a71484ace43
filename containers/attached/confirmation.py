"""Asks the coordinator, through the supervisor, whether this driver still owns its job.

A driver has no token. It sends `confirm` to its supervisor, which requests the owner of the task and answers `owner`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from containers.attached.claim import Claim
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.core.errors import ClientError, LeaseLost, Unavailable
from sluice.core.jobmodels.spec import ATTACHED_TASK

log = logging.getLogger("sluice")

RETRY = timedelta(seconds=2)


@dataclass
class _Question:
    answered: threading.Event = field(default_factory=threading.Event)
    answer: str | None = None


class Questions:
    """Questions of a driver's threads that its supervisor answers. Thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open: dict[int, _Question] = {}
        self._over = False

    def ask(self, send: Callable[[int], None]) -> str | None:
        """The answer; None if the supervisor has ended. `send` sends the question with its number. Blocks."""
        question, number = _Question(), next(self._numbers)
        with self._lock:
            if self._over:
                question.answered.set()
            self._open[number] = question
        if not question.answered.is_set():
            send(number)
        question.answered.wait()
        with self._lock:
            del self._open[number]
        return question.answer

    def take(self, number: int, answer: str) -> None:
        """The answer to a question."""
        with self._lock:
            question = self._open.get(number)
        if question is not None:
            question.answer = answer
            question.answered.set()

    def end(self) -> None:
        """The supervisor has ended: there are no answers any more."""
        with self._lock:
            self._over = True
            for each in self._open.values():
                each.answered.set()


class Confirmations:
    """The driver's side. `send` sends `confirm` with a number. The answer is why the driver does not own the job, "" if it does."""

    def __init__(self, send: Callable[[int], None]) -> None:
        self._send = send
        self._questions = Questions()

    def ask(self) -> None:
        """Return if the driver owns the job. Blocks until the coordinator answers. Raises LeaseLost if it does not, and Unavailable if the
        supervisor has ended."""
        why = self._questions.ask(self._send)
        if why is None:
            raise Unavailable("the supervisor of this script has ended, so it is unknown whether another copy of it runs")
        if why:
            raise LeaseLost(why)

    def take(self, number: int, why: str) -> None:
        self._questions.take(number, why)

    def end(self) -> None:
        self._questions.end()


async def refusal(coordinator: AgentClient, claim: Claim) -> str:
    """The supervisor's side: why the task is not owned under this claim any more, "" if it is. Asks until the coordinator answers."""
    while True:
        try:
            await coordinator.confirm_owner(claim.run, ATTACHED_TASK, claim.generation)
        except Unavailable as error:
            log.warning("the coordinator has not confirmed the lease yet: %s", error)
            await asyncio.sleep(RETRY.total_seconds())
        except (LeaseLost, ClientError, Refused) as lost:
            return str(lost) or type(lost).__name__
        else:
            return ""
