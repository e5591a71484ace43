"""Long-running operations of the coordinator, such as the verification of a snapshot, with their progress on the terminal. A module of its
own, because commands that show no progress start faster without it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sluice.cli.console.bars import Bars
from sluice.cli.runner import call
from sluice.client import OperatorClient
from sluice.core.errors import CoordinatorUnavailable
from sluice.wire import snapshots as wire_snapshots


def call_operation(
    url: str, title: str, request: Callable[[OperatorClient], Awaitable[wire_snapshots.OperationReply]], *, quiet: bool
) -> wire_snapshots.OperationReply:
    """Start a long-running operation and show its progress until it has ended. Raises CoordinatorUnavailable when the operation failed."""

    async def run(client: OperatorClient) -> wire_snapshots.OperationReply:
        started = await request(client)
        with Bars(title, unit=started.unit, quiet=quiet) as bars:
            return await client.completed(started, lambda now: bars.show(title, now.done, now.total))

    ended = call(url, run)
    if ended.state == "FAILED":
        raise CoordinatorUnavailable(f"{url}: {ended.error}")
    return ended
