"""The containers of one run as processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from containers.supervised import EndedTooOften, Processes, Slot, ended
from sluice.client import Coordinator
from sluice.core.errors import BadSettings, SluiceError
from sluice.core.ids import RunId
from sluice.core.placement import slots

STOP_WITHIN = timedelta(seconds=150)


@dataclass(frozen=True, slots=True)
class Launch:
    """What containers are started with. `master`: Spark's; None leaves it to their settings."""

    job_file: Path
    url: str
    home: Path
    master: str | None = None

    def made_logs(self) -> Path:
        """The directory of the processes' logs, made. Raises BadSettings."""
        logs = self.home / "logs"
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadSettings(f"--home {self.home}: {error.filename} cannot be made ({error.strerror})") from error
        return logs


def container_environment(launch: Launch, run_id: str, processor_id: str) -> dict[str, str]:
    """Ours, and what a container of that slot needs to know."""
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
    def __init__(self, launch: Launch, processes: Processes, client: Coordinator, run_id: RunId, containers: int) -> None:
        self._processes = processes
        self._client = client
        self._run_id = run_id
        self._launch = launch
        self._wanted = slots(containers)
        self._slots: dict[str, Slot] = {}

    @property
    def slots(self) -> Sequence[Slot]:
        return list(self._slots.values())

    def scale(self, containers: int) -> None:
        """The run has so many slots. The container of one that is no more ends by itself, and is not started again."""
        self._wanted = slots(containers)

    def _slot(self, slot: str) -> Slot:
        command = [sys.executable, "-P", "-m", "coordinator.cli.commands", "container", str(self._launch.job_file)]
        return Slot(f"container-{slot}", command, container_environment(self._launch, self._run_id, slot), slot)

    @property
    def up(self) -> Sequence[Slot]:
        return [slot for slot in self.slots if slot.up]

    async def keep_up(self) -> None:
        """Start those that are down and may be started. Raises EndedTooOften."""
        self._slots = {name: slot for name, slot in self._slots.items() if slot.up or name in self._wanted}
        for slot in (self._slots.setdefault(name, self._slot(name)) for name in self._wanted):
            if not slot.up and self._processes.due(slot):
                slot.environment["EXECUTION_ENV_CONTAINER_ID"] = f"{self._run_id}-{slot.name}-{uuid4().hex[:8]}"
                await self._processes.start(slot)

    async def told(self, often: EndedTooOften) -> str:
        """How one ended, and why: what the coordinator was told, else the last of its log."""
        last = often.slot.environment.get("EXECUTION_ENV_CONTAINER_ID")
        with suppress(SluiceError):
            for each in (await self._client.run(self._run_id)).incarnations:
                if each.execution_container_id == last and each.reason:
                    return f"{often}: {each.reason}"
        return f"{often}: its log ends: {self._processes.last_line(often.slot)}"

    def failed(self, orderly: Sequence[int]) -> str:
        """Of one that ended with another exit code than these, how; "" without one."""
        for slot in self.slots:
            code = next((code for code in slot.codes if code not in orderly), None)
            if code is not None:
                return f"{slot.name} ended with exit code {code}: its log ends: {self._processes.last_line(slot)}"
        return ""

    def signal(self, which: signal.Signals) -> None:
        for slot in self.slots:
            slot.signal(which)

    async def ended(self) -> None:
        """Wait until those that are up have ended, which somebody has told them to."""
        await ended(self.up, STOP_WITHIN)
