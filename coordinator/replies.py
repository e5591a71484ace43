"""Rows spelled as HTTP bodies."""

from __future__ import annotations

from dataclasses import asdict

from coordinator import wire
from coordinator.runs import Described
from coordinator.store.port import ContainerRow, JobRow, RunRow, StoreRow
from coordinator.tasks import StageStart

Connections = dict[str, dict[str, str]]


def run_reply(run: RunRow, connections: Connections) -> wire.RunReply:
    return wire.RunReply.model_validate(_run_fields(run, connections))


def _run_fields(run: RunRow, connections: Connections) -> dict[str, object]:
    used = {str(stream["system"]) for stream in run.streams}
    return {
        "run_id": run.run_id,
        "job": run.job,
        "state": run.state,
        "origin": run.origin,
        "reason": run.reason,
        "containers": run.spec["containers"],
        "job_model_version": run.model_version,
        "streams": tuple(run.streams),
        "stages": tuple(run.spec["stages"]),
        "config": run.spec["config"],
        "systems": {name: connection for name, connection in connections.items() if name in used},
        "created_at": run.created_at,
        "started_at": run.started_at,
        "stop_requested_at": run.stop_requested_at,
        "ended_at": run.ended_at,
    }


def run_detail(described: Described, connections: Connections) -> wire.RunDetail:
    holds = {row.task: row.hold for row in described.holds}
    tasks = []
    for name, processor_id in sorted(described.model.placement.items()):
        hold = holds.get(name)
        tasks.append(
            wire.TaskReply(
                task=name,
                processor_id=processor_id,
                generation=hold.generation if hold else None,
                holder=hold.holder if hold and not hold.released else None,
                stages=tuple(_stage_progress(row) for row in described.stores if row.task == name),
            )
        )
    fields = _run_fields(described.run, connections)
    fields |= {"incarnations": tuple(container_reply(row) for row in described.containers), "tasks": tuple(tasks)}
    return wire.RunDetail.model_validate(fields)


def _stage_progress(row: StoreRow) -> wire.StageProgress:
    return wire.StageProgress(
        stage=row.stage,
        lineage=row.lineage,
        batch_id=row.batch_id,
        offsets=wire.offsets_body(row.offsets),
        reported_at=row.reported_at,
    )


def container_reply(row: ContainerRow) -> wire.ContainerReply:
    fields = asdict(row)
    fields["execution_container_id"] = fields.pop("execution_id")
    fields["state"] = row.state.value
    return wire.ContainerReply.model_validate(fields)


def job_reply(row: JobRow) -> wire.JobReply:
    return wire.JobReply(job=row.job, current_run=row.current_run, state=row.state, runs=row.runs)


def stage_start(start: StageStart) -> wire.StageStart:
    return wire.StageStart(
        stage=start.store.stage,
        lineage=start.store.lineage,
        batch_id=start.store.batch_id,
        starts=wire.offsets_body(start.starts),
    )
