"""The routes that containers call: register, exit, heartbeat, acquire and release a task, report progress, poll for notices."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from coordinator.api.access import GuardedRoute, RequestGuardDep
from coordinator.api.deps import PROBLEMS, Parts, PartsDep, RunIdPath, StagePath, TaskPath
from coordinator.api.fastpath import ALIVE
from coordinator.api.runs import container_reply, drain_of_run
from coordinator.fleet.registration import Registration
from coordinator.fleet.script_queries import ScriptQuery
from coordinator.fleet.stage_metrics import StageReport
from coordinator.fleet.termination import ContainerReports, is_confirmed
from coordinator.runs.tasks import StageStart
from coordinator.runs.watermarks import StageReport as WatermarkReport
from coordinator.runs.watermarks import StreamCap
from coordinator.store.fleet import StageStateRow
from coordinator.store.snapshots import SnapshotRow
from sluice.core.access.metrics_address import scrape_address
from sluice.core.access.tokens import SECRET_BYTES, digest, new_incarnation_token
from sluice.core.drain import Mode
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, Lineage, ProcessorId, RunId, StageName, TaskName
from sluice.core.leases.ownership import Wait
from sluice.core.snapshots.snapshot import BlobStoreName
from sluice.core.watermarks import FeederProgress, ProgressSource
from sluice.randomness import random_bytes
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs
from sluice.wire import snapshots as wire_snapshots

router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)

log = logging.getLogger(__name__)


@router.get("/runs/{runId}/notices")
async def get_notices(
    run_id: RunIdPath,
    parts: PartsDep,
    after: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    wait: Annotated[float, Query(ge=0, le=300, description="seconds to wait for a notice; the coordinator may answer sooner")] = 30,
) -> wire_body.NoticesReply:
    """Long poll: the notices of the run with numbers above `after`, as soon as there are any."""
    longest_wait = min(timedelta(seconds=wait), parts.notices_wait)
    found = await parts.notices.after(RunId(run_id), after, longest_wait)
    return wire_body.NoticesReply(
        notices=tuple(wire_body.Notice.model_validate({"seq": n.seq, "kind": n.kind, "at": n.at, "detail": n.detail}) for n in found)
    )


# --- containers ------------------------------------------------------------------------------------------------------


@router.post("/runs/{runId}/containers", status_code=201)
async def register_container(
    run_id: RunIdPath, body: wire_agents.RegisterRequest, parts: PartsDep, guard: RequestGuardDep, request: Request
) -> wire_agents.RegisterReply:
    """Register an incarnation of a slot. An older incarnation of the slot becomes invalid. The answer has the container's token, which it
    sends with every later request. Bare containers send no tokens, so only launchers may register them."""
    if body.bare:
        await guard.launcher(run_id)
    token = body.token or new_incarnation_token(ExecutionContainerId(body.execution_container_id), random_bytes(SECRET_BYTES))
    new = Registration(
        ProcessorId(body.processor_id),
        ExecutionContainerId(body.execution_container_id),
        body.host,
        body.bare,
        _published(body, request, parts),
        can_keep_state=Mode.KEEP_STATE in body.drain_modes,
        token=digest(token),
        chose_token=body.token is not None,
        principal=guard.name,
        only_if_free=body.only_if_free,
    )
    found = await parts.registrations.register(RunId(run_id), new)
    return wire_agents.RegisterReply(
        epoch=found.container.epoch,
        lease_seconds=found.lease.total_seconds(),
        heartbeat_seconds=found.interval.total_seconds(),
        margin_seconds=parts.leases.policy.margin.total_seconds(),
        job_model_version=found.container.model_version,
        notices=found.notices,
        token=token,
    )


def _published(body: wire_agents.RegisterRequest, request: Request, parts: Parts) -> str | None:
    """The address at which Prometheus scrapes the container."""
    given = body.metrics_address
    if given is None:
        return None
    published = scrape_address(given, request.client.host if request.client else "", parts.metrics_hosts)
    if published != given:
        log.info(
            "container %s: its metrics are scraped at %s, not at %s, because it registered from there and metrics_hosts does not list %s",
            body.execution_container_id,
            published or "no address",
            given,
            given.rpartition(":")[0],
        )
    return published


@router.post("/containers/{executionContainerId:path}/exit")
async def report_exit(
    execution_container_id: Annotated[str, Path(alias="executionContainerId", max_length=300)],
    body: wire_agents.ExitRequest,
    parts: PartsDep,
    guard: RequestGuardDep,
) -> wire_runs.ContainerReply:
    """Report that a container has exited; the container or its launcher may do so. Its tasks are free immediately, if the container reports
    it or the launcher confirms that the process has ended; otherwise after its lease and the grace period."""
    execution_id = ExecutionContainerId(execution_container_id)
    confirmed = is_confirmed(by_principal=guard.by_principal, terminated=body.terminated)
    reports: ContainerReports = parts.registrations
    return container_reply(await reports.exited(execution_id, body.exit_code, body.reason, confirmed=confirmed))


@router.post("/containers/{executionContainerId:path}/invalidate")
async def invalidate_container(
    execution_container_id: Annotated[str, Path(alias="executionContainerId", max_length=300)],
    body: wire_agents.InvalidateRequest,
    parts: PartsDep,
) -> wire_runs.ContainerReply:
    """Declare a container invalid: its next heartbeat is answered with `alive: false`. Its tasks are free when it has reported its exit, or
    after its lease and the grace period. A container that has ended does not change."""
    reports: ContainerReports = parts.registrations
    return container_reply(await reports.invalidate(ExecutionContainerId(execution_container_id), body.reason))


@router.get("/containerHeartbeat", response_model=wire_body.HeartbeatReply)
async def container_heartbeat(
    parts: PartsDep,
    execution_container_id: Annotated[str, Query(alias="executionContainerId", min_length=1)],
    sluice_epoch: Annotated[int | None, Header(ge=0, lt=2**31)] = None,
    sluice_term: Annotated[str, Header(description="the highest term of a coordinator that the container knows")] = "",
) -> Response:
    """Whether this container is valid. With `Sluice-Epoch` its lease is renewed; without, only if it registered as `bare`."""
    return await heartbeat_answer(parts, ExecutionContainerId(execution_container_id), sluice_epoch, term=sluice_term)


async def heartbeat_answer(
    parts: Parts, execution_id: ExecutionContainerId, epoch: int | None, job: JobName | None = None, term: str = ""
) -> Response:
    """`job`: the container is valid only if it is of this job."""
    if job is None and (epoch is not None or not parts.leases.is_bare(execution_id)):
        entry = parts.leases.beat(execution_id, epoch, term.encode("latin-1", "replace"))
    else:
        entry = await parts.registrations.beat_of_job(execution_id, epoch, job)
    headers = {"Cache-Control": "no-store"}
    if entry is not None:
        headers |= {name.decode(): value.decode() for name, value in entry.headers}
        return Response(ALIVE, media_type="application/json", headers=headers)
    parts.leases.answered_invalid += 1
    ended = await parts.registrations.state_of_ended_run(execution_id)
    if ended is not None:
        headers[wire_body.RUN_STATE_HEADER] = ended.value
    return Response(b'{"alive": false}', media_type="application/json", headers=headers)


@router.get("/runs/{runId}/blob-stores/{blobStore}/credentials")
async def get_blob_credentials(
    run_id: RunIdPath, blob_store: Annotated[str, Path(alias="blobStore", max_length=300)], parts: PartsDep, response: Response
) -> wire_agents.BlobCredentialsReply:
    """Short-lived credentials for the blobs of the run's job in an S3 store. Refused as 409 `no-store-role` if the setting
    `blob_store_roles` has no role for the store: containers then use credentials of their own."""
    job = (await parts.runs.basic(RunId(run_id))).run.job
    found = await parts.blob_credentials.of(job, BlobStoreName(blob_store))
    response.headers["Cache-Control"] = "no-store"
    return wire_agents.BlobCredentialsReply(
        access_key_id=found.key,
        secret_access_key=found.secret,
        session_token=found.token,
        expires_at=found.expires_at,
        seconds_left=found.left.total_seconds(),
    )


# --- tasks -----------------------------------------------------------------------------------------------------------


@router.post(
    "/runs/{runId}/tasks/{task}/acquire", responses={200: {"model": wire_agents.AcquireReply}, 202: {"model": wire_agents.WaitReply}}
)
async def acquire_task(
    run_id: RunIdPath,
    task: TaskPath,
    body: wire_agents.AcquireRequest,
    parts: PartsDep,
    guard: RequestGuardDep,
    wait: Annotated[float, Query(ge=0, le=60, description="seconds to wait for the task to become free")] = 0,
) -> Response:
    """Acquire the task: the container becomes its owner, with a new generation. The answer is 202 with a time to wait if the former owner
    may still be running. A repeated request of the owner is answered with the same generation, and the start offsets of all partitions
    that the task has now."""
    guard.itself(body.execution_container_id)
    longest_wait = min(timedelta(seconds=wait), parts.notices_wait)
    found = await parts.tasks.acquire(
        RunId(run_id), TaskName(task), ExecutionContainerId(body.execution_container_id), Epoch(body.epoch), longest_wait
    )
    if isinstance(found, Wait):
        seconds = found.delay.total_seconds()
        waiting = wire_agents.WaitReply(wait_seconds=seconds, former=found.former)
        return JSONResponse(waiting.model_dump(by_alias=True), 202, headers={"Retry-After": str(int(seconds) + 1)})
    reply = wire_agents.AcquireReply(
        task=task,
        generation=found.generation,
        stages=tuple(stage_start(each) for each in found.stages),
        drain=drain_of_run(found.drain),
        continuation=found.continuation.model_dump(mode="json", by_alias=True, exclude_none=True),
    )
    return JSONResponse(reply.model_dump(mode="json", by_alias=True))


@router.get("/runs/{runId}/tasks/{task}/owner", status_code=204)
async def confirm_owner(
    run_id: RunIdPath, task: TaskPath, parts: PartsDep, generation: Annotated[int, Query(ge=1, description="the generation of the caller")]
) -> None:
    """Whether the task is still held under that generation: 204, or 409 `lease-lost`. Changes nothing."""
    await parts.tasks.confirm_owner(RunId(run_id), TaskName(task), Generation(generation))


@router.post("/runs/{runId}/tasks/{task}/progress", status_code=204)
async def report_progress(run_id: RunIdPath, task: TaskPath, body: wire_agents.ProgressRequest, parts: PartsDep) -> None:
    """Report the last committed batch of a stage. A report of an older batch changes nothing. A repeated report updates its `metrics`."""
    report = StageReport(
        Generation(body.generation), Lineage(body.lineage), body.batch_id, wire_body.offsets_of(body.offsets), body.metrics
    )
    await parts.tasks.progress(RunId(run_id), TaskName(task), StageName(body.stage), report)


@router.put("/runs/{runId}/tasks/{task}/queries")
async def report_queries(run_id: RunIdPath, task: TaskPath, body: wire_agents.QueriesRequest, parts: PartsDep) -> wire_agents.QueriesReply:
    """Report the streaming queries of an attached job. The answer names those that must be stopped, because another job has their
    checkpoint."""
    refused = await parts.tasks.queries(RunId(run_id), TaskName(task), Generation(body.generation), list(map(_script_query, body.queries)))
    return wire_agents.QueriesReply(
        refused=tuple(
            wire_agents.RefusedQuery(stage=stage, why=f"job {job} uses the checkpoint now; a checkpoint has one query at a time")
            for stage, job in refused.items()
        )
    )


def _script_query(body: wire_agents.QueryBody) -> ScriptQuery:
    return ScriptQuery(
        StageName(body.stage),
        body.checkpoint,
        body.name,
        Lineage(body.query_id),
        body.batch_id,
        wire_body.offsets_of(body.offsets),
        body.metrics,
        body.active,
        body.error,
        body.failures,
        NEVER,
        NEVER,
        body.undrainable,
        body.writes,
    )


NEVER = datetime.min.replace(tzinfo=UTC)
"""Replaced by the time of the report."""


@router.put("/runs/{runId}/tasks/{task}/stages/{stage}/checkpoint")
async def open_checkpoint(
    run_id: RunIdPath, task: TaskPath, stage: StagePath, body: wire_snapshots.CheckpointOpening, parts: PartsDep
) -> wire_snapshots.OpenedCheckpoint:
    """Begin to use a checkpoint of an attached job, which is backed up as a stage of its task. A repeated request changes nothing."""
    lineage = None if body.lineage is None else Lineage(body.lineage)
    found = await parts.tasks.open_checkpoint(
        RunId(run_id), TaskName(task), StageName(stage), Generation(body.generation), lineage, create=body.create
    )
    state = found.state
    return wire_snapshots.OpenedCheckpoint(
        new=found.new,
        lineage=None if state is None else state.lineage,
        batch_id=None if state is None else state.batch_id,
        snapshot=None if state is None or found.snapshot is None else stage_snapshot(found.snapshot, state),
        place=found.place,
    )


@router.post("/runs/{runId}/tasks/{task}/stages/{stage}/failure", status_code=204)
async def report_failure(run_id: RunIdPath, task: TaskPath, stage: StagePath, body: wire_agents.FailureRequest, parts: PartsDep) -> None:
    """Report that a stage fails, for `GET /runs/{runId}`. The next progress of the stage, or a report of 0 failures, ends the failure."""
    retry_in = None if body.retry_seconds is None else timedelta(seconds=body.retry_seconds)
    generation = Generation(body.generation)
    await parts.tasks.failed(RunId(run_id), TaskName(task), StageName(stage), generation, body.error, body.failures, retry_in, body.log)


@router.post("/runs/{runId}/watermarks")
async def report_watermarks(
    run_id: RunIdPath, body: wire_agents.WatermarksRequest, parts: PartsDep, guard: RequestGuardDep
) -> wire_agents.WatermarksReply:
    """Report the progress of a container's stages that write or read intermediate streams. The answer limits the watermarks of the stages
    that read one."""
    reports = {(TaskName(each.task), StageName(each.stage)): _watermark_report(each) for each in body.stages}
    answer = await parts.watermarks.report(RunId(run_id), reports, guard.container)
    return wire_agents.WatermarksReply(
        stages=tuple(
            wire_agents.StageCap(task=task, stage=stage, streams=tuple(_stream_cap(each) for each in caps))
            for (task, stage), caps in answer.caps.items()
        ),
        refused=tuple(
            wire_agents.RefusedStage(task=task, stage=stage, generation=generation) for (task, stage), generation in answer.refused
        ),
    )


def _watermark_report(body: wire_agents.StageWatermark) -> WatermarkReport:
    progress = None
    if body.source is not None:
        progress = FeederProgress(body.event_time, timedelta(seconds=body.delay_seconds), ProgressSource(body.source), body.pending)
    return WatermarkReport(Generation(body.generation), progress, body.watermark, body.partitions)


def _stream_cap(cap: StreamCap) -> wire_agents.StreamCap:
    return wire_agents.StreamCap(
        system=cap.stream.system,
        stream=cap.stream.stream,
        steps=tuple(
            wire_agents.StepBody(
                event_time=step.event_time,
                delay_seconds=step.delay.total_seconds(),
                ends=wire_body.offsets_body(step.ends),
                exact=step.exact,
            )
            for step in cap.steps
        ),
        held_by=tuple(map(str, cap.held_by)),
    )


@router.post("/runs/{runId}/tasks/{task}/release", status_code=204)
async def release_task(run_id: RunIdPath, task: TaskPath, body: wire_agents.ReleaseRequest, parts: PartsDep) -> None:
    """Release the task, so that its next owner need not wait."""
    await parts.tasks.release(RunId(run_id), TaskName(task), Generation(body.generation))


def stage_snapshot(found: SnapshotRow, store: StageStateRow) -> wire_snapshots.StageSnapshot:
    return wire_snapshots.StageSnapshot(
        checkpoint_id=found.checkpoint,
        lineage=found.lineage,
        batch_id=found.batch_id,
        markers={name: marker.index for name, marker in found.markers.items()},
        chosen=store.chosen,
    )


def stage_start(start: StageStart) -> wire_agents.StageStart:
    snapshot = start.snapshot and stage_snapshot(start.snapshot, start.store)
    return wire_agents.StageStart(
        stage=start.store.stage,
        lineage=start.store.lineage,
        batch_id=start.store.batch_id,
        starts=wire_body.offsets_body(start.starts),
        snapshot=snapshot,
        generation=start.store.generation,
        drain_step=wire_agents.step_name(start.step),
        kept_operators=None if start.kept_operators is None else tuple(start.kept_operators),
        earlier_histories=tuple(start.earlier_histories),
    )
