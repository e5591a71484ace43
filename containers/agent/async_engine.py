"""The engine for use on the event loop: its blocking calls run on threads, and its callbacks from other threads run on the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from containers.engine import STARTING, Batch, Callbacks, Engine, JvmUsage
from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation, StreamId, TaskName
from sluice.core.watermarks import FeederProgress, WatermarkStep

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 64
"""The number of threads that call the engine. They wait for Spark most of the time."""


class UserCodeEnded(Exception):
    """User code raised SystemExit, KeyboardInterrupt or StopIteration."""


class AsyncEngine:
    """Created on the event loop. `starting` bounds how many queries start at a time."""

    def __init__(self, engine: Engine) -> None:
        self.starting = asyncio.Semaphore(STARTING)
        self.jvm: JvmUsage | None = None
        """As of the last `check`."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="sluice-spark")
        self._probe_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sluice-probe")
        self._ends: dict[str, asyncio.Future[str | None]] = {}
        self._work: dict[asyncio.Future[Any], TaskName] = {}

    async def open(
        self,
        on_batch: Callable[[Batch], None],
        on_idle: Callable[[str], None],
        on_lease_lost: Callable[[LeaseLost], None],
        before_batch: Callable[[str, Generation, int], None],
        before_write: Callable[[str, Generation, int], None],
        confirm_owner: Callable[[TaskName, Generation], Coroutine[None, None, None]],
    ) -> None:
        """Start the engine, which takes seconds. The callbacks are called on the loop, apart from `before_batch` and `before_write`, which
        may block: on the engine's threads."""
        callbacks = Callbacks(
            on_batch=lambda batch: self._from_thread(on_batch, batch),
            on_idle=lambda query: self._from_thread(on_idle, query),
            on_end=lambda token, error: self._from_thread(self._on_end, token, error),
            on_lease_lost=lambda lost: self._from_thread(on_lease_lost, lost),
            before_batch=before_batch,
            before_write=before_write,
            confirm_owner=lambda *task: asyncio.run_coroutine_threadsafe(confirm_owner(*task), self._loop).result(),
        )
        await self.call(lambda engine: engine.open(callbacks))

    def _from_thread(self, call: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(call, *args)

    def _on_end(self, token: str, error: str | None) -> None:
        end = self.end_of(token)
        if not end.done():
            end.set_result(error)

    def end_of(self, token: str) -> asyncio.Future[str | None]:
        """The end of the query with that token, and its error. The engine may report the end before `start` has returned the token."""
        return self._ends.setdefault(token, self._loop.create_future())

    async def call(self, work: Callable[[Engine], T]) -> T:
        """Run blocking work on the threads of the engine. The default pool stays free: heartbeats need it to resolve host names."""
        in_context = partial(copy_context().run, _contained, partial(work, self._engine))  # log records of the thread name task and stage
        return await self._loop.run_in_executor(self._threads, in_context)

    async def run_for(self, task: TaskName, work: Callable[[Engine], T]) -> T:
        """Like `call`, for a task. The work continues when its caller is cancelled, and is in `work` until it has ended."""
        doing = asyncio.ensure_future(self.call(work))
        self._work[doing] = task
        doing.add_done_callback(self._on_done)
        return await asyncio.shield(doing)

    def _on_done(self, done: asyncio.Future[Any]) -> None:
        task = self._work.pop(done, None)
        if not done.cancelled() and (error := done.exception()) is not None:  # asyncio logs an exception that nothing has retrieved
            log.debug("work for %s on the engine failed: %s", task, error)

    @property
    def work(self) -> Mapping[asyncio.Future[Any], TaskName]:
        """The work that `run_for` has started and that has not ended, with its task."""
        return self._work

    def busy_tasks(self) -> Collection[TaskName]:
        """The tasks for which work is running. The futures themselves are checked, because their callbacks run later."""
        return {task for doing, task in self._work.items() if not doing.done()}

    def interrupt_batches(self) -> None:
        """See `Engine.interrupt_batches`, which does not block."""
        self._engine.interrupt_batches()

    def limit_watermark(self, query: str, steps: Mapping[StreamId, Sequence[WatermarkStep]] | None) -> None:
        """See `Engine.limit_watermark`, which does not block."""
        self._engine.limit_watermark(query, steps)

    def progress(self, query: str) -> FeederProgress | None:
        """See `Engine.progress`, which does not block."""
        return self._engine.progress(query)

    async def check(self) -> None:
        """See `Engine.check`. It has a thread of its own, because all others may wait for Spark."""
        self.jvm = await self._loop.run_in_executor(self._probe_thread, self._engine.check)


def _contained(blocking: Callable[[], T]) -> T:
    """Call `blocking`, and raise only what is safe to raise on an event loop. SystemExit would end the loop, and StopIteration (before
    Python 3.12) would never reach the waiting coroutine. Raises UserCodeEnded instead of these."""
    try:
        return blocking()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise UserCodeEnded(f"user code raised {type(error).__name__}: {error}").with_traceback(error.__traceback__) from error
