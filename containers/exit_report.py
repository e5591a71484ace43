"""Reports the exit of a container, which frees its tasks before the lease ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from sluice.client.agents import AgentClient
from sluice.core.errors import CoordinatorUnreachable, SluiceError
from sluice.core.ids import ExecutionContainerId

REPORT_WITHIN = timedelta(seconds=8)
"""How long the report is repeated while the coordinator does not answer."""


async def report_exit(url: str, container: ExecutionContainerId, exit_code: int, reason: str, token: str) -> None:
    """Report the exit; errors are ignored, since the lease expires anyway. Call it only after the last process has ended, because the tasks
    are free from then on. `token`: that of the container. The report is repeated for a short time, because the coordinator may be
    restarting."""
    coordinator = AgentClient(url)
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
