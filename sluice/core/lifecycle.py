"""The states of a run.

    CREATED --> RUNNING <--> DRAINING --> DRAINED
       |           |            |
       +-----------+------------+--> STOPPED | FAILED

A run is CREATED when it is posted and RUNNING when its first container registers. A drain may be requested before that; a cancelled drain
returns the run to its former state. A run that was requested to stop remains RUNNING, with the time of the request, until the last task is
released. The state of an ended run never changes. The next deployment is another run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sluice.core.errors import IllegalTransition


class RunState(StrEnum):
    CREATED = "CREATED"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        return not _MOVES[self]


_MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.CREATED: frozenset({RunState.RUNNING, RunState.DRAINING, RunState.STOPPED, RunState.FAILED}),
    RunState.RUNNING: frozenset({RunState.DRAINING, RunState.STOPPED, RunState.FAILED}),
    RunState.DRAINING: frozenset({RunState.CREATED, RunState.RUNNING, RunState.DRAINED, RunState.STOPPED, RunState.FAILED}),
    RunState.DRAINED: frozenset(),
    RunState.STOPPED: frozenset(),
    RunState.FAILED: frozenset(),
}


def moved(state: RunState, to: RunState) -> RunState:
    """Returns `to` if a run may change from `state` to it, or already has it. Raises IllegalTransition, which is a bug."""
    if to != state and to not in _MOVES[state]:
        raise IllegalTransition(f"a run cannot go from {state} to {to}")
    return to
