"""How long to wait: the pauses between retries, and the age of what was recorded while a clock was wrong.

A time in the database was read from a wall clock, and a wall clock jumps: it may be days ahead until it is corrected. What was recorded
then lies in the future. Clocks may differ by TOLERANCE; a time that is further ahead says nothing about when something happened. Each
wait that begins at a recorded time has a rule for such times; docs/waits.md lists them.

Full jitter, as in Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): each pause is drawn uniformly between zero
and a bound that doubles, so that clients which failed together do not retry together.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

TOLERANCE = timedelta(minutes=5)
"""How far ahead of the present clock a recorded time may be, and how far a clock may be adjusted at once without having jumped."""


def is_ahead(recorded: datetime, now: datetime) -> bool:
    """Whether the time was recorded under a clock that was ahead."""
    return recorded - now > TOLERANCE


def not_ahead(recorded: datetime, now: datetime) -> datetime:
    """The time, or the present if it was recorded under a clock that was ahead."""
    return now if is_ahead(recorded, now) else recorded


def age(recorded: datetime, now: datetime) -> timedelta:
    """The time since then; zero for a time in the future."""
    return max(timedelta(0), now - recorded)


def is_recent(recorded: datetime, now: datetime, period: timedelta) -> bool:
    """Whether the time is within that period before now. A time that was recorded under a clock that was ahead is not."""
    return recorded >= now - period and not is_ahead(recorded, now)


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first` bounds the pause after the first failure, `longest` every pause; after `budget` in total there are no more retries."""

    first: timedelta = timedelta(milliseconds=100)
    longest: timedelta = timedelta(seconds=10)
    budget: timedelta = timedelta(minutes=2)

    def pause(self, failures: int, spent: timedelta, chance: float) -> timedelta | None:
        """The pause after the `failures`-th failure in a row, `spent` after the first attempt; None: give up. `chance` is uniform in [0,
        1)."""
        bound = min(self.longest, self.first * 2 ** min(failures - 1, 30))
        pause = bound * chance
        return pause if spent + pause < self.budget else None
