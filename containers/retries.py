"""Work that is repeated until what it needs is available."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from sluice.core.errors import SluiceError, Unavailable

log = logging.getLogger("sluice")

T = TypeVar("T")

RETRY = timedelta(seconds=1)
"""The pause before the work is repeated."""


async def until_available(
    work: Callable[[], Awaitable[T]], waits_for: tuple[type[SluiceError], ...] = (Unavailable,), *, what: str = "waiting"
) -> T:
    """The result of `work`, which is repeated after errors of these classes. Each is logged once, until another one occurs. `what` waits,
    for the log."""
    last = ""
    while True:
        try:
            return await work()
        except waits_for as error:
            if str(error) != last:
                log.warning("%s: %s", what, error)
            last = str(error)
        await asyncio.sleep(RETRY.total_seconds())
