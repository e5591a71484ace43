"""HTTP bodies of runs, what all bodies share, and the headers. Names on the wire are camelCase; unknown fields of requests are refused."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from sluice.core.drain import Phase
from sluice.core.expansion import Verdict
from sluice.core.lifecycle import RunState
from sluice.wire.body import NO_NUL, Body, Count, Name, Reply, SspOffset, Utc

# --- runs ------------------------------------------------------------------------------------------------------------


class StreamBody(Body):
    """`name` is the job's name for a stream, `stream` the system's (default: the same)."""

    name: Name
    system: Name
    stream: Name | None = None


class InputBody(StreamBody):
    """A stream that the job reads and somebody else writes."""

    broadcast: bool = False


class IntermediateBody(StreamBody):
    """A stream between two stages, which the coordinator creates."""

    partitions: Count


class OutputBody(StreamBody):
    """A stream that the job writes. It is created with `partitions` when it is not there, and used as it is when it is."""

    partitions: Count = 1


class StageBody(Body):
    name: Name
    reads: tuple[Name, ...]
    writes: tuple[Name, ...] = ()


class RunRequest(Body):
    """`grouper`: GroupByPartition, GroupBySystemStreamPartition, AllSspToSingleTask, or `module:Class`, which the coordinator's operator
    must allow. `start`: "checkpoint" goes on where the job was left, which after a drain is at the drained offsets with empty state;
    "drained", "earliest", "latest" or a time begin a history with empty state, the first where the job's last drain ended."""

    job: Name
    containers: Annotated[int, Field(le=100_000)]
    inputs: tuple[InputBody, ...]
    intermediates: tuple[IntermediateBody, ...] = ()
    outputs: tuple[OutputBody, ...] = ()
    stages: tuple[StageBody, ...]
    grouper: Annotated[str, Field(max_length=500)] = "GroupByPartition"
    max_tasks: Annotated[int, Field(le=100_000)] | None = None
    stateful: bool = True
    start: Literal["checkpoint", "drained", "earliest", "latest"] | Utc = "checkpoint"
    max_event_skew_seconds: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    config: dict[str, str] = Field(default_factory=dict)

    @property
    def streams(self) -> tuple[StreamBody, ...]:
        return (*self.inputs, *self.intermediates, *self.outputs)


class StopRequest(Body):
    """`failed`: the run ends as FAILED instead of STOPPED, with the reason."""

    reason: Annotated[str, Field(max_length=10_000, pattern=NO_NUL)] = ""
    failed: bool = False


class StreamReply(Reply):
    name: str
    role: Literal["input", "intermediate", "output"]
    system: str
    stream: str
    partitions: int
    broadcast: bool = False
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


class StagePace(Reply):
    """Where a stage stands in event time, and whether it waits for slower tasks."""

    event_time: datetime | None
    held: bool
    lead_seconds: float | None
    waits_for: tuple[str, ...]
    at: datetime


class StageMeasures(Reply):
    """What a stage of a task does, as its container measured it `at` that time. Kept in memory: after a restart of the coordinator there is
    none before the next report. See `MeasuresBody`; of a task that nobody holds, `rows` and `rowsPerSecond` are 0, and `offsetsBehind` is
    that of `StageProgress` where the coordinator knows it."""

    rows: int
    rows_per_second: float
    batch_millis: int
    batch_millis_by_part: dict[str, int] = Field(default_factory=dict)
    offsets_behind: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark: datetime | None = None
    event_time_max: datetime | None = None
    unflushable: tuple[str, ...] | None = None
    at: datetime


class StageProgress(Reply):
    """The last committed batch of a stage of a task, as its container reported it. `offsetsBehind`: the records between it and the ends of
    the streams that the stage reads, as the coordinator saw them a few seconds ago, whether anybody holds the task or not; null when a
    stream's system does not answer. `backedUpAt`: when the snapshot that it goes on from was reported; null without one."""

    stage: str
    lineage: str
    batch_id: int | None
    offsets: tuple[SspOffset, ...]
    reported_at: datetime | None
    pace: StagePace | None = None
    offsets_behind: int | None = None
    measures: StageMeasures | None = None
    backed_up_at: datetime | None = None


class TaskReply(Reply):
    task: str
    processor_id: str
    generation: int | None
    holder: str | None
    stages: tuple[StageProgress, ...]


class ContainerReply(Reply):
    """`jobModelVersion` is the one that the container runs, since `adoptedAt`. `lease_seconds_left` is told in the detail of a run, of
    incarnations that the coordinator holds for valid."""

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
    lease_seconds_left: float | None = None


class RunSummary(Reply):
    run_id: str
    job: str
    state: RunState
    origin: str
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
    max_event_skew_seconds: float | None = None
    systems: dict[str, dict[str, str]]


class DrainOfRun(Reply):
    """The drain that a run is under, or was ended by. `pinned`: the ends of the intermediate streams when it was asked for. `catchUp`: what
    those that read one partition in several places must have read before they flush."""

    uuid: str
    phase: Phase
    mode: str
    pinned: tuple[SspOffset, ...]
    catch_up: tuple[SspOffset, ...] = ()


class NotAdopted(Reply):
    """A live container that runs an older version of the job model, though there has been a newer one `since` then."""

    execution_container_id: str
    processor_id: str
    version: int
    since: datetime


class Adoption(Reply):
    """The run's `version` of its job model has been in force `since` then. `allOn`: the version that all live containers run, null while
    they differ or none is alive."""

    version: int
    since: datetime
    all_on: int | None
    behind: tuple[NotAdopted, ...]


class WatchedStream(Reply):
    """An input: `known` partitions by the job model, `seen` by the partition monitor at its last look, null where it could not look."""

    name: str
    system: str
    stream: str
    known: int
    seen: int | None
    verdict: Verdict
    reason: str
    since: datetime


class HeldBackSlot(Reply):
    """A slot whose containers failed so many times one after the other that the next may not register before `until`."""

    processor_id: str
    failures: int
    until: datetime


class RunDetail(RunReply):
    """`told_at` is the coordinator's time of this answer: ages are counted from it, whatever the reader's clock says. `blobStores`: the
    URLs of the blob stores by their names; state goes to all of `backupTo`, and comes from the first of `restoreFrom` that has it.
    `garbageGraceSeconds`: how long what no snapshot refers to stays there; a commit must be shorter.
    `failedDrains`: of the job, those that failed after something was flushed; what they wrote to intermediate streams does not count.
    `givenAway`: slots without tasks, since a fail-over gave them to others."""

    told_at: datetime | None = None
    blob_stores: dict[str, str] = Field(default_factory=dict)
    garbage_grace_seconds: float | None = None
    backup_to: tuple[str, ...] = ()
    restore_from: tuple[str, ...] = ()
    drain: DrainOfRun | None = None
    failed_drains: tuple[str, ...] = ()
    adoption: Adoption | None = None
    watched: tuple[WatchedStream, ...] = ()
    given_away: tuple[str, ...] = ()
    held_back: tuple[HeldBackSlot, ...] = ()
    incarnations: tuple[ContainerReply, ...]
    tasks: tuple[TaskReply, ...]


class RunsReply(Reply):
    """Newest first. `next` is the `before` of the following page, null on the last."""

    runs: tuple[RunSummary, ...]
    next: str | None


class JobReply(Reply):
    job: str
    current_run: str
    state: RunState
    runs: int


class JobsReply(Reply):
    jobs: tuple[JobReply, ...]
