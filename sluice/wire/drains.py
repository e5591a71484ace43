"""HTTP bodies about drains. See `sluice.wire.runs` for the manners."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from sluice.core.drain import Phase
from sluice.wire.agents import OperatorText, StepName
from sluice.wire.body import NO_NUL, Body, Reply, SspOffset
from sluice.wire.snapshots import CheckpointText, GenerationNumber, Reason

Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
DrainText = Annotated[str, Field(min_length=1, max_length=64, pattern=NO_NUL)]
RunText = Annotated[str, Field(min_length=1, max_length=300, pattern=NO_NUL)]


# --- requests --------------------------------------------------------------------------------------------------------


class DrainBudgets(Body):
    """How long each phase may take before those who block it are told as late."""

    stopping: Seconds | None = None
    flushing: Seconds | None = None
    committing: Seconds | None = None


class DrainRequest(Body):
    """Drain a run: process what was read, close windows, fire timers, commit, end. After `softDeadlineSeconds` from the first container on
    it names the late, after `hardDeadlineSeconds` it fails; what is left out is as the coordinator's settings say. `requireEmpty`: refuse
    when a flush would leave rows in some stage's state."""

    run_id: RunText
    drain_mode: Literal["DEFAULT"] = "DEFAULT"
    soft_deadline_seconds: Seconds | None = None
    hard_deadline_seconds: Seconds | None = None
    budget_seconds: DrainBudgets = DrainBudgets()
    require_empty: bool = False


class DrainPlanRequest(Body):
    run_id: RunText


class DrainStepRequest(Body):
    """A stage of a task took a step of a drain. "stopped" and "committed" carry the checkpoint that they made durable; null only where
    nothing is backed up, or no batch ever ran. `batchId` and `offsets`: the last batch, and the next offsets after it. `rowsLeft`,
    `operatorsLeft`: what the flush could not empty."""

    generation: GenerationNumber
    uuid: DrainText
    step: StepName
    batch_id: Annotated[int, Field(ge=0, lt=2**63)] | None
    offsets: tuple[SspOffset, ...]
    checkpoint_id: CheckpointText | None = None
    rows_left: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    operators_left: Annotated[tuple[OperatorText, ...], Field(max_length=100)] = ()
    note: Reason = ""


# --- answers ---------------------------------------------------------------------------------------------------------


class DrainStepReply(Reply):
    """The phase after the step. CANCELLED: the container goes on as before. DRAINED, FAILED: it exits.

    `flushed`: the stages that every task has flushed, when this step changed that or began FLUSHING; null otherwise. A stage flushes after
    those that feed it. Notices of a drain in FLUSHING carry the same list. `catchUp`: offsets up to which a stage must read these
    partitions before it flushes, because another stage or task has read further."""

    phase: Phase
    flushed: tuple[str, ...] | None = None
    catch_up: tuple[SspOffset, ...] = ()


class DrainSummary(Reply):
    """The notification, and where it stands. Deadlines are null until the run's first container is there. `drained`: where the next run
    begins, once it is DRAINED."""

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
    """A phase that the drain came to. `seconds`: how long it took, or has taken so far; `late`: longer than its budget."""

    phase: Phase
    at: datetime
    seconds: float
    budget_seconds: float | None
    late: bool


class DrainStageReply(Reply):
    """How far a stage has come. `waitsFor`: stages before it that some task has not flushed. See `DrainStepRequest`."""

    stage: str
    step: StepName | None
    waits_for: tuple[str, ...]
    batch_id: int | None
    offsets: tuple[SspOffset, ...]
    pinned_checkpoint: str | None
    committed_checkpoint: str | None
    rows_left: int | None
    operators_left: tuple[str, ...]
    note: str
    generation: int | None
    reported_at: datetime | None


class DrainTaskReply(Reply):
    """`done`: stages that have taken the step that the phase waits for."""

    task: str
    holder: str | None
    done: int
    stages: tuple[DrainStageReply, ...]


class DrainContainerReply(Reply):
    """A slot. `executionContainerId`: its valid incarnation, null while it is empty."""

    processor_id: str
    execution_container_id: str | None
    tasks: tuple[DrainTaskReply, ...]


class DrainBlockerReply(Reply):
    """Who is to act next: a slot without a container, a task that its container has not taken, or a stage at work."""

    processor_id: str
    task: str | None
    stage: str | None
    why: str


class DrainDetail(DrainSummary):
    """`remaining` of `total` stages have not taken the step that the phase waits for. `late`: the soft deadline or the phase's budget has
    passed, and `blockedBy` are those to ask. `rowsLeft`: what flushes could not empty, over all tasks."""

    told_at: datetime
    late: bool
    total: int
    remaining: int
    rows_left: int
    phases: tuple[DrainPhaseReply, ...]
    blocked_by: tuple[DrainBlockerReply, ...]
    containers: tuple[DrainContainerReply, ...]
    pinned: tuple[SspOffset, ...]
    catch_up: tuple[SspOffset, ...]


class StagePlanReply(Reply):
    """What a flush of a stage could not empty. `stateRows`: in its state now; `untold`: tasks of which nothing is known."""

    stage: str
    tasks: int
    operators: tuple[str, ...]
    state_rows: int
    untold: tuple[str, ...]


class DrainPlanReply(Reply):
    """`empties`: a drain would leave no row in any state; null while that is not known of every task."""

    run_id: str
    job: str
    empties: bool | None
    stages: tuple[StagePlanReply, ...]
