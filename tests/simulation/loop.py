"""An event loop in virtual time, on which simulated processes run.

Time advances only when nothing is ready to run, and then at once to the next timer. `run_in_executor` runs the function in a greenlet
instead of a thread: it runs until it ends or waits for a `concurrent.futures.Future`, and the loop continues in the meantime. So one
thing happens at a time, in an order that follows from the seed alone.

Every task, timer and callback belongs to the process in whose context it was created. Those of a dead process are never run again, not even
their `finally` blocks, as after SIGKILL. Those of a frozen process are run when it is thawed.

Prior art: the simulations of FoundationDB and TigerBeetle, and looptime for asyncio.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import heapq
import selectors
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import greenlet

TURN_SECONDS = 1e-6
"""The minimum duration of a turn of the loop. Without it, code that waits for the rest of a lease at its end would never advance time."""


MOST_TURNS = 1_000_000
"""The most turns of a loop, if nothing else is given: six times as many as the longest of 24 seeds. Without a bound, code that tries again
at once would never end."""


class Killed(BaseException):
    """Raised in a thread of a process that has been killed, so that it does nothing more."""


class Stuck(Exception):
    """No event is left, or a thread waits for something that the simulation does not control."""


@dataclass(eq=False)
class Process:
    """`on_death`: the actions of the operating system at its end: close files, release locks."""

    name: str
    dead: bool = False
    frozen: bool = False
    on_death: list[Callable[[], None]] = field(default_factory=list)
    waiting: list[asyncio.Handle] = field(default_factory=list)
    """Callbacks that became due while the process was frozen."""

    def context(self) -> Context:
        """For tasks and callbacks of this process."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return context


_PROCESS: ContextVar[Process] = ContextVar("process", default=Process("test"))  # noqa: B039 -- nothing ends it


def current_process() -> Process:
    return _PROCESS.get()


class _Timers(selectors.BaseSelector):
    """Selects nothing, and advances the virtual time instead."""

    def __init__(self, most_turns: int) -> None:
        self.now = 0.0
        self.turns = 0
        self.most_turns = most_turns

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("no timer is set and nothing is ready")
        self.now += max(timeout, TURN_SECONDS)
        self.turns += 1
        if self.turns > self.most_turns:
            raise Stuck(f"still at {self.now:.3f} s after {self.turns} turns of the loop")
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        return None

    def unregister(self, fileobj: Any) -> Any:
        return None

    def get_map(self) -> Any:
        return {}


def _may_run(handle: _Handle | _Timer) -> bool:
    """Whether the process of the callback is neither dead nor frozen. Callbacks of a frozen process are kept until it is thawed."""
    process: Process | None = handle._context.get(_PROCESS)
    if process is None:
        return True
    if process.frozen and not process.dead:
        process.waiting.append(handle)
    return not (process.dead or process.frozen)


class _Handle(asyncio.Handle):
    """A seed creates hundreds of thousands of handles, so creating one must be cheap."""

    __slots__ = ()
    _context: Context

    def _run(self) -> None:
        if _may_run(self):
            super()._run()


class _Timer(asyncio.TimerHandle):
    __slots__ = ()
    _context: Context
    _scheduled: bool

    def _run(self) -> None:
        if _may_run(self):
            super()._run()


class _Task(asyncio.Task[Any]):
    """Its hash is a number of its loop, not its address, so that sets of tasks, also those of `TaskGroup`, have the same order in each
    process."""

    __slots__ = ("_number",)

    def __init__(self, work: Any, loop: SimulatedLoop, **options: Any) -> None:
        self._number = loop.next_number()
        super().__init__(work, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.SelectorEventLoop):
    """`thread_seconds`: the virtual duration of work on a thread. All of the work is done at its end."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(
        self,
        chance: Random,
        thread_seconds: Callable[[Random], float] = lambda chance: chance.uniform(0, 0.002),
        most_turns: int = MOST_TURNS,
    ) -> None:
        self._discarded = False
        self._timers = _Timers(most_turns)
        super().__init__(self._timers)
        self._chance = chance
        self._thread_seconds = thread_seconds
        self._main = threading.get_ident()
        self._kept: list[asyncio.Task[Any] | greenlet.greenlet] = []
        """Tasks and greenlets that have not ended: a coroutine that is dropped would run its `finally` blocks."""
        self._prune_at = 1000
        self._created = 0
        """The number of tasks so far."""
        self.set_task_factory(self._new_task)
        self.errors: list[str] = []
        self.set_exception_handler(lambda _, context: self.errors.append(f"{context.get('message')}: {context.get('exception')!r}"))

    @property
    def turns(self) -> int:
        """The number of turns so far."""
        return self._timers.turns

    def time(self) -> float:
        return self._timers.now

    def jump(self, seconds: float) -> None:
        """Let so much time pass at once, as if all machines had been suspended. Every timer that is due by then fires once."""
        self._timers.now += seconds

    def discard(self) -> None:
        """Drop everything that has not ended; see `collect_quietly`."""
        self._discarded = True
        with silent():
            self._kept.clear()

    def _check_closed(self) -> None:
        if not self._discarded:
            super()._check_closed()  # type: ignore[misc]

    # --- processes -------------------------------------------------------------------------------------------------

    def _new_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = _Task(work, self, **options)
        self._keep(task)
        return task

    def next_number(self) -> int:
        """The number of a new task."""
        self._created += 1
        return self._created

    def _keep(self, what: asyncio.Task[Any] | greenlet.greenlet) -> None:
        self._kept.append(what)
        if len(self._kept) > self._prune_at:
            self._kept = [each for each in self._kept if not (each.done() if isinstance(each, asyncio.Task) else each.dead)]
            self._prune_at = 2 * len(self._kept) + 1000

    def call_soon(self, callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = _Handle(callback, arguments, self, context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = _Timer(when, callback, arguments, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        if threading.get_ident() != self._main:
            raise Stuck("a real thread is at work")
        return self.call_soon(callback, *arguments, context=context)

    def kill(self, process: Process) -> None:
        """Kill the process, as SIGKILL does. The process itself may call this."""
        if process.dead:
            return
        process.dead = True
        for each in process.on_death:
            each()

    def freeze(self, process: Process) -> None:
        """Freeze the process, as SIGSTOP does."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        process.frozen = False
        waiting, process.waiting = process.waiting, []
        self._ready.extend(waiting)

    # --- threads ---------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """The function runs in a greenlet, after a moment."""
        outcome: asyncio.Future[Any] = self.create_future()
        context = copy_context()
        thread = greenlet.greenlet(partial(context.run, self._run_thread, outcome, partial(function, *arguments)))
        self._keep(thread)
        self.call_later(self._thread_seconds(self._chance), thread.switch)
        return outcome

    def _run_thread(self, outcome: asyncio.Future[Any], work: Callable[[], Any]) -> None:
        try:
            result = work()
        except Killed:
            return
        except BaseException as error:
            if isinstance(error, greenlet.GreenletExit):
                raise
            if not current_process().dead and not outcome.done():
                outcome.set_exception(error)
        else:
            if not current_process().dead and not outcome.done():
                outcome.set_result(result)

    def wait_in_thread(self, until: Callable[[Callable[[], None]], None]) -> None:
        """Called in a greenlet: the loop continues until the function that `until` gets is called."""
        thread = greenlet.getcurrent()
        if thread.parent is None:
            raise Stuck("the loop itself would wait for ever")

        def wake() -> None:
            self.call_soon(thread.switch)

        until(wake)
        thread.parent.switch()
        if current_process().dead:
            raise Killed


@contextmanager
def simulated(chance: Random, most_turns: int = MOST_TURNS) -> Iterator[SimulatedLoop]:
    """A simulated loop, on which greenlets wait inside the block."""
    loop = SimulatedLoop(chance, most_turns=most_turns)
    with waits_of_threads(loop):
        asyncio.set_event_loop(loop)
        try:
            yield loop
        finally:
            loop.discard()
            asyncio.set_event_loop(None)
            loop.close()


@contextmanager
def waits_of_threads(loop: SimulatedLoop) -> Iterator[None]:
    """Inside the block, greenlets that wait for a `concurrent.futures.Future` wait on this loop."""
    waits, ours = concurrent.futures.Future.result, threading.get_ident()

    def result(future: concurrent.futures.Future[Any], timeout: float | None = None) -> Any:
        if threading.get_ident() != ours:
            return waits(future, timeout)
        if not future.done() and greenlet.getcurrent().parent is not None:
            loop.wait_in_thread(lambda wake: future.add_done_callback(lambda _: wake()))
        return waits(future, 0)

    with mock.patch.object(concurrent.futures.Future, "result", result):
        yield


@contextmanager
def silent() -> Iterator[None]:
    """Ignore warnings and errors of the `finally` blocks of dropped coroutines, which run without effect when they are collected."""
    former, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = former


def collect_quietly() -> None:
    """Collect the garbage of a loop that has ended."""
    with silent():
        gc.collect()


def main_process() -> Context:
    """The context of the test itself, whose process never dies."""
    return Process("simulation").context()
