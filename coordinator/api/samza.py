"""The routes that containers of Apache Samza call, below one URL for each job.

A Samza container reads its job model from the coordinator's URL, and appends `containerHeartbeat?…` and `locality` to the same URL
(HttpUtil.read, ContainerHeartbeatClient). docs/samza.md describes what such a container needs.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import RedirectResponse

from coordinator.api.access import GuardedRoute
from coordinator.api.agents import heartbeat_answer
from coordinator.api.deps import PROBLEMS, JobPath, PartsDep
from coordinator.api.jobmodels import localities, model_response
from sluice.core.ids import ExecutionContainerId, JobName
from sluice.wire import body as wire_body

IfNoneMatch = Annotated[str | None, Header()]
MODEL: dict[int | str, dict[str, Any]] = {
    200: {"description": "The job model", "content": {"application/json": {}}},
    304: {"description": "Unchanged"},
}
router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


@router.get("/", response_model=None, responses=MODEL)
async def get_only_job_model(parts: PartsDep, if_none_match: IfNoneMatch = None, accept: Annotated[str, Header()] = "") -> Response:
    """The job model, if there is exactly one job. Browsers, which accept `text/html`, are redirected to the web pages."""
    if "text/html" in accept:
        return RedirectResponse("ui/", 307)
    return model_response(parts, parts.models.only_job(), if_none_match)


@router.get("/jobs/{job}/", response_model=None, responses=MODEL)
async def get_model_of_job(job: JobPath, parts: PartsDep, if_none_match: IfNoneMatch = None) -> Response:
    """The job's model, as `GET /jobModel`: the URL for Samza's containers."""
    return model_response(parts, job, if_none_match)


@router.get("/jobs/{job}/containerHeartbeat", response_model=wire_body.HeartbeatReply)
async def heartbeat_of_job(
    job: JobPath,
    parts: PartsDep,
    execution_container_id: Annotated[str, Query(alias="executionContainerId", min_length=1)],
    sluice_epoch: Annotated[int | None, Header(ge=0, lt=2**31)] = None,
) -> Response:
    """Like `GET /containerHeartbeat`, but a container of another job is not valid."""
    return await heartbeat_answer(parts, ExecutionContainerId(execution_container_id), sluice_epoch, JobName(job))


@router.get("/jobs/{job}/locality")
async def get_locality_of_job(
    job: JobPath, parts: PartsDep, processor_id: Annotated[str | None, Query(alias="processorId")] = None
) -> dict[str, Any]:
    """Like `GET /locality`."""
    return await localities(parts, JobName(job), processor_id)
