"""`sluice upgrade --local` (deprecated): runs the containers of the new version, or of the old one after a rollback, as local processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from containers.local.processes import Launch, LocalContainers, Processes, RestartLimitReached
from containers.local.run import STOPPING, display_of
from sluice.cli.console.pages import ProcessRow
from sluice.cli.upgrade.decide import LocalOptions
from sluice.cli.upgrade.watch import ORDERLY_CODES
from sluice.client import CoordinatorClient
from sluice.clock import Clock
from sluice.core.errors import SluiceError
from sluice.core.ids import RunId
from sluice.core.jobmodels.placement import spares_of
from sluice.core.lifecycle import RunState

TICK = timedelta(seconds=1)


class LocalUpgrade:
    """The containers of one run at a time. Raises BadSettings if the home directory cannot be created."""

    def __init__(self, options: LocalOptions, url: str, client: CoordinatorClient, clock: Clock) -> None:
        self._options = options
        self._url = url
        self._client = client
        self._clock = clock
        self._processes = Processes(self._launch(Path()).create_logs(), options.restarts, clock)
        self._run_id: RunId | None = None
        self._containers: LocalContainers | None = None

    def _launch(self, job_file: Path) -> Launch:
        return Launch(job_file.absolute(), self._url, self._options.home.absolute(), self._options.master)

    def has(self, run_id: RunId) -> bool:
        return self._run_id == run_id

    def take(self, job_file: Path, run_id: RunId, containers: int) -> None:
        """Start the containers of this run, from the next `keep_up` on."""
        self._run_id = run_id
        self._containers = LocalContainers(self._launch(job_file), self._processes, self._client, run_id, containers)

    async def keep_up(self) -> str:
        """Start containers that are down. Returns how a container failed, "" if none has."""
        assert self._containers is not None
        try:
            await self._containers.keep_up()
        except RestartLimitReached as often:
            return await self._containers.cause(often)
        return self._containers.failed(ORDERLY_CODES)

    async def await_exit(self) -> None:
        """Wait until the containers of a run that is being stopped have ended."""
        if self._containers is not None:
            await self._containers.ended()

    async def stop_containers(self) -> None:
        """Stop the containers, but not the run."""
        if self._containers is not None and self._containers.up:
            self._containers.signal(signal.SIGTERM)
            await self._containers.ended()

    async def run_until_stopped(self) -> str:
        """Run, as `sluice run` does, until Ctrl-C, the end of the run, or a failure, which is returned."""
        assert self._containers is not None
        assert self._run_id is not None
        stopping = asyncio.Event()
        signals = 0

        def on_signal() -> None:
            nonlocal signals
            signals += 1
            stopping.set()
            if signals > 1 and self._containers is not None:
                self._containers.signal(signal.SIGTERM)

        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, on_signal)
        display = display_of(self._client, self._rows, self._clock)
        display.start(self._run_id)
        failure = ""
        try:
            failure = await self._until_the_end(self._containers, self._run_id, stopping)
        finally:
            display.ending(STOPPING)
            try:
                await self._client.stop_run(self._run_id, failure or "sluice upgrade ends", failed=bool(failure))
            except SluiceError:
                self._containers.signal(signal.SIGTERM)
            await self._containers.ended()
            await display.stop()
        return failure

    async def _until_the_end(self, containers: LocalContainers, run_id: RunId, stopping: asyncio.Event) -> str:
        while not stopping.is_set():
            with suppress(SluiceError):
                run = await self._client.run(run_id)
                containers.scale(run.processors, spares_of(run.config))
                if run.state.ended:
                    return f"the run failed: {run.reason}" if run.state is RunState.FAILED else ""
                if run.stop_requested_at is not None and not containers.up:
                    return ""
            try:
                await containers.keep_up()
            except RestartLimitReached as often:
                return await containers.cause(often)
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK.total_seconds()):
                    await stopping.wait()
        return ""

    def _rows(self) -> Sequence[ProcessRow]:
        now = self._clock.elapsed()
        return [] if self._containers is None else [slot.row(now) for slot in self._containers.slots]
