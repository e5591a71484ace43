"""How long to wait before a retry, and when to give up.

Full jitter, as in Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): each pause is drawn uniformly between zero
and a bound that doubles, so that clients which failed together do not retry together.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


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
