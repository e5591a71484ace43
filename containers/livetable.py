"""The table that `sluice run` keeps in place on a terminal: its processes, their tasks, what each stage does, and one line of totals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from containers.client import Coordinator
from containers.inplace import InPlace
from containers.overview import overview
from containers.pages import ProcessRow, local_page
from containers.tables import Screen
from coordinator import wire
from coordinator.clock import Clock
from coordinator.core.errors import SluiceError
from coordinator.core.ids import RunId

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
        self._task: asyncio.Task[None] | None = None

    def start(self, run_id: RunId) -> None:
        self._task = asyncio.create_task(self._show(run_id))

    def ending(self, how: str) -> None:
        """From now on it says how the run is being ended."""
        self._ending = how

    async def stop(self) -> None:
        """Leave the table as it is shown, and the terminal as it was. Never raises: more important things are to be ended after it."""
        if self._task is not None:
            self._task.cancel()
            (how,) = await asyncio.gather(self._task, return_exceptions=True)
            if isinstance(how, Exception):
                log.warning("the table could not be shown", exc_info=how)

    async def _show(self, run_id: RunId) -> None:
        last: wire.RunDetail | None = None
        with InPlace(self._screen.console) as place:
            while True:
                says = self._ending
                try:
                    last = await self._client.run(run_id)
                except SluiceError as error:
                    says = says or f"the coordinator does not answer: {error}"
                if last is not None and last.state.ended:
                    says = ""
                now = self._clock.now()
                at = last.told_at or now if last else now
                seen = overview(last, now) if last else None
                await place.show(local_page(self._processes(), last, seen, at, says, self._screen.width))
                await asyncio.sleep(EVERY.total_seconds())
