"""The tokens of containers. A registration exchanges the identity of a container for a token of this one incarnation; see
`sluice.core.access.tokens`. The digest of a container's token is in its row in the database, and, as long as it is valid, with its lease in
memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.fleet.leases import Leases
from coordinator.store.sql import Store
from sluice.core.access.tokens import digest, incarnation_of, is_same
from sluice.core.ids import ExecutionContainerId, JobName, RunId

MAX_REMEMBERED = 200_000
"""Maximum number of containers whose run and job are cached."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The container that sent a request. `valid`: it was not replaced or lost, and has not ended."""

    execution_id: ExecutionContainerId
    run_id: RunId
    job: JobName
    valid: bool


class Incarnations:
    def __init__(self, store: Store, leases: Leases) -> None:
        self._store = store
        self._leases = leases
        self._places: dict[ExecutionContainerId, tuple[RunId, JobName]] = {}

    async def find(self, token: str) -> Incarnation | None:
        """The container with this token, valid or not; None if there is none. Raises StoreUnavailable."""
        execution_id = incarnation_of(token)
        if execution_id is None:
            return None
        valid = self._leases.has_token(execution_id, token)
        if valid and execution_id in self._places:
            return Incarnation(execution_id, *self._places[execution_id], valid=True)
        async with self._store.read() as tx:
            row = await tx.fleet.container(execution_id)
        if row is None or row.token is None or not (valid or is_same(digest(token), row.token)):
            return None
        if valid:
            if len(self._places) >= MAX_REMEMBERED:
                self._places.clear()
            self._places[execution_id] = (row.run_id, row.job)
        return Incarnation(execution_id, row.run_id, row.job, valid=valid)
