"""Long-running operations (verify, collect garbage, audit): started by a request that answers 202, polled until done. Kept in memory: after
a restart the client starts them again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sluice.clock import Clock
from sluice.core.errors import SluiceError, UnknownOperation

log = logging.getLogger(__name__)

KEPT_OPERATIONS = 100
"""Maximum number of operations that can be polled, including finished ones."""


@dataclass(slots=True)
class Progress:
    """`done` of `total`, in `unit`. The work function updates it."""

    unit: str
    done: int = 0
    total: int | None = None


class OperationState(StrEnum):
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(slots=True)
class LongRunningOperation:
    operation_id: str
    kind: str
    subject: str
    progress: Progress
    began_at: datetime
    state: OperationState = OperationState.RUNNING
    ended_at: datetime | None = None
    error: str | None = None
    result: Mapping[str, Any] | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)


Work = Callable[[Progress], Awaitable[Mapping[str, Any]]]


class Operations:
    """`new_id` creates ids. At most one operation of a kind and subject runs at a time."""

    def __init__(self, clock: Clock, new_id: Callable[[], str]) -> None:
        self._clock = clock
        self._new_id = new_id
        self._operations: dict[str, LongRunningOperation] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, kind: str, subject: str, unit: str, work: Work) -> LongRunningOperation:
        """Start the work, or return the operation of the same kind and subject that is running."""
        for each in self._operations.values():
            if (each.kind, each.subject, each.state) == (kind, subject, OperationState.RUNNING):
                return each
        made = LongRunningOperation(self._new_id(), kind, subject, Progress(unit), self._clock.now())
        self._operations[made.operation_id] = made
        self._forget()
        task = asyncio.create_task(self._run(made, work), name=f"{kind} {made.operation_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return made

    def _forget(self) -> None:
        ended = [each for each in self._operations.values() if each.state is not OperationState.RUNNING]
        for each in ended[: max(0, len(self._operations) - KEPT_OPERATIONS)]:
            del self._operations[each.operation_id]

    async def _run(self, operation: LongRunningOperation, work: Work) -> None:
        try:
            operation.result = await work(operation.progress)
            operation.state = OperationState.DONE
        except SluiceError as error:
            operation.state, operation.error = OperationState.FAILED, f"{error.title()} {error}"
        except Exception as error:
            log.exception("%s %s failed", operation.kind, operation.subject)
            operation.state, operation.error = OperationState.FAILED, f"internal error: {type(error).__name__}; see the coordinator's log"
        finally:
            operation.ended_at = self._clock.now()
            operation.finished.set()

    async def poll(self, operation_id: str, wait: timedelta) -> LongRunningOperation:
        """The operation as soon as it has finished, or after `wait`. Raises UnknownOperation."""
        found = self._operations.get(operation_id)
        if found is None:
            raise UnknownOperation(f"no operation {operation_id!r} (operations are lost when the coordinator restarts): start it again")
        try:
            async with asyncio.timeout(wait.total_seconds()):
                await found.finished.wait()
        except TimeoutError:
            pass
        return found

    async def close(self) -> None:
        """Cancel all running operations."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
