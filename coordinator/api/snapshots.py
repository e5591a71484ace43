"""The routes of snapshots: reports, pins, restores, garbage collection and long-running operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from coordinator.api.access import GuardedRoute
from coordinator.api.deps import PROBLEMS, CheckpointPath, JobPath, PartsDep, RunIdPath, SnapshotParts, SnapshotsDep, StagePath, TaskPath
from coordinator.snapshots.audit import BlobExplanation
from coordinator.snapshots.catalog import PinSpec, SnapshotDetails
from coordinator.snapshots.gc import CollectionResult
from coordinator.snapshots.operations import LongRunningOperation, Progress
from coordinator.snapshots.reports import MarkerReport, Replacement, SnapshotReport
from coordinator.store.snapshots import MarkerRow, PinRow
from sluice.core.errors import UnknownSnapshot
from sluice.core.ids import Generation, JobName, Lineage, RunId, StageKey, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, checked_blob_id
from sluice.wire import body as wire_body
from sluice.wire import snapshots as wire_snapshots

router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


# --- from containers -------------------------------------------------------------------------------------------------


@router.post("/runs/{runId}/tasks/{task}/stages/{stage}/snapshots")
async def report_snapshot(
    run_id: RunIdPath, task: TaskPath, stage: StagePath, body: wire_snapshots.SnapshotRequest, deps: SnapshotsDep
) -> wire_snapshots.SnapshotAccepted:
    """Report an uploaded snapshot. From now on the stage is restored from it. Repeating the report changes nothing."""
    markers = {BlobStoreName(name): _marked(each) for name, each in body.markers.items()}
    report = SnapshotReport(
        Generation(body.generation),
        Lineage(body.lineage),
        body.batch_id,
        wire_body.offsets_of(body.offsets),
        CommitId(body.checkpoint_id),
        markers,
    )
    made = await deps.snapshots.report(RunId(run_id), TaskName(task), StageName(stage), report)
    return wire_snapshots.SnapshotAccepted(checkpoint_id=made.checkpoint, seq=made.seq)


def _marked(body: wire_snapshots.MarkerBody) -> MarkerReport:
    fields = body.model_dump(exclude={"previous", "index"})
    return MarkerReport(MarkerRow(BlobId(body.index), **fields), None if body.previous is None else BlobId(body.previous))


@router.put("/runs/{runId}/tasks/{task}/stages/{stage}/snapshots/{checkpointId}/index")
async def replace_index(
    run_id: RunIdPath,
    task: TaskPath,
    stage: StagePath,
    checkpoint_id: CheckpointPath,
    body: wire_snapshots.IndexReplacement,
    deps: SnapshotsDep,
) -> wire_snapshots.SnapshotAccepted:
    """Replace the index of a retained snapshot in a blob store that has lost blobs which that index names. Repeating the request changes
    nothing."""
    replacement = Replacement(
        Generation(body.generation), CommitId(checkpoint_id), BlobStoreName(body.blob_store), BlobId(body.previous), BlobId(body.index)
    )
    made = await deps.snapshots.replace_index(RunId(run_id), TaskName(task), StageName(stage), replacement)
    return wire_snapshots.SnapshotAccepted(checkpoint_id=made.checkpoint, seq=made.seq)


@router.post("/runs/{runId}/tasks/{task}/stages/{stage}/lineage")
async def begin_lineage(
    run_id: RunIdPath, task: TaskPath, stage: StagePath, body: wire_snapshots.LineageRequest, deps: SnapshotsDep
) -> wire_snapshots.LineageReply:
    """Begin a new lineage after a restore that cannot replay every batch exactly. Repeating the request changes nothing."""
    checkpoint = None if body.checkpoint_id is None else CommitId(body.checkpoint_id)
    begun = await deps.snapshots.new_lineage(
        RunId(run_id), TaskName(task), StageName(stage), Generation(body.generation), Lineage(body.lineage), body.why, checkpoint
    )
    return wire_snapshots.LineageReply(lineage=begun)


@router.put("/runs/{runId}/backup")
async def set_backup(run_id: RunIdPath, body: wire_snapshots.BackupRequest, deps: SnapshotsDep) -> wire_snapshots.BackupReply:
    """Set the blob stores that the run backs up to and restores from. Each container uses them from its next commit on."""
    run = await deps.snapshots.set_backup(RunId(run_id), body.stores, body.restore_from)
    found = deps.blob_stores.backup(run.backup)
    return wire_snapshots.BackupReply(run_id=run.run_id, backup_to=found.to, restore_from=found.restore_from)


# --- from operators -------------------------------------------------------------------------------------------------

TaskQuery = Annotated[wire_snapshots.TaskText | None, Query(description="only snapshots of this task")]
StageQuery = Annotated[wire_body.Name | None, Query(description="only snapshots of this stage")]


@router.get("/jobs/{job}/snapshots")
async def get_snapshots(
    job: JobPath,
    deps: SnapshotsDep,
    task: TaskQuery = None,
    stage: StageQuery = None,
    before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_snapshots.SnapshotsReply:
    """The retained snapshots of a job, newest first. For the next page, set `before` to the answer's `next`."""
    found = await deps.catalog.snapshots(JobName(job), _task(task), _stage(stage), before, limit + 1)
    following = found[limit - 1].row.seq if len(found) > limit else None
    return wire_snapshots.SnapshotsReply(job=job, snapshots=tuple(_snapshot(each) for each in found[:limit]), next=following)


@router.get("/jobs/{job}/snapshots/{checkpointId}")
async def get_snapshot(
    job: JobPath, checkpoint_id: CheckpointPath, task: wire_snapshots.TaskText, stage: wire_body.Name, deps: SnapshotsDep
) -> wire_snapshots.SnapshotReply:
    """One snapshot. Its id is unique within a task and stage only, so both are needed."""
    return _snapshot(await deps.catalog.snapshot(_key(job, task, stage), CommitId(checkpoint_id)))


@router.post("/jobs/{job}/snapshots/verify", status_code=202)
async def verify_snapshots(
    job: JobPath, body: wire_snapshots.VerifyRequest, deps: SnapshotsDep, parts: PartsDep
) -> wire_snapshots.OperationReply:
    """Read all retained snapshots of a job and compare every size and hash. Then replace lost blobs where possible. A long-running
    operation; its result lists what is missing or corrupt."""
    where = None if body.blob_store is None else BlobStoreName(body.blob_store)
    await deps.audits.check_job(JobName(job), where)

    async def work(progress: Progress) -> Mapping[str, Any]:
        result = await deps.audits.verify_job(JobName(job), where, progress)
        if not result["whole"]:
            await parts.lost_blobs.run_once()
        return result

    return _operation(deps.operations.start("verify", f"{job} {where or ''}".rstrip(), "bytes", work))


@router.post("/jobs/{job}/snapshots/{checkpointId}/verify", status_code=202)
async def verify_snapshot(
    job: JobPath, checkpoint_id: CheckpointPath, body: wire_snapshots.StoreBody, deps: SnapshotsDep
) -> wire_snapshots.OperationReply:
    """Read a whole snapshot and compare every size and hash. A long-running operation; its result lists what is missing or corrupt."""
    key, where = _key(job, body.task, body.stage), None if body.blob_store is None else BlobStoreName(body.blob_store)
    found = (await deps.catalog.snapshot(key, CommitId(checkpoint_id))).row
    if where is not None and where not in found.markers:
        raise UnknownSnapshot(f"snapshot {checkpoint_id} is not in {where}: it is in {', '.join(sorted(found.markers))}")
    subject = f"{job} {body.task} {body.stage} {checkpoint_id} {where or ''}".rstrip()
    return _operation(
        deps.operations.start("verify", subject, "bytes", lambda progress: deps.audits.verify(key, found.checkpoint, where, progress))
    )


@router.post("/jobs/{job}/snapshots/{checkpointId}/restore")
async def restore_snapshot(
    job: JobPath, checkpoint_id: CheckpointPath, body: wire_snapshots.StoreBody, deps: SnapshotsDep
) -> wire_snapshots.RestoreReply:
    """Let the task's next owner restore this snapshot. Refused while a container owns the task."""
    found = await deps.catalog.choose(_key(job, body.task, body.stage), CommitId(checkpoint_id))
    return wire_snapshots.RestoreReply(
        job=job,
        task=body.task,
        stage=body.stage,
        checkpoint_id=found.row.checkpoint,
        batch_id=found.row.batch_id,
        batches_given_up=found.given_up,
        warnings=tuple(found.warnings),
    )


@router.get("/jobs/{job}/pins")
async def get_pins(
    job: JobPath,
    deps: SnapshotsDep,
    after: Annotated[str | None, Query(max_length=300, description="only pins that follow this one")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_snapshots.PinsReply:
    """The pins of a job that have not expired, by their ids. For the next page, set `after` to the answer's `next`."""
    found = [rows for rows in await deps.catalog.pins(JobName(job)) if rows[0].pin_id > (after or "")]
    following = found[limit - 1][0].pin_id if len(found) > limit else None
    return wire_snapshots.PinsReply(pins=tuple(_pin(rows) for rows in found[:limit]), next=following)


@router.post("/jobs/{job}/pins", status_code=201)
async def pin_snapshots(job: JobPath, body: wire_snapshots.PinRequest, deps: SnapshotsDep) -> wire_snapshots.PinReply:
    """Keep snapshots regardless of the retention rules, until the pin expires or is deleted."""
    lasts = None if body.expires_seconds is None else timedelta(seconds=body.expires_seconds)
    checkpoint = None if body.checkpoint_id is None else CommitId(body.checkpoint_id)
    return _pin(
        await deps.catalog.pin(JobName(job), PinSpec(body.pin_id, _task(body.task), _stage(body.stage), checkpoint, body.reason, lasts))
    )


@router.delete("/jobs/{job}/pins/{pinId}", status_code=204)
async def unpin_snapshots(job: JobPath, pin_id: Annotated[str, Path(alias="pinId", max_length=300)], deps: SnapshotsDep) -> None:
    """Delete a pin. Snapshots that only this pin kept are deleted."""
    await deps.catalog.unpin(JobName(job), pin_id)


# --- garbage ---------------------------------------------------------------------------------------------------------


@router.post("/gc/plan", status_code=202)
async def plan_collection(deps: SnapshotsDep) -> wire_snapshots.OperationReply:
    """What a garbage collection would condemn and delete now. A long-running operation; it changes nothing."""
    return _operation(deps.operations.start("plan", "", "blobs", lambda progress: _collect(deps, progress, dry=True)))


@router.post("/gc/run", status_code=202)
async def run_collection(deps: SnapshotsDep) -> wire_snapshots.OperationReply:
    """Collect garbage now: condemn blobs that no snapshot refers to, and delete those that were condemned at least a grace period ago and
    are still unreferenced. A long-running operation."""
    return _operation(deps.operations.start("run", "", "blobs", lambda progress: _collect(deps, progress, dry=False)))


@router.post("/gc/audit", status_code=202)
async def audit(deps: SnapshotsDep) -> wire_snapshots.OperationReply:
    """Compare the blob stores with the database, in both directions. A long-running operation; it changes nothing."""
    return _operation(deps.operations.start("audit", "", "blobs", deps.audits.audit))


@router.get("/gc/explain")
async def explain(
    deps: SnapshotsDep, blob: Annotated[wire_snapshots.BlobText, Query(description="a blob's id")]
) -> wire_snapshots.ExplainsReply:
    """Why a blob is kept, and until when."""
    grace = deps.collection.grace
    found = await deps.audits.explain(checked_blob_id(blob), grace)
    return wire_snapshots.ExplainsReply(blob=blob, stores=tuple(_explained(blob, each, grace) for each in found))


@router.get("/operations/{operation}")
async def get_operation(
    operation: Annotated[str, Path(max_length=300)],
    deps: SnapshotsDep,
    wait: Annotated[float, Query(ge=0, le=30, description="seconds to wait for it to finish")] = 0,
) -> wire_snapshots.OperationReply:
    """The progress of a long-running operation."""
    return _operation(await deps.operations.poll(operation, timedelta(seconds=wait)))


async def _collect(deps: SnapshotParts, progress: Progress, *, dry: bool) -> Mapping[str, Any]:
    found = await deps.collection.run(progress, dry=dry)
    return {"dryRun": dry, "graceSeconds": deps.collection.grace.total_seconds(), "stores": [_collected(each) for each in found]}


# --- rows as bodies --------------------------------------------------------------------------------------------------------


def _task(task: str | None) -> TaskName | None:
    return None if task is None else TaskName(task)


def _stage(stage: str | None) -> StageName | None:
    return None if stage is None else StageName(stage)


def _key(job: str, task: str, stage: str) -> StageKey:
    return StageKey(JobName(job), TaskName(task), StageName(stage))


def _snapshot(found: SnapshotDetails) -> wire_snapshots.SnapshotReply:
    row = found.row
    return wire_snapshots.SnapshotReply(
        job=row.job,
        task=row.task,
        stage=row.stage,
        checkpoint_id=row.checkpoint,
        seq=row.seq,
        lineage=row.lineage,
        batch_id=row.batch_id,
        generation=row.generation,
        run_id=row.run_id,
        reported_at=row.reported_at,
        offsets=wire_body.offsets_body(row.offsets),
        markers={name: wire_snapshots.MarkerReply.model_validate(asdict(marker)) for name, marker in row.markers.items()},
        head=found.head,
        chosen=found.chosen,
        retained_by=tuple(found.why),
        history_ended=found.history_ended,
    )


def _pin(rows: Sequence[PinRow]) -> wire_snapshots.PinReply:
    first = rows[0]
    pinned = tuple(wire_snapshots.PinnedReply(task=row.task, stage=row.stage, checkpoint_id=row.checkpoint) for row in rows)
    return wire_snapshots.PinReply(
        pin_id=first.pin_id,
        job=first.job,
        reason=first.reason,
        created_at=first.created_at,
        expires_at=first.expires_at,
        snapshots=pinned,
    )


def _operation(found: LongRunningOperation) -> wire_snapshots.OperationReply:
    return wire_snapshots.OperationReply(
        operation=found.operation_id,
        kind=found.kind,
        subject=found.subject,
        state=found.state.value,
        unit=found.progress.unit,
        done=found.progress.done,
        total=found.progress.total,
        began_at=found.began_at,
        ended_at=found.ended_at,
        error=found.error,
        result=None if found.result is None else dict(found.result),
    )


def _explained(blob: str, found: BlobExplanation, grace: timedelta) -> wire_snapshots.ExplainReply:
    return wire_snapshots.ExplainReply(
        blob_store=found.blob_store,
        blob=blob,
        there=found.there,
        size=found.size,
        modified=found.modified,
        verdict=found.verdict,
        why=found.why,
        referenced_by=tuple(found.referenced_by),
        condemned_at=found.condemned_at,
        deleted_after=None if found.condemned_at is None else found.condemned_at + grace,
    )


def _collected(found: CollectionResult) -> Mapping[str, Any]:
    return {
        "blobStore": found.blob_store,
        "lookedAt": found.looked_at,
        "referenced": found.referenced,
        "pardoned": found.pardoned,
        **{name: asdict(pile) for name, pile in (("condemned", found.condemned), ("waiting", found.waiting), ("deleted", found.deleted))},
        "notJudged": found.not_judged,
    }
