"""The life of a run.

    CREATED --> RUNNING <--> DRAINING --> DRAINED
       |           |            |
       +-----------+------------+--> STOPPED | FAILED

A run is CREATED when it is posted, RUNNING when its first container registers, and ends in one of three ways. A drain may be asked for
before that registration, too, and one that is cancelled leads back to where the run was. A stop is asked for
first and reached when the last task has been released, so between the two a run is still RUNNING and carries the time of the
request. An ended run never moves again: the next deployment is another run.
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
    """Return `to` if a run may go there from `state`, also when it is there already.

    Raises IllegalTransition, which is a bug and not a user's mistake.
    """
    if to != state and to not in _MOVES[state]:
        raise IllegalTransition(f"a run cannot go from {state} to {to}")
    return to
