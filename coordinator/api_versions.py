"""The routes about versions of job models, in the manner of `coordinator.api`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from coordinator.adoptions import Adoptions, Told
from coordinator.blobstores import BlobStores
from coordinator.declared import PROBLEMS, JobPath, RunIdPath
from coordinator.modelhistory import ModelHistory
from coordinator.partitionwatch import PartitionWatch
from coordinator.runs import Runs
from coordinator.standbys import Standbys
from coordinator.versionreplies import (
    change_reply,
    difference_reply,
    plan_reply,
    refused_reply,
    standby_reply,
    version_detail,
    versions_reply,
)
from coordinator.versions import Asked, Versions, Wish, supposed
from sluice.core.errors import BadPlacement, VersionConflict
from sluice.core.ids import Epoch, ExecutionContainerId, JobName, RunId
from sluice.wire import jobmodels as wire_jobmodels


@dataclass(frozen=True, slots=True)
class Versioning:
    """What the routes call; made once by `app.py`."""

    runs: Runs
    versions: Versions
    history: ModelHistory
    adoptions: Adoptions
    watch: PartitionWatch
    blob_stores: BlobStores
    standbys: Standbys


async def the_versioning(request: Request) -> Versioning:
    versioning: Versioning = request.app.state.versioning
    return versioning


JobModelsDep = Annotated[Versioning, Depends(the_versioning)]
VersionPath = Annotated[int, Path(ge=1, lt=2**31)]
Who = Annotated[str, Header(alias=wire_jobmodels.WHO_HEADER, max_length=200, pattern=r"^[\x20-\x7e]*$")]
IfMatch = Annotated[str | None, Header(description="an ETag of the run or of its job model: only while that is in force")]
router = APIRouter(responses=PROBLEMS)


@router.post("/jobModel/plan")
async def plan_versions(body: wire_jobmodels.PlanRequest, ours: JobModelsDep) -> wire_jobmodels.PlanReply:
    """What would happen to a job's run with other partition counts or another number of containers. Changes nothing."""
    run = await ours.runs.current(JobName(body.job))
    counts = supposed(run, body.streams)
    as_it_is = await ours.versions.propose(run.run_id, Wish(counts=counts))
    if body.containers is None:
        return plan_reply(as_it_is, ours.blob_stores)
    try:
        wish = Wish(containers=body.containers, counts=counts)
        return plan_reply(await ours.versions.propose(run.run_id, wish), ours.blob_stores)
    except BadPlacement as error:
        return refused_reply(as_it_is, body.containers, str(error), ours.blob_stores)


@router.patch("/runs/{runId}")
async def change_run(
    run_id: RunIdPath,
    body: wire_jobmodels.ChangeRequest,
    ours: JobModelsDep,
    response: Response,
    sluice_who: Who = "",
    if_match: IfMatch = None,
) -> wire_jobmodels.ChangeReply:
    """Change a run that goes on: the number of its containers, or let it grow with its inputs now. Its containers learn of it at once."""
    wish = Wish(containers=body.containers, counts=await ours.watch.look(RunId(run_id)) if body.grow else None)
    asked = Asked(sluice_who, body.why, _version(if_match))
    change = await ours.versions.change(RunId(run_id), wish, asked)
    response.headers["ETag"] = f'"{change.run.model_version}"'
    return change_reply(change, ours.blob_stores)


def _version(if_match: str | None) -> int | None:
    """The version that the tag is of. Raises VersionConflict for one that is of none: it cannot be in force."""
    if if_match is None or if_match.strip() == "*":
        return None
    tag = if_match.strip().removeprefix("W/").strip('"').split("-")[0]
    if not tag.isascii() or not tag.isdigit() or len(tag) > 9:
        raise VersionConflict(f"{if_match[:100]!r} is the ETag of no version of a job model")
    return int(tag)


@router.get("/jobs/{job}/models")
async def get_versions(
    job: JobPath,
    ours: JobModelsDep,
    before: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_jobmodels.VersionsReply:
    """The versions of a job's model, newest first: when each was made, by whom and why."""
    heads, current = await ours.history.versions(JobName(job), before, limit + 1)
    return versions_reply(job, heads, current, limit)


@router.get("/jobs/{job}/models/{version}")
async def get_version(job: JobPath, version: VersionPath, ours: JobModelsDep, response: Response) -> wire_jobmodels.VersionDetail:
    """One version with its model, which never changes."""
    found = await ours.history.version(JobName(job), version)
    response.headers["ETag"] = f'"{found.head.version}-{found.head.content_hash[:16]}"'
    return version_detail(found)


@router.get("/jobs/{job}/models/{version}/diff/{later}")
async def compare_versions(job: JobPath, version: VersionPath, later: VersionPath, ours: JobModelsDep) -> wire_jobmodels.DifferenceReply:
    """What `later` changed against `version`."""
    return difference_reply(job, version, later, await ours.history.difference(JobName(job), version, later))


@router.post("/jobs/{job}/models/{version}/rollback")
async def roll_back(
    job: JobPath,
    version: VersionPath,
    ours: JobModelsDep,
    response: Response,
    body: wire_jobmodels.RollbackRequest | None = None,
    sluice_who: Who = "",
    if_match: IfMatch = None,
) -> wire_jobmodels.ChangeReply:
    """Put an older version in force again, as a new one, unless a container has adopted a later one."""
    asked = Asked(sluice_who, body.why if body else "", _version(if_match))
    change = await ours.history.roll_back(JobName(job), version, asked)
    response.headers["ETag"] = f'"{change.run.model_version}"'
    return change_reply(change, ours.blob_stores)


@router.post("/runs/{runId}/containers/{executionContainerId:path}/adopted")
async def report_adoption(
    run_id: RunIdPath,
    execution_container_id: Annotated[str, Path(alias="executionContainerId", max_length=300)],
    body: wire_jobmodels.AdoptedRequest,
    ours: JobModelsDep,
) -> wire_jobmodels.AdoptedReply:
    """A container runs that version of the job model. Repeating it, or telling an older one, changes nothing."""
    told = Told(RunId(run_id), ExecutionContainerId(execution_container_id), Epoch(body.epoch), body.version)
    found = await ours.adoptions.tell(told)
    return wire_jobmodels.AdoptedReply(version=found.version, current=found.current, all_on=found.all_on)


@router.get("/runs/{runId}/containers/{executionContainerId:path}/standby")
async def get_standby(
    run_id: RunIdPath, execution_container_id: Annotated[str, Path(alias="executionContainerId", max_length=300)], ours: JobModelsDep
) -> wire_jobmodels.StandbyReply:
    """The snapshots that the container keeps copies of, so that it can take their tasks over at once (`standby.replicas`)."""
    return standby_reply(await ours.standbys.of_container(RunId(run_id), ExecutionContainerId(execution_container_id)))
