"""Fail-over: when a slot's tasks move to other slots, and when they return. Also the back-off of slots whose containers fail repeatedly.

A restarted container usually returns within seconds and continues from its disk, so moving its tasks immediately would cause unnecessary
restores. The tasks of a slot are reassigned when it has had no live container for `after`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.core.errors import BadConfig
from sluice.core.ids import ProcessorId
from sluice.core.waits import is_ahead

AFTER, GIVE_BACK = "failover.after.seconds", "failover.give.back"
"""Keys of a job's configuration."""

STEADY = timedelta(seconds=30)
"""A returned container must have been alive for this long, or `after` if that is shorter, before its slot gets tasks again."""


@dataclass(frozen=True, slots=True)
class FailOver:
    """`after`: None means never. `give_back`: a slot that returns gets tasks again; otherwise an operator must move them."""

    after: timedelta | None
    give_back: bool

    def of_config(self, config: Mapping[str, str]) -> FailOver:
        """These settings, overridden by the job's configuration. Raises BadConfig."""
        after, give_back = self.after, self.give_back
        if AFTER in config:
            after = _seconds(config[AFTER])
        if GIVE_BACK in config:
            if config[GIVE_BACK] not in ("true", "false"):
                raise BadConfig(f"{GIVE_BACK} is {config[GIVE_BACK][:80]!r}: use true or false")
            give_back = config[GIVE_BACK] == "true"
        return FailOver(after, give_back)


def _seconds(text: str) -> timedelta | None:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e9:
        raise BadConfig(f"{AFTER} is {text[:80]!r}: use a number of seconds, or 0 for never")
    return timedelta(seconds=seconds) or None


@dataclass(frozen=True, slots=True)
class Slot:
    """`live`: it has a live container. `since`: the registration of that container; otherwise the end of the last one, or when
    the slot should have had one."""

    live: bool
    since: datetime


def slots_to_reassign(
    slots: Mapping[ProcessorId, Slot], away: frozenset[ProcessorId], rule: FailOver, now: datetime
) -> frozenset[ProcessorId]:
    """The slots that must have no tasks. `away`: those that have none now. Unchanged if no live slot would remain for the tasks."""
    if rule.after is None:
        return away
    after, steady = rule.after, min(rule.after, STEADY)
    lost = {pid for pid, slot in slots.items() if not slot.live and now - slot.since >= after}
    back = {pid for pid in away if pid in slots and slots[pid].live and now - slots[pid].since >= steady}
    wanted = frozenset((away & slots.keys()) - (back if rule.give_back else set()) | lost)
    taking = [pid for pid, slot in slots.items() if slot.live and pid not in wanted]
    return wanted if taking else away


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A container that has ended, and whether it failed."""

    registered_at: datetime
    ended_at: datetime
    failed: bool


@dataclass(frozen=True, slots=True)
class CrashLoopPolicy:
    """The back-off of a slot whose containers fail repeatedly. `allowed_failures` in a row cause no delay; the next one delays the slot by
    `first`, and each further one by twice as long, up to `longest`. A failure counts if it came within `crash_window` of the registration.
    `first` of zero: no back-off."""

    first: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(minutes=5)
    allowed_failures: int = 3
    crash_window: timedelta = timedelta(minutes=1)


DEFAULT = CrashLoopPolicy()


@dataclass(frozen=True, slots=True)
class BackoffUntil:
    failures: int
    until: datetime


def backoff_until(incarnations: Sequence[Incarnation], rule: CrashLoopPolicy, now: datetime) -> BackoffUntil | None:
    """When a slot with these incarnations, in order, may register again; None if it may now.

    A failure that was recorded while the clock was ahead causes no back-off, because its age is unknown."""
    failures = 0
    for each in reversed(incarnations):
        if not each.failed or each.ended_at - each.registered_at > rule.crash_window:
            break
        failures += 1
    if failures <= rule.allowed_failures or not rule.first or is_ahead(incarnations[-1].ended_at, now):
        return None
    doublings = min(failures - rule.allowed_failures - 1, 30)
    until = incarnations[-1].ended_at + min(rule.longest, rule.first * 2**doublings)
    return BackoffUntil(failures, until) if until > now else None
