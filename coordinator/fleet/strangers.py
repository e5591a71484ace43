"""What the coordinator must not do while its database may be older than its containers. `coordinator.fleet.issued` decides when that ends.

A database that was restored from an older copy does not know the containers that have registered since (strangers), nor what they own.
Their leases end at the latest after the longest time that was ever promised. Until then a task is granted only if its last generation was
issued after the restore. And until its catalog has the snapshots that were reported since, no snapshot is registered and no generation is
issued.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sluice.core.errors import CatalogIncomplete
from sluice.core.ids import ExecutionContainerId, Generation, Instant

UNKNOWN_HOLDER = ExecutionContainerId("a container that the restored database does not know")


class Strangers:
    """`elapsed` reads the monotonic clock."""

    def __init__(self, elapsed: Callable[[], Instant] = lambda: Instant(0.0)) -> None:
        self._elapsed = elapsed
        self.hold = ""
        """Why nothing may be granted or deleted; "" if it may."""
        self._floor = 0
        self._free_at = Instant(elapsed())

    @property
    def held(self) -> bool:
        return bool(self.hold)

    def expect(self, floor: int, within: timedelta) -> None:
        """Record that the database was restored: for the time `within` from now, strangers may own tasks whose last generation is not above
        `floor`."""
        self._floor = floor
        self._free_at = Instant(max(self._free_at, self._elapsed() + within.total_seconds()))

    @property
    def left(self) -> timedelta:
        """The time until no stranger can act; zero if none can."""
        return timedelta(seconds=max(0.0, self._free_at - self._elapsed()))

    def delay(self, last: Generation) -> timedelta | None:
        """How long a task with that last generation may still be a stranger's; None if it is not."""
        return self.left if last <= self._floor and self.left else None

    def check_catalog(self) -> None:
        """Raises CatalogIncomplete while no generation may be issued and no snapshot registered."""
        if self.hold:
            raise CatalogIncomplete(f"{self.hold}; `sluice status` says what to do")
