"""`sluice token`: create, list and revoke the tokens of users and programs.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, Url, call
from sluice.clock import SystemClock
from sluice.core.access.roles import Role
from sluice.wire import access as wire_access

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke the tokens of users and programs.")


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user or program that gets the token.")],
    role: Annotated[list[Role], typer.Option("--role", help="A role of the token. May be repeated.")],
    job: Annotated[
        list[str] | None,
        typer.Option("--job", metavar="PATTERN", help="Jobs that the roles are for, such as team-*. May be repeated. Default: all."),
    ] = None,
    expires_days: Annotated[float | None, typer.Option(min=0.001, metavar="DAYS", help="Default: the token does not expire.")] = None,
    as_json: Annotated[Json, Document(wire_access.NewTokenReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Create a token and print it. It cannot be shown again."""
    lasts = None if expires_days is None else timedelta(days=expires_days).total_seconds()
    request = wire_access.TokenRequest(name=name, roles=tuple(role), jobs=tuple(job or ["*"]), expires_seconds=lasts)
    made = call(coordinator, lambda client: client.create_token(request))
    print_reply(made, lambda _: Text(made.token), as_json=as_json)


@app.command("ls")
def ls(as_json: Annotated[Json, Document(wire_access.TokensReply)] = False, coordinator: Url = LOCAL) -> None:
    """List all tokens, without their secrets."""
    reply = call(coordinator, lambda client: client.tokens())
    print_reply(reply, lambda _: _table(reply), as_json=as_json)


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, as `sluice token ls` shows it.")],
    as_json: Annotated[Json, Document(wire_access.TokenReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Revoke a token: requests with it are refused from now on."""
    reply = call(coordinator, lambda client: client.revoke_token(token_id))
    print_reply(reply, lambda _: Text(f"token {reply.token_id} of {reply.name} is revoked"), as_json=as_json)


def _table(reply: wire_access.TokensReply) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("ID", "NAME", "ROLES", "JOBS", "CREATED", "BY", "STATE"):
        table.add_column(heading, no_wrap=True)
    now = SystemClock().now()
    for each in reply.tokens:
        roles, jobs = ", ".join(each.roles), ", ".join(each.jobs)
        table.add_row(each.token_id, each.name, roles, jobs, f"{each.created_at:%Y-%m-%d}", each.created_by or "-", _state(each, now))
    return table


def _state(token: wire_access.TokenReply, now: datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked {token.revoked_at:%Y-%m-%d}"
    if token.expires_at is None:
        return "valid"
    return f"{'valid until' if now < token.expires_at else 'expired'} {token.expires_at:%Y-%m-%d %H:%M}"
