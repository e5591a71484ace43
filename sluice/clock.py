"""The only place that reads a clock.

`elapsed` is the clock of leases: it never jumps, and on Linux it continues while the machine is suspended (CLOCK_BOOTTIME), so that a
suspended virtual machine knows when it resumes that its lease has expired. It is the same for all processes of one machine.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

from sluice.core.ids import Instant


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day in UTC, for records and output, never for leases."""
        ...

    def elapsed(self) -> Instant:
        """Seconds on a clock that never jumps."""
        ...


_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def elapsed(self) -> Instant:
        if _BOOT is not None:
            return Instant(time.clock_gettime(_BOOT))
        return Instant(time.monotonic())
