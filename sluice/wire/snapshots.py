"""HTTP bodies of snapshots: reports, pins, restores, garbage collection and long-running operations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sluice.wire.body import NO_NUL, Body, Count, FailFast, Name, Number, Offset, Reply, SspOffset, StreamName, Utc, at_most

CheckpointText = Annotated[str, Field(min_length=3, max_length=40, pattern=r"^[0-9]{1,19}-[0-9]{1,6}$")]
LineageText = Annotated[str, Field(min_length=1, max_length=100, pattern=NO_NUL)]
TaskText = Annotated[str, Field(min_length=1, max_length=600, pattern=NO_NUL)]
BlobText = Annotated[str, Field(min_length=1, max_length=900, pattern=NO_NUL)]
GenerationNumber = Annotated[int, Field(ge=1, lt=2**31)]
Reason = Annotated[str, Field(max_length=10_000, pattern=NO_NUL)]
PinText = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


# --- reports ---------------------------------------------------------------------------------------------------------


class StageSnapshot(Reply):
    """The snapshot that a stage is restored from if its checkpoint is not on this disk: the newest one, or the one that an operator has
    chosen (`chosen`). `batchId`: the last batch in it. `markers`: its index by blob store."""

    checkpoint_id: str
    lineage: str
    batch_id: int | None
    markers: dict[str, str]
    chosen: bool


class CheckpointOpening(Body):
    """A query of a script begins to use a checkpoint of this name, which is backed up as a stage of the job's task. `lineage`: that of the
    checkpoint on this machine; null if there is none. Without `create` nothing is recorded of a name that the job does not have yet."""

    generation: GenerationNumber
    lineage: LineageText | None = None
    create: bool = True


class OpenedCheckpoint(Reply):
    """`new`: the job had no checkpoint of this name. `lineage`: the one that the checkpoint must have; null if `create` is false and it is
    new. `batchId`: the last batch in a snapshot of this lineage; without one, a batch that it has run, null if none is known. `snapshot`:
    as of a stage. `place`: where the checkpoint of this lineage was last, "" if that is not known."""

    new: bool
    lineage: str | None
    batch_id: int | None = None
    snapshot: StageSnapshot | None = None
    place: str = ""


class MarkerBody(Body):
    """A snapshot in one blob store: its index, and the index of the snapshot before it there (null for the first). `files`, `bytes`: size
    of the directory; `uploadedFiles`, `uploadedBytes`: the part of it that was new; `puts`: requests used."""

    index: BlobText
    previous: BlobText | None = None
    files: Offset = 0
    bytes: Offset = 0
    uploaded_files: Offset = 0
    uploaded_bytes: Offset = 0
    puts: Offset = 0


class SnapshotRequest(Body):
    """A snapshot of a stage's checkpoint has been uploaded; this report makes it valid. `batchId`: the last batch in it, null before the
    first. `markers`: by blob store."""

    generation: GenerationNumber
    lineage: LineageText
    batch_id: Annotated[int, Field(ge=0, lt=2**63)] | None
    offsets: Annotated[tuple[SspOffset, ...], FailFast()]
    checkpoint_id: CheckpointText
    markers: Annotated[
        dict[Name, MarkerBody],
        BeforeValidator(at_most(20)),
        Field(min_length=1, max_length=20, json_schema_extra={"additionalProperties": False}),
    ]


class SnapshotAccepted(Reply):
    checkpoint_id: str
    seq: int


class IndexReplacement(Body):
    """`blobStore` has lost blobs that the index `previous` of the snapshot names. The index `index` is of the same files in other blobs."""

    generation: GenerationNumber
    blob_store: Name
    previous: BlobText
    index: BlobText


class LineageRequest(Body):
    """The stage resumes from its snapshot, and the batches after it cannot be repeated exactly: `why`. `lineage`: the present one.
    `checkpointId`: an older snapshot that it resumes from, because the newest one cannot be restored."""

    generation: GenerationNumber
    lineage: LineageText
    why: Reason = ""
    checkpoint_id: CheckpointText | None = None


class LineageReply(Reply):
    lineage: str


class BackupRequest(Body):
    """Names of blob stores. State is backed up to all of `stores`, and restored from the first of `restoreFrom` that has it."""

    stores: Annotated[tuple[Name, ...], FailFast(), Field(max_length=20)]
    restore_from: Annotated[tuple[Name, ...], FailFast(), Field(max_length=20)]


class BackupReply(Reply):
    run_id: str
    backup_to: tuple[str, ...]
    restore_from: tuple[str, ...]


# --- what a rebuild needs --------------------------------------------------------------------------------------------


class ContinuedStream(Reply):
    """A stream of which a task owns or reads partitions. `role`, `identity`: as in the run, null for a stream that it does not read now.
    `baseline`: see `sluice.core.jobmodels.grouping`; null for a broadcast stream. `starts`: partition and offset."""

    system: Name
    stream: StreamName
    role: Literal["input", "intermediate", "output"] | None = None
    identity: Annotated[str, Field(max_length=300, pattern=NO_NUL)] | None = None
    baseline: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    owned: tuple[Number, ...] = ()
    starts: tuple[tuple[Number, Offset], ...] = ()


class ContinuedHistory(Reply):
    """See `sluice.core.drain.KeptHistory`."""

    first_run: Annotated[str, Field(min_length=1, max_length=300, pattern=NO_NUL)]
    without: tuple[Name, ...] = ()


class Continuation(Reply):
    """What a rebuild needs of the run of a snapshot and of its task, in the index of the snapshot. `grouping`: the grouper with its fold;
    `slot`, `changelogPartition`: of the task in the job model; `kept`: the earlier histories from whose state that of the run continued,
    newest first. `kind`: of the job."""

    run_id: Annotated[str, Field(min_length=1, max_length=300, pattern=NO_NUL)]
    first_run: Annotated[str, Field(min_length=1, max_length=300, pattern=NO_NUL)]
    deployed_at: Utc
    model_version: Annotated[int, Field(ge=1, lt=2**31)]
    containers: Count
    grouping: Annotated[str, Field(max_length=1000, pattern=NO_NUL)]
    slot: Annotated[str, Field(min_length=1, max_length=100, pattern=NO_NUL)]
    changelog_partition: Number
    streams: tuple[ContinuedStream, ...]
    kept: tuple[ContinuedHistory, ...] = ()
    kind: Literal["stages", "attached"] = "stages"


# --- lists -----------------------------------------------------------------------------------------------------------


class MarkerReply(Reply):
    """`kept`: the times to live of all blobs that it refers to have been removed."""

    index: str
    files: int
    bytes: int
    uploaded_files: int
    uploaded_bytes: int
    puts: int
    kept: bool


class SnapshotReply(Reply):
    """`retainedBy`: the rules that retain it: "head", "last", "hourly", "daily", "pin …"; empty if it is about to be deleted. `head`: the
    stage would be restored from this one. `chosen`: an operator has chosen it for the next restore. `historyEnded`: it is of a history that
    the job has ended, by a drain or by an explicit start, or of a version that was rolled back; no container restores it of its own accord.
    """

    job: str
    task: str
    stage: str
    checkpoint_id: str
    seq: int
    lineage: str
    batch_id: int | None
    generation: int
    run_id: str
    reported_at: datetime
    offsets: tuple[SspOffset, ...]
    markers: dict[str, MarkerReply]
    head: bool
    chosen: bool
    retained_by: tuple[str, ...]
    history_ended: bool = False


class SnapshotsReply(Reply):
    """Newest first. `next` is the `before` of the following page, null on the last."""

    job: str
    snapshots: tuple[SnapshotReply, ...]
    next: int | None


# --- pins ------------------------------------------------------------------------------------------------------------


class PinRequest(Body):
    """Keep snapshots regardless of the retention rules. Without `checkpointId`: the newest of `task` and `stage`, or of every stage of
    every task of the job. `expiresSeconds` null: until the pin is deleted. A second request with the same `pinId` replaces the pin."""

    pin_id: PinText | None = None
    task: TaskText | None = None
    stage: Name | None = None
    checkpoint_id: CheckpointText | None = None
    reason: Reason = ""
    expires_seconds: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None


class PinnedReply(Reply):
    task: str
    stage: str
    checkpoint_id: str


class PinReply(Reply):
    pin_id: str
    job: str
    reason: str
    created_at: datetime
    expires_at: datetime | None
    snapshots: tuple[PinnedReply, ...]


class PinsReply(Reply):
    pins: tuple[PinReply, ...]
    next: str | None = None


# --- choosing --------------------------------------------------------------------------------------------------------


class StoreBody(Body):
    """The task and stage of a snapshot. `blobStore` null: every blob store that has it."""

    task: TaskText
    stage: Name
    blob_store: Name | None = None


class VerifyRequest(Body):
    """`blobStore` null: every blob store."""

    blob_store: Name | None = None


class RestoreReply(Reply):
    """`warnings`: what this restore does not bring back."""

    job: str
    task: str
    stage: str
    checkpoint_id: str
    batch_id: int | None
    batches_given_up: int | None
    warnings: tuple[str, ...]


# --- garbage, and what takes long ------------------------------------------------------------------------------------


class OperationReply(Reply):
    """A long-running operation: `done` of `total` `unit`; the total is null if it is not known before the end. `result` once it is DONE,
    `error` once it has FAILED. Kept in memory: lost when the coordinator restarts."""

    operation: str
    kind: str
    subject: str
    state: Literal["RUNNING", "DONE", "FAILED"]
    unit: str
    done: int
    total: int | None
    began_at: datetime
    ended_at: datetime | None
    error: str | None
    result: dict[str, Any] | None


class ExplainReply(Reply):
    """What is known about a blob in one blob store. `verdict`: "referenced", "garbage", "condemned", "not judged" (the reason is in `why`)
    or "not there"."""

    blob_store: str
    blob: str
    there: bool
    size: int | None
    modified: datetime | None
    verdict: str
    why: str
    referenced_by: tuple[str, ...]
    condemned_at: datetime | None
    deleted_after: datetime | None


class ExplainsReply(Reply):
    blob: str
    stores: tuple[ExplainReply, ...]
