"""What `sluice run` says where there is no terminal: a line about the run now and then, when there is something new."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TextIO

from containers.client import Coordinator
from sluice.core.errors import SluiceError
from sluice.core.ids import RunId
from sluice.wire import runs as wire_runs

LINE_EVERY = timedelta(seconds=15)


def told(run: wire_runs.RunDetail) -> str:
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

    def ending(self, how: str) -> None:
        """Nothing more is said."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _show(self, run_id: RunId) -> None:
        last = ""
        while True:
            try:
                line = told(await self._client.run(run_id))
            except SluiceError as error:
                line = f"{run_id}: the coordinator does not answer ({error})"
            if line != last:
                print(line, file=self._out, flush=True)
            last = line
            await asyncio.sleep(LINE_EVERY.total_seconds())
