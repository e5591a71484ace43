"""HTTP bodies of containers and of the tasks that they hold."""

from __future__ import annotations

import operator
from datetime import datetime
from typing import Annotated, Any, Literal, Self, assert_never

from pydantic import ConfigDict, Field, model_validator

from sluice.core.access.tokens import MAX_TOKEN, is_incarnation_token
from sluice.core.drain import Effect, Mode, Step
from sluice.core.ids import ExecutionContainerId
from sluice.wire.body import (
    HOST_AND_PORT,
    NO_NUL,
    Body,
    FailFast,
    Name,
    Number,
    Offset,
    OperatorText,
    Reply,
    SspOffset,
    StepName,
    StreamName,
    Utc,
)
from sluice.wire.runs import DrainOfRun
from sluice.wire.snapshots import StageSnapshot

MAX_QUERIES = 50
"""How many queries of a script are listed. The number of labels of metrics is bounded by it."""
Millis = Annotated[int, Field(ge=0, le=10**12)]
BatchPart = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
"""What an operator computes, as text that another version of the job is compared with."""


class RegisterRequest(Body):
    """One incarnation of a slot. `bare`: a foreign client, whose heartbeats have no epoch; refused as `slot-in-use` while another container
    may run tasks of the slot. `metricsAddress`: host and port of the container's metrics. `drainModes`: the modes of drains that it knows;
    under another one it is refused. `onlyIfFree`: refused as `slot-in-use` while another incarnation has the slot, instead of replacing it.
    `token`: the token that the container will send, `sluice-i.SECRET.ID`: 256 random bits and `executionContainerId`, both as base64url
    without padding. A repeated request must have the same one. Without it the coordinator makes one, and a repeated request gets another,
    after which the former is not valid."""

    processor_id: Annotated[str, Field(min_length=1, max_length=100)]
    execution_container_id: Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[\x21-\x7e]+$")]
    host: Annotated[str, Field(max_length=300, pattern=NO_NUL)] = ""
    bare: bool = False
    metrics_address: Annotated[str, Field(max_length=300, pattern=HOST_AND_PORT)] | None = None
    drain_modes: Annotated[tuple[Mode, ...], FailFast(), Field(max_length=10)] = (Mode.DEFAULT,)
    only_if_free: Annotated[bool, Field(exclude_if=operator.not_)] = False
    token: Annotated[str | None, Field(repr=False, max_length=MAX_TOKEN)] = None

    @model_validator(mode="after")
    def _check_token(self) -> Self:
        if self.token is not None and not is_incarnation_token(self.token, ExecutionContainerId(self.execution_container_id)):
            raise ValueError("token is not `sluice-i.SECRET.ID` with a secret of 256 bits and the id of this container, as base64url")
        return self


class RegisterReply(Reply):
    epoch: int
    lease_seconds: float
    heartbeat_seconds: float
    margin_seconds: float
    job_model_version: int
    notices: int
    token: str | None = Field(None, description="the container's token, for its requests from now on; valid as long as the container is")


class ExitRequest(Body):
    """A container has exited; reported by itself or by its launcher. `terminated`: the launcher confirms that the process has ended.
    Without it, the tasks are free only after the lease and the grace period. A container's own report needs no confirmation."""

    exit_code: Annotated[int, Field(ge=-255, le=255)]
    reason: Annotated[str, Field(max_length=10_000, pattern=NO_NUL)] = ""
    terminated: bool = False


class InvalidateRequest(Body):
    """A platform declares a container invalid. `reason`: why, which is stored with the container."""

    reason: Annotated[str, Field(min_length=1, max_length=10_000, pattern=NO_NUL)]


class BlobCredentialsReply(Reply):
    """Credentials of S3 for the blobs of the run's job. `expiresAt`: by the clock of the store. `secondsLeft`: the same as a duration, from
    the answer on; clients use this one, because clocks differ."""

    model_config = ConfigDict(hide_input_in_errors=True)

    access_key_id: str
    secret_access_key: str = Field(repr=False)
    session_token: str = Field(repr=False)
    expires_at: datetime
    seconds_left: float


class AcquireRequest(Body):
    execution_container_id: Annotated[str, Field(min_length=1, max_length=300, pattern=NO_NUL)]
    epoch: Annotated[int, Field(ge=1, lt=2**31)]


class StageStart(Reply):
    """Where a stage of an acquired task resumes. Without a batch its state is empty and it starts at `starts`. `generation`: that of the
    last progress report. `keptOperators`: the stateful operators whose state a drain has kept for this start: a query with others must not
    run on it; null if no drain has kept the state, or a batch has run since. `earlierHistories`: the first runs of the histories whose
    state drains have kept for this one. A stage that restores a snapshot of them reads their records of intermediate streams again."""

    stage: str
    lineage: str
    batch_id: int | None
    starts: tuple[SspOffset, ...]
    snapshot: StageSnapshot | None = None
    generation: int | None = None
    drain_step: StepName | None = None
    kept_operators: tuple[str, ...] | None = None
    earlier_histories: tuple[str, ...] = ()


class AcquireReply(Reply):
    """`drain`: the drain in progress. `drainStep` of each stage: the last step that was reported in it. `continuation`: the container
    writes it to the index of each snapshot of the task, as it is (`sluice.wire.snapshots.Continuation`)."""

    task: str
    generation: int
    stages: tuple[StageStart, ...]
    drain: DrainOfRun | None = None
    continuation: dict[str, Any] | None = None


class WaitReply(Reply):
    """202: the former owner may still be running; request again after `waitSeconds`."""

    wait_seconds: float
    former: str


class ReleaseRequest(Body):
    generation: Annotated[int, Field(ge=1, lt=2**31)]


class StatefulOperator(Body):
    """A stateful operator of a query, named as in the DataFrame API, and what a drain of the mode DEFAULT does to its state. `why`: what is
    missing, if it leaves the state."""

    operator: OperatorText
    effect: Effect
    why: Annotated[str, Field(max_length=300, pattern=NO_NUL)] = ""


DeliveryText = Annotated[str, Field(max_length=50, pattern=r"^[a-z-]+$")]
"""exactly-once, at-least-once."""


class StageMetricsBody(Body):
    """Metrics of a stage of a task, measured `at` that time.

    `rows`: rows in the last batch, 0 when there is nothing to read. `rowsPerSecond`: over the last ten seconds, or over the last batch if
    it took longer. `batchMillis`: duration of the last batch; `batchMillisByPart`: by Spark's names of its parts (`addBatch`, `walCommit`,
    …). `lag`: records that the sources had beyond the batch when it was planned. `stateRows`, `stateBytes`: of the stage's state stores,
    the bytes in memory. `watermark`: of the last batch. `eventTimeMax`: the newest event time of the last batch that had any.
    `unflushable`: the query's operators whose state a flush cannot empty; null if unknown. `operators`: all stateful operators of the
    query, and what a drain does to each; null if unknown. `lateRows`: how many rows the query has dropped as late since the container
    acquired the task, and `lateRowsAt` when it did so last; null if it has dropped none. `delivery`: of each stream that it writes, by the
    job's name of the stream. `recordsPerOffset`: the share of the offsets that had a record, of those that the container has read; null if
    it has read none. In Kafka the end of a transaction takes an offset, and so do aborted records. `backupProblem`: why the newest state
    is not backed up although that is overdue, one line; null if it is not overdue.
    """

    rows: Offset
    rows_per_second: Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
    batch_millis: Millis
    batch_millis_by_part: Annotated[dict[BatchPart, Millis], Field(max_length=50, json_schema_extra={"additionalProperties": False})] = (
        Field(default_factory=dict)
    )
    lag: Offset | None = None
    state_rows: Offset | None = None
    state_bytes: Offset | None = None
    watermark: Utc | None = None
    event_time_max: Utc | None = None
    unflushable: Annotated[tuple[OperatorText, ...], FailFast(), Field(max_length=100)] | None = None
    operators: Annotated[tuple[StatefulOperator, ...], FailFast(), Field(max_length=100)] | None = None
    late_rows: Offset | None = None
    late_rows_at: Utc | None = None
    delivery: Annotated[dict[StreamName, DeliveryText], Field(max_length=100, json_schema_extra={"additionalProperties": False})] = Field(
        default_factory=dict
    )
    records_per_offset: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    backup_problem: Annotated[str, Field(max_length=500, pattern=NO_NUL)] | None = None
    at: Utc


class ProgressRequest(Body):
    """The last committed batch of a stage, under the task's generation. Reporting the same batch again updates its `metrics`."""

    generation: Annotated[int, Field(ge=1, lt=2**31)]
    stage: Name
    lineage: Annotated[str, Field(min_length=1, max_length=100, pattern=NO_NUL)]
    batch_id: Annotated[int, Field(ge=0, lt=2**63)]
    offsets: Annotated[tuple[SspOffset, ...], FailFast()]
    metrics: StageMetricsBody | None = None


class TopicWrites(Body):
    """What a query of a script has written to a topic of Kafka with `app.kafka_writer` since the script started: `commits` of transactions
    and how long they took in all, from the last record to the brokers' answer; `aborted`: transactions that failed; `fenced`: how often
    another producer began; `markers`: those that were written without a batch; `repeated`: batches that ran again and were in the topic
    already."""

    topic: StreamName
    delivery: DeliveryText
    commits: Offset = 0
    commit_seconds: Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)] = 0.0
    aborted: Offset = 0
    fenced: Offset = 0
    markers: Offset = 0
    repeated: Offset = 0


class QueryBody(Body):
    """A streaming query of a script, with its last committed batch; null before the first. `checkpoint`: the location of its checkpoint,
    which identifies it. `stage`: its name in the job. `name`: the name that the script gave it. `queryId`: Spark's id, which is in the
    checkpoint. `active`: whether it runs. `failures`: how often it has failed within ten minutes; `error`: the last failure, one line.
    `undrainable`: why the query cannot be drained; empty if it can. `writes`: the topics that `app.kafka_writer` writes for it."""

    stage: Name
    checkpoint: Annotated[str, Field(min_length=1, max_length=2_000, pattern=NO_NUL)]
    name: Annotated[str, Field(max_length=1_000, pattern=NO_NUL)] = ""
    query_id: Annotated[str, Field(min_length=1, max_length=100, pattern=NO_NUL)]
    batch_id: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    offsets: Annotated[tuple[SspOffset, ...], FailFast(), Field(max_length=100_000)] = ()
    metrics: StageMetricsBody | None = None
    active: bool = True
    error: Annotated[str, Field(max_length=2_000, pattern=NO_NUL)] = ""
    failures: Annotated[int, Field(ge=0, lt=2**31)] = 0
    undrainable: Annotated[tuple[OperatorText, ...], FailFast(), Field(max_length=100)] = ()
    writes: Annotated[tuple[TopicWrites, ...], FailFast(), Field(max_length=100)] = ()


class QueriesRequest(Body):
    """The queries of an attached job, under the generation of its task: all that run, and those that have failed last. The list replaces
    the one before."""

    generation: Annotated[int, Field(ge=1, lt=2**31)]
    queries: Annotated[tuple[QueryBody, ...], FailFast(), Field(max_length=MAX_QUERIES)]


class RefusedQuery(Reply):
    """A query that must be stopped, because its checkpoint is in use. `why`: a sentence."""

    stage: str
    why: str


class QueriesReply(Reply):
    refused: tuple[RefusedQuery, ...] = ()


class FailureRequest(Body):
    """A stage has failed, under the task's generation. `error`: one line. `failures`: how often within ten minutes; 0: what was reported
    before is over. `retrySeconds`: the time until the next attempt, null if there is none. `log`: where the container's log is, "" if
    unknown."""

    generation: Annotated[int, Field(ge=1, lt=2**31)]
    error: Annotated[str, Field(max_length=2_000, pattern=NO_NUL)] = ""
    failures: Annotated[int, Field(ge=0, lt=2**31)]
    retry_seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    log: Annotated[str, Field(max_length=1_000, pattern=NO_NUL)] = ""


Seconds = Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]


class StageWatermark(Body):
    """A stage of a task that writes or reads an intermediate stream. `eventTime`, `delaySeconds`, `source`, `pending`: its progress as a
    feeder, see `FeederProgress`; `source` is null before that is known. `watermark`: of its last planned batch. `partitions`: how many its
    query reads, of all streams; null if it does not run yet. After growth these are fewer than the task has, until its query is started
    again: its progress then says nothing of the others."""

    task: Annotated[str, Field(min_length=1, max_length=1000, pattern=NO_NUL)]
    generation: Annotated[int, Field(ge=1, lt=2**31)]
    stage: Name
    event_time: Utc | None = None
    delay_seconds: Seconds = 0
    source: Literal["watermark", "column", "none"] | None = None
    pending: bool = False
    watermark: Utc | None = None
    partitions: Number | None = None


class WatermarksRequest(Body):
    """The stages of a container that write or read an intermediate stream."""

    stages: Annotated[tuple[StageWatermark, ...], FailFast(), Field(max_length=10_000)]


class StepBody(Reply):
    """See `WatermarkStep`. `eventTime` null: no feeder holds the watermark."""

    event_time: datetime | None
    delay_seconds: float
    ends: tuple[SspOffset, ...]
    exact: bool = False


class StreamCap(Reply):
    """The steps of an intermediate stream, oldest first, with the ends of the partitions that the task reads. `heldBy`: the feeders that
    hold the watermark, as "<task>/<stage>"."""

    system: str
    stream: str
    steps: tuple[StepBody, ...]
    held_by: tuple[str, ...] = ()


class StageCap(Reply):
    """What limits the watermark of a stage: one entry for each intermediate stream that it reads."""

    task: str
    stage: str
    streams: tuple[StreamCap, ...]


class RefusedStage(Reply):
    """A stage that was reported under a generation which is not that of the task's owner."""

    task: str
    stage: str
    generation: int


class WatermarksReply(Reply):
    """`stages`: those of the request that read intermediate streams."""

    stages: tuple[StageCap, ...]
    refused: tuple[RefusedStage, ...] = ()


def step_name(step: Step) -> StepName | None:
    match step:
        case Step.NONE:
            return None
        case Step.STOPPED:
            return "stopped"
        case Step.FLUSHING:
            return "flushing"
        case Step.FLUSHED:
            return "flushed"
        case Step.COMMITTED:
            return "committed"
        case _:
            assert_never(step)
