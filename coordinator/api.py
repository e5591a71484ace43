"""The HTTP API: each route reads the request, calls one verb, and spells its answer. Rules are in `core`, errors in `problems`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry

from coordinator import api_drain, api_snapshots, api_versions, metrics
from coordinator.blobstores import BlobStores
from coordinator.declared import PROBLEMS, RunIdPath, TaskPath
from coordinator.deployments import Deployments
from coordinator.fastpaths import ALIVE
from coordinator.health import Health
from coordinator.heartbeats import Heartbeats, Newcomer
from coordinator.jobmodels import JobModels
from coordinator.leases import Leases
from coordinator.measures import Measures, Told
from coordinator.notices import Notices
from coordinator.paces import Paces
from coordinator.replies import (
    InMemory,
    container_reply,
    drain_of_run,
    job_reply,
    plan_of_run,
    prometheus_target,
    run_detail,
    run_reply,
    runs_reply,
    stage_start,
)
from coordinator.runs import Runs
from coordinator.snapshots import Snapshots
from coordinator.survey import Survey
from coordinator.tasks import Tasks
from sluice.core.errors import UnknownJob, UnknownSlot, YourRequest
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, Lineage, ProcessorId, RunId, StageName, TaskName
from sluice.core.ownership import Wait
from sluice.streams.port import StreamSystem
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs
from sluice.wire import samza as wire_samza


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes call; made once by `app.py`."""

    deployments: Deployments
    runs: Runs
    tasks: Tasks
    paces: Paces
    heartbeats: Heartbeats
    models: JobModels
    leases: Leases
    measures: Measures
    survey: Survey
    notices: Notices
    health: Health
    registry: CollectorRegistry
    systems: dict[str, StreamSystem]
    blob_stores: BlobStores
    snapshots: Snapshots
    notices_wait: timedelta

    @property
    def connections(self) -> dict[str, dict[str, str]]:
        return {name: dict(system.connection()) for name, system in self.systems.items()}


async def the_parts(request: Request) -> Parts:
    """On the event loop, as a plain function would take a thread for it, and requests would overtake one another."""
    parts: Parts = request.app.state.parts
    return parts


PartsDep = Annotated[Parts, Depends(the_parts)]
router = APIRouter(responses=PROBLEMS)


# --- runs ------------------------------------------------------------------------------------------------------------


Replaces = Annotated[
    str | None, Header(alias=wire_body.REPLACES_HEADER, max_length=300, description="a run's id: only while that is the job's current run")
]


@router.post("/runs", status_code=201)
async def deploy_run(
    body: wire_runs.RunRequest, parts: PartsDep, sluice_replaces: Replaces = None, sluice_who: api_versions.Who = ""
) -> wire_runs.RunReply:
    """Deploy a job: make its job model and a run. A live run of the job is asked to stop."""
    replaces = None if sluice_replaces is None else RunId(sluice_replaces)
    return run_reply(await parts.deployments.deploy(body, replaces, sluice_who), parts.connections)


@router.post("/runs/plan")
async def plan_run(body: wire_runs.RunRequest, parts: PartsDep) -> wire_runs.RunPlanReply:
    """What deploying this would make, or why it would be refused. Changes nothing. With the start "drained" it is answered as after a drain
    that is still to come."""
    return plan_of_run(body.job, await parts.deployments.plan(body))


@router.get("/runs")
async def get_runs(
    parts: PartsDep,
    job: Annotated[wire_body.Name | None, Query(description="only this job's")] = None,
    before: Annotated[str | None, Query(max_length=300, pattern=wire_body.NO_NUL, description="only runs older than this one")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_runs.RunsReply:
    """Runs, newest first. Ask again with `before` = the answer's `next` for older ones."""
    found = await parts.runs.older(JobName(job) if job else None, RunId(before) if before else None, limit + 1)
    return runs_reply(found, limit)


@router.get("/runs/{runId}")
async def get_run(run_id: RunIdPath, parts: PartsDep, response: Response) -> wire_runs.RunDetail:
    """A run with its containers and tasks, and what each task has committed. The ETag is that of its job model: see `PATCH`."""
    described = await parts.runs.describe(RunId(run_id))
    response.headers["ETag"] = f'"{described.run.model_version}"'
    memory = InMemory(
        lease_left=parts.leases.left,
        paces=parts.paces.of_run(RunId(run_id)),
        told=parts.measures.of_run(RunId(run_id)),
        behind=parts.survey.behind(RunId(run_id)),
        backed_up=parts.snapshots.newest,
    )
    return run_detail(described, parts.connections, memory, parts.blob_stores)


@router.get("/runs/{runId}/request")
async def get_run_request(run_id: RunIdPath, parts: PartsDep) -> wire_runs.RunRequest:
    """The request that made a run, with which it can be made again."""
    return await parts.runs.request_of(RunId(run_id))


@router.post("/runs/{runId}/stop", status_code=202)
async def stop_run(run_id: RunIdPath, parts: PartsDep, body: wire_runs.StopRequest | None = None) -> wire_runs.RunReply:
    """Stop all containers between batches; the run ends when the last is gone. Repeating it changes nothing."""
    asked = body or wire_runs.StopRequest()
    return run_reply(await parts.runs.stop(RunId(run_id), asked.reason, failed=asked.failed), parts.connections)


@router.get("/jobs")
async def get_jobs(parts: PartsDep) -> wire_runs.JobsReply:
    return wire_runs.JobsReply(jobs=tuple(job_reply(row) for row in await parts.runs.jobs()))


@router.get("/runs/{runId}/notices")
async def get_notices(
    run_id: RunIdPath,
    parts: PartsDep,
    after: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    wait: Annotated[float, Query(ge=0, le=300, description="seconds; the coordinator may hold the poll for less")] = 30,
) -> wire_body.NoticesReply:
    """Long poll: the run's notices numbered above `after`, as soon as there are any."""
    held = min(timedelta(seconds=wait), parts.notices_wait)
    found = await parts.notices.after(RunId(run_id), after, held)
    return wire_body.NoticesReply(
        notices=tuple(wire_body.Notice.model_validate({"seq": n.seq, "kind": n.kind, "at": n.at, "detail": n.detail}) for n in found)
    )


# --- containers ------------------------------------------------------------------------------------------------------


@router.post("/runs/{runId}/containers", status_code=201)
async def register_container(run_id: RunIdPath, body: wire_agents.RegisterRequest, parts: PartsDep) -> wire_agents.RegisterReply:
    """Register an incarnation of a slot; an older incarnation of it is invalid from now on."""
    new = Newcomer(
        ProcessorId(body.processor_id), ExecutionContainerId(body.execution_container_id), body.host, body.bare, body.metrics_address
    )
    found = await parts.heartbeats.register(RunId(run_id), new)
    return wire_agents.RegisterReply(
        epoch=found.container.epoch,
        lease_seconds=found.lease.total_seconds(),
        heartbeat_seconds=found.interval.total_seconds(),
        margin_seconds=parts.leases.policy.margin.total_seconds(),
        job_model_version=found.model_version,
        notices=found.notices,
    )


@router.post("/containers/{executionContainerId:path}/exit")
async def report_exit(
    execution_container_id: Annotated[str, Path(alias="executionContainerId", max_length=300)],
    body: wire_agents.ExitRequest,
    parts: PartsDep,
) -> wire_runs.ContainerReply:
    """A container is gone, as it says itself or its launcher does. Its tasks are free at once."""
    return container_reply(await parts.heartbeats.exited(ExecutionContainerId(execution_container_id), body.exit_code, body.reason))


@router.get("/containerHeartbeat", response_model=wire_body.HeartbeatReply)
async def container_heartbeat(
    parts: PartsDep,
    execution_container_id: Annotated[str, Query(alias="executionContainerId", min_length=1)],
    sluice_epoch: Annotated[int | None, Header(ge=0, lt=2**31)] = None,
) -> Response:
    """Whether this container is valid. An agent sends `Sluice-Epoch`; without it nothing is renewed, except for a bare container."""
    entry = parts.leases.beat(execution_container_id, None if sluice_epoch is None else Epoch(sluice_epoch))
    headers = {"Cache-Control": "no-store"}
    if entry is not None:
        headers |= {name.decode(): value.decode() for name, value in entry.headers}
        return Response(ALIVE, media_type="application/json", headers=headers)
    parts.leases.answered_invalid += 1
    ended = await parts.heartbeats.state_of_ended_run(ExecutionContainerId(execution_container_id))
    if ended is not None:
        headers[wire_body.RUN_STATE_HEADER] = ended.value
    return Response(b'{"alive": false}', media_type="application/json", headers=headers)


# --- tasks -----------------------------------------------------------------------------------------------------------


@router.post(
    "/runs/{runId}/tasks/{task}/acquire", responses={200: {"model": wire_agents.AcquireReply}, 202: {"model": wire_agents.WaitReply}}
)
async def acquire_task(
    run_id: RunIdPath,
    task: TaskPath,
    body: wire_agents.AcquireRequest,
    parts: PartsDep,
    wait: Annotated[float, Query(ge=0, le=60, description="seconds in which the task may still become free")] = 0,
) -> Response:
    """Become the task's holder, with a new generation; 202 with a time to wait while the former holder may still act. The holder itself
    gets the same generation again, with the starts of all partitions that are its by now."""
    held = min(timedelta(seconds=wait), parts.notices_wait)
    found = await parts.tasks.acquire(
        RunId(run_id), TaskName(task), ExecutionContainerId(body.execution_container_id), Epoch(body.epoch), held
    )
    if isinstance(found, Wait):
        seconds = found.delay.total_seconds()
        told = wire_agents.WaitReply(wait_seconds=seconds, former=found.former)
        return JSONResponse(told.model_dump(by_alias=True), 202, headers={"Retry-After": str(int(seconds) + 1)})
    reply = wire_agents.AcquireReply(
        task=task, generation=found.generation, stages=tuple(stage_start(each) for each in found.stages), drain=drain_of_run(found.drain)
    )
    return JSONResponse(reply.model_dump(mode="json", by_alias=True))


@router.post("/runs/{runId}/tasks/{task}/progress", status_code=204)
async def report_progress(run_id: RunIdPath, task: TaskPath, body: wire_agents.ProgressRequest, parts: PartsDep) -> None:
    """A stage's last committed batch. An older one than is known changes nothing; the same one again tells newer `measures`."""
    told = Told(Generation(body.generation), Lineage(body.lineage), body.batch_id, wire_body.offsets_of(body.offsets), body.measures)
    await parts.tasks.progress(RunId(run_id), TaskName(task), StageName(body.stage), told)


@router.post("/runs/{runId}/tasks/{task}/pace")
async def report_pace(run_id: RunIdPath, task: TaskPath, body: wire_agents.PaceRequest, parts: PartsDep) -> wire_agents.PaceReply:
    """How far a stage is in event time; whether it must wait for slower tasks (runs with `maxEventSkewSeconds`)."""
    word = await parts.paces.tell(RunId(run_id), TaskName(task), Generation(body.generation), StageName(body.stage), body.event_time)
    lead = None if word.lead is None else word.lead.total_seconds()
    return wire_agents.PaceReply(hold=word.hold, lead_seconds=lead, waits_for=word.waits_for)


@router.post("/runs/{runId}/tasks/{task}/release", status_code=204)
async def release_task(run_id: RunIdPath, task: TaskPath, body: wire_agents.ReleaseRequest, parts: PartsDep) -> None:
    """Give the task back, so that its next holder need not wait."""
    await parts.tasks.release(RunId(run_id), TaskName(task), Generation(body.generation))


# --- the job model, in Samza's spelling ------------------------------------------------------------------------------


@router.get("/jobModel", response_model=None, responses={200: {"content": {"application/json": {}}}, 304: {"description": "Unchanged"}})
async def get_job_model(
    parts: PartsDep,
    job: Annotated[str, Query(min_length=1)],
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The current job model of a job, as Apache Samza spells it; the run and the version are in headers."""
    served = parts.models.served(job)
    if if_none_match is not None and _matches(if_none_match, served.etag.decode()):
        return Response(status_code=304, headers=served.headers)
    return Response(served.body, media_type="application/json", headers=served.headers)


def _matches(if_none_match: str, etag: str) -> bool:
    return any(each.strip().removeprefix("W/") in (etag, "*") for each in if_none_match.split(","))


@router.get("/locality")
async def get_locality(
    parts: PartsDep,
    job: Annotated[str | None, Query(min_length=1, description="needed when there is more than one job")] = None,
    processor_id: Annotated[str | None, Query(alias="processorId")] = None,
) -> dict[str, Any]:
    """On which host each slot of a job runs."""
    if job is None:
        known = parts.models.jobs()
        if len(known) > 1:
            raise YourRequest(f"there are {len(known)} jobs: say which with ?job=NAME")
        if not known:
            raise UnknownJob("there is no job yet")
        job = known[0]
    hosts = await parts.runs.hosts(JobName(job))
    if processor_id is None:
        return {"processor-localities": {pid: wire_samza.locality_document(pid, host) for pid, host in hosts.items()}}
    if ProcessorId(processor_id) not in hosts:
        raise UnknownSlot(f"job {job} has no processor {processor_id!r}")
    return wire_samza.locality_document(processor_id, hosts[ProcessorId(processor_id)])


# --- health ----------------------------------------------------------------------------------------------------------


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(parts: PartsDep) -> Response:
    return Response(metrics.exposition(parts.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/prometheus/targets")
async def get_prometheus_targets(parts: PartsDep) -> list[wire_body.PrometheusTarget]:
    """The live containers that show metrics, as Prometheus' HTTP service discovery (`http_sd_configs`) reads them."""
    return [prometheus_target(row, row.metrics_address) for row in await parts.heartbeats.live() if row.metrics_address]


@router.get("/livez", response_class=PlainTextResponse)
async def live() -> str:
    """The process answers; nothing else is checked."""
    return "ok"


@router.get("/readyz", response_class=PlainTextResponse, responses={503: {"content": {"text/plain": {}}, "description": "Not ready"}})
async def ready(parts: PartsDep, verbose: Annotated[str | None, Query()] = None) -> Response:
    """Whether requests can be served: the database, the streams, the chores. `?verbose` tells each."""
    checks = await parts.health.check()
    good = all(check.ok or not check.vital for check in checks)
    told = "\n".join(f"[{'+' if check.ok else '-'}] {check.name}: {check.told}" for check in checks)
    text = f"{told}\n{'ready' if good else 'not ready'}\n" if verbose is not None else ("ready\n" if good else "not ready\n")
    return PlainTextResponse(text, 200 if good else 503)


def new_api(**kwargs: Any) -> FastAPI:
    """The application without its parts."""
    api = FastAPI(title="Sluice coordinator", version="0.1.0", redirect_slashes=False, **kwargs)
    api.include_router(router)
    api.include_router(api_snapshots.router)
    api.include_router(api_drain.router)
    api.include_router(api_versions.router)
    return api
