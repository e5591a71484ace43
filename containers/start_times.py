"""How long each part of a container's start takes, from the start of its process to the end of its first batch."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from enum import StrEnum

import psutil

from sluice.clock import Clock
from sluice.core.ids import Instant

log = logging.getLogger(__name__)


class Part(StrEnum):
    """The parts, in their usual order. `docs/operating.md` says what each contains."""

    PROCESS = "process"
    COORDINATOR = "coordinator"
    JVM = "jvm"
    SESSION = "session"
    CONNECTORS = "connectors"
    WARM_UP = "warm-up"
    SLOT = "slot"
    RESTORE = "restore"
    QUERY = "query"
    BATCH = "batch"


class StartTimes:
    """Logs one line when the first batch has ended. Several queries may start at the same time. Only the first end of each part counts, so
    that the line describes what is on the way to the first output. Thread-safe."""

    def __init__(self, clock: Clock, began: Instant) -> None:
        self._clock = clock
        self._began = began
        self._ends: dict[Part, Instant] = {}
        self._lock = threading.Lock()

    def ended(self, part: Part) -> None:
        with self._lock:
            if part in self._ends or Part.BATCH in self._ends:
                return
            self._ends[part] = self._clock.elapsed()
        if part is Part.BATCH:
            log.info("%s", self)

    def __str__(self) -> str:
        """Each part lasts from the end of the part before."""
        ends = sorted(self._ends.items(), key=lambda end: end[1])
        since = [self._began, *(at for _, at in ends)]
        parts = ", ".join(f"{part} {at - former:.2f}" for (part, at), former in zip(ends, since, strict=False))
        return f"first batch {since[-1] - self._began:.2f} s after the start of the process: {parts}"


def process_began(clock: Clock, pid: int | None = None) -> Instant:
    """When the process was started, by default this one. Where `Clock.elapsed` does not count from the boot of the machine: now."""
    now = clock.elapsed()
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        return min(now, Instant(process.create_time() - psutil.boot_time()))
    return now
