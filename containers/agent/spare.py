"""Spare containers: they open Spark first, and then wait for a slot whose container has ended.

The start of a container takes 8 to 25 s, most of it for the process, the JVM and Spark. A spare has done this already when it takes a slot.
A spare is no part of the run until then: it has no lease and no tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from sluice.core.errors import SlotInUse, UnknownSlot
from sluice.core.ids import Instant

LOOK_FOR_SLOTS = timedelta(seconds=0.5)
"""How often a spare looks for a slot."""

SHARE_OF_LOOKING = 0.05
"""The part of the time in which a spare looks. A look lasts longer in a run of thousands of slots, and then so does the pause after it."""

UNUSED_FOR = timedelta(seconds=10)
"""How long a slot must have no container before a spare takes it, if the spare has never seen one there: its first container is probably
being started."""

TAKE_WITHIN = timedelta(seconds=10)
"""How long the registration in a slot is repeated while the coordinator does not answer."""

TAKEN = (SlotInUse.slug, UnknownSlot.slug)
"""Refused registrations after which another slot can be tried."""


def pause_after(look: timedelta) -> timedelta:
    """The pause after a look for slots that took this long."""
    return max(LOOK_FOR_SLOTS, look / SHARE_OF_LOOKING)


class Vacancies:
    """The slots without a container, as one spare has seen them."""

    def __init__(self) -> None:
        self._vacant_since: dict[str, Instant] = {}
        self._was_used: set[str] = set()

    def to_take(self, slots: Collection[str], vacant: Sequence[str], now: Instant) -> Sequence[str]:
        """The slots that the spare may take now, in order. `slots`: all of the run, `vacant`: those without a valid container."""
        self._was_used |= set(slots) - set(vacant)
        self._vacant_since = {slot: self._vacant_since.get(slot, now) for slot in vacant}
        return [slot for slot in vacant if slot in self._was_used or now - self._vacant_since[slot] >= UNUSED_FOR.total_seconds()]
