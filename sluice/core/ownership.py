"""Who holds a task: one rule for restart, redeploy, move and fail-over.

The n-th holder of a task has generation n. Every report and every append carries it, and an older one is refused, so a holder that was
taken for dead can add garbage but never change what counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sluice.core.ids import ExecutionContainerId, Generation, Instant


@dataclass(frozen=True, slots=True)
class TaskOwner:
    """The last grant of a task. `released` when the holder gave it back, its exit was reported, or its lease and grace passed."""

    generation: Generation
    holder: ExecutionContainerId
    released: bool


@dataclass(frozen=True, slots=True)
class Granted:
    generation: Generation


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again after `delay`: the former holder may still act until then."""

    former: ExecutionContainerId
    delay: timedelta


def acquire(hold: TaskOwner | None, asker: ExecutionContainerId, former_free_at: Instant | None, now: Instant) -> Granted | Wait:
    """Decide a container's request for a task.

    `former_free_at` is when the present holder's lease and grace have passed, None if it has no lease. The same asker again (its answer was
    lost) gets the same generation.
    """
    if hold is None:
        return Granted(Generation(1))
    if hold.holder == asker and not hold.released:
        return Granted(hold.generation)
    if hold.released or former_free_at is None or now >= former_free_at:
        return Granted(Generation(hold.generation + 1))
    return Wait(hold.holder, timedelta(seconds=former_free_at - now))


def holds(hold: TaskOwner | None, generation: Generation) -> bool:
    """Whether a report under `generation` is the present holder's."""
    return hold is not None and hold.generation == generation and not hold.released
