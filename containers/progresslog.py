"""Lines in the log about a backup or a restore that takes long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from containers.backupmeters import Transfers

log = logging.getLogger(__name__)

EVERY = timedelta(seconds=10)


@asynccontextmanager
async def telling(what: str, transfers: Transfers, every: timedelta = EVERY) -> AsyncIterator[None]:
    """While the block runs, say now and then how far it is; nothing of one that is over sooner than that."""
    files, size = transfers.done_files, transfers.done_bytes

    async def tell() -> None:
        while True:
            await asyncio.sleep(every.total_seconds())
            planned = transfers.planned_bytes - size
            done = transfers.done_bytes - size
            part = f"{100 * done // planned} %, " if planned else ""
            log.info("%s: %s%d files, %.1f of %.1f MB", what, part, transfers.done_files - files, done / 1e6, planned / 1e6)

    teller = asyncio.create_task(tell())
    try:
        yield
    finally:
        teller.cancel()
