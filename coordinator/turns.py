"""Long computations in pieces, between which other requests get their turn on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")


async def in_turns(steps: Generator[None, None, Result]) -> Result:
    """Run the generator to its end, with a turn for other requests at each `yield`. Returns its result; raises what it raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        await asyncio.sleep(0)
