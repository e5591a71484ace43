"""HTTP bodies about snapshots: reports, pins, restores, garbage. See `sluice.wire.runs` for the manners."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from sluice.wire.body import NO_NUL, Body, Name, Offset, Reply, SspOffset

CheckpointText = Annotated[str, Field(min_length=8, max_length=40, pattern=r"^[0-9]{1,19}-[0-9]{6}$")]
LineageText = Annotated[str, Field(min_length=1, max_length=100, pattern=NO_NUL)]
TaskText = Annotated[str, Field(min_length=1, max_length=600, pattern=NO_NUL)]
BlobText = Annotated[str, Field(min_length=1, max_length=900, pattern=NO_NUL)]
GenerationNumber = Annotated[int, Field(ge=1, lt=2**31)]
Reason = Annotated[str, Field(max_length=10_000, pattern=NO_NUL)]
PinText = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


# --- reports ---------------------------------------------------------------------------------------------------------


class MarkerBody(Body):
    """A snapshot in one blob store: its index, and the index that it follows there (null for the first). `files` and `bytes` are those of
    the directory, `uploadedFiles` and `uploadedBytes` what of it was new, `puts` the requests that it took."""

    index: BlobText
    previous: BlobText | None = None
    files: Offset = 0
    bytes: Offset = 0
    uploaded_files: Offset = 0
    uploaded_bytes: Offset = 0
    puts: Offset = 0


class SnapshotRequest(Body):
    """A snapshot of a stage's store has been uploaded: this report makes it count. `batchId`: the last batch in it, null before the
    first. `markers` by blob store."""

    generation: GenerationNumber
    lineage: LineageText
    batch_id: Annotated[int, Field(ge=0, lt=2**63)] | None
    offsets: tuple[SspOffset, ...]
    checkpoint_id: CheckpointText
    markers: Annotated[dict[Name, MarkerBody], Field(min_length=1, max_length=20, json_schema_extra={"additionalProperties": False})]


class SnapshotAccepted(Reply):
    checkpoint_id: str
    seq: int


class LineageRequest(Body):
    """The stage goes on from its snapshot, and what ran after that cannot be repeated exactly: `why`. `lineage` is the one until now."""

    generation: GenerationNumber
    lineage: LineageText
    why: Reason = ""


class LineageReply(Reply):
    lineage: str


class BackupRequest(Body):
    """Names of blob stores. State is backed up to all of `stores`, and restored from the first of `restoreFrom` that has it."""

    stores: Annotated[tuple[Name, ...], Field(max_length=20)]
    restore_from: Annotated[tuple[Name, ...], Field(max_length=20)]


class BackupReply(Reply):
    run_id: str
    backup_to: tuple[str, ...]
    restore_from: tuple[str, ...]


# --- lists -----------------------------------------------------------------------------------------------------------


class MarkerReply(Reply):
    """`kept`: nothing that it refers to has a time to live any more."""

    index: str
    files: int
    bytes: int
    uploaded_files: int
    uploaded_bytes: int
    puts: int
    kept: bool


class SnapshotReply(Reply):
    """`retainedBy`: why it is kept: "head", "last", "hourly", "daily", "pin …"; empty when it is about to go. `head`: the one
    that its store is restored from."""

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


class SnapshotsReply(Reply):
    """Newest first. `next` is the `before` of the following page, null on the last."""

    job: str
    snapshots: tuple[SnapshotReply, ...]
    next: int | None


# --- pins ------------------------------------------------------------------------------------------------------------


class PinRequest(Body):
    """Keep snapshots, whatever the retention says. Without `checkpointId`: the newest of each store of `task` and `stage`, or of all the
    job's stores. `expiresSeconds` null: until the pin is deleted. The same `pinId` again replaces the pin."""

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


# --- choosing --------------------------------------------------------------------------------------------------------


class StoreBody(Body):
    """Whose snapshot is meant. `blobStore` null: in each that has it."""

    task: TaskText
    stage: Name
    blob_store: Name | None = None


class RestoreReply(Reply):
    """`warnings`: what such a restore does not give back."""

    job: str
    task: str
    stage: str
    checkpoint_id: str
    batch_id: int | None
    batches_given_up: int | None
    warnings: tuple[str, ...]


# --- garbage, and what takes long ------------------------------------------------------------------------------------


class ErrandReply(Reply):
    """Something that takes long. `done` of `total` `unit`; the total is null where nobody knows it before the end. `result` when it is
    DONE, `error` when it FAILED. Kept in memory: a restart of the coordinator forgets it."""

    errand: str
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
    """What is known of a blob in one blob store. `verdict`: "referenced", "garbage", "condemned", "not judged" (why is in `why`), "not
    there"."""

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
