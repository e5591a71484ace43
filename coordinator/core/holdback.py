"""A slot whose containers fail again and again is held back: each next one may begin later than the one before, up to a bound.

Whoever starts containers starts the next at once, and a container that fails on its first batch would take the slot's tasks, restore their
state and fail some times a minute for ever. A failure that came after a while of good work is none of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One that has ended, and whether in order."""

    registered_at: datetime
    ended_at: datetime
    failed: bool


@dataclass(frozen=True, slots=True)
class HoldBack:
    """The rule: `free` failures one after the other cost nothing; the next one `first`, and every further one double, up to `most`. A
    failure counts when it came within `quick` of the registration. `first` of zero holds nobody back."""

    first: timedelta = timedelta(seconds=5)
    most: timedelta = timedelta(minutes=5)
    free: int = 3
    quick: timedelta = timedelta(minutes=1)


USUAL = HoldBack()


@dataclass(frozen=True, slots=True)
class HeldUntil:
    failures: int
    until: datetime


def held_until(incarnations: Sequence[Incarnation], rule: HoldBack) -> HeldUntil | None:
    """Until when a slot with these incarnations, in order, is held back; None if it is not."""
    failures = 0
    for each in reversed(incarnations):
        if not each.failed or each.ended_at - each.registered_at > rule.quick:
            break
        failures += 1
    if failures <= rule.free or not rule.first:
        return None
    doublings = min(failures - rule.free - 1, 30)
    return HeldUntil(failures, incarnations[-1].ended_at + min(rule.most, rule.first * 2**doublings))
