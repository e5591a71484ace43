"""The HTTP API. Each route reads a request, makes one call and builds its answer; the rules are in `sluice.core`.

The routes and the bodies they build are grouped by capability: `runs`, `agents` (what containers call), `samza` (what Apache Samza's
containers call), `jobmodels`, `drains`, `snapshots`, `ops` (metrics and probes), `tokens`, `audit`, `events` (of jobs), `docs` (API
documentation). `access` defines which role may send which request, `deps` has the FastAPI dependencies, `errors` turns errors into answers,
`middleware` counts and limits requests, `bodies` limits the values of a body, `browsers` refuses requests from pages of other sites, `text`
refuses text that cannot be stored, and `fastpath` answers heartbeats without the framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute

from coordinator.api import agents, audit, docs, drains, events, jobmodels, ops, runs, samza, snapshots, tokens
from coordinator.api.text import check_body

ROUTERS = (
    runs.router,
    agents.router,
    ops.router,
    snapshots.router,
    drains.router,
    jobmodels.router,
    samza.router,
    tokens.router,
    audit.router,
    events.router,
)


def new_api(**kwargs: Any) -> FastAPI:
    """The application with its routes. `coordinator.app` adds the objects that the routes call."""
    api = _empty_api(**kwargs)
    api.router.routes.extend(_routes())
    return api


def _empty_api(**kwargs: Any) -> FastAPI:
    return FastAPI(
        title="Sluice coordinator",
        version="0.2.0",
        redirect_slashes=False,
        dependencies=[Depends(check_body)],
        openapi_url=None,  # `coordinator.api.docs` serves the document and the page
        **kwargs,
    )


@cache
def _routes() -> Sequence[BaseRoute]:
    """The routes of every application. FastAPI analyzes each at its first request, which takes a quarter of a second for all of them. A
    process that makes many applications, as tests do, does it once."""
    api = _empty_api()
    for each in all_routers():
        api.include_router(each)
    return tuple(api.router.routes)


def all_routers() -> Sequence[APIRouter]:
    return (*ROUTERS, docs.router)
