"""HTTP bodies of drains."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from sluice.core.drain import Mode, Phase
from sluice.wire.body import NO_NUL, Body, FailFast, IdentityText, OperatorText, Reply, SspOffset, StepName
from sluice.wire.snapshots import CheckpointText, GenerationNumber, Reason

Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
DrainText = Annotated[str, Field(min_length=1, max_length=64, pattern=NO_NUL)]
RunText = Annotated[str, Field(min_length=1, max_length=300, pattern=NO_NUL)]


# --- requests --------------------------------------------------------------------------------------------------------


class DrainBudgets(Body):
    """How long each phase may take before the drain is reported as late."""

    stopping: Seconds | None = None
    flushing: Seconds | None = None
    committing: Seconds | None = None


class DrainRequest(Body):
    """Drain a run: process what was read, close windows, fire timers, commit, end. With the `drainMode` KEEP_STATE no window is closed and
    no timer fires: the state stays for the job's next run, which must have the same stateful operators. Both deadlines count from the run's
    first container: after `softDeadlineSeconds` the drain is reported as late, after `hardDeadlineSeconds` it fails. Fields left out have
    the values of the coordinator's settings. `requireEmpty`: refuse if a flush would leave rows in the state of some stage; without meaning
    for KEEP_STATE. `uuid`: the id that the drain shall have if this request starts it; by default the coordinator chooses one. The first
    three fields are Apache Samza's DrainNotification."""

    uuid: UUID | None = None
    run_id: RunText
    drain_mode: Mode = Mode.DEFAULT
    soft_deadline_seconds: Seconds | None = None
    hard_deadline_seconds: Seconds | None = None
    budget_seconds: DrainBudgets = DrainBudgets()
    require_empty: bool = False


class DrainPlanRequest(Body):
    run_id: RunText


class DrainStepRequest(Body):
    """A stage of a task has taken a step of a drain. "stopped" and "committed" carry the checkpoint that they made durable; null only if
    the run is not backed up or no batch ever ran. `batchId` and `offsets`: the last batch, and the next offsets after it. `leftoverRows`,
    `leftoverOperators`: what the flush could not empty. `operators`: the stateful operators whose state the stage keeps, with "flushed" in
    a drain that keeps state."""

    generation: GenerationNumber
    uuid: DrainText
    step: StepName
    batch_id: Annotated[int, Field(ge=0, lt=2**63)] | None
    offsets: Annotated[tuple[SspOffset, ...], FailFast()]
    checkpoint_id: CheckpointText | None = None
    leftover_rows: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    leftover_operators: Annotated[tuple[OperatorText, ...], FailFast(), Field(max_length=100)] = ()
    note: Reason = ""
    operators: Annotated[tuple[IdentityText, ...], FailFast(), Field(max_length=100)] | None = None


# --- answers ---------------------------------------------------------------------------------------------------------


class DrainNotice(Reply):
    """The detail of a notice of the kind DRAIN. `flushed`: the stages that every task has flushed; null outside FLUSHING."""

    uuid: str
    phase: Phase
    flushed: tuple[str, ...] | None = None


class DrainStepReply(Reply):
    """The phase after the step. CANCELLED: the container resumes. DRAINED, FAILED: it exits.

    `flushed`: the stages that every task has flushed, when this step changed that or began FLUSHING; null otherwise. A stage flushes after
    those that feed it. A `DrainNotice` carries the same list. `catchUp`: offsets up to which a stage must read these
    partitions before it flushes, because another stage or task has read further."""

    phase: Phase
    flushed: tuple[str, ...] | None = None
    catch_up: tuple[SspOffset, ...] = ()


class DrainSummary(Reply):
    """A drain and its state. Deadlines are null until the run has its first container. `drained`: the offsets at which the next run begins,
    once the phase is DRAINED."""

    uuid: str
    run_id: str
    job: str
    drain_mode: str
    phase: Phase
    seq: int
    reason: str
    requested_at: datetime
    soft_deadline_at: datetime | None
    hard_deadline_at: datetime | None
    ended_at: datetime | None
    drained: tuple[SspOffset, ...]


class DrainsReply(Reply):
    """Newest first. `next` is the `before` of the following page, null on the last."""

    job: str
    drains: tuple[DrainSummary, ...]
    next: int | None


class DrainPhaseReply(Reply):
    """A phase that the drain has reached. `seconds`: its duration so far; `late`: longer than its budget."""

    phase: Phase
    at: datetime
    seconds: float
    budget_seconds: float | None
    late: bool


class DrainStageReply(Reply):
    """The progress of a stage. `waitsFor`: upstream stages that some task has not flushed. `keptOperators`: the stateful operators whose
    state the drain keeps. See `DrainStepRequest`."""

    stage: str
    step: StepName | None
    waits_for: tuple[str, ...]
    batch_id: int | None
    offsets: tuple[SspOffset, ...]
    pinned_checkpoint: str | None
    committed_checkpoint: str | None
    leftover_rows: int | None
    leftover_operators: tuple[str, ...]
    note: str
    generation: int | None
    reported_at: datetime | None
    kept_operators: tuple[str, ...] | None = None


class DrainTaskReply(Reply):
    """`done`: the number of stages that have taken the step that the phase waits for."""

    task: str
    holder: str | None
    done: int
    stages: tuple[DrainStageReply, ...]


class DrainContainerReply(Reply):
    """A slot. `executionContainerId`: its valid incarnation, null if it has none."""

    processor_id: str
    execution_container_id: str | None
    tasks: tuple[DrainTaskReply, ...]


class DrainBlockerReply(Reply):
    """What the drain waits for: a slot without a container, a task that its container has not acquired, or a running stage. `lastExit`: why
    the last container of the slot has ended."""

    processor_id: str
    task: str | None
    stage: str | None
    why: str
    last_exit: str = ""


class DrainDetail(DrainSummary):
    """`serverTime`: the coordinator's time of this answer. `remaining` of `total` stages have not taken the step that the phase waits for.
    `late`: the soft deadline or the phase's budget has passed; `blockedBy` says what it waits for. `leftoverRows`: rows that flushes could
    not empty, over all tasks."""

    server_time: datetime
    late: bool
    total: int
    remaining: int
    leftover_rows: int
    phases: tuple[DrainPhaseReply, ...]
    blocked_by: tuple[DrainBlockerReply, ...]
    containers: tuple[DrainContainerReply, ...]
    pinned: tuple[SspOffset, ...]
    catch_up: tuple[SspOffset, ...]


class StatefulOperatorReply(Reply):
    """See `StatefulOperator`. `does`: the effect in words."""

    operator: str
    effect: str
    why: str
    does: str


class StagePlanReply(Reply):
    """What a drain would do to the state of a stage. `operators`: those that a flush could not empty; `stateful`: all stateful operators,
    and what a flush does to each; null if unknown. `stateRows`: rows in its state now; `unknownTasks`: tasks that have not reported yet."""

    stage: str
    tasks: int
    operators: tuple[str, ...]
    state_rows: int
    unknown_tasks: tuple[str, ...]
    stateful: tuple[StatefulOperatorReply, ...] | None = None


class DrainPlanReply(Reply):
    """`empties`: whether a drain of the mode DEFAULT would leave no row in any state; null until every task has reported.
    `refused`: why a drain of the mode DEFAULT would be refused, "" if it would not; `keepStateRefused`: the same for KEEP_STATE."""

    run_id: str
    job: str
    empties: bool | None
    refused: str = ""
    keep_state_refused: str = ""
    stages: tuple[StagePlanReply, ...]
