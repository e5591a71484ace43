"""The garbage collector, kept from looking at a fleet over and over.

CPython's full collection goes through every object that has lived for a while, and it runs whenever a quarter as many have come to that.
With 40,000 containers it takes 0.4 s, in which no heartbeat is answered, and runs every few seconds, although next to nothing of what it
looks at is garbage: leases and job models go when their last reference does. So what has outlived one full collection is frozen
(`gc.freeze`): the next one looks only at what is newer.

What was frozen and turns into a cycle of garbage afterwards is found by a collection of everything, once an hour.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from datetime import timedelta

EVERYTHING = timedelta(hours=1)
"""Between two collections of everything."""

FULL = 2
"""The oldest generation's number."""


class StillHeap:
    """From `start` until `stop`. It is the process's: only one at a time makes sense."""

    def __init__(self) -> None:
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """To be called on the event loop."""
        gc.callbacks.append(self._collected)
        self.collect_everything()

    def stop(self) -> None:
        """May run twice."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
            gc.callbacks.remove(self._collected)
            gc.unfreeze()

    def collect_everything(self) -> None:
        """Also when its time has come."""
        if self._next is not None:
            self._next.cancel()
        gc.unfreeze()
        gc.collect()
        self._next = asyncio.get_running_loop().call_later(EVERYTHING.total_seconds(), self.collect_everything)

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == FULL:
            gc.freeze()
