"""The routes of job models and their versions. `/jobModel` and `/locality` answer in the format of Apache Samza."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response

from coordinator.api.access import GuardedRoute, RequestGuardDep
from coordinator.api.agents import stage_snapshot
from coordinator.api.deps import PROBLEMS, Actor, JobModelParts, JobModelsDep, JobPath, Parts, PartsDep, RunIdPath
from coordinator.blobpool import BlobStores
from coordinator.jobmodels.rollout import AdoptionReport, Version
from coordinator.jobmodels.standby import StandbyPlan
from coordinator.jobmodels.versions import Change, ChangeReason, ModelChange, Proposal, hypothetical
from coordinator.store.jobmodels import ModelHead
from sluice.core.errors import BadPlacement, UnknownSlot, VersionConflict
from sluice.core.ids import Epoch, ExecutionContainerId, JobName, ProcessorId, RunId
from sluice.core.jobmodels.expansion import Effect, Skew, StreamVerdict
from sluice.wire import jobmodels as wire_jobmodels
from sluice.wire import samza as wire_samza

VersionPath = Annotated[int, Path(ge=1, lt=2**31)]
IfMatch = Annotated[str | None, Header(description="an ETag of the run or its job model: change only if that version is in force")]
ONE_JOB = "required if there is more than one job"
router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


@router.post("/jobModel/plan")
async def plan_versions(body: wire_jobmodels.PlanRequest, deps: JobModelsDep, guard: RequestGuardDep) -> wire_jobmodels.PlanReply:
    """What would happen to a job's run with other partition counts or another number of slots. Changes nothing."""
    await guard.job(body.job)
    run = await deps.runs.current(JobName(body.job))
    counts = hypothetical(run, body.streams)
    as_it_is = await deps.versions.propose(run.run_id, ModelChange(counts=counts))
    if body.containers is None:
        return _with_warnings(plan_reply(as_it_is, deps.blob_stores), deps)
    try:
        wanted = ModelChange(containers=body.containers, counts=counts)
        return _with_warnings(plan_reply(await deps.versions.propose(run.run_id, wanted), deps.blob_stores), deps)
    except BadPlacement as error:
        return refused_reply(as_it_is, body.containers, str(error), deps.blob_stores)


def _with_warnings(reply: wire_jobmodels.PlanReply, deps: JobModelParts) -> wire_jobmodels.PlanReply:
    return reply.model_copy(update={"warnings": (*reply.warnings, *deps.watermarks.missing_event_times(RunId(reply.run_id)))})


@router.patch("/runs/{runId}")
async def change_run(
    run_id: RunIdPath,
    body: wire_jobmodels.ChangeRequest,
    deps: JobModelsDep,
    response: Response,
    actor: Actor,
    if_match: IfMatch = None,
) -> wire_jobmodels.ChangeReply:
    """Change a live run: its number of slots, or grow with its inputs now. Its containers are notified."""
    wanted = ModelChange(containers=body.containers, counts=await deps.watch.current(RunId(run_id)) if body.grow else None)
    reason = ChangeReason(actor, body.why, _version(if_match))
    change = await deps.versions.change(RunId(run_id), wanted, reason)
    response.headers["ETag"] = f'"{change.run.model_version}"'
    return change_reply(change, deps.blob_stores)


def _version(if_match: str | None) -> int | None:
    """The version that the tag names. Raises VersionConflict if it names none."""
    if if_match is None or if_match.strip() == "*":
        return None
    tag = if_match.strip().removeprefix("W/").strip('"').split("-")[0]
    if not tag.isascii() or not tag.isdigit() or len(tag) > 9:
        raise VersionConflict(f"{if_match[:100]!r} is not the ETag of a job-model version")
    return int(tag)


@router.get("/jobs/{job}/models")
async def get_versions(
    job: JobPath,
    deps: JobModelsDep,
    before: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_jobmodels.VersionsReply:
    """The versions of a job's model, newest first: when each was created, by whom and why."""
    heads, current = await deps.history.versions(JobName(job), before, limit + 1)
    return versions_reply(job, heads, current, limit)


@router.get("/jobs/{job}/models/{version}")
async def get_version(job: JobPath, version: VersionPath, deps: JobModelsDep, response: Response) -> wire_jobmodels.VersionDetail:
    """One version with its model. A version never changes."""
    found = await deps.history.version(JobName(job), version)
    response.headers["ETag"] = f'"{found.head.version}-{found.head.content_hash[:16]}"'
    return version_detail(found)


@router.get("/jobs/{job}/models/{version}/diff/{later}")
async def compare_versions(job: JobPath, version: VersionPath, later: VersionPath, deps: JobModelsDep) -> wire_jobmodels.DifferenceReply:
    """What version `later` changes compared with `version`."""
    return difference_reply(job, version, later, await deps.history.difference(JobName(job), version, later))


@router.post("/jobs/{job}/models/{version}/rollback")
async def roll_back(
    job: JobPath,
    version: VersionPath,
    deps: JobModelsDep,
    response: Response,
    actor: Actor,
    body: wire_jobmodels.RollbackRequest | None = None,
    if_match: IfMatch = None,
) -> wire_jobmodels.ChangeReply:
    """Put an older version in force again, as a new one, unless a container has adopted a later one."""
    reason = ChangeReason(actor, body.why if body else "", _version(if_match))
    change = await deps.history.roll_back(JobName(job), version, reason)
    response.headers["ETag"] = f'"{change.run.model_version}"'
    return change_reply(change, deps.blob_stores)


@router.post("/runs/{runId}/containers/{executionContainerId:path}/adopted")
async def report_adoption(
    run_id: RunIdPath,
    execution_container_id: Annotated[str, Path(alias="executionContainerId", max_length=300)],
    body: wire_jobmodels.AdoptedRequest,
    deps: JobModelsDep,
) -> wire_jobmodels.AdoptedReply:
    """Report the version of the job model that a container runs. Repeating the report, or reporting an older one, changes nothing."""
    report = AdoptionReport(RunId(run_id), ExecutionContainerId(execution_container_id), Epoch(body.epoch), body.version)
    found = await deps.adoptions.report(report)
    return wire_jobmodels.AdoptedReply(version=found.version, current=found.current, all_on=found.all_on)


@router.get("/runs/{runId}/containers/{executionContainerId:path}/standby")
async def get_standby(
    run_id: RunIdPath, execution_container_id: Annotated[str, Path(alias="executionContainerId", max_length=300)], deps: JobModelsDep
) -> wire_jobmodels.StandbyReply:
    """The snapshots of which the container keeps standby copies, so that it can take over their tasks quickly (`standby.replicas`)."""
    return standby_reply(await deps.standbys.of_container(RunId(run_id), ExecutionContainerId(execution_container_id)))


# --- the job model in Samza's format ------------------------------------------------------------------------------


@router.get("/jobModel", response_model=None, responses={200: {"content": {"application/json": {}}}, 304: {"description": "Unchanged"}})
async def get_job_model(
    parts: PartsDep,
    job: Annotated[str | None, Query(min_length=1, description=ONE_JOB)] = None,
    processor_id: Annotated[str | None, Query(alias="processorId", description="only the container of this slot")] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The current job model of a job in the format of Apache Samza; the run and the version are in headers."""
    return model_response(parts, job or parts.models.only_job(), if_none_match, processor_id)


def model_response(parts: Parts, job: str, if_none_match: str | None, processor_id: str | None = None) -> Response:
    """The job's model, or 304 if the client has it. Raises NoJobModel."""
    served = parts.models.served(job)
    if processor_id is not None:
        served = served.of_slot(ProcessorId(processor_id))
    if if_none_match is not None and _matches(if_none_match, served.etag.decode()):
        return Response(status_code=304, headers=served.headers)
    return Response(served.body, media_type="application/json", headers=served.headers)


def _matches(if_none_match: str, etag: str) -> bool:
    return any(each.strip().removeprefix("W/") in (etag, "*") for each in if_none_match.split(","))


@router.get("/locality")
async def get_locality(
    parts: PartsDep,
    job: Annotated[str | None, Query(min_length=1, description=ONE_JOB)] = None,
    processor_id: Annotated[str | None, Query(alias="processorId")] = None,
) -> dict[str, Any]:
    """The host of each slot of a job: where its last container ran, possibly under an earlier run."""
    return await localities(parts, JobName(job) if job else parts.models.only_job(), processor_id)


async def localities(parts: Parts, job: JobName, processor_id: str | None) -> dict[str, Any]:
    """The localities of all slots, or of one. Raises UnknownJob, UnknownSlot."""
    hosts = await parts.runs.hosts(job)
    if processor_id is None:
        return {"processor-localities": {pid: wire_samza.locality_document(pid, host) for pid, host in hosts.items()}}
    if ProcessorId(processor_id) not in hosts:
        raise UnknownSlot(f"job {job} has no processor {processor_id!r}")
    return wire_samza.locality_document(processor_id, hosts[ProcessorId(processor_id)])


def plan_reply(proposal: Proposal, blob_stores: BlobStores) -> wire_jobmodels.PlanReply:
    return wire_jobmodels.PlanReply.model_validate(_proposal_fields(proposal, blob_stores) | {"version": proposal.run.model_version})


def standby_reply(kept: StandbyPlan) -> wire_jobmodels.StandbyReply:
    copies = tuple(
        wire_jobmodels.StandbyCopy(task=each.store.task, stage=each.store.stage, snapshot=stage_snapshot(each.snapshot, each.store))
        for each in kept.copies
    )
    return wire_jobmodels.StandbyReply(copies=copies, own=tuple(sorted(kept.own)))


def refused_reply(proposal: Proposal, containers: int, reason: str, blob_stores: BlobStores) -> wire_jobmodels.PlanReply:
    """The answer to a plan whose number of slots is refused. `proposal`: the plan with the present number of slots."""
    fields = {"verdict": "REFUSED", "reason": reason, "containers": containers, "version": proposal.run.model_version}
    return wire_jobmodels.PlanReply.model_validate(_proposal_fields(proposal, blob_stores) | fields)


def change_reply(change: Change, blob_stores: BlobStores) -> wire_jobmodels.ChangeReply:
    versions = {"version": change.run.model_version, "former": change.proposal.run.model_version}
    return wire_jobmodels.ChangeReply.model_validate(_proposal_fields(change.proposal, blob_stores) | versions)


def _proposal_fields(proposal: Proposal, blob_stores: BlobStores) -> dict[str, Any]:
    return _effect_fields(proposal.effect) | {
        "job": proposal.run.job,
        "run_id": proposal.run.run_id,
        "containers": proposal.containers,
        "verdict": proposal.verdict,
        "reason": "; ".join(proposal.reasons),
        "streams": tuple(_stream(each, proposal) for each in proposal.verdicts),
        "warnings": tuple(_warnings(proposal, blob_stores)),
    }


def _warnings(proposal: Proposal, blob_stores: BlobStores) -> Sequence[str]:
    if proposal.effect.moves and not blob_stores.backup(proposal.run.backup).to:
        return ["the run is not backed up: a task that moves finds its state only if both containers use the same disk"]
    return []


def _stream(verdict: StreamVerdict, proposal: Proposal) -> wire_jobmodels.StreamVerdict:
    count = verdict.count
    return wire_jobmodels.StreamVerdict(
        name=count.name,
        system=count.stream.system,
        stream=count.stream.stream,
        before=count.known,
        after=count.now,
        baseline=proposal.plan.assignment.baselines.get(count.stream),
        verdict=verdict.verdict,
        reason=verdict.reason,
    )


def _effect_fields(effect: Effect) -> dict[str, Any]:
    return {
        "partitions": tuple(
            wire_jobmodels.NewPartition(system=ssp.system, stream=ssp.stream, partition=ssp.partition, task=task)
            for ssp, task in effect.partitions.items()
        ),
        "tasks_affected": tuple(effect.affected),
        "tasks_new": tuple(effect.made),
        "tasks_gone": tuple(effect.gone),
        "moves": tuple(wire_jobmodels.MoveReply(task=move.task, former=move.former, to=move.to) for move in effect.moves),
        "skew_before": _skew(effect.before),
        "skew_after": _skew(effect.after),
    }


def _skew(skew: Skew) -> wire_jobmodels.SkewReply:
    def spread(numbers: tuple[int, float]) -> wire_jobmodels.Spread:
        return wire_jobmodels.Spread(max=numbers[0], mean=numbers[1])

    return wire_jobmodels.SkewReply(
        partitions_per_task=spread(skew.partitions_per_task), tasks_per_container=spread(skew.tasks_per_container)
    )


def _summary_fields(head: ModelHead, *, current: bool) -> dict[str, Any]:
    return {
        "version": head.version,
        "run_id": head.run_id,
        "at": head.created_at,
        "actor": head.who,
        "why": head.why,
        "content_hash": head.content_hash,
        "current": current,
    }


def versions_reply(job: str, heads: Sequence[ModelHead], current: int, limit: int) -> wire_jobmodels.VersionsReply:
    """`heads` has one more than `limit` if there is another page."""
    page = heads[:limit]
    listed = tuple(wire_jobmodels.VersionSummary.model_validate(_summary_fields(each, current=each.version == current)) for each in page)
    return wire_jobmodels.VersionsReply(job=job, models=listed, next=page[-1].version if len(heads) > limit else None)


def version_detail(found: Version) -> wire_jobmodels.VersionDetail:
    fields = _summary_fields(found.head, current=found.current)
    return wire_jobmodels.VersionDetail.model_validate(fields | {"model": json.loads(found.document)})


def difference_reply(job: str, former: int, later: int, effect: Effect) -> wire_jobmodels.DifferenceReply:
    return wire_jobmodels.DifferenceReply.model_validate(_effect_fields(effect) | {"job": job, "former": former, "later": later})
