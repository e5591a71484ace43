"""The HTTP API. Each route reads a request, makes one call and builds its answer; the rules are in `sluice.core`.

The routes and the bodies they build are grouped by capability: `runs`, `agents` (what containers call), `jobmodels`, `drains`, `snapshots`
and `ops` (metrics and probes). `deps` has what routes depend on, `errors` turns errors into answers, `middleware` counts and limits
requests, and `fastpath` answers heartbeats without the framework.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from coordinator.api import agents, drains, jobmodels, ops, runs, snapshots


def new_api(**kwargs: Any) -> FastAPI:
    """The application without its parts."""
    api = FastAPI(title="Sluice coordinator", version="0.1.0", redirect_slashes=False, **kwargs)
    for each in (runs, agents, ops, snapshots, drains, jobmodels):
        api.include_router(each.router)
    return api
