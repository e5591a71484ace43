"""Processes of this machine that are to be there: started, started again when they end, up to a limit, and seen out.

Every process is started by us with a pipe as its standard input that carries nothing: if we are killed, it ends, and they stop in order.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from sluice.cli.console.pages import ProcessRow
from sluice.clock import Clock

CRASH_WINDOW = timedelta(minutes=10)
RESTARTS = 5
"""A process that ends more often than this within the window is not started again."""


@dataclass
class Slot:
    """A process that is to be there: the coordinator, or a container of a slot. `codes`: with which exit codes it ended."""

    name: str
    command: list[str]
    environment: dict[str, str]
    processor_id: str | None = None
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    crashes: list[float] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
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


class EndedTooOften(Exception):
    """A process ended more often than it may; the message says how."""

    def __init__(self, slot: Slot) -> None:
        times = "once" if len(slot.crashes) == 1 else f"{len(slot.crashes)} times within {CRASH_WINDOW}"
        super().__init__(f"{slot.name} ended {times} (exit {slot.codes[-1]})")
        self.slot = slot


class Processes:
    """`logs`: the directory where each has a file of its own. `restarts`: how often each may be started again within ten minutes."""

    def __init__(self, logs: Path, restarts: int, clock: Clock) -> None:
        self._logs = logs
        self._restarts = restarts
        self._clock = clock

    async def start(self, slot: Slot) -> None:
        with (self._logs / f"{slot.name}.log").open("ab") as out:
            slot.process = await asyncio.create_subprocess_exec(
                *slot.command, stdin=asyncio.subprocess.PIPE, stdout=out, stderr=out, env=slot.environment, start_new_session=True
            )
        slot.starts += 1

    def due(self, slot: Slot) -> bool:
        """Whether a process that is down is to be started now: at once at first, then with growing pauses. Raises EndedTooOften."""
        now = self._clock.elapsed()
        if slot.process is not None:
            slot.crashes = [at for at in slot.crashes if at > now - CRASH_WINDOW.total_seconds()] + [now]
            if slot.process.returncode is not None:
                slot.codes.append(slot.process.returncode)
            slot.process = None
            if len(slot.crashes) > self._restarts:
                raise EndedTooOften(slot)
            slot.again_at = now + min(30.0, 0.5 * 2 ** (len(slot.crashes) - 1))
        return now >= slot.again_at

    def last_line(self, slot: Slot) -> str:
        """Of its log."""
        lines = (self._logs / f"{slot.name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it wrote nothing to {self._logs / slot.name}.log"


async def ended(slots: Sequence[Slot], within: timedelta) -> None:
    """Wait until the processes have ended; those that are late are killed."""
    waits = [asyncio.create_task(slot.process.wait()) for slot in slots if slot.process is not None]
    if not waits:
        return
    _, late = await asyncio.wait(waits, timeout=within.total_seconds())
    if late:
        for slot in slots:
            slot.signal(signal.SIGKILL)
        await asyncio.wait(late, timeout=10)
