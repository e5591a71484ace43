"""`sluice login` and `sluice logout`: log in with an OpenID Connect provider, without a static token.

Uses the device authorization grant (RFC 8628): the command prints a URL and a code, and waits until the user has confirmed the code in a
browser, on any machine.

Exit codes: 0; 1 when the coordinator or the provider cannot be reached or refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from sluice import logins
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, Url, call
from sluice.client import urls_of
from sluice.clock import Clock, SystemClock
from sluice.core.errors import BadOption, ClientError
from sluice.wire import access as wire_access

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
SLOWER = 5.0
"""Seconds by which the interval grows when the provider asks for it (RFC 8628, section 3.5)."""


def login(
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the identity provider. May be omitted if there is only one.")
    ] = None,
    coordinator: Url = LOCAL,
) -> None:
    """Log in with an identity provider. Commands for this coordinator then need no SLUICE_TOKEN."""
    _login(coordinator, provider, SystemClock())
    typer.echo(f"logged in at {coordinator}")


def logout(
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="End all sessions of this user on the web pages instead, as an administrator."),
    ] = None,
    as_json: Annotated[Json, Document(wire_access.SessionsEndedReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Delete the stored login of `sluice login`."""
    if user is None:
        if as_json:
            raise BadOption("--json needs --user: without it nothing is printed")
        _keep(coordinator, None)
        return
    reply = call(coordinator, lambda client: client.end_sessions(user))
    print_reply(reply, lambda _: f"{reply.ended} sessions of {user} have ended", as_json=as_json)


def _login(coordinator: str, name: str | None, clock: Clock) -> None:
    _keep(coordinator, None)
    chosen = _chosen(call(coordinator, lambda client: client.identity_providers()).providers, name)
    found = logins.discovered(chosen.issuer)
    if "device_authorization_endpoint" not in found:
        raise ClientError(f"the provider {chosen.name} has no device authorization: use a token (SLUICE_TOKEN)")
    form = {"client_id": chosen.client_id, "scope": chosen.scopes}
    status, begun = logins.post_form(str(found["device_authorization_endpoint"]), form)
    if status != 200 or "device_code" not in begun:
        raise ClientError(f"the provider {chosen.name} refused the login: {begun.get('error_description') or begun.get('error', status)}")
    url = begun.get("verification_uri_complete")
    typer.echo(f"Open {begun['verification_uri']} and enter the code {begun['user_code']}" + (f"\nor open {url}" if url else ""))
    _keep(coordinator, confirmed(str(found["token_endpoint"]), chosen.client_id, begun, clock, time.sleep))


def _keep(coordinator: str, login: logins.Login | None) -> None:
    """Store the login under each URL of the coordinator, or remove it. Raises BadSettings."""
    for url in urls_of(coordinator):
        logins.keep(url, login)


def _chosen(providers: tuple[wire_access.IdentityProviderReply, ...], name: str | None) -> wire_access.IdentityProviderReply:
    names = ", ".join(each.name for each in providers)
    if not providers:
        raise ClientError("the coordinator has no identity provider for logins: use a token (SLUICE_TOKEN)")
    found = [each for each in providers if name in (None, each.name)]
    if len(found) != 1:
        raise ClientError(f"name one of the identity providers with --provider: {names}")
    return found[0]


def confirmed(token_endpoint: str, client_id: str, begun: Mapping[str, Any], clock: Clock, pause: Callable[[float], None]) -> logins.Login:
    """Poll the provider until the user has confirmed the code. Raises ClientError if the user refuses or the code expires,
    CoordinatorUnreachable."""
    form = {"grant_type": GRANT, "device_code": str(begun["device_code"]), "client_id": client_id}
    interval, end = float(begun.get("interval", 5)), clock.elapsed() + float(begun.get("expires_in", 600))
    while clock.elapsed() < end:
        pause(interval)
        _, answer = logins.post_form(token_endpoint, form)
        match answer.get("error"):
            case None if "id_token" in answer:
                return logins.login_of(answer, token_endpoint, client_id)
            case None:
                raise ClientError("the provider answered without an ID token: its scopes must include openid")
            case "authorization_pending":
                continue
            case "slow_down":
                interval += SLOWER
            case refused:
                raise ClientError(f"the login failed: {answer.get('error_description') or refused}")
    raise ClientError("the login failed: the code has expired")
