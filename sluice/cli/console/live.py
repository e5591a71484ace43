"""Live views of `sluice run`: on a terminal a table that is updated in place, otherwise an occasional line about the run."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from math import inf
from types import TracebackType
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from sluice.cli.console.pages import ProcessRow, local_page
from sluice.cli.console.tables import Screen, shown
from sluice.client import CoordinatorClient
from sluice.clock import Clock
from sluice.core.errors import SluiceError
from sluice.core.ids import RunId
from sluice.status import failing_stages, named, overview, recent_exits
from sluice.wire import runs as wire_runs


class LiveDisplay:
    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=sys.stderr.isatty())

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Restore the cursor and the standard streams. The last page stays on the screen."""
        self._live.stop()

    async def show(self, what: RenderableType) -> None:
        """Show the page. It is written on a thread, because writing blocks while the terminal is stopped (Ctrl-S)."""
        await asyncio.to_thread(self._live.update, what, refresh=True)


log = logging.getLogger(__name__)

EVERY = timedelta(seconds=1)


class LiveTable:
    """`processes` returns the current state of the processes."""

    def __init__(self, client: CoordinatorClient, screen: Screen, processes: Callable[[], Sequence[ProcessRow]], clock: Clock) -> None:
        self._client = client
        self._screen = screen
        self._processes = processes
        self._clock = clock
        self._ending = ""
        self._last: wire_runs.RunDetail | None = None
        self._stopping = False
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, run_id: RunId) -> None:
        self._task = asyncio.create_task(self._show(run_id))

    def ending(self, how: str) -> None:
        """From now on also show how the run is being ended."""
        self._ending = how
        self._woken.set()

    async def stop(self) -> None:
        """Show the table a last time and restore the terminal. Never raises, because the caller must still stop processes."""
        self._stopping = True
        self._woken.set()
        if self._task is not None:
            (error,) = await asyncio.gather(self._task, return_exceptions=True)
            if isinstance(error, Exception):
                log.warning("cannot show the table", exc_info=error)

    async def _show(self, run_id: RunId) -> None:
        with LiveDisplay(self._screen.console) as place:
            while not self._stopping:
                await place.show(await self._page(run_id))
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY.total_seconds()):
                        await self._woken.wait()
                self._woken.clear()
            await place.show(await self._page(run_id))

    async def _page(self, run_id: RunId) -> RenderableType:
        note = self._ending
        try:
            self._last = await self._client.run(run_id)
        except SluiceError as error:
            note = note or f"{error.title()} {error}"
        last, now = self._last, self._clock.now()
        if last is None:
            return local_page(self._processes(), None, None, now, note, self._screen.width)
        note = "" if last.state.ended else note
        return local_page(self._processes(), last, overview(last, now), last.server_time or now, note, self._screen.width)


LINE_EVERY = timedelta(seconds=15)

FAILURES_SHOWN = 5


def summary(run: wire_runs.RunDetail) -> str:
    """One line about a run."""
    live = sum(1 for each in run.incarnations if each.state == "LIVE")
    held = sum(1 for task in run.tasks if task.holder)
    batches = sum(stage.batch_id + 1 for task in run.tasks for stage in task.stages if stage.batch_id is not None)
    return f"{run.run_id} {run.state}  containers {live}/{run.containers}  tasks {held}/{len(run.tasks)}  batches {batches}"


def failures(run: wire_runs.RunDetail, at: datetime) -> Sequence[str]:
    """The errors of failing stages and containers, one per line, without times, so that a line changes only with the error."""
    now = run.server_time or at
    stages = [f"! {shown(each.error)} (stage {each.stage} of {named(each.tasks)})" for each in failing_stages(run, now, over=False)]
    exits = [
        f"! {shown(first_line(each.reason))} (container of slot {each.processor_id})" for each in recent_exits(run, now) if each.reason
    ]
    return list(dict.fromkeys(stages + exits))[:FAILURES_SHOWN]


def first_line(text: str) -> str:
    return text.partition("\n")[0]


class StatusLine:
    """Prints a line at most every LINE_EVERY, and a new error of a stage or a container within a second."""

    def __init__(self, client: CoordinatorClient, out: TextIO, clock: Clock) -> None:
        self._client = client
        self._out = out
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self, run_id: RunId) -> None:
        self._task = asyncio.create_task(self._show(run_id))

    def ending(self, how: str) -> None:
        """Print no more lines."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _show(self, run_id: RunId) -> None:
        last, printed_at = "", -inf
        failing: Sequence[str] = ()
        while True:
            try:
                run = await self._client.run(run_id)
            except SluiceError as error:
                line = f"{run_id}: {error.title()} {error}"
            else:
                line, failed = summary(run), failures(run, self._clock.now())
                for each in failed:
                    if each not in failing:
                        print(each, file=self._out, flush=True)
                failing = failed
            if line != last and self._clock.elapsed() >= printed_at + LINE_EVERY.total_seconds():
                print(line, file=self._out, flush=True)
                last, printed_at = line, self._clock.elapsed()
            await asyncio.sleep(EVERY.total_seconds())
