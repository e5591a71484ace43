"""The routes of runs and jobs, and their rows as HTTP bodies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from coordinator.api.access import GuardedRoute, RequestGuard, RequestGuardDep
from coordinator.api.deps import PROBLEMS, Actor, JobPath, Parts, PartsDep, RunIdPath
from coordinator.blobpool import BlobStores
from coordinator.fleet.leases import Contact
from coordinator.fleet.script_queries import ScriptQuery
from coordinator.fleet.stage_metrics import Failures, StageFailure, StageReport, Stages
from coordinator.jobmodels.rollout import version_of_all
from coordinator.jobmodels.versions import reassigned_slots
from coordinator.runs.deploy import DeploymentPlan
from coordinator.runs.lag import Lag
from coordinator.runs.runs import BasicRun, RunDetails
from coordinator.runs.watermarks import StreamWatermark
from coordinator.store.drains import DrainRow
from coordinator.store.fleet import ContainerRow, ContainerState, LateRows, StageStateRow
from coordinator.store.jobmodels import MonitoredStreamRow
from coordinator.store.runs import JobRow, RunRow
from coordinator.turns import free_in_turns, in_turns
from sluice.core.access.spark_settings import not_allowed
from sluice.core.drain import Mode, Phase
from sluice.core.errors import Forbidden, UnknownJob
from sluice.core.ids import ExecutionContainerId, JobName, RunId, StageKey, StageName, StreamId, TaskName
from sluice.core.jobmodels.graph import Stage
from sluice.core.jobmodels.spec import JobKind, Role, RunSpec, StreamSpec, broadcast_partitions
from sluice.core.leases.ownership import TaskOwner
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs

router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


# --- runs ------------------------------------------------------------------------------------------------------------


Replaces = Annotated[
    str | None,
    Header(alias=wire_body.REPLACES_HEADER, max_length=300, description="a run's id: deploy only if it is the job's current run"),
]


@router.post("/runs", status_code=201)
async def deploy_run(
    body: wire_runs.RunRequest, parts: PartsDep, guard: RequestGuardDep, actor: Actor, sluice_replaces: Replaces = None
) -> wire_runs.RunReply:
    """Deploy a job: create its job model and a run. A live run of the job is stopped."""
    await guard.job(body.job)
    await _check_spark_settings(body, parts, guard)
    replaces = None if sluice_replaces is None else RunId(sluice_replaces)
    return run_reply(await parts.deployments.deploy(spec_of(body), replaces, actor), parts.connections)


async def _check_spark_settings(body: wire_runs.RunRequest, parts: Parts, guard: RequestGuard) -> None:
    """Raises Forbidden for Spark settings that the principal may not set."""
    if guard.is_admin(body.job):
        return
    try:
        present = (await parts.runs.current(JobName(body.job))).spec.config
    except UnknownJob:
        present = {}
    refused = not_allowed(body.config, present, parts.deployer_spark_settings)
    if refused:
        raise Forbidden(
            f"{', '.join(refused)}: such a setting can run code in the driver, so the role admin is needed to set it first, or the "
            "coordinator's setting deployer_spark_settings must list it"
        )


@router.post("/runs/plan")
async def plan_run(
    body: wire_runs.RunRequest,
    parts: PartsDep,
    guard: RequestGuardDep,
    drain_mode: Annotated[Mode, Query(alias="drainMode", description='for the start "drained": the mode of that drain')] = Mode.DEFAULT,
) -> wire_runs.RunPlanReply:
    """What this deployment would create, or why it would be refused. Changes nothing. With the start "drained" the answer assumes that the
    current run has been drained."""
    await guard.job(body.job)
    await _check_spark_settings(body, parts, guard)
    return plan_of_run(body.job, await parts.deployments.plan(spec_of(body), drain_mode))


@router.get("/runs")
async def get_runs(
    parts: PartsDep,
    job: Annotated[wire_body.Name | None, Query(description="only runs of this job")] = None,
    before: Annotated[str | None, Query(max_length=300, pattern=wire_body.NO_NUL, description="only runs older than this one")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_runs.RunsReply:
    """Runs, newest first. For the next page, set `before` to the answer's `next`."""
    found = await parts.runs.older(JobName(job) if job else None, RunId(before) if before else None, limit + 1)
    return runs_reply(found, limit)


@router.get("/runs/{runId}", response_model=wire_runs.RunDetail | wire_runs.BasicRun)
async def get_run(
    run_id: RunIdPath,
    parts: PartsDep,
    response: Response,
    view: Annotated[
        wire_runs.RunView, Query(description="basic: only what a container needs; slots: that, and the slots without a container")
    ] = wire_runs.RunView.FULL,
) -> wire_runs.RunDetail | Response:
    """A run with its containers, its tasks and what each task has committed. The ETag is that of its job model, for `PATCH`."""
    if view is wire_runs.RunView.BASIC:
        basic = await parts.runs.basic(RunId(run_id))
        body = parts.basic_runs.encoded(basic, partial(_basic_run_body, basic, parts))
        return Response(body, media_type="application/json", headers={"ETag": f'"{basic.run.model_version}"'})
    if view is wire_runs.RunView.SLOTS:
        basic, vacant = await parts.runs.with_vacant_slots(RunId(run_id))
        fields = _basic_fields(basic, parts.connections, parts.blob_stores) | {"vacant_slots": tuple(vacant)}
        body = wire_runs.BasicRun.model_validate(fields).model_dump_json(by_alias=True).encode()
        return Response(body, media_type="application/json", headers={"ETag": f'"{basic.run.model_version}"'})
    detail = await describe_run(parts, RunId(run_id))
    response.headers["ETag"] = f'"{detail.job_model_version}"'
    return detail


@router.get("/runs/{runId}/containers")
async def get_containers(
    run_id: RunIdPath,
    parts: PartsDep,
    after: Annotated[str | None, Query(max_length=300, pattern=wire_body.NO_NUL, description="only those that follow this one")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_runs.ContainersReply:
    """All recorded containers of a run, ordered by slot and epoch. For the next page, set `after` to the answer's `next`."""
    found = await parts.runs.containers(RunId(run_id), None if after is None else ExecutionContainerId(after), limit + 1)
    now = parts.runs.now()
    page = tuple(_incarnation(row, parts.leases.left, parts.leases.contact, now) for row in found[:limit])
    return wire_runs.ContainersReply(containers=page, next=page[-1].execution_container_id if len(found) > limit else None)


@router.get("/runs/{runId}/request")
async def get_run_request(run_id: RunIdPath, parts: PartsDep) -> wire_runs.RunRequest:
    """The request that created a run. Sending it again creates a run with the same spec."""
    return request_of(await parts.runs.spec(RunId(run_id)))


@router.post("/runs/{runId}/stop", status_code=202)
async def stop_run(run_id: RunIdPath, parts: PartsDep, body: wire_runs.StopRequest | None = None) -> wire_runs.RunReply:
    """Stop all containers between batches. The run ends when the last one has exited. Repeating the request changes nothing."""
    request = body or wire_runs.StopRequest()
    return run_reply(await parts.runs.stop(RunId(run_id), request.reason, failed=request.failed), parts.connections)


@router.get("/jobs")
async def get_jobs(
    parts: PartsDep,
    guard: RequestGuardDep,
    after: Annotated[wire_body.Name | None, Query(description="only jobs that come after this one")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> wire_runs.JobsReply:
    """The jobs for which the principal has a role, by name. For the next page, set `after` to the answer's `next`. A page lacks the jobs
    that the principal may not see."""
    found = await parts.runs.jobs(JobName(after) if after else None, limit + 1)
    page = found[:limit]
    following = page[-1].job if len(found) > limit else None
    return wire_runs.JobsReply(jobs=tuple(job_reply(row) for row in page if guard.shows(row.job)), next=following)


@router.delete("/jobs/{job}")
async def remove_job(
    job: JobPath,
    parts: PartsDep,
    actor: Actor,
    dry_run: Annotated[bool, Query(alias="dryRun", description="only return what would be deleted")] = False,
) -> wire_runs.JobRemovalReply:
    """Remove a job whose run has ended, with its runs, versions, drains and snapshots. Its blobs become garbage, which is deleted after the
    grace period. The generations of its tasks are kept, and a later job of the same name continues to count from them."""
    rows = await (parts.removal.plan(JobName(job)) if dry_run else parts.removal.remove(JobName(job), actor))
    names = ("runs", "containers", "drains", "snapshots", "pins")
    counts: dict[str, object] = {name: rows[name] for name in names}
    grace = parts.blob_stores.garbage_grace.total_seconds()
    return wire_runs.JobRemovalReply.model_validate(
        counts | {"versions": rows["job_models"], "job": job, "dry_run": dry_run, "garbage_grace_seconds": grace}
    )


def spec_of(request: wire_runs.RunRequest) -> RunSpec:
    return RunSpec(
        job=JobName(request.job),
        containers=request.containers,
        streams=(
            *(_stream(each, Role.INPUT, broadcast=each.broadcast) for each in request.inputs),
            *(_stream(each, Role.INTERMEDIATE, each.partitions) for each in request.intermediates),
            *(_stream(each, Role.OUTPUT, each.partitions) for each in request.outputs),
        ),
        stages=tuple(Stage(StageName(each.name), each.reads, each.writes, each.stateful) for each in request.stages),
        grouper=request.grouper,
        max_tasks=request.max_tasks,
        stateful=request.stateful,
        start=request.start,
        config=request.config,
        kind=request.kind,
    )


def _stream(body: wire_runs.StreamBody, role: Role, partitions: int | None = None, *, broadcast: bool | str = False) -> StreamSpec:
    return StreamSpec(
        name=body.name,
        role=role,
        id=StreamId(body.system, body.stream or body.name),
        broadcast=broadcast is True,
        broadcast_partitions=broadcast_partitions(broadcast) if isinstance(broadcast, str) else (),
        requested_stream=body.stream,
        requested_partitions=partitions,
    )


def request_of(spec: RunSpec) -> wire_runs.RunRequest:
    """The request for a run with this spec."""

    def streams(role: Role) -> list[tuple[StreamSpec, dict[str, object]]]:
        found = [each for each in spec.streams if each.role is role]
        return [(each, {"name": each.name, "system": each.id.system, "stream": each.requested_stream}) for each in found]

    def created(role: Role) -> list[dict[str, object]]:
        return [{**fields, "partitions": each.requested_partitions} for each, fields in streams(role)]

    return wire_runs.RunRequest.model_validate(
        {
            "job": spec.job,
            "containers": spec.containers,
            "inputs": [{**fields, "broadcast": each.requested_broadcast} for each, fields in streams(Role.INPUT)],
            "intermediates": created(Role.INTERMEDIATE),
            "outputs": created(Role.OUTPUT),
            "stages": [_stage_body(each) for each in spec.stages],
            "grouper": spec.grouper,
            "max_tasks": spec.max_tasks,
            "stateful": spec.stateful,
            "start": spec.start,
            "config": dict(spec.config),
            "kind": spec.kind,
        }
    )


def _stage_body(stage: Stage) -> wire_runs.StageBody:
    return wire_runs.StageBody(name=stage.name, reads=stage.reads, writes=stage.writes, stateful=stage.stateful)


def _stream_reply(stream: StreamSpec) -> wire_runs.StreamReply:
    fields: dict[str, object] = {"name": stream.name, "role": stream.role.value, "system": stream.id.system, "stream": stream.id.stream}
    fields |= {"partitions": stream.partitions, "broadcast": stream.broadcast, "identity": stream.identity}
    fields |= {"broadcast_partitions": stream.broadcast_partitions}
    return wire_runs.StreamReply.model_validate(fields)


Connections = dict[str, dict[str, str]]


def run_summary(run: RunRow) -> wire_runs.RunSummary:
    return wire_runs.RunSummary.model_validate(_run_fields(run, {}))


def runs_reply(rows: Sequence[RunRow], limit: int) -> wire_runs.RunsReply:
    """`rows` has one more than `limit` if there is another page."""
    page = rows[:limit]
    return wire_runs.RunsReply(runs=tuple(run_summary(row) for row in page), next=page[-1].run_id if len(rows) > limit else None)


def run_reply(run: RunRow, connections: Connections) -> wire_runs.RunReply:
    return wire_runs.RunReply.model_validate(_run_fields(run, connections))


def plan_of_run(job: str, proposed: DeploymentPlan) -> wire_runs.RunPlanReply:
    return wire_runs.RunPlanReply(
        job=job,
        replaces=proposed.before.run_id if proposed.before else None,
        streams=tuple(_stream_reply(each) for each in proposed.spec.streams),
        creates=tuple(each.name for each in proposed.spec.streams if each.id in proposed.missing),
        tasks=tuple(wire_runs.PlannedTask(task=task, processor_id=slot) for task, slot in sorted(proposed.model.placement.items())),
    )


def _run_fields(run: RunRow, connections: Connections) -> dict[str, object]:
    used = {stream.id.system for stream in run.spec.streams}
    return {
        "run_id": run.run_id,
        "job": run.job,
        "kind": run.spec.kind,
        "state": run.state,
        "first_run": run.first_run,
        "reason": run.reason,
        "containers": run.spec.containers,
        "job_model_version": run.model_version,
        "streams": tuple(_stream_reply(each) for each in run.spec.streams),
        "stages": tuple(_stage_body(each) for each in run.spec.stages),
        "config": dict(run.spec.config),
        "systems": {name: connection for name, connection in connections.items() if name in used},
        "created_at": run.created_at,
        "started_at": run.started_at,
        "stop_requested_at": run.stop_requested_at,
        "ended_at": run.ended_at,
    }


LeaseLeft = Callable[[ExecutionContainerId], timedelta | None]
ContactOf = Callable[[ExecutionContainerId], Contact | None]


@dataclass(frozen=True, slots=True)
class InMemory:
    """The data of a run that is only in memory: the remaining leases, when containers were last seen, the last reports and failures
    of stages, their lag, when the newest snapshot of each stage was reported, the caps of watermarks, and the problems of backups and of
    the catalog."""

    lease_left: LeaseLeft
    contact: ContactOf
    reports: Stages
    failures: Failures
    lag: Lag
    snapshot_at: Mapping[StageKey, datetime]
    watermarks: Sequence[StreamWatermark] = ()
    late_rows: Mapping[tuple[TaskName, StageName], LateRows] = field(default_factory=dict)
    missing_event_times: Sequence[str] = ()
    backup_problems: Sequence[str] = ()
    catalog_problems: Sequence[str] = ()
    queries: Mapping[StageName, ScriptQuery] = field(default_factory=dict)
    """Those of an attached job."""


PER_TURN = 5
"""Number of tasks or containers that are described before the event loop processes other requests: less than two milliseconds."""


def run_detail(
    described: RunDetails, connections: Connections, memory: InMemory, blob_stores: BlobStores
) -> Generator[None, None, wire_runs.RunDetail]:
    """Computed in steps, because a run may have thousands of tasks."""
    holds = {row.task: row.owner for row in described.holds}
    stores: defaultdict[TaskName, list[StageStateRow]] = defaultdict(list)
    for row in described.stores:
        stores[row.task].append(row)
    yield
    tasks = []
    models = described.model.tasks
    by_stage, attached = described.run.spec.stage_division(), described.run.spec.kind is JobKind.ATTACHED
    yield
    placement = sorted(described.model.placement.items())
    yield
    for number, (name, processor_id) in enumerate(placement):
        hold = holds.get(name)
        if number % PER_TURN == 0:
            yield
        tasks.append(
            wire_runs.TaskReply(
                task=name,
                processor_id=processor_id,
                generation=hold.generation if hold else None,
                holder=hold.holder if hold and not hold.released else None,
                stages=(
                    *(_stage_progress(row, hold, memory) for row in stores[name] if not attached),
                    *(_query_progress(query, hold, stores[name], memory) for query in memory.queries.values()),
                ),
                assigned_stages=(*by_stage(models[name].ssps), *memory.queries),
            )
        )
    fields = _basic_fields(BasicRun(described.run, described.drain, described.failed_drains), connections, blob_stores)
    yield
    incarnations = []
    for number, container in enumerate(described.containers):
        incarnations.append(_incarnation(container, memory.lease_left, memory.contact, described.at))
        if number % PER_TURN == PER_TURN - 1:
            yield
    fields |= {"server_time": described.at, "incarnations": tuple(incarnations), "tasks": tuple(tasks)}
    fields |= {"adoption": _adoption(described), "failed_over_slots": tuple(sorted(reassigned_slots(described.run, described.model)))}
    fields |= {"watched": tuple(_watched(row) for row in described.watched)}
    fields |= {
        "crash_loop_backoff": tuple(
            wire_runs.CrashLoopingSlot(processor_id=pid, failures=held.failures, until=held.until)
            for pid, held in sorted(described.backoffs.items())
        )
    }
    fields |= {"watermarks": tuple(map(_stream_watermark, memory.watermarks)), "missing_event_times": tuple(memory.missing_event_times)}
    fields |= {"backup_problems": tuple(memory.backup_problems), "catalog_problems": tuple(memory.catalog_problems)}
    if memory.queries:
        fields |= {"stages": tuple(wire_runs.StageBody(name=stage, reads=()) for stage in memory.queries)}
    yield
    return wire_runs.RunDetail.model_validate(fields)


async def describe_run(parts: Parts, run_id: RunId) -> wire_runs.RunDetail:
    """A run, from the database and from the coordinator's memory. Raises UnknownRun."""
    described = await parts.runs.describe(run_id)
    memory = InMemory(
        lease_left=parts.leases.left,
        contact=parts.leases.contact,
        reports=parts.stage_metrics.of_run(run_id),
        failures=parts.stage_metrics.failures_of(run_id),
        lag=parts.lag.of_run(run_id),
        snapshot_at=parts.snapshots.newest,
        backup_problems=tuple(map(str, [*parts.backup_monitor.of_run(run_id), *parts.lost_blobs.of_job(described.run.job)])),
        catalog_problems=tuple(parts.issued.sentences()),
        watermarks=parts.watermarks.streams(run_id),
        late_rows=parts.stage_metrics.late_rows_of(run_id),
        missing_event_times=parts.watermarks.missing_event_times(run_id),
        queries=parts.stage_metrics.scripts.of_run(run_id),
    )
    made = await in_turns(run_detail(described, parts.connections, memory, parts.blob_stores))
    rows = [*described.stores, *described.holds, *described.containers]
    del described
    await free_in_turns(rows)
    return made


def _basic_run_body(basic: BasicRun, parts: Parts) -> bytes:
    fields = _basic_fields(basic, parts.connections, parts.blob_stores)
    return wire_runs.BasicRun.model_validate(fields).model_dump_json(by_alias=True).encode()


def _basic_fields(basic: BasicRun, connections: Connections, blob_stores: BlobStores) -> dict[str, object]:
    backup = blob_stores.backup(basic.run.backup)
    return _run_fields(basic.run, connections) | {
        "blob_stores": dict(blob_stores.places),
        "garbage_grace_seconds": blob_stores.garbage_grace.total_seconds(),
        "backup_to": backup.to,
        "restore_from": backup.restore_from,
        "drain": drain_of_run(basic.drain),
        "failed_drains": tuple(basic.failed_drains),
        "slots": tuple(basic.run.spec.slots),
    }


def _adoption(described: RunDetails) -> wire_runs.Adoption:
    version, made_at = described.run.model_version, max(described.version.created_at, described.run.created_at)
    behind = [row for row in described.containers if row.state is ContainerState.LIVE and row.model_version < version]
    return wire_runs.Adoption(
        version=version,
        since=made_at,
        all_on=version_of_all(described.containers),
        outdated=tuple(
            wire_runs.NotAdopted(
                execution_container_id=row.execution_id,
                processor_id=row.processor_id,
                version=row.model_version,
                since=max(made_at, row.registered_at),
            )
            for row in behind
        ),
    )


def _watched(row: MonitoredStreamRow) -> wire_runs.WatchedStream:
    return wire_runs.WatchedStream(
        name=row.name,
        system=row.system,
        stream=row.stream,
        known=row.known,
        seen=row.seen,
        verdict=row.verdict,
        reason=row.reason,
        since=row.since,
    )


def drain_of_run(row: DrainRow | None) -> wire_runs.DrainOfRun | None:
    """None if the drain ended without an effect on the run."""
    if row is None or (row.phase.over and row.phase is not Phase.DRAINED and not row.emptied):
        return None
    pinned, catch_up = wire_body.offsets_body(row.pinned), wire_body.offsets_body(row.catch_up)
    return wire_runs.DrainOfRun(uuid=row.drain_id, phase=row.phase, mode=row.mode.value, pinned=pinned, catch_up=catch_up)


def _stage_progress(row: StageStateRow, owner: TaskOwner | None, memory: InMemory) -> wire_runs.StageProgress:
    lag = memory.lag.get((row.task, row.stage))
    late = memory.late_rows.get((row.task, row.stage))
    return wire_runs.StageProgress(
        stage=row.stage,
        lineage=row.lineage,
        batch_id=row.batch_id,
        offsets=wire_body.offsets_body(row.offsets),
        reported_at=row.reported_at,
        lag=lag,
        metrics=_metrics(memory.reports.get((row.task, row.stage)), owner, lag),
        snapshot_at=None if row.head is None else memory.snapshot_at.get(row.key),
        late_rows=late.rows if late is not None else 0,
        late_rows_given_up=late.given_up if late is not None else 0,
        late_rows_at=late.last_at if late is not None else None,
        failure=_failure(memory.failures.get((row.task, row.stage))),
    )


def _query_progress(
    query: ScriptQuery, owner: TaskOwner | None, stores: Sequence[StageStateRow], memory: InMemory
) -> wire_runs.StageProgress:
    """A query of a script as a stage. `stores`: the checkpoints of the script that are backed up."""
    metrics = query.metrics
    store = next((each for each in stores if each.stage == query.stage and each.lineage == query.lineage and each.head is not None), None)
    reply = None
    if metrics is not None:
        stopped: dict[str, object] = (
            {} if query.active and owner is not None and not owner.released else {"rows": 0, "rows_per_second": 0.0}
        )
        reply = wire_runs.StageMetricsReply.model_validate(metrics.model_dump() | stopped)
    return wire_runs.StageProgress(
        stage=query.stage,
        lineage=query.lineage,
        batch_id=query.batch,
        offsets=wire_body.offsets_body(query.offsets),
        reported_at=query.reported_at,
        metrics=reply,
        late_rows=metrics.late_rows or 0 if metrics is not None else 0,
        late_rows_at=metrics.late_rows_at if metrics is not None else None,
        failure=_query_failure(query),
        checkpoint=query.checkpoint,
        snapshot_at=None if store is None else memory.snapshot_at.get(store.key),
        snapshot_batch_id=None if store is None else store.batch_id,
    )


def _query_failure(query: ScriptQuery) -> wire_runs.StageFailure | None:
    """The failure is over while the query runs again."""
    if not query.failures:
        return None
    return wire_runs.StageFailure(error=query.error, failures=query.failures, at=query.failed_at, retry_at=None, log="", over=query.active)


def _stream_watermark(found: StreamWatermark) -> wire_runs.StreamWatermark:
    return wire_runs.StreamWatermark(
        system=found.stream.system,
        stream=found.stream.stream,
        event_time=found.event_time,
        newest=found.newest,
        lag_seconds=None if found.lag is None else found.lag.total_seconds(),
        held_by=tuple(wire_runs.WatermarkHolder(task=each.feeder.task, stage=each.feeder.stage, why=each.why) for each in found.held_by),
        held_seconds=found.held_for.total_seconds(),
        error=found.error,
    )


def _failure(found: StageFailure | None) -> wire_runs.StageFailure | None:
    return None if found is None else wire_runs.StageFailure.model_validate(asdict(found))


def _metrics(report: StageReport | None, owner: TaskOwner | None, lag: int | None) -> wire_runs.StageMetricsReply | None:
    if report is None or report.metrics_reply is None:
        return None
    newer: dict[str, object] = {} if lag is None else {"lag": lag}
    if owner is None or owner.released or owner.generation != report.generation:
        newer |= {"rows": 0, "rows_per_second": 0.0}
    return report.metrics_reply.model_copy(update=newer) if newer else report.metrics_reply


def container_reply(row: ContainerRow, lease_left: timedelta | None = None) -> wire_runs.ContainerReply:
    return wire_runs.ContainerReply(
        execution_container_id=row.execution_id,
        processor_id=row.processor_id,
        epoch=row.epoch,
        host=row.host,
        state=row.state.value,
        registered_at=row.registered_at,
        last_seen_at=row.last_seen_at,
        ended_at=row.ended_at,
        exit_code=row.exit_code,
        reason=row.reason,
        metrics_address=row.metrics_address,
        job_model_version=row.model_version,
        adopted_at=row.adopted_at,
        bare=row.bare,
        lease_seconds_left=None if lease_left is None else round(lease_left.total_seconds(), 3),
    )


def _incarnation(row: ContainerRow, lease_left: LeaseLeft, contact_of: ContactOf, now: datetime) -> wire_runs.ContainerReply:
    """After a restart of the coordinator, the age of the last heartbeat comes from the database, and is up to half a minute too high."""
    reply, contact = container_reply(row, lease_left(row.execution_id)), contact_of(row.execution_id)
    if contact is None:
        return reply
    age = contact.heartbeat_age if contact.seen else max(contact.heartbeat_age, now - row.last_seen_at)
    return reply.model_copy(update={"heartbeat_age_seconds": round(age.total_seconds(), 3), "silent": contact.silent})


def job_reply(row: JobRow) -> wire_runs.JobReply:
    return wire_runs.JobReply(job=row.job, current_run=row.current_run, state=row.state, runs=row.runs)
