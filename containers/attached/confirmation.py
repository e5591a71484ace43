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
    why: str | None = None
    """Why the driver does not own the job; "" if it does, None if that is unknown."""


class Confirmations:
    """The driver's side. Thread-safe. `send` sends `confirm` with a number."""

    def __init__(self, send: Callable[[int], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open: dict[int, _Question] = {}
        self._over = False

    def ask(self) -> None:
        """Return if the driver owns the job. Blocks until the coordinator answers. Raises LeaseLost if it does not, and Unavailable if the
        supervisor has ended."""
        question, number = _Question(), next(self._numbers)
        with self._lock:
            if self._over:
                question.answered.set()
            self._open[number] = question
        if not question.answered.is_set():
            self._send(number)
        question.answered.wait()
        with self._lock:
            del self._open[number]
        if question.why is None:
            raise Unavailable("the supervisor of this script has ended, so that nobody knows whether another copy of it runs")
        if question.why:
            raise LeaseLost(question.why)

    def take(self, number: int, why: str) -> None:
        """The answer to a question. `why`: as in `_Question`."""
        with self._lock:
            question = self._open.get(number)
        if question is not None:
            question.why = why
            question.answered.set()

    def end(self) -> None:
        """The supervisor has ended: there are no answers any more."""
        with self._lock:
            self._over = True
            for each in self._open.values():
                each.answered.set()


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
