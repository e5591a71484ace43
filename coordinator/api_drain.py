"""The routes about drains, in the manner of `coordinator.api`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from coordinator.declared import PROBLEMS, RunIdPath, StagePath, TaskPath
from coordinator.drainreplies import drain_detail, drain_summary, plan_reply
from coordinator.drains import Asked, Drains, Took
from sluice.core.drain import DrainId, Phase, Step, Times
from sluice.core.ids import Generation, JobName, RunId, StageName, TaskName
from sluice.core.snapshot import CheckpointId
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains


@dataclass(frozen=True, slots=True)
class Draining:
    """What the routes call; made once by `app.py`. `times` are those of requests that say none."""

    drains: Drains
    times: Times


async def the_draining(request: Request) -> Draining:
    draining: Draining = request.app.state.draining
    return draining


DrainsDep = Annotated[Draining, Depends(the_draining)]
DrainPath = Annotated[str, Path(max_length=300)]
router = APIRouter(responses=PROBLEMS)


@router.post("/drain", status_code=202, responses={200: {"model": wire_drains.DrainSummary, "description": "The run's drain"}})
async def request_drain(body: wire_drains.DrainRequest, ours: DrainsDep, response: Response) -> wire_drains.DrainSummary:
    """Drain a run. The same run again is answered with the same drain, also when it is drained."""
    times = _times(body, ours.times)
    drain, new = await ours.drains.request(Asked(RunId(body.run_id), body.drain_mode, times, body.require_empty))
    if not new:
        response.status_code = 200
    return drain_summary(drain)


def _times(body: wire_drains.DrainRequest, usual: Times) -> Times:
    """A hard deadline that is told alone bounds the soft one, too."""
    told = {Phase(name.upper()): seconds for name, seconds in body.budget_seconds.model_dump().items() if seconds is not None}
    hard = usual.hard if body.hard_deadline_seconds is None else timedelta(seconds=body.hard_deadline_seconds)
    soft = min(usual.soft, hard) if body.soft_deadline_seconds is None else timedelta(seconds=body.soft_deadline_seconds)
    return Times(soft, hard, {**usual.budgets, **{phase: timedelta(seconds=seconds) for phase, seconds in told.items()}})


@router.post("/drain/plan")
async def plan_drain(body: wire_drains.DrainPlanRequest, ours: DrainsDep) -> wire_drains.DrainPlanReply:
    """Which stages of a run a flush could not empty, as their containers told last. Changes nothing."""
    run, stages = await ours.drains.plan(RunId(body.run_id))
    return plan_reply(run, stages)


@router.get("/drain/{uuid}")
async def get_drain(uuid: DrainPath, ours: DrainsDep) -> wire_drains.DrainDetail:
    """How a drain stands, or stood: phases, what each stage of each task has done, what remains, who blocks."""
    return drain_detail(await ours.drains.describe(DrainId(uuid)))


@router.get("/drains")
async def get_drains(
    ours: DrainsDep,
    job: wire_body.Name,
    before: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_drains.DrainsReply:
    """The drains of a job, newest first. Ask again with `before` = the answer's `next` for older ones."""
    found = await ours.drains.of_job(JobName(job), before, limit + 1)
    following = found[limit - 1].seq if len(found) > limit else None
    return wire_drains.DrainsReply(job=job, drains=tuple(drain_summary(each) for each in found[:limit]), next=following)


@router.delete("/drain/{uuid}")
async def cancel_drain(uuid: DrainPath, ours: DrainsDep) -> wire_drains.DrainSummary:
    """Cancel a drain before anything is flushed; the run goes on. Repeating it changes nothing."""
    return drain_summary(await ours.drains.cancel(DrainId(uuid)))


@router.post("/runs/{runId}/tasks/{task}/stages/{stage}/drain")
async def report_drain_step(
    run_id: RunIdPath, task: TaskPath, stage: StagePath, body: wire_drains.DrainStepRequest, ours: DrainsDep
) -> wire_drains.DrainStepReply:
    """A stage of a task took a step. Steps go forward only; one that was reported before changes nothing."""
    took = Took(
        generation=Generation(body.generation),
        drain_id=DrainId(body.uuid),
        step=Step[body.step.upper()],
        batch=body.batch_id,
        offsets=wire_body.offsets_of(body.offsets),
        checkpoint=None if body.checkpoint_id is None else CheckpointId(body.checkpoint_id),
        rows_left=body.rows_left,
        operators_left=body.operators_left,
        note=body.note,
    )
    return wire_drains.DrainStepReply(phase=await ours.drains.report(RunId(run_id), TaskName(task), StageName(stage), took))
