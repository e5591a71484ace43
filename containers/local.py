"""`sluice run`: the coordinator and the containers of one run as processes of this machine, restarted when they crash.

Every process is started by us with a pipe as its standard input that carries nothing: if we are killed, it ends, and they stop in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from containers.client import Coordinator
from containers.deploy import job_request
from containers.livetable import LiveTable
from containers.pages import ProcessRow
from containers.statusline import StatusLine
from containers.tables import Screen, is_interactive
from coordinator import wire
from coordinator.clock import SystemClock
from coordinator.core.errors import BadSettings, CoordinatorUnreachable, SluiceError
from coordinator.core.ids import RunId
from coordinator.core.placement import slots

LOCAL_KAFKA = "127.0.0.1:9092"
TICK = timedelta(seconds=1)
START_WITHIN = timedelta(seconds=30)
STOP_WITHIN = timedelta(seconds=150)
CRASH_WINDOW = timedelta(minutes=10)
RESTARTS = 5
"""A container that crashes more often than this within the window ends the run as FAILED."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    job_file: Path
    request: wire.RunRequest
    home: Path
    port: int
    master: str | None = None
    """Spark's, for the containers; None leaves it to their settings."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


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
    """Check everything that can be checked before a process is started. Raises BadJobFile, BadSettings, BadPlacement."""
    request = job_request(job_file, containers, start, system, config, bind)
    if not 0 <= port <= 65535:
        raise BadSettings(f"--port takes 0 to 65535, not {port}")
    return RunOptions(job_file.absolute(), request, home.absolute(), port or _free_port(), master)


def coordinator_environment(options: RunOptions) -> dict[str, str]:
    """Ours; a run on Kafka without a word of where it is takes the broker that `sluice kafka up` starts. A grouper that the job names is
    looked for beside the job file and allowed: whoever runs the file runs its code anyway."""
    kafka = {"SLUICE_KAFKA_BOOTSTRAP": LOCAL_KAFKA} if any(each.system == "kafka" for each in options.request.streams) else {}
    grouper = options.request.grouper
    if ":" not in grouper:
        return {**kafka, **os.environ}
    path = os.pathsep.join(filter(None, [str(options.job_file.parent), os.environ.get("PYTHONPATH")]))
    return {**kafka, **os.environ, "SLUICE_GROUPERS": json.dumps([grouper]), "PYTHONPATH": path}


def container_environment(options: RunOptions, run_id: str, processor_id: str) -> dict[str, str]:
    """Ours, and what a container of that slot needs to know."""
    return {
        **os.environ,
        "SLUICE_COORDINATOR_URL": options.url,
        "SLUICE_RUN_ID": run_id,
        "SLUICE_PROCESSOR_ID": processor_id,
        "SLUICE_HOME": str(options.home),
        "SLUICE_STOP_WITH_STDIN": "1",
        **({"SLUICE_SPARK_MASTER": options.master} if options.master else {}),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Slot:
    """A process that is to be there: the coordinator, or a container of a slot."""

    name: str
    command: list[str]
    environment: dict[str, str]
    processor_id: str | None = None
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    crashes: list[float] = field(default_factory=list)
    again_at: float = 0.0

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def row(self, now: float) -> ProcessRow:
        state = "up" if self.up else f"again in {self.again_at - now:.0f}s" if self.again_at > now else "down"
        return ProcessRow(
            self.name, self.processor_id, state, self.process.pid if self.process and self.up else None, max(0, self.starts - 1)
        )


class LocalRun:
    def __init__(self, options: RunOptions, restarts: int = RESTARTS) -> None:
        self._options = options
        self._restarts = restarts
        self._logs = options.home / "logs"
        self._stopping = asyncio.Event()
        self._signals = 0
        self._coordinator = Slot("coordinator", self._coordinator_command(), coordinator_environment(options))
        self._containers: list[Slot] = []
        self._client = Coordinator(options.url)
        self._clock = SystemClock()
        self._run_id = RunId("")
        self._failure = ""

    def _coordinator_command(self) -> list[str]:
        o = self._options
        return [
            *(sys.executable, "-m", "coordinator.cli", "coordinator", "--stop-with-stdin"),
            *("--host", "127.0.0.1", "--port", str(o.port), "--home", str(o.home)),
        ]

    async def run(self) -> int:
        """Until Ctrl-C, the end of the run, or a failure; the exit code."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._on_signal)
        display = self._display()
        try:
            self._make_home()
            await self._start_coordinator()
            await self._deploy()
            display.start(self._run_id)
            await self._supervise()
        except SluiceError as error:
            self._failure = self._failure or f"{error.title()} {error}"
        finally:
            display.ending("stopping between batches; Ctrl-C again interrupts them")
            await self._end_containers()
            await display.stop()
            await self._end_coordinator()
            await self._client.close()
        if self._failure:
            print(f"sluice: {self._failure}", file=sys.stderr)
            return 1
        return 0

    def _display(self) -> LiveTable | StatusLine:
        screen = Screen(sys.stdout)
        if is_interactive(screen.console):
            return LiveTable(self._client, screen, self._processes, self._clock)
        return StatusLine(self._client, sys.stdout)

    def _processes(self) -> Sequence[ProcessRow]:
        now = self._clock.elapsed()
        return [slot.row(now) for slot in (self._coordinator, *self._containers)]

    def _make_home(self) -> None:
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadSettings(f"--home {self._options.home}: {error.filename} cannot be made ({error.strerror})") from error

    def _on_signal(self) -> None:
        self._signals += 1
        self._stopping.set()
        for slot in self._containers if self._signals > 1 else ():
            self._signal(slot, signal.SIGTERM)

    async def _start(self, slot: Slot) -> None:
        with (self._logs / f"{slot.name}.log").open("ab") as out:
            slot.process = await asyncio.create_subprocess_exec(
                *slot.command, stdin=asyncio.subprocess.PIPE, stdout=out, stderr=out, env=slot.environment, start_new_session=True
            )
        slot.starts += 1

    async def _start_coordinator(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self._options.port))
            except OSError as error:
                raise BadSettings(f"port {self._options.port} is taken ({error.strerror}): choose another with --port, or 0") from error
        await self._start(self._coordinator)
        give_up = self._clock.elapsed() + START_WITHIN.total_seconds()
        while not await self._answers():
            if not self._coordinator.up or self._clock.elapsed() > give_up:
                raise CoordinatorUnreachable(f"the coordinator did not start: {self._tail(self._coordinator)}")
            await self._pause(timedelta(seconds=0.1))
        print(f"coordinator {self._options.url}", flush=True)

    async def _answers(self) -> bool:
        try:
            await self._client.live()
        except SluiceError:
            return False
        return True

    def _tail(self, slot: Slot) -> str:
        lines = (self._logs / f"{slot.name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it wrote nothing to {self._logs / slot.name}.log"

    async def _deploy(self) -> None:
        run = await self._client.deploy(self._options.request)
        self._run_id = RunId(run.run_id)
        print(f"run {run.run_id}", flush=True)
        for processor_id in slots(self._options.request.containers):
            environment = container_environment(self._options, run.run_id, processor_id)
            command = [sys.executable, "-m", "coordinator.cli", "container", str(self._options.job_file)]
            self._containers.append(Slot(f"container-{processor_id}", command, environment, processor_id))

    async def _supervise(self) -> None:
        while not self._stopping.is_set():
            if not self._coordinator.up and await self._may_start(self._coordinator):
                await self._start(self._coordinator)
            for slot in self._containers:
                if not slot.up and await self._may_start(slot):
                    slot.environment["EXECUTION_ENV_CONTAINER_ID"] = f"{self._run_id}-{slot.name}-{uuid4().hex[:8]}"
                    await self._start(slot)
            if await self._run_ended():
                return
            await self._pause(TICK)

    async def _may_start(self, slot: Slot) -> bool:
        """Whether a process that is down is to be started now: at once at first, then with growing pauses, up to a limit."""
        now = self._clock.elapsed()
        if slot.process is not None:
            slot.crashes = [at for at in slot.crashes if at > now - CRASH_WINDOW.total_seconds()] + [now]
            code, slot.process = slot.process.returncode, None
            if len(slot.crashes) > self._restarts:
                times = "once" if len(slot.crashes) == 1 else f"{len(slot.crashes)} times within {CRASH_WINDOW}"
                self._failure = f"{slot.name} ended {times} (exit {code}): {await self._why(slot)}"
                self._stopping.set()
                return False
            slot.again_at = now + min(30.0, 0.5 * 2 ** (len(slot.crashes) - 1))
        return now >= slot.again_at

    async def _why(self, slot: Slot) -> str:
        """Why a process ended: what the coordinator was told, else the last of its log."""
        last = slot.environment.get("EXECUTION_ENV_CONTAINER_ID")
        with suppress(SluiceError):
            for each in (await self._client.run(self._run_id)).incarnations:
                if each.execution_container_id == last and each.reason:
                    return each.reason
        return f"its log ends: {self._tail(slot)}"

    async def _run_ended(self) -> bool:
        try:
            run = await self._client.run(self._run_id)
        except SluiceError:
            return False
        if run.state.ended:
            self._failure = self._failure or (f"the run failed: {run.reason}" if run.state == "FAILED" else "")
            return True
        return run.stop_requested_at is not None and all(not slot.up for slot in self._containers)

    async def _pause(self, duration: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(duration.total_seconds()):
                await self._stopping.wait()

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _end_containers(self) -> None:
        """Stop the run and wait for its containers."""
        with suppress(SluiceError):
            if self._run_id and self._coordinator.up:
                await self._client.stop_run(self._run_id, self._failure or "sluice run ends", failed=bool(self._failure))
        waited = [slot for slot in self._containers if slot.up]
        if not self._coordinator.up:
            for slot in waited:
                self._signal(slot, signal.SIGTERM)
        await self._wait_for(waited, STOP_WITHIN)

    async def _end_coordinator(self) -> None:
        """After the containers, which need its word."""
        if self._coordinator.up:
            self._signal(self._coordinator, signal.SIGTERM)
            await self._wait_for([self._coordinator], START_WITHIN)

    def _signal(self, slot: Slot, which: signal.Signals) -> None:
        if slot.process is not None and slot.process.returncode is None:
            with suppress(ProcessLookupError):
                slot.process.send_signal(which)

    async def _wait_for(self, slots_: Sequence[Slot], within: timedelta) -> None:
        waits = [asyncio.create_task(slot.process.wait()) for slot in slots_ if slot.process is not None]
        if not waits:
            return
        _, late = await asyncio.wait(waits, timeout=within.total_seconds())
        if late:
            for slot in slots_:
                self._signal(slot, signal.SIGKILL)
            await asyncio.wait(late, timeout=10)
