"""How long to wait: the pauses between retries, and the age of times that were recorded while a clock was wrong.

Times in the database come from a wall clock, and a wall clock can be days ahead until it is corrected. After the correction, the times
recorded before it are in the future. Clocks may differ by TOLERANCE. A time that is further ahead says nothing about when something
happened. Each wait that begins at a recorded time has a rule for such times; docs/waits.md lists them.

Pauses between retries have full jitter, as in Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): each pause is
drawn uniformly between zero and a bound that doubles, so that clients that failed together do not retry together.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

TOLERANCE = timedelta(minutes=5)
"""How far a recorded time may be ahead of the present clock. A clock that is adjusted by no more than this has not jumped."""


def is_ahead(recorded: datetime, now: datetime) -> bool:
    """Whether the time was recorded by a clock that was ahead."""
    return recorded - now > TOLERANCE


def not_ahead(recorded: datetime, now: datetime) -> datetime:
    """The time, or `now` if the time was recorded by a clock that was ahead."""
    return now if is_ahead(recorded, now) else recorded


def age(recorded: datetime, now: datetime) -> timedelta:
    """The time that has passed since `recorded`; zero for a time in the future."""
    return max(timedelta(0), now - recorded)


def is_recent(recorded: datetime, now: datetime, period: timedelta) -> bool:
    """Whether the time is within the period before `now`. A time that was recorded by a clock that was ahead is not."""
    return recorded >= now - period and not is_ahead(recorded, now)


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first` is the bound of the pause after the first failure, and `longest` that of every pause. There are no retries once `budget` has
    passed since the first attempt."""

    first: timedelta = timedelta(milliseconds=100)
    longest: timedelta = timedelta(seconds=10)
    budget: timedelta = timedelta(minutes=2)

    def pause(self, failures: int, spent: timedelta, chance: float) -> timedelta | None:
        """The pause before the next attempt; None: give up. `failures`: the number of failures in a row. `spent`: the time since the first
        attempt. `chance`: a random number, uniform in [0, 1)."""
        bound = min(self.longest, self.first * 2 ** min(failures - 1, 30))
        pause = bound * chance
        return pause if spent + pause < self.budget else None
