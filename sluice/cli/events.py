"""`sluice events`: what has happened to a job.

Exit codes: 0, also when `--follow` is ended by Ctrl-C; 1 when the coordinator cannot be reached or refuses.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from sluice.cli.console.tables import Column, Screen, moment, shown, table
from sluice.cli.documents import Document, print_reply
from sluice.cli.runner import LOCAL, Limit, OptionalJob, Url, call, find_job, with_next_page
from sluice.client import OperatorClient
from sluice.core.errors import BadOption, CoordinatorUnreachable
from sluice.wire import events as wire_events

POLL = timedelta(seconds=2)

OVERLAP = timedelta(minutes=1)
"""How much later than newer events an event may appear: a transaction that is committed later, or a coordinator with another clock."""

STYLES = {"good": "green", "busy": "yellow", "bad": "bold red"}


def events(
    job: OptionalJob = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print the events oldest first, and then new ones as they appear, until Ctrl-C.")
    ] = False,
    limit: Limit = 50,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only events older than the one of this id.")] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON document, with the names that the API uses; with --follow one JSON object for each event, on a line.",
        ),
        Document(wire_events.JobEventsReply, wire_events.JobEventReply),
    ] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Show what has happened to a job, newest first: deployments, versions of its model, drains, containers, and requests."""
    if follow:
        if before is not None:
            raise BadOption("--follow begins with the newest events: leave out --before")
        asyncio.run(_follow_until_stopped(job, limit, coordinator, Screen(sys.stdout), as_json=as_json))
        return

    async def request(client: OperatorClient) -> wire_events.JobEventsReply:
        return await client.job_events((await find_job(client, job)).job, limit, before=before)

    reply = call(coordinator, request)
    print_reply(reply, lambda width: with_next_page(_table(reply, width), reply.next), as_json=as_json)


def _table(reply: wire_events.JobEventsReply, width: int | None) -> Table:
    columns = [Column("AT"), Column("EVENT", folds=True), Column("DETAIL", rank=1, folds=True), Column("BY", rank=2)]
    rows = [
        (moment(each.at), Text(shown(each.what), STYLES.get(each.tone, "")), shown(each.detail), shown(each.actor)) for each in reply.events
    ]
    return table(columns, rows, width)


# --- following -------------------------------------------------------------------------------------------------------


class Followed:
    """The events of a job that were not returned before, and those that have changed since."""

    def __init__(self, client: OperatorClient, job: str, limit: int) -> None:
        """`limit`: how many events the first call returns at most."""
        self._client = client
        self._job = job
        self._limit = limit
        self._began = False
        self._after: str | None = None
        self._known: dict[str, wire_events.JobEventReply] = {}

    async def new(self) -> Sequence[wire_events.JobEventReply]:
        """Oldest first. Raises the errors of `OperatorClient`; the next call then returns what this one would have returned."""
        listed = await self._listed() if self._began else await self._newest()
        found = [each for each in reversed(listed) if self._known.get(each.id) != each]
        self._known |= {each.id: each for each in found}
        self._forget()
        return found

    async def _newest(self) -> Sequence[wire_events.JobEventReply]:
        page = await self._client.job_events(self._job, self._limit)
        self._began = True
        self._after = page.next  # the oldest event of the page, if there are older ones
        return page.events

    async def _listed(self) -> Sequence[wire_events.JobEventReply]:
        page = await self._client.job_events(self._job, after=self._after)
        found = [*page.events]
        while page.next is not None:
            page = await self._client.job_events(self._job, after=self._after, before=page.next)
            found += page.events
        return found

    def _forget(self) -> None:
        """Forget events that are so old that none can appear before them, except the newest of those, after which the next call begins."""
        if not self._known:
            return
        settled = max(each.at for each in self._known.values()) - OVERLAP
        old = sorted(each.id for each in self._known.values() if each.at < settled)
        if old:
            self._after = max(old[-1], self._after or "")
            for each in old:
                del self._known[each]


async def _follow_until_stopped(job: str | None, limit: int, url: str, screen: Screen, *, as_json: bool) -> None:
    """Print events until SIGINT or SIGTERM, or until standard output is closed. Raises the errors of `find_job`."""
    following = asyncio.current_task()
    assert following is not None
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, following.cancel)
    client = OperatorClient(url)
    try:
        with suppress(asyncio.CancelledError):
            name = (await find_job(client, job)).job
            await _follow(Followed(client, name, limit), screen, as_json=as_json)
    finally:
        await client.close()


async def _follow(followed: Followed, screen: Screen, *, as_json: bool) -> None:
    """While the coordinator does not answer, say so once, and retry."""
    unreachable = False
    while not screen.abandoned:
        try:
            found = await followed.new()
        except CoordinatorUnreachable as error:
            if not unreachable:
                print(f"sluice: retrying: {error.title()} {shown(str(error))}", file=sys.stderr)
            unreachable = True
        else:
            unreachable = False
            for each in found:
                if as_json:
                    screen.say(each.model_dump_json(by_alias=True))
                else:
                    screen.show(_line(each))
        await asyncio.sleep(POLL.total_seconds())


def _line(event: wire_events.JobEventReply) -> Text:
    detail = f": {shown(event.detail)}" if event.detail else ""
    actor = f" (by {shown(event.actor)})" if event.actor else ""
    return Text(f"{moment(event.at)}  {shown(event.what)}{detail}{actor}", STYLES.get(event.tone, ""))
