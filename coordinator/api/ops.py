"""The routes of operations tools: metrics, service discovery for Prometheus, liveness and readiness. Load balancers may probe with
HEAD.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from coordinator.api.access import GuardedRoute
from coordinator.api.deps import PROBLEMS, PartsDep
from coordinator.store.fleet import ContainerRow
from sluice.wire import body as wire_body

router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


# --- health ----------------------------------------------------------------------------------------------------------


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(parts: PartsDep) -> Response:
    return Response(await parts.exposition.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.head("/metrics", response_class=PlainTextResponse, include_in_schema=False)
async def head_metrics() -> Response:
    """Without a length, because the page is not computed."""
    response = Response(headers={"Content-Type": CONTENT_TYPE_LATEST})
    del response.headers["Content-Length"]
    return response


@router.get("/prometheus/targets")
async def get_prometheus_targets(parts: PartsDep) -> list[wire_body.PrometheusTarget]:
    """The live containers that expose metrics, for Prometheus' HTTP service discovery (`http_sd_configs`)."""
    return [prometheus_target(row, row.metrics_address) for row in await parts.registrations.live() if row.metrics_address]


@router.head("/livez", response_class=PlainTextResponse, include_in_schema=False)
@router.get("/livez", response_class=PlainTextResponse)
async def live() -> str:
    """Liveness: the process answers. Nothing else is checked."""
    return "ok"


@router.head("/readyz", response_class=PlainTextResponse, include_in_schema=False)
@router.get("/readyz", response_class=PlainTextResponse, responses={503: {"content": {"text/plain": {}}, "description": "Not ready"}})
async def ready(parts: PartsDep, verbose: Annotated[str | None, Query()] = None) -> Response:
    """Readiness: whether the database, the stream systems and the chores work. `?verbose` lists each check."""
    checks = await parts.health.check()
    good = all(check.ok or not check.vital for check in checks)
    lines = "\n".join(f"[{'+' if check.ok else '-'}] {check.name}: {check.text}" for check in checks)
    text = f"{lines}\n{'ready' if good else 'not ready'}\n" if verbose is not None else ("ready\n" if good else "not ready\n")
    text = text.encode(errors="backslashreplace").decode()  # errors may contain file names, which may be any bytes
    return PlainTextResponse(text, 200 if good else 503)


def prometheus_target(row: ContainerRow, address: str) -> wire_body.PrometheusTarget:
    """A Sluice job has the label `sluice_job`, because Prometheus uses `job` for its scrape jobs."""
    labels = {"sluice_job": row.job, "run": row.run_id, "processor": row.processor_id, "container": row.execution_id}
    return wire_body.PrometheusTarget(targets=(address,), labels=labels)
