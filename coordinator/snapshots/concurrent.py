"""Work that is done at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def run_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at the same time, until all have ended. If one fails, the others are cancelled, and its error is raised: not a group of
    errors, which no caller would take for the error that it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
