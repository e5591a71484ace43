"""The routes of tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path

from coordinator.api.access import AccessDep, GuardedRoute
from coordinator.api.deps import PROBLEMS, Actor
from coordinator.store.access import TokenRow
from sluice.core.access.tokens import Grant, TokenId
from sluice.wire import access as wire_access

router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


@router.post("/tokens", status_code=201)
async def create_token(body: wire_access.TokenRequest, deps: AccessDep, actor: Actor) -> wire_access.NewTokenReply:
    """Create a token. The answer has it; it cannot be read again."""
    lasts = None if body.expires_seconds is None else timedelta(seconds=body.expires_seconds)
    made = await deps.authentication.tokens.create(body.name, Grant(frozenset(body.roles), body.jobs), lasts, actor)
    return wire_access.NewTokenReply.model_validate(_fields(made.row) | {"token": made.token})


@router.get("/tokens")
async def get_tokens(deps: AccessDep) -> wire_access.TokensReply:
    """All tokens, without their secrets; also those that have expired or were revoked."""
    rows = deps.authentication.tokens.all()
    return wire_access.TokensReply(tokens=tuple(wire_access.TokenReply.model_validate(_fields(row)) for row in rows))


@router.delete("/tokens/{tokenId}")
async def revoke_token(
    token_id: Annotated[str, Path(alias="tokenId", max_length=300)], deps: AccessDep, actor: Actor
) -> wire_access.TokenReply:
    """Revoke a token: requests with it are refused from now on. Repeating the request changes nothing."""
    return wire_access.TokenReply.model_validate(_fields(await deps.authentication.tokens.revoke(TokenId(token_id), actor)))


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
