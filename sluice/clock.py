"""The clocks. No other module reads the time.

`elapsed` is the monotonic clock, which is used for leases. On Linux it continues while the machine is suspended (CLOCK_BOOTTIME), so that a
resumed virtual machine detects that its lease has expired. It is the same for all processes of one machine.
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
        """Seconds on the monotonic clock."""
        ...


_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def elapsed(self) -> Instant:
        if _BOOT is not None:
            return Instant(time.clock_gettime(_BOOT))
        return Instant(time.monotonic())
