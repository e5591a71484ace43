"""HTTP bodies of runs and jobs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, model_validator

from sluice.core.drain import Phase
from sluice.core.errors import BadGraph
from sluice.core.ids import ProcessorId
from sluice.core.jobmodels.expansion import Verdict
from sluice.core.jobmodels.placement import slots
from sluice.core.jobmodels.spec import JobKind, broadcast_partitions, broadcast_text
from sluice.core.lifecycle import RunState
from sluice.wire.body import NO_NUL, Body, Count, FailFast, Name, Reply, SspOffset, StreamName, Utc

# --- runs ------------------------------------------------------------------------------------------------------------


class StreamBody(Body):
    """`name` is the job's name for a stream, `stream` the system's (default: the same)."""

    name: StreamName
    system: Name
    stream: StreamName | None = None


BroadcastText = Annotated[str, Field(max_length=1000, pattern=r"^#[0-9#,\[\] -]*$")]


def _canonical(broadcast: bool | str) -> bool | str:
    if isinstance(broadcast, bool):
        return broadcast
    try:
        return broadcast_text(broadcast_partitions(broadcast))
    except BadGraph as error:
        raise ValueError(str(error)) from error


class InputBody(StreamBody):
    """A stream that the job reads and another program writes. `broadcast`: true if every task reads all partitions; for single partitions
    as in Apache Samza's `task.broadcast.inputs` without the stream: "#0", "#[0-3]", "#0,#[4-5]"."""

    broadcast: Annotated[StrictBool | BroadcastText, AfterValidator(_canonical)] = False


class IntermediateBody(StreamBody):
    """A stream between two stages. The coordinator creates it."""

    partitions: Count


class OutputBody(StreamBody):
    """A stream that the job writes. If it does not exist, it is created with `partitions`."""

    partitions: Count = 1


class StageBody(Body):
    """`stateful`: false if the stage keeps no state; left out otherwise."""

    name: Name
    reads: Annotated[tuple[StreamName, ...], FailFast()]
    writes: Annotated[tuple[StreamName, ...], FailFast()] = ()
    stateful: Annotated[bool, Field(exclude_if=bool)] = True


class RunRequest(Body):
    """`grouper`: GroupByPartition, GroupBySystemStreamPartition, AllSspToSingleTask, or `module:Class`, which the coordinator's operator
    must allow. `start`: "checkpoint" continues where the job was left, which after a drain is as with "drained"; "drained" begins a history
    where the job's last drain ended, with the state that the drain kept, or with empty state if it kept none; "earliest", "latest" or a
    time begin a history with empty state.

    `kind`: attached for a command that `sluice exec` runs: one container, no streams, no stages. While such a job has a run that has not
    been stopped, the request answers with that run. Left out otherwise."""

    job: Name
    kind: Annotated[JobKind, Field(exclude_if=lambda kind: kind is JobKind.STAGES)] = JobKind.STAGES
    containers: Annotated[int, Field(le=100_000)]
    inputs: Annotated[tuple[InputBody, ...], FailFast()]
    intermediates: Annotated[tuple[IntermediateBody, ...], FailFast()] = ()
    outputs: Annotated[tuple[OutputBody, ...], FailFast()] = ()
    stages: Annotated[tuple[StageBody, ...], FailFast()]
    grouper: Annotated[str, Field(max_length=500)] = "GroupByPartition"
    max_tasks: Annotated[int, Field(le=100_000)] | None = None
    stateful: bool = True
    start: Literal["checkpoint", "drained", "earliest", "latest"] | Utc = "checkpoint"
    config: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _without_event_skew(cls, data: Any) -> Any:
        """Earlier commands send `maxEventSkewSeconds`: null. A number is refused as an unknown field."""
        if isinstance(data, dict) and data.get("maxEventSkewSeconds", 0) is None:
            return {name: value for name, value in data.items() if name != "maxEventSkewSeconds"}
        return data

    @property
    def streams(self) -> tuple[StreamBody, ...]:
        return (*self.inputs, *self.intermediates, *self.outputs)


class StopRequest(Body):
    """`failed`: the run ends as FAILED instead of STOPPED, with the reason."""

    reason: Annotated[str, Field(max_length=10_000, pattern=NO_NUL)] = ""
    failed: bool = False


class StreamReply(Reply):
    """`broadcast`: every task reads all partitions; `broadcastPartitions`: every task reads these."""

    name: str
    role: Literal["input", "intermediate", "output"]
    system: str
    stream: str
    partitions: int
    broadcast: bool = False
    broadcast_partitions: tuple[int, ...] = ()
    identity: str | None = None


class PlannedTask(Reply):
    task: str
    processor_id: str


class RunPlanReply(Reply):
    """What `POST /runs` would make of a request. `replaces`: the job's current run, null for a job's first. `creates`: those of its streams
    that are not there yet, by the job's names."""

    job: str
    replaces: str | None
    streams: tuple[StreamReply, ...]
    creates: tuple[str, ...]
    tasks: tuple[PlannedTask, ...]


class StageMetricsReply(Reply):
    """Metrics of a stage of a task, as its container measured them `at` that time. Kept in memory: after a restart of the coordinator there
    are none until the next report. See `StageMetricsBody`. If no container owns the task, `rows` and `rowsPerSecond` are 0 and `lag` is
    that of `StageProgress`, if known."""

    rows: int
    rows_per_second: float
    batch_millis: int
    batch_millis_by_part: dict[str, int] = Field(default_factory=dict)
    lag: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark: datetime | None = None
    event_time_max: datetime | None = None
    unflushable: tuple[str, ...] | None = None
    delivery: dict[str, str] = Field(default_factory=dict)
    at: datetime


class StageFailure(Reply):
    """The last failure of a stage. `error`: one line, the line of the user's code first. `failures`: how often it had failed within ten
    minutes. `retryAt`: when its container tries again, null if it does not. `log`: where that container's log is, "" if unknown. `over`:
    the stage has made progress since. Kept in memory, as metrics are."""

    error: str
    failures: int
    at: datetime
    retry_at: datetime | None
    log: str
    over: bool


class StageProgress(Reply):
    """The last committed batch of a stage of a task, as its container reported it. `lag`: the records between it and the ends of the
    streams that the stage reads, as the coordinator saw them a few seconds ago, whether or not a container owns the task; null if a
    stream's system does not answer. `snapshotAt`: when the snapshot that the stage would be restored from was reported; null if there is
    none. `lateRows`: rows that it has dropped as late; `lateRowsGivenUp`: those dropped after a writer of an intermediate stream was not
    waited for (`idle_feeder_seconds`); `lateRowsAt`: when it dropped some last. `checkpoint`: where the
    checkpoint is, for a query of an attached job. `snapshotBatchId`: the last batch in that snapshot, for a query of an attached job whose
    checkpoint is backed up: a lost disk costs the batches after it."""

    stage: str
    lineage: str
    batch_id: int | None
    offsets: tuple[SspOffset, ...]
    reported_at: datetime | None
    lag: int | None = None
    metrics: StageMetricsReply | None = None
    snapshot_at: datetime | None = None
    late_rows: int = 0
    late_rows_given_up: int = 0
    late_rows_at: datetime | None = None
    failure: StageFailure | None = None
    checkpoint: str | None = None
    snapshot_batch_id: int | None = None


class WatermarkHolder(Reply):
    """A stage of a task that the watermark waits for, and why, as part of a sentence."""

    task: str
    stage: str
    why: str


class StreamWatermark(Reply):
    """How far the watermarks behind an intermediate stream may rise, as of the last report of its writers. `eventTime`: as far as the
    newest step allows, before delays are taken off; `newest`: the newest event time that one of the writers has reached; `lagSeconds`: the
    difference. `heldBy`: the tasks that the watermark waits for; `heldSeconds`: for how long their progress has not risen. `error`: why
    there is no further step although no task holds it."""

    system: str
    stream: str
    event_time: datetime | None
    newest: datetime | None
    lag_seconds: float | None
    held_by: tuple[WatermarkHolder, ...]
    held_seconds: float
    error: str = ""


class TaskReply(Reply):
    """`assignedStages`: the stages of which the task reads partitions. A task that reads none of a stage's streams never runs that stage,
    and never reports it."""

    task: str
    processor_id: str
    generation: int | None
    holder: str | None
    stages: tuple[StageProgress, ...]
    assigned_stages: tuple[str, ...] | None = None

    def runs(self, stage: str) -> bool:
        """Whether the task runs the stage, as far as the coordinator says."""
        return self.assigned_stages is None or stage in self.assigned_stages


class ContainerReply(Reply):
    """`jobModelVersion`: the version that the container runs, since `adoptedAt`. `bare`: a foreign client, which runs the tasks of its slot
    without acquiring them. Only in the details of a run, and for valid incarnations: `leaseSecondsLeft`; `heartbeatAgeSeconds`, the time
    since the last heartbeat; `silent`, whether three heartbeats in a row are missing."""

    execution_container_id: str
    processor_id: str
    epoch: int
    host: str
    state: str
    registered_at: datetime
    last_seen_at: datetime
    ended_at: datetime | None
    exit_code: int | None
    reason: str
    metrics_address: str | None = None
    job_model_version: int = 0
    adopted_at: datetime | None = None
    bare: bool = False
    lease_seconds_left: float | None = None
    heartbeat_age_seconds: float | None = None
    silent: bool = False


class RunSummary(Reply):
    """`firstRun`: the run that began the history of checkpoints that this run continues. `kind`: see `RunRequest`."""

    run_id: str
    job: str
    kind: JobKind = JobKind.STAGES
    state: RunState
    first_run: str
    reason: str
    containers: int
    job_model_version: int
    created_at: datetime
    started_at: datetime | None
    stop_requested_at: datetime | None
    ended_at: datetime | None


class RunReply(RunSummary):
    streams: tuple[StreamReply, ...]
    stages: tuple[StageBody, ...]
    config: dict[str, str]
    systems: dict[str, dict[str, str]]


class DrainOfRun(Reply):
    """The drain in progress, or the one that ended the run. `pinned`: the ends of the intermediate streams when it was requested.
    `catchUp`: the offsets that tasks which share a partition must have read before they flush."""

    uuid: str
    phase: Phase
    mode: str
    pinned: tuple[SspOffset, ...]
    catch_up: tuple[SspOffset, ...] = ()


class NotAdopted(Reply):
    """A live container that still runs an older version of the job model. `since`: when it could have adopted the new one."""

    execution_container_id: str
    processor_id: str
    version: int
    since: datetime


class Adoption(Reply):
    """`version`: the job-model version in force `since` then. `allOn`: the version that all live containers run, null if they differ or
    none is alive. `outdated`: the live containers that run an older one."""

    version: int
    since: datetime
    all_on: int | None
    outdated: tuple[NotAdopted, ...]


class WatchedStream(Reply):
    """An input of the job. `known`: its partitions in the job model; `seen`: its partitions at the last check by the partition monitor,
    null if the check failed."""

    name: str
    system: str
    stream: str
    known: int
    seen: int | None
    verdict: Verdict
    reason: str
    since: datetime


class CrashLoopingSlot(Reply):
    """A slot whose containers failed `failures` times in a row right after starting. It may register again at `until`."""

    processor_id: str
    failures: int
    until: datetime


class RunView(StrEnum):
    """How much of a run is requested. FULL grows with the run's containers and tasks; BASIC is what a container needs, and does not. SLOTS
    is BASIC with the vacant slots."""

    BASIC = "basic"
    SLOTS = "slots"
    FULL = "full"


class BasicRun(RunReply):
    """`blobStores`: name -> URL. State is backed up to all of `backupTo`, and restored from the first of `restoreFrom` that has it.
    `garbageGraceSeconds`: how long a blob that no snapshot refers to is kept; a commit must be shorter. `failedDrains`: drains of the job
    that failed after a flush began; readers of intermediate streams skip what they wrote. `slots`: the processor ids of the run's slots.
    `vacantSlots`: those without a valid container; null if they were not requested.
    """

    blob_stores: dict[str, str] = Field(default_factory=dict)
    garbage_grace_seconds: float | None = None
    backup_to: tuple[str, ...] = ()
    restore_from: tuple[str, ...] = ()
    drain: DrainOfRun | None = None
    failed_drains: tuple[str, ...] = ()
    slots: tuple[str, ...] | None = None
    vacant_slots: tuple[str, ...] | None = None

    @property
    def processors(self) -> list[ProcessorId]:
        """The processor ids of the run's slots."""
        return slots(self.containers) if self.slots is None else list(map(ProcessorId, self.slots))


class RunDetail(BasicRun):
    """`serverTime`: the coordinator's time of this answer; compute ages from it, not from the reader's clock. `failedOverSlots`: slots
    whose tasks a fail-over has reassigned. `incarnations`: the containers that have not ended, and the newest five of each slot.
    `crashLoopBackoff`: slots that may not register yet. `watermarks`: one entry for each intermediate stream whose writers have reported
    since the coordinator started. `missingEventTimes`: a sentence for each stage whose progress in event time is not known, and what to do.
    `backupProblems`: a sentence for each way in which the run is not backed up as its deployment requests. `catalogProblems`: a sentence
    for each reason why the coordinator's database may lack snapshots or was not compared with a blob store.
    """

    server_time: datetime | None = None
    adoption: Adoption | None = None
    watched: tuple[WatchedStream, ...] = ()
    failed_over_slots: tuple[str, ...] = ()
    crash_loop_backoff: tuple[CrashLoopingSlot, ...] = ()
    watermarks: tuple[StreamWatermark, ...] = ()
    missing_event_times: tuple[str, ...] = ()
    backup_problems: tuple[str, ...] = ()
    catalog_problems: tuple[str, ...] = ()
    incarnations: tuple[ContainerReply, ...]
    tasks: tuple[TaskReply, ...]


class ContainersReply(Reply):
    """By slot and epoch. `next` is the `after` of the following page, null on the last."""

    containers: tuple[ContainerReply, ...]
    next: str | None


class RunsReply(Reply):
    """Newest first. `next` is the `before` of the following page, null on the last."""

    runs: tuple[RunSummary, ...]
    next: str | None


class JobReply(Reply):
    job: str
    current_run: str
    state: RunState
    runs: int


class JobRemovalReply(Reply):
    """What was deleted with the job, or would be (`dryRun`). `garbageGraceSeconds`: its blobs are deleted about that much later."""

    job: str
    dry_run: bool
    runs: int
    containers: int
    versions: int
    drains: int
    snapshots: int
    pins: int
    garbage_grace_seconds: float


class JobsReply(Reply):
    """By name. `next` is the `after` of the following page, null on the last."""

    jobs: tuple[JobReply, ...]
    next: str | None = None
