"""Who owns a task: one rule for restart, redeployment, move and fail-over.

The n-th owner of a task has generation n. Every report and every append carries it, and an older one is rejected, so an owner that was
replaced can add garbage but cannot change valid data.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sluice.core.ids import ExecutionContainerId, Generation, Instant


@dataclass(frozen=True, slots=True)
class TaskOwner:
    """The last grant of a task. `released`: the owner released it, its exit was reported, or its lease and grace have passed."""

    generation: Generation
    holder: ExecutionContainerId
    released: bool


@dataclass(frozen=True, slots=True)
class Granted:
    generation: Generation


@dataclass(frozen=True, slots=True)
class Wait:
    """Repeat the request after `delay`: the former owner may still act until then."""

    former: ExecutionContainerId
    delay: timedelta


def acquire(hold: TaskOwner | None, asker: ExecutionContainerId, former_free_at: Instant | None, now: Instant) -> Granted | Wait:
    """Decide on a container's request for a task.

    `former_free_at`: when the present owner's lease and grace have passed, None if it has no lease. A repeated request (the response was
    lost) gets the same generation."""
    if hold is None:
        return Granted(Generation(1))
    if hold.holder == asker and not hold.released:
        return Granted(hold.generation)
    if hold.released or former_free_at is None or now >= former_free_at:
        return Granted(Generation(hold.generation + 1))
    return Wait(hold.holder, timedelta(seconds=former_free_at - now))


def holds(hold: TaskOwner | None, generation: Generation) -> bool:
    """Whether a report under `generation` is the present owner's."""
    return hold is not None and hold.generation == generation and not hold.released
