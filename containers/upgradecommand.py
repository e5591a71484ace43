"""What `sluice upgrade` does, from the command line to the exit code."""

from __future__ import annotations

import asyncio

from rich.console import Group, RenderableType
from rich.text import Text

from containers.drainclient import DrainClient
from containers.snapshots import tell
from containers.tables import shown
from containers.upgradesteps import Upgrade
from containers.upgradewish import EXIT_CODES, UpgradeReply, Wish, say
from sluice.core.errors import SluiceError


def upgrade_job(url: str, wish: Wish, *, as_json: bool) -> int:
    """The exit code. Raises BadJobFile, BadSettings, UnknownJob, YourRequest, and what `Coordinator` raises, before anything is changed."""
    made: list[Upgrade] = []

    async def run() -> int:
        client = DrainClient(url)
        try:
            made.append(Upgrade(client, wish, quiet=as_json))
            reply = await made[0].run()
            tell(reply, lambda _: _page(reply), as_json=as_json)
            return await made[0].stay(EXIT_CODES[reply.outcome])
        finally:
            if made:
                await made[0].close()
            await client.close()

    try:
        return asyncio.run(run())
    except (KeyboardInterrupt, SluiceError):
        if made:
            say(made[0].standing)
        raise


def _page(reply: UpgradeReply) -> RenderableType:
    steps = [Text(f"{number}. {shown(line)}") for number, line in enumerate(reply.steps, 1)]
    return Group(Text(shown(reply.told)), *steps)
