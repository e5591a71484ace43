"""The table that `sluice run` keeps in place on a terminal: its processes, their tasks, what each stage does, and one line of totals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from rich.console import RenderableType

from containers.client import Coordinator
from containers.inplace import InPlace
from containers.overview import overview
from containers.pages import ProcessRow, local_page
from containers.tables import Screen
from sluice.clock import Clock
from sluice.core.errors import SluiceError
from sluice.core.ids import RunId
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)

EVERY = timedelta(seconds=1)


class LiveTable:
    """`processes` tells of the processes as they are when it is called."""

    def __init__(self, client: Coordinator, screen: Screen, processes: Callable[[], Sequence[ProcessRow]], clock: Clock) -> None:
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
        """From now on it says how the run is being ended."""
        self._ending = how
        self._woken.set()

    async def stop(self) -> None:
        """Leave the table as it is now, and the terminal as it was. Never raises: more important things are to be ended after it."""
        self._stopping = True
        self._woken.set()
        if self._task is not None:
            (how,) = await asyncio.gather(self._task, return_exceptions=True)
            if isinstance(how, Exception):
                log.warning("the table could not be shown", exc_info=how)

    async def _show(self, run_id: RunId) -> None:
        with InPlace(self._screen.console) as place:
            while not self._stopping:
                await place.show(await self._page(run_id))
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY.total_seconds()):
                        await self._woken.wait()
                self._woken.clear()
            await place.show(await self._page(run_id))

    async def _page(self, run_id: RunId) -> RenderableType:
        says = self._ending
        try:
            self._last = await self._client.run(run_id)
        except SluiceError as error:
            says = says or f"the coordinator does not answer: {error}"
        last, now = self._last, self._clock.now()
        if last is None:
            return local_page(self._processes(), None, None, now, says, self._screen.width)
        says = "" if last.state.ended else says
        return local_page(self._processes(), last, overview(last, now), last.told_at or now, says, self._screen.width)
