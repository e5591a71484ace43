"""The report that a command has ended, which frees its slot without waiting for the end of the lease."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from sluice.client import CoordinatorClient
from sluice.core.errors import CoordinatorUnreachable, SluiceError
from sluice.core.ids import ExecutionContainerId

REPORT_WITHIN = timedelta(seconds=8)
"""How long the report is repeated while the coordinator does not answer."""


async def report_exit(url: str, container: ExecutionContainerId, exit_code: int, reason: str, token: str) -> None:
    """Report it only after the last process has ended: the slot is free then. `token`: that of the container."""
    coordinator = CoordinatorClient(url)
    coordinator.act_as(token)
    try:
        with suppress(SluiceError, TimeoutError):
            async with asyncio.timeout(REPORT_WITHIN.total_seconds()):
                while True:
                    try:
                        return await coordinator.exited(container, exit_code, reason)
                    except CoordinatorUnreachable:
                        await asyncio.sleep(1)
    finally:
        await coordinator.close()
