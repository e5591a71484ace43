"""The port through which a platform reports on the processes of containers.

The tasks of a container are given away when its termination is confirmed, or when its lease and the grace period have expired. The API is
the implementation for reports of principals with the role launcher (`is_confirmed`). `Registrations` implements the port.
"""

from __future__ import annotations

from typing import Protocol

from coordinator.store.fleet import ContainerRow
from sluice.core.ids import ExecutionContainerId


class ContainerReports(Protocol):
    """Reports about a container by itself, by its launcher or by its platform."""

    async def exited(self, execution_id: ExecutionContainerId, exit_code: int, reason: str, *, confirmed: bool = True) -> ContainerRow:
        """Record the exit. `confirmed`: the process has ended, so its tasks are free. Otherwise the container is no longer valid, and its
        tasks are free after its lease and the grace period. Raises UnknownContainer, StoreUnavailable."""
        ...

    async def invalidate(self, execution_id: ExecutionContainerId, reason: str) -> ContainerRow:
        """Make the container invalid: its next heartbeat is answered with false. Its tasks are free when it has reported its exit, or after
        its lease and the grace period. Raises UnknownContainer, StoreUnavailable."""
        ...


def is_confirmed(*, by_principal: bool, terminated: bool) -> bool:
    """Whether a report of an exit confirms the termination. A container confirms its own, and so does every client where authentication is
    off. `by_principal`: an authenticated principal reports it. `terminated`: it says that the process has ended."""
    return terminated or not by_principal
