"""`sluice audit-log`: requests for changes, and refused requests.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, Limit, Url, call
from sluice.core.errors import BadOption
from sluice.wire import access as wire_access


def audit_log(
    before: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only events with smaller numbers.")] = None,
    limit: Limit = 50,
    job: Annotated[str | None, typer.Option(help="Only events of requests that name this job.")] = None,
    lines: Annotated[bool, typer.Option("--json-lines", help="Print one JSON object for each event, oldest first.")] = False,
    as_json: Annotated[Json, Document(wire_access.AuditLogReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Show the requests for changes and the refused requests, newest first."""
    if lines and as_json:
        raise BadOption("--json-lines prints one document for each event: leave out --json")
    reply = call(coordinator, lambda client: client.audit_log(before, limit, job))
    if lines:
        for event in reversed(reply.events):
            typer.echo(event.model_dump_json(by_alias=True))
    else:
        print_reply(reply, lambda _: _table(reply), as_json=as_json)


def _table(reply: wire_access.AuditLogReply) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("N", "AT", "WHO", "FROM", "REQUEST", "STATUS"):
        table.add_column(heading, no_wrap=True)
    for each in reply.events:
        who = (each.actor or "unknown") + ("" if each.authenticated else " (not authenticated)")
        status = "interrupted" if each.status is None else f"{each.status} {each.reason}".rstrip()
        request = f"{each.action.partition(' ')[0]} {each.subject}"
        table.add_row(str(each.seq), f"{each.at:%Y-%m-%d %H:%M:%S}", Text(who), each.source, Text(request), status)
    return table
