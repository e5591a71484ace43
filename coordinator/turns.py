"""Long computations in pieces, between which other requests get their turn on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


PER_TURN = 100
"""Number of objects that are freed before the event loop processes other requests: about half a millisecond."""


async def free_in_turns(found: list[Any]) -> None:
    """Empty the list. To free thousands of objects at once takes milliseconds. Only the list may have references to them."""
    while found:
        del found[-PER_TURN:]
        await asyncio.sleep(0)


async def in_turns(steps: Generator[None, None, Result]) -> Result:
    """Run the generator to its end, with a turn for other requests at each `yield`. Returns its result; raises what it raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        await asyncio.sleep(0)
