"""The status line of `sluice run`: rewritten in place on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TextIO

from containers.client import Coordinator
from coordinator import wire
from coordinator.core.errors import SluiceError
from coordinator.core.ids import RunId

EVERY_ON_A_TERMINAL = timedelta(seconds=1)
EVERY_ELSEWHERE = timedelta(seconds=15)


def told(run: wire.RunDetail) -> str:
    """One line about a run."""
    live = sum(1 for each in run.incarnations if each.state == "LIVE")
    held = sum(1 for task in run.tasks if task.holder)
    batches = sum(stage.batch_id + 1 for task in run.tasks for stage in task.stages if stage.batch_id is not None)
    return f"{run.run_id} {run.state}  containers {live}/{run.containers}  tasks {held}/{len(run.tasks)}  batches {batches}"


class StatusLine:
    def __init__(self, client: Coordinator, out: TextIO) -> None:
        self._client = client
        self._out = out
        self._task: asyncio.Task[None] | None = None

    def start(self, run_id: RunId) -> None:
        self._task = asyncio.create_task(self._show(run_id))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            if self._out.isatty():
                print(file=self._out)

    async def _show(self, run_id: RunId) -> None:
        terminal = self._out.isatty()
        last = ""
        while True:
            try:
                line = told(await self._client.run(run_id))
            except SluiceError as error:
                line = f"{run_id}: the coordinator does not answer ({error})"
            if terminal:
                print(f"\r\x1b[K{line[:200]}", end="", file=self._out, flush=True)
            elif line != last:
                print(line, file=self._out, flush=True)
            last = line
            await asyncio.sleep((EVERY_ON_A_TERMINAL if terminal else EVERY_ELSEWHERE).total_seconds())
