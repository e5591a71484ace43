"""`sluice run`: the coordinator and the containers of one run as processes of this machine, restarted when they crash."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from containers.errors import CoordinatorNotStarted
from containers.local.ports import check_free, free_ports
from containers.local.processes import LOG_ENDS, RESTARTS, Launch, LocalContainers, Processes, RestartLimitReached, Slot, ended
from containers.settings import read_container_settings
from containers.worker_python import last_on_path
from sluice.cli.console.live import LiveTable, StatusLine
from sluice.cli.console.pages import ProcessRow
from sluice.cli.console.tables import Screen, is_interactive
from sluice.client import LOCAL, CoordinatorClient
from sluice.clock import Clock, SystemClock
from sluice.core.errors import BadOption, BadSettings, SluiceError
from sluice.core.ids import RunId
from sluice.core.jobmodels.placement import spares_of
from sluice.core.lifecycle import RunState
from sluice.core.remedies import plain, remedy_of_error, remedy_of_reason
from sluice.deploy import job_request
from sluice.disks import checked_path
from sluice.installed_spark import checked_spark
from sluice.wire import runs as wire_runs

LOCAL_KAFKA = "127.0.0.1:9092"
RUN_FAILED = "the run failed: "
STOPPING = "stopping between two batches; a second Ctrl-C interrupts them"
TICK = timedelta(seconds=1)
START_WITHIN = timedelta(seconds=30)
NEXT_WITHIN = timedelta(seconds=10)
"""How long the coordinator waits after a drain for the job's next run, which `sluice upgrade` deploys immediately."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    job_file: Path
    request: wire_runs.RunRequest
    home: Path
    port: int
    master: str | None = None
    """Spark's master URL for the containers; None leaves it to their settings."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def launch(self) -> Launch:
        return Launch(self.job_file, self.url, self.home, self.master)


def run_options(
    job_file: Path,
    containers: int,
    home: Path,
    port: int,
    start: str,
    system: str,
    config: Sequence[str],
    bind: Sequence[str] = (),
    master: str | None = None,
) -> RunOptions:
    """Check the options, Spark and the settings of the containers, as far as possible before a process is started. Raises BadJobFile,
    BadSettings, BadPlacement, PySparkMissing, SparkUnsupported."""
    checked_spark(os.environ)
    request = job_request(job_file, containers, start, system, config, bind)
    try:
        checked_path(home)
    except ValueError as error:
        raise BadSettings(f"--home: {error}") from None
    if not 0 <= port <= 65535:
        raise BadOption(f"--port takes 0 to 65535, not {port}")
    _check_container_settings(home)
    return RunOptions(job_file.absolute(), request, home.absolute(), port or free_ports(1)[0], master)


def _check_container_settings(home: Path) -> None:
    """Raises BadSettings for a variable of the environment that every container would refuse. Those that `container_environment` and
    `LocalContainers` set do not matter."""
    read_container_settings(coordinator_url=LOCAL, run_id="run", processor_id="0", home=home, EXECUTION_ENV_CONTAINER_ID="container")


def coordinator_environment(options: RunOptions) -> dict[str, str]:
    """This process's environment, with defaults: Kafka is the broker that `sluice kafka up` starts. The grouper of the job is allowed,
    because the job file runs with the same rights anyway."""
    kafka = {"SLUICE_KAFKA_BOOTSTRAP": LOCAL_KAFKA} if any(each.system == "kafka" for each in options.request.streams) else {}
    grouper = options.request.grouper
    if ":" not in grouper:
        return {**kafka, **os.environ}
    return {**kafka, **os.environ, "SLUICE_GROUPERS": json.dumps([grouper])}


def coordinator_command(options: RunOptions) -> list[str]:
    """The coordinator can also import a grouper from the directory of the job file."""
    path = last_on_path(options.job_file.parent) if ":" in options.request.grouper else []
    return [
        *(sys.executable, "-P", *path, "-m", "sluice", "coordinator", "--stop-with-stdin"),
        *("--host", "127.0.0.1", "--port", str(options.port), "--home", str(options.home)),
    ]


def display_of(client: CoordinatorClient, rows: Callable[[], Sequence[ProcessRow]], clock: Clock) -> LiveTable | StatusLine:
    """A table on a terminal, otherwise status lines."""
    screen = Screen(sys.stdout)
    if is_interactive(screen.console):
        return LiveTable(client, screen, rows, clock)
    return StatusLine(client, sys.stdout, clock)


class LocalRun:
    def __init__(self, options: RunOptions, restarts: int = RESTARTS) -> None:
        self._options = options
        self._stopping = asyncio.Event()
        self._signals = 0
        self._on_terminal = False
        self._coordinator = Slot("coordinator", coordinator_command(options), coordinator_environment(options))
        self._containers: LocalContainers | None = None
        self._client = CoordinatorClient(options.url)
        self._clock = SystemClock()
        self._processes = Processes(options.home / "logs", restarts, self._clock)
        self._run_id = RunId("")
        self._failure = self._remedy = ""

    async def run(self) -> int:
        """Run until Ctrl-C, the end of the run, or a failure. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._on_signal)
        display = display_of(self._client, self._rows, self._clock)
        self._on_terminal = isinstance(display, LiveTable)
        try:
            await self._serve(display)
        except SluiceError as error:
            if not self._failure:
                self._failure, self._remedy = f"{error.title()} {error}", self._remedy or remedy_of_error(error)
        except RestartLimitReached as often:
            self._failure = await self._why(often)
        finally:
            display.ending(STOPPING)
            await self._end_containers()
            await display.stop()
            await self._end_coordinator()
            await self._client.close()
        if self._failure:
            print(f"sluice: {self._failure}", file=sys.stderr)
            if remedy := self._remedy or remedy_of_reason(self._failure.removeprefix(RUN_FAILED).rpartition(LOG_ENDS)[2]):
                print(f"remedy: {plain(remedy)}", file=sys.stderr)
            return 1
        return 0

    async def _serve(self, display: LiveTable | StatusLine) -> None:
        """Raises SluiceError, RestartLimitReached."""
        self._options.launch.create_logs()
        await self._start_coordinator()
        if self._stopping.is_set():
            return
        await self._deploy()
        display.start(self._run_id)
        if await self._supervise() is RunState.DRAINED:
            await display.stop()
            print(f"run {self._run_id} is drained: the next run starts where it ended", flush=True)
            await self._serve_next()

    def _rows(self) -> Sequence[ProcessRow]:
        now = self._clock.elapsed()
        return [slot.row(now) for slot in (self._coordinator, *self._slots)]

    @property
    def _slots(self) -> Sequence[Slot]:
        return self._containers.slots if self._containers else ()

    def _on_signal(self) -> None:
        self._signals += 1
        self._stopping.set()
        if self._signals == 1 and not self._on_terminal:  # there, the table says it
            print(STOPPING, file=sys.stderr, flush=True)
        if self._signals > 1 and self._containers is not None:
            self._containers.signal(signal.SIGTERM)

    async def _start_coordinator(self) -> None:
        """Returns when it answers, or after Ctrl-C. Raises BadOption, CoordinatorNotStarted."""
        try:
            check_free(self._options.port)
        except OSError as error:
            raise BadOption(f"port {self._options.port} is in use ({error.strerror}): choose another one with --port, or 0") from error
        await self._processes.start(self._coordinator)
        give_up = self._clock.elapsed() + START_WITHIN.total_seconds()
        while not await self._answers():
            if self._stopping.is_set():
                return
            if not self._coordinator.up or self._clock.elapsed() > give_up:
                why = self._processes.last_line(self._coordinator)
                self._remedy = remedy_of_reason(why)
                raise CoordinatorNotStarted(f"{why}\nlog: {self._processes.log_of(self._coordinator)}")
            await self._pause(timedelta(seconds=0.1))
        print(f"coordinator {self._options.url}", flush=True)

    async def _answers(self) -> bool:
        try:
            await self._client.live()
        except SluiceError:
            return False
        return True

    async def _deploy(self) -> None:
        run = await self._client.deploy(self._options.request)
        self._run_id = RunId(run.run_id)
        print(f"run {run.run_id}", flush=True)
        print(f"pages {self._options.url}/ui/jobs/{run.job}", flush=True)
        self._containers = LocalContainers(
            self._options.launch, self._processes, self._client, self._run_id, self._options.request.containers
        )

    async def _supervise(self) -> RunState | None:
        """Supervise the containers until the run has ended. Returns its state; None after Ctrl-C, or if the run was stopped and its
        containers have ended. Raises RestartLimitReached."""
        assert self._containers is not None
        while not self._stopping.is_set():
            await self._keep_coordinator()
            with suppress(SluiceError):
                run = await self._client.run(self._run_id)
                self._containers.scale(run.processors, spares_of(run.config))
                if run.state.ended:
                    self._failure = self._failure or (f"{RUN_FAILED}{run.reason}" if run.state is RunState.FAILED else "")
                    return run.state
                if run.stop_requested_at is not None and not self._containers.up:
                    return None
            await self._containers.keep_up()
            await self._pause(TICK)
        return None

    async def _keep_coordinator(self) -> None:
        """Raises RestartLimitReached."""
        if not self._coordinator.up and self._processes.due(self._coordinator):
            await self._processes.start(self._coordinator)

    async def _serve_next(self) -> None:
        """After a drain, keep the coordinator running for the job's next runs, which another command deploys, until the last one has ended
        and no other follows within NEXT_WITHIN. Raises RestartLimitReached."""
        assert self._containers is not None
        await self._containers.ended()
        give_up, announced = self._clock.elapsed() + NEXT_WITHIN.total_seconds(), self._run_id
        while not self._stopping.is_set() and self._clock.elapsed() < give_up:
            await self._keep_coordinator()
            with suppress(SluiceError):
                current = next(each for each in (await self._client.jobs()).jobs if each.job == self._options.request.job)
                if not current.state.ended:
                    give_up = self._clock.elapsed() + NEXT_WITHIN.total_seconds()
                if current.current_run != announced:
                    announced = RunId(current.current_run)
                    print(f"the coordinator keeps running for run {announced}", flush=True)
            await self._pause(TICK)

    async def _why(self, often: RestartLimitReached) -> str:
        if often.slot is self._coordinator or self._containers is None:
            return f"{often}: {LOG_ENDS}{self._processes.last_line(often.slot)}\nlog: {self._processes.log_of(often.slot)}"
        return await self._containers.cause(often)

    async def _pause(self, duration: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(duration.total_seconds()):
                await self._stopping.wait()

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _end_containers(self) -> None:
        """Stop the run, and wait for its containers."""
        with suppress(SluiceError):
            if self._run_id and self._coordinator.up:
                await self._client.stop_run(self._run_id, self._failure or "sluice run ends", failed=bool(self._failure))
        if self._containers is not None:
            if not self._coordinator.up:
                self._containers.signal(signal.SIGTERM)
            await self._containers.ended()

    async def _end_coordinator(self) -> None:
        """Stop the coordinator, after the containers, which need it in order to stop."""
        if self._coordinator.up:
            self._coordinator.signal(signal.SIGTERM)
            await ended([self._coordinator], START_WITHIN)
