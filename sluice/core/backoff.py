"""How long to pause before one tries again, and when to give up.

Full jitter, as in Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): each pause is drawn evenly from nothing up
to a bound that doubles, so that many who failed together do not come back together.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first` bounds the pause after the first failure, `longest` every pause; what has taken `budget` since it began is given up."""

    first: timedelta = timedelta(milliseconds=100)
    longest: timedelta = timedelta(seconds=10)
    budget: timedelta = timedelta(minutes=2)

    def pause(self, failures: int, spent: timedelta, chance: float) -> timedelta | None:
        """The pause after the `failures`-th failure in a row, `spent` after the beginning; None: give up. `chance` is drawn from [0, 1)."""
        bound = min(self.longest, self.first * 2 ** min(failures - 1, 30))
        pause = bound * chance
        return pause if spent + pause < self.budget else None
