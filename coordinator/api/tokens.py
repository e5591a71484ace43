"""The routes of tokens, sessions and identity providers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query

from coordinator.api.access import AccessDep, GuardedRoute
from coordinator.api.deps import PROBLEMS, Actor
from coordinator.store.access import TokenRow
from sluice.core.access.tokens import Grant, TokenId
from sluice.wire import access as wire_access

router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


@router.post("/tokens", status_code=201)
async def create_token(body: wire_access.TokenRequest, deps: AccessDep, actor: Actor) -> wire_access.NewTokenReply:
    """Create a token. Only this answer contains it; it cannot be read again."""
    lasts = None if body.expires_seconds is None else timedelta(seconds=body.expires_seconds)
    made = await deps.authentication.tokens.create(body.name, Grant(frozenset(body.roles), body.jobs), lasts, actor)
    return wire_access.NewTokenReply.model_validate(_fields(made.row) | {"token": made.token})


@router.get("/tokens")
async def get_tokens(
    deps: AccessDep,
    after: Annotated[str | None, Query(max_length=300, description="only those that follow the one with this id")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_access.TokensReply:
    """Tokens by age, without their secrets; also those that have expired or were revoked. For the next page, set `after` to the answer's
    `next`."""
    rows = deps.authentication.tokens.page(None if after is None else TokenId(after), limit + 1)
    tokens = tuple(wire_access.TokenReply.model_validate(_fields(row)) for row in rows[:limit])
    return wire_access.TokensReply(tokens=tokens, next=rows[limit - 1].token_id if len(rows) > limit else None)


@router.delete("/tokens/{tokenId}")
async def revoke_token(
    token_id: Annotated[str, Path(alias="tokenId", max_length=300)], deps: AccessDep, actor: Actor
) -> wire_access.TokenReply:
    """Revoke a token. Requests with it are refused from now on. Repeating the request changes nothing."""
    return wire_access.TokenReply.model_validate(_fields(await deps.authentication.tokens.revoke(TokenId(token_id), actor)))


@router.delete("/sessions/{principal}")
async def end_sessions(principal: Annotated[str, Path(max_length=300)], deps: AccessDep) -> wire_access.SessionsEndedReply:
    """End all sessions of a principal on the web pages, and their event streams. Tokens stay valid."""
    return wire_access.SessionsEndedReply(ended=await deps.authentication.end_sessions(principal))


@router.get("/identity-providers")
async def get_identity_providers(deps: AccessDep) -> wire_access.IdentityProvidersReply:
    """The OpenID Connect providers with which people may log in, for `sluice login`."""
    settings = [client.settings for client in deps.authentication.providers.clients.values() if client.settings.client_id]
    return wire_access.IdentityProvidersReply(
        providers=tuple(
            wire_access.IdentityProviderReply(
                name=each.provider.name, issuer=each.provider.issuer, client_id=each.client_id, scopes=each.scopes
            )
            for each in settings
        )
    )


def _fields(row: TokenRow) -> dict[str, object]:
    return {
        "token_id": row.token_id,
        "name": row.name,
        "roles": tuple(sorted(row.grant.roles)),
        "jobs": row.grant.jobs,
        "created_at": row.created_at,
        "created_by": row.created_by,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
    }
