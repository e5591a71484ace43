"""The routes of drains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from coordinator.api.access import GuardedRoute, RequestGuardDep
from coordinator.api.deps import PROBLEMS, DrainsDep, PartsDep, RunIdPath, StagePath, TaskPath
from coordinator.drains.drains import DrainDetails, DrainPlan, DrainRequest, StepReport, stages_at
from coordinator.store.drains import DrainRow, DrainStageRow
from coordinator.store.fleet import ContainerState
from coordinator.transitions import shape_of
from sluice.core.drain import EFFECTS, DrainId, DrainTimeLimits, Phase, RunTopology, Step, blockers, remains, waits_for
from sluice.core.ids import ExecutionContainerId, Generation, JobName, ProcessorId, RunId, StageName, TaskName
from sluice.core.snapshots.snapshot import CommitId
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains

DrainPath = Annotated[str, Path(max_length=300)]
router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


@router.post("/drain", status_code=202, responses={200: {"model": wire_drains.DrainSummary, "description": "The run's drain"}})
async def request_drain(
    body: wire_drains.DrainRequest, deps: DrainsDep, guard: RequestGuardDep, response: Response
) -> wire_drains.DrainSummary:
    """Drain a run. A repeated request is answered with the same drain, even after it has finished. Later deadlines in a repeated request
    extend an active drain. `uuid` is the id of a new drain; it does not change the id of an existing one."""
    await guard.run(body.run_id)
    times = _times(body, deps.times)
    drain, new = await deps.drains.request(
        DrainRequest(
            RunId(body.run_id),
            body.drain_mode,
            times,
            body.require_empty,
            soft=_seconds(body.soft_deadline_seconds),
            hard=_seconds(body.hard_deadline_seconds),
            drain_id=None if body.uuid is None else DrainId(str(body.uuid)),
        )
    )
    if not new:
        response.status_code = 200
    return drain_summary(drain)


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _times(body: wire_drains.DrainRequest, defaults: DrainTimeLimits) -> DrainTimeLimits:
    """A hard deadline without a soft one also limits the default soft one."""
    budgets = {Phase(name.upper()): seconds for name, seconds in body.budget_seconds.model_dump().items() if seconds is not None}
    hard = defaults.hard if body.hard_deadline_seconds is None else timedelta(seconds=body.hard_deadline_seconds)
    soft = min(defaults.soft, hard) if body.soft_deadline_seconds is None else timedelta(seconds=body.soft_deadline_seconds)
    return DrainTimeLimits(soft, hard, {**defaults.budgets, **{phase: timedelta(seconds=seconds) for phase, seconds in budgets.items()}})


@router.post("/drain/plan")
async def plan_drain(body: wire_drains.DrainPlanRequest, deps: DrainsDep, guard: RequestGuardDep) -> wire_drains.DrainPlanReply:
    """What a drain would do to the state of each stage of a run, according to the containers' last reports. Changes nothing."""
    await guard.run(body.run_id)
    return plan_reply(await deps.drains.plan(RunId(body.run_id)))


@router.get("/drain/{uuid}")
async def get_drain(uuid: DrainPath, deps: DrainsDep) -> wire_drains.DrainDetail:
    """A drain: its phases, the progress of each stage of each task, the number of unfinished stages, and what blocks them."""
    return drain_detail(await deps.drains.describe(DrainId(uuid)))


@router.get("/drains")
async def get_drains(
    deps: DrainsDep,
    parts: PartsDep,
    job: Annotated[wire_body.Name | None, Query(description="required if there is more than one job")] = None,
    before: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_drains.DrainsReply:
    """The drains of a job, newest first. For the next page, set `before` to the answer's `next`."""
    of_job = JobName(job) if job else parts.models.only_job()
    found = await deps.drains.of_job(of_job, before, limit + 1)
    following = found[limit - 1].seq if len(found) > limit else None
    return wire_drains.DrainsReply(job=of_job, drains=tuple(drain_summary(each) for each in found[:limit]), next=following)


@router.delete("/drain/{uuid}")
async def cancel_drain(uuid: DrainPath, deps: DrainsDep) -> wire_drains.DrainSummary:
    """Cancel a drain before any stage is flushed. The run continues. Repeating the request changes nothing."""
    return drain_summary(await deps.drains.cancel(DrainId(uuid)))


@router.post("/runs/{runId}/tasks/{task}/stages/{stage}/drain")
async def report_drain_step(
    run_id: RunIdPath, task: TaskPath, stage: StagePath, body: wire_drains.DrainStepRequest, deps: DrainsDep
) -> wire_drains.DrainStepReply:
    """Report that a stage of a task has taken a step. Steps only advance; a repeated report changes nothing."""
    took = StepReport(
        generation=Generation(body.generation),
        drain_id=DrainId(body.uuid),
        step=Step[body.step.upper()],
        batch=body.batch_id,
        offsets=wire_body.offsets_of(body.offsets),
        checkpoint=None if body.checkpoint_id is None else CommitId(body.checkpoint_id),
        rows_left=body.leftover_rows,
        operators_left=body.leftover_operators,
        note=body.note,
        operators=body.operators,
    )
    after = await deps.drains.report(RunId(run_id), TaskName(task), StageName(stage), took)
    return wire_drains.DrainStepReply(
        phase=after.phase,
        flushed=None if after.flushed is None else tuple(after.flushed),
        catch_up=wire_body.offsets_body(after.catch_up),
    )


def drain_summary(row: DrainRow) -> wire_drains.DrainSummary:
    return wire_drains.DrainSummary.model_validate(_summary_fields(row))


def _summary_fields(row: DrainRow) -> dict[str, object]:
    return {
        "uuid": row.drain_id,
        "run_id": row.run_id,
        "job": row.job,
        "drain_mode": row.mode.value,
        "phase": row.phase,
        "seq": row.seq,
        "reason": row.reason,
        "requested_at": row.requested_at,
        "soft_deadline_at": row.soft_at,
        "hard_deadline_at": row.hard_at,
        "ended_at": row.ended_at,
        "drained": wire_body.offsets_body(row.drained),
    }


def drain_detail(found: DrainDetails) -> wire_drains.DrainDetail:
    drain, stages = found.drain, stages_at(found.stages)
    shape = shape_of(found.run, found.model, found.containers, found.holds)
    left = remains(drain.phase, stages)
    waiting = {name: tuple(waits_for(drain.phase, name, shape, stages)) for name in shape.feeders}
    behind = {(each.task, each.stage) for each in left}
    blocked = blockers(drain.phase, stages, shape)
    fields = _summary_fields(drain) | {
        "server_time": found.at,
        "late": drain.is_late(found.at),
        "total": len(stages),
        "remaining": len(left),
        "leftover_rows": sum(each.rows_left or 0 for each in found.stages),
        "phases": tuple(_phases(drain, found.at)),
        "blocked_by": tuple(
            wire_drains.DrainBlockerReply(
                processor_id=each.processor_id, task=each.task, stage=each.stage, why=each.why, last_exit=each.last_exit
            )
            for each in blocked
        ),
        "containers": tuple(_containers(found, shape, waiting, behind)),
        "pinned": wire_body.offsets_body(drain.pinned),
        "catch_up": wire_body.offsets_body(drain.catch_up),
    }
    return wire_drains.DrainDetail.model_validate(fields)


def _phases(drain: DrainRow, now: datetime) -> Sequence[wire_drains.DrainPhaseReply]:
    came = [
        (Phase.REQUESTED, drain.requested_at),
        *((Phase.STOPPING, drain.stopping_at), (Phase.FLUSHING, drain.flushing_at), (Phase.COMMITTING, drain.committing_at)),
        (drain.phase, drain.ended_at),
    ]
    entered = [(phase, at) for phase, at in came if at is not None]
    ends = [at for _, at in entered[1:]] + [drain.ended_at or now]
    found = []
    for (phase, at), end in zip(entered, ends, strict=True):
        took, budget = end - at, drain.budgets.get(phase)
        found.append(
            wire_drains.DrainPhaseReply(
                phase=phase,
                at=at,
                seconds=round(took.total_seconds(), 3),
                budget_seconds=None if budget is None else budget.total_seconds(),
                late=budget is not None and took > budget,
            )
        )
    return found


def _containers(
    found: DrainDetails, shape: RunTopology, waiting: Mapping[StageName, tuple[str, ...]], behind: set[tuple[TaskName, StageName]]
) -> Sequence[wire_drains.DrainContainerReply]:
    valid: dict[ProcessorId, ExecutionContainerId] = {
        each.processor_id: each.execution_id for each in found.containers if each.state is ContainerState.LIVE
    }
    holders = {each.task: each.owner.holder for each in found.holds if not each.owner.released}
    rows: defaultdict[TaskName, list[DrainStageRow]] = defaultdict(list)
    for row in found.stages:
        rows[row.task].append(row)
    tasks: defaultdict[ProcessorId, list[wire_drains.DrainTaskReply]] = defaultdict(list)
    for name, of_task in rows.items():
        reply = wire_drains.DrainTaskReply(
            task=name,
            holder=holders.get(name),
            done=sum(1 for row in of_task if (name, row.stage) not in behind),
            stages=tuple(_stage(row, waiting.get(row.stage, ())) for row in of_task),
        )
        tasks[shape.slots[name]].append(reply)
    return [
        wire_drains.DrainContainerReply(processor_id=slot, execution_container_id=valid.get(slot), tasks=tuple(listed))
        for slot, listed in sorted(tasks.items())
    ]


def _stage(row: DrainStageRow, waiting: tuple[str, ...]) -> wire_drains.DrainStageReply:
    return wire_drains.DrainStageReply.model_validate(
        {
            "stage": row.stage,
            "step": wire_agents.step_name(row.step),
            "waits_for": waiting if row.step < Step.FLUSHED else (),
            "batch_id": row.batch_id,
            "offsets": wire_body.offsets_body(row.offsets),
            "pinned_checkpoint": row.pinned,
            "committed_checkpoint": row.committed,
            "leftover_rows": row.rows_left,
            "leftover_operators": tuple(row.operators_left),
            "note": row.note,
            "generation": row.generation,
            "reported_at": row.reported_at,
            "kept_operators": None if row.operators is None else tuple(row.operators),
        }
    )


def _stateful(each: wire_agents.StatefulOperator) -> wire_drains.StatefulOperatorReply:
    return wire_drains.StatefulOperatorReply(operator=each.operator, effect=each.effect, why=each.why, does=EFFECTS[each.effect])


def plan_reply(plan: DrainPlan) -> wire_drains.DrainPlanReply:
    run, stages = plan.run, plan.stages
    leaves, unknown = any(each.operators for each in stages), any(each.unknown_tasks for each in stages)
    replies = tuple(
        wire_drains.StagePlanReply(
            stage=each.stage,
            tasks=each.tasks,
            operators=tuple(each.operators),
            state_rows=each.rows,
            unknown_tasks=tuple(each.unknown_tasks),
            stateful=None if each.stateful is None else tuple(map(_stateful, each.stateful)),
        )
        for each in stages
    )
    return wire_drains.DrainPlanReply(
        run_id=run.run_id,
        job=run.job,
        empties=False if leaves else None if unknown else True,
        refused=plan.refused,
        keep_state_refused=plan.cannot_keep,
        stages=replies,
    )
