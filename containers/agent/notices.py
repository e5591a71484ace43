"""The notices of a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

from containers.agent.lifecycle import RETRY
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.errors import Unavailable
from sluice.core.ids import RunId
from sluice.wire import body as wire_body

log = logging.getLogger(__name__)

LONG_POLL = timedelta(seconds=20)
"""The longest duration of a poll for notices."""


async def notices(coordinator: AgentClient, run: RunId, clock: Clock) -> AsyncIterator[wire_body.Notice]:
    """All notices of the run, including those from before the registration, which may contain a stop. Never ends."""
    seq = 0
    while True:
        sent = clock.elapsed()
        try:
            found = await coordinator.notices(run, seq, LONG_POLL)
        except (Unavailable, Refused) as error:
            log.debug("no notices: %s", error)
            await asyncio.sleep(RETRY.total_seconds())
            continue
        for notice in found:
            seq = notice.seq
            yield notice
        if not found and clock.elapsed() - sent < RETRY.total_seconds():  # a coordinator that shuts down answers polls early
            await asyncio.sleep(RETRY.total_seconds())
