"""Supervised processes on this machine: started, restarted when they end, up to a limit, and waited for.

The standard input of every process is a pipe on which nothing is sent. If the supervisor is killed, the pipe is closed and the processes
stop in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from containers.errors import EXIT_REPEATED_FAILURE
from containers.local import logs
from containers.local.logs import read_rotation_settings
from sluice.cli.console.pages import ProcessRow
from sluice.client import CoordinatorClient
from sluice.clock import Clock
from sluice.core.errors import BadSettings, SluiceError
from sluice.core.ids import ProcessorId, RunId
from sluice.core.jobmodels.placement import slots
from sluice.randomness import new_uuid

log = logging.getLogger(__name__)

ROTATE_EVERY = timedelta(seconds=1)
"""The interval of rotation. A log file may exceed its limit by what is written in this time."""

CRASH_WINDOW = timedelta(minutes=10)
RESTARTS = 5
"""A process that ends more often than this within the window is not restarted."""


@dataclass
class Slot:
    """A process to keep running: the coordinator, or the container of a slot. `codes`: its exit codes so far. `final`: exit codes after
    which it is not restarted. `log`: its log file in the directory of logs; by default its name and ".log"."""

    name: str
    command: list[str]
    environment: dict[str, str]
    processor_id: str | None = None
    final: frozenset[int] = frozenset()
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    crashes: list[float] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    log: str = ""
    again_at: float = 0.0

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def row(self, now: float) -> ProcessRow:
        state = "up" if self.up else f"again in {self.again_at - now:.0f}s" if self.again_at > now else "down"
        return ProcessRow(
            self.name, self.processor_id, state, self.process.pid if self.process and self.up else None, max(0, self.starts - 1)
        )

    def signal(self, which: signal.Signals) -> None:
        if self.process is not None and self.up:
            with suppress(ProcessLookupError):
                self.process.send_signal(which)


class RestartLimitReached(Exception):
    """A process has ended too often. The message says how."""

    def __init__(self, slot: Slot) -> None:
        times = "once" if len(slot.crashes) == 1 else f"{len(slot.crashes)} times within {CRASH_WINDOW}"
        super().__init__(f"{slot.name} ended {times} (exit {slot.codes[-1]})")
        self.slot = slot


class Processes:
    """`logs`: the directory of the log files, which are rotated while processes run. `restarts`: how often each may be restarted within ten
    minutes. Raises BadSettings."""

    def __init__(self, logs: Path, restarts: int, clock: Clock) -> None:
        self._logs = logs
        self._restarts = restarts
        self._clock = clock
        self._started: dict[str, Slot] = {}
        self._rotation_settings = read_rotation_settings()
        self._rotation: asyncio.Task[None] | None = None

    async def start(self, slot: Slot) -> None:
        log = self.log_of(slot)
        await asyncio.to_thread(self._prepare, log)
        with log.open("ab") as out:
            slot.process = await asyncio.create_subprocess_exec(
                *slot.command, stdin=asyncio.subprocess.PIPE, stdout=out, stderr=out, env=slot.environment, start_new_session=True
            )
        slot.starts += 1
        self._started[slot.log or slot.name] = slot
        if self._rotation is None or self._rotation.done():
            self._rotation = asyncio.create_task(self._rotate())

    def _prepare(self, log: Path) -> None:
        """Create the directory of a log file. If there are too many of them, delete the oldest ones."""
        if not log.parent.exists():
            log.parent.mkdir(parents=True)
            logs.delete_old_runs(self._logs)

    async def _rotate(self) -> None:
        """Rotate the logs as long as a process is running."""
        while running := [slot for slot in self._started.values() if slot.up]:
            for slot in running:
                await asyncio.to_thread(logs.rotate, self.log_of(slot), self._rotation_settings)
            await asyncio.sleep(ROTATE_EVERY.total_seconds())

    def due(self, slot: Slot) -> bool:
        """Whether to start a process that is down: immediately at first, then after growing pauses. Raises RestartLimitReached."""
        now = self._clock.elapsed()
        if slot.process is not None:
            slot.crashes = [at for at in slot.crashes if at > now - CRASH_WINDOW.total_seconds()] + [now]
            if slot.process.returncode is not None:
                slot.codes.append(slot.process.returncode)
            slot.process = None
            if len(slot.crashes) > self._restarts or (slot.codes and slot.codes[-1] in slot.final):
                raise RestartLimitReached(slot)
            slot.again_at = now + min(30.0, 0.5 * 2 ** (len(slot.crashes) - 1))
        return now >= slot.again_at

    def postpone(self, slot: Slot, pause: timedelta) -> None:
        """Do not start a process that is down before that time has passed."""
        slot.again_at = self._clock.elapsed() + pause.total_seconds()

    def log_of(self, slot: Slot) -> Path:
        return self._logs / (slot.log or f"{slot.name}.log")

    def last_line(self, slot: Slot) -> str:
        """The last line of its log."""
        return logs.last_line(self.log_of(slot)) or f"it wrote nothing to {self.log_of(slot)}"


async def ended(slots: Sequence[Slot], within: timedelta) -> None:
    """Wait until the processes have ended, and kill those that have not in time."""
    waits = [asyncio.create_task(slot.process.wait()) for slot in slots if slot.process is not None]
    if not waits:
        return
    _, late = await asyncio.wait(waits, timeout=within.total_seconds())
    if late:
        for slot in slots:
            slot.signal(signal.SIGKILL)
        await asyncio.wait(late, timeout=10)


FINAL = frozenset({EXIT_REPEATED_FAILURE})
"""Exit codes of a container that would fail again with the same error."""

STOP_WITHIN = timedelta(seconds=150)

SPARE_AGAIN = timedelta(minutes=1)

LOG_ENDS = "its log ends: "


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start containers. `master`: Spark's master URL; None leaves it to their settings."""

    job_file: Path
    url: str
    home: Path
    master: str | None = None

    def create_logs(self) -> Path:
        """Create the directory of the logs. Raises BadSettings."""
        directory = self.home / "logs"
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(exist_ok=True)
        except OSError as error:
            raise BadSettings(f"--home {self.home}: {error.filename} cannot be created ({error.strerror})") from error
        return directory


def container_environment(launch: Launch, run_id: str, processor_id: str) -> dict[str, str]:
    """This process's environment, and the settings of a container of that slot."""
    return {
        **os.environ,
        "SLUICE_COORDINATOR_URL": launch.url,
        "SLUICE_RUN_ID": run_id,
        "SLUICE_PROCESSOR_ID": processor_id,
        "SLUICE_HOME": str(launch.home),
        "SLUICE_STOP_WITH_STDIN": "1",
        **({"SLUICE_SPARK_MASTER": launch.master} if launch.master else {}),
    }


class LocalContainers:
    """The containers of a run, and its spare ones (`standby.warm`). With spares, a container that has ended is started again as a spare,
    because a spare has taken its slot."""

    def __init__(self, launch: Launch, processes: Processes, client: CoordinatorClient, run_id: RunId, containers: int) -> None:
        self._processes = processes
        self._client = client
        self._run_id = run_id
        self._launch = launch
        self._wanted = slots(containers)
        self._spares = 0
        self._slots: dict[str, Slot] = {}

    @property
    def slots(self) -> Sequence[Slot]:
        return list(self._slots.values())

    def scale(self, wanted: Sequence[ProcessorId], spares: int = 0) -> None:
        """Set the slots of the run, and the number of spares. Containers of removed slots end by themselves, and are not restarted."""
        self._wanted, self._spares = list(wanted), spares

    def _slot(self, name: str, slot: str | None) -> Slot:
        command = [sys.executable, "-P", "-m", "sluice", "container", str(self._launch.job_file)]
        made = Slot(name, command, container_environment(self._launch, self._run_id, slot or "0"), slot, FINAL)
        made.log = f"{self._run_id}/{name}.log"
        made.environment["SLUICE_LOG_FILE"] = str(log := self._processes.log_of(made))
        made.environment["SLUICE_JVM_LOG"] = str(log.with_name(f"jvm-{name.removeprefix('container-')}.log").absolute())
        return made

    @property
    def up(self) -> Sequence[Slot]:
        return [slot for slot in self.slots if slot.up]

    async def keep_up(self) -> None:
        """Start containers that are down and due. Raises RestartLimitReached."""
        wanted: dict[str, str | None] = {f"container-{slot}": slot for slot in self._wanted}
        wanted |= {f"spare-{number}": None for number in range(self._spares)}
        self._slots = {name: slot for name, slot in self._slots.items() if slot.up or name in wanted}
        for slot in [self._slots.setdefault(name, self._slot(name, number)) for name, number in wanted.items()]:
            if not slot.up and self._due(slot):
                if self._spares and slot.starts:
                    slot.processor_id = None
                if slot.processor_id is None:
                    slot.environment.pop("SLUICE_PROCESSOR_ID", None)
                slot.environment["SLUICE_SPARE"] = str(slot.processor_id is None).lower()
                slot.environment["EXECUTION_ENV_CONTAINER_ID"] = f"{self._run_id}-{slot.name}-{new_uuid().hex[:8]}"
                await self._processes.start(slot)

    def _due(self, slot: Slot) -> bool:
        """See `Processes.due`. A spare that cannot run, for example because the machine has no memory for it, is started again each minute
        while there is a container for each slot. Raises RestartLimitReached."""
        try:
            return self._processes.due(slot)
        except RestartLimitReached:
            if slot.environment.get("SLUICE_SPARE") != "true" or len(self.up) < len(self._wanted):
                raise
            log.warning("%s does not stay up, and is started once a minute: see %s", slot.name, self._processes.log_of(slot))
            self._processes.postpone(slot, SPARE_AGAIN)
            return False

    async def cause(self, often: RestartLimitReached) -> str:
        """Why and how a container ended, and where its log is. The text begins with the reason that the container reported, or has the last
        line of its log."""
        last, log = often.slot.environment.get("EXECUTION_ENV_CONTAINER_ID"), f"log: {self._processes.log_of(often.slot)}"
        with suppress(SluiceError):
            for each in (await self._client.run(self._run_id)).incarnations:
                if each.execution_container_id == last and each.reason:
                    return f"{each.reason}\n{often}" + ("" if log in each.reason else f"\n{log}")
        return f"{often}: {LOG_ENDS}{self._processes.last_line(often.slot)}\n{log}"

    def signal(self, which: signal.Signals) -> None:
        for slot in self.slots:
            slot.signal(which)

    async def ended(self) -> None:
        """Wait until the running containers have ended. They must have been asked to stop."""
        await ended(self.up, STOP_WITHIN)
