"""Drains: which requests are accepted, which phase follows, what is done, what remains, and who blocks.

    REQUESTED --> STOPPING --> FLUSHING --> COMMITTING --> DRAINED
        |            |            |             |
        +------------+--> CANCELLED             |
        +------------+------------+-------------+--> FAILED

REQUESTED waits for the run's first container. In STOPPING every stage of every task stops between batches and pins a snapshot, in FLUSHING
it empties its state, in COMMITTING it makes a last backup. A phase ends when every stage of the pinned job model has reached the step that
the phase waits for; only the coordinator changes the phase. A drain that fails before FLUSHING, or is cancelled, leaves the run as it was.
One that fails later stops the run, and its tasks return to the pinned snapshots.

The response to `POST /drain`, by the state of the run:

    run                                          answer
    CREATED, no container yet                    a new drain, which waits for containers
    RUNNING, its tasks not yet held (starting)   a new drain
    RUNNING                                      a new drain
    RUNNING, a stop was requested                rejected: stale-run
    DRAINING                                     the same drain
    DRAINED                                      the same drain
    stopping after a failed drain                the same drain
    STOPPED or FAILED after a failed drain       the same drain
    STOPPED                                      rejected: stale-run
    FAILED                                       rejected: stale-run

After a drain that was cancelled, or failed before a flush, the next request starts a new drain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import NewType

from sluice.core.errors import DrainTooEarly, IllegalTransition, NotCancellable, StaleRun
from sluice.core.ids import ProcessorId, Ssp, StageName, TaskName
from sluice.core.lifecycle import RunState

DrainId = NewType("DrainId", str)
"""The notification's uuid."""


class Phase(StrEnum):
    REQUESTED = "REQUESTED"
    STOPPING = "STOPPING"
    FLUSHING = "FLUSHING"
    COMMITTING = "COMMITTING"
    DRAINED = "DRAINED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"

    @property
    def over(self) -> bool:
        return not _MOVES[self]

    @property
    def can_go_back(self) -> bool:
        """Whether the run can continue as if there had been no drain, because nothing was flushed."""
        return self in (Phase.REQUESTED, Phase.STOPPING)


_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.REQUESTED: frozenset({Phase.STOPPING, Phase.CANCELLED, Phase.FAILED}),
    Phase.STOPPING: frozenset({Phase.FLUSHING, Phase.CANCELLED, Phase.FAILED}),
    Phase.FLUSHING: frozenset({Phase.COMMITTING, Phase.FAILED}),
    Phase.COMMITTING: frozenset({Phase.DRAINED, Phase.FAILED}),
    Phase.DRAINED: frozenset(),
    Phase.CANCELLED: frozenset(),
    Phase.FAILED: frozenset(),
}


class Step(IntEnum):
    """The progress of a stage of a task. FLUSHING is reported for display; a stage without state goes from STOPPED to FLUSHED."""

    NONE = 0
    STOPPED = 1
    FLUSHING = 2
    FLUSHED = 3
    COMMITTED = 4


_WAITS_FOR: Mapping[Phase, Step] = {
    Phase.REQUESTED: Step.STOPPED,
    Phase.STOPPING: Step.STOPPED,
    Phase.FLUSHING: Step.FLUSHED,
    Phase.COMMITTING: Step.COMMITTED,
}

_TAKEN_IN: Mapping[Step, Phase] = {
    Step.STOPPED: Phase.STOPPING,
    Step.FLUSHING: Phase.FLUSHING,
    Step.FLUSHED: Phase.FLUSHING,
    Step.COMMITTED: Phase.COMMITTING,
}

_ORDER = (Phase.REQUESTED, Phase.STOPPING, Phase.FLUSHING, Phase.COMMITTING)
TIMED = (Phase.STOPPING, Phase.FLUSHING, Phase.COMMITTING)
"""The phases that have a time budget; REQUESTED lasts until a container starts."""


# --- requests --------------------------------------------------------------------------------------------------------


def begins(state: RunState, *, stopping: bool, newest: Phase | None, flushed: bool) -> bool:
    """Whether a request starts a new drain; False if it gets the newest one of the run, whose phase is `newest` and which had begun to
    flush if `flushed`. `stopping`: a stop of the run was requested. Raises StaleRun for a run that cannot be drained."""
    ended_by_drain = newest is Phase.DRAINED or (newest is Phase.FAILED and flushed)
    if newest is not None and (not newest.over or ended_by_drain):
        return False
    if state.ended:
        raise StaleRun(f"the run has ended as {state}: there is nothing to drain")
    if stopping:
        raise StaleRun("the run is stopping with its state as it is: deploy the job again, and drain that run")
    return True


def cancelled(phase: Phase) -> Phase:
    """CANCELLED. Raises NotCancellable once anything may have been flushed, and for a drain that is over."""
    if phase is Phase.CANCELLED:
        return phase
    if not phase.can_go_back:
        when = f"is over: {phase}" if phase.over else f"is {phase}: open windows may have been written already"
        raise NotCancellable(f"the drain {when}")
    return Phase.CANCELLED


# --- steps and phases ------------------------------------------------------------------------------------------------


def counts(phase: Phase, known: Step, step: Step) -> bool:
    """Whether the report of `step` changes a stage that is at `known`. A step of an earlier phase does not; the same step again, within its
    phase, carries newer numbers. Raises DrainTooEarly for a step of a later phase."""
    if phase.over:
        return False
    taken_in = _TAKEN_IN[step]
    if phase is Phase.REQUESTED or _ORDER.index(taken_in) > _ORDER.index(phase):
        raise DrainTooEarly(
            f"the drain is {phase}: {step.name.lower()} belongs to {taken_in}, which begins when all stages have finished this phase"
        )
    return taken_in is phase and step >= known


def advanced(phase: Phase, lowest: Step) -> Phase:
    """The phase after a report, when no stage is below `lowest`."""
    if phase is Phase.REQUESTED or phase.over or lowest < _WAITS_FOR[phase]:
        return phase
    return {Phase.STOPPING: Phase.FLUSHING, Phase.FLUSHING: Phase.COMMITTING, Phase.COMMITTING: Phase.DRAINED}[phase]


def moved(phase: Phase, to: Phase) -> Phase:
    """Raises IllegalTransition, which is a bug."""
    if to not in _MOVES[phase]:
        raise IllegalTransition(f"a drain cannot go from {phase} to {to}")
    return to


# --- done, what remains, who blocks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageAt:
    task: TaskName
    stage: StageName
    step: Step


@dataclass(frozen=True, slots=True)
class Shape:
    """What determines who blocks. `feeders`: stage -> the stages that write what it reads; `live`: slots with a live container; `held`:
    tasks with an owner."""

    slots: Mapping[TaskName, ProcessorId]
    feeders: Mapping[StageName, frozenset[StageName]]
    live: Collection[ProcessorId]
    held: Collection[TaskName]


class Why(StrEnum):
    NO_CONTAINER = "no container"
    NOT_HELD = "not held"
    AT_WORK = "at work"


@dataclass(frozen=True, slots=True)
class Blocker:
    """What keeps a drain from its next phase: a slot without a container, a task that its container has not acquired, or a stage at
    work."""

    processor_id: ProcessorId
    why: Why
    task: TaskName | None = None
    stage: StageName | None = None

    def __str__(self) -> str:
        if self.task is None:
            return f"slot {self.processor_id}: {self.why}"
        return f"{self.task}{f', stage {self.stage}' if self.stage else ''} (slot {self.processor_id}): {self.why}"


def done(phase: Phase, stages: Iterable[StageAt]) -> bool:
    """Whether every stage has reached the step that the phase waits for."""
    return not remains(phase, stages)


def remains(phase: Phase, stages: Iterable[StageAt]) -> Sequence[StageAt]:
    """The stages that the phase still waits for."""
    wanted = _WAITS_FOR.get(phase)
    return [] if wanted is None else [each for each in stages if each.step < wanted]


def waits_for(phase: Phase, stage: StageName, shape: Shape, stages: Iterable[StageAt]) -> Sequence[StageName]:
    """The feeders of a stage that not all tasks have flushed; until then the stage waits."""
    if phase is not Phase.FLUSHING:
        return []
    behind = {each.stage for each in stages if each.step < Step.FLUSHED}
    return sorted(shape.feeders.get(stage, frozenset()) & behind)


def blockers(phase: Phase, stages: Sequence[StageAt], shape: Shape) -> Sequence[Blocker]:
    """Who must act next, ordered by slot, task and stage, without the stages that wait for others."""
    left = remains(phase, stages)
    waiting = {stage: bool(waits_for(phase, stage, shape, stages)) for stage in {each.stage for each in left}}
    found: dict[Blocker, None] = {}
    for each in left:
        slot = shape.slots[each.task]
        if slot not in shape.live:
            found[Blocker(slot, Why.NO_CONTAINER)] = None
        elif each.task not in shape.held:
            found[Blocker(slot, Why.NOT_HELD, each.task)] = None
        elif not waiting[each.stage]:
            found[Blocker(slot, Why.AT_WORK, each.task, each.stage)] = None
    return sorted(found, key=lambda each: (each.processor_id, each.task or "", each.stage or ""))


# --- time ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Times:
    """Time limits of a drain, counted from its first container: after `soft` it reports what is late, after `hard` it fails. `budgets`:
    limits of single phases. A phase that exceeds its budget is reported as late, and shortens no other."""

    soft: timedelta
    hard: timedelta
    budgets: Mapping[Phase, timedelta]


def is_late(times: Times, phase: Phase, began: datetime | None, entered: datetime, now: datetime) -> bool:
    """Whether the soft deadline or the phase's budget has passed. `began`: when STOPPING began; `entered`: when the phase began."""
    if phase.over or began is None:
        return False
    budget = times.budgets.get(phase)
    return now >= began + times.soft or (budget is not None and now > entered + budget)


# --- offsets ---------------------------------------------------------------------------------------------------------


def to_catch_up(positions: Iterable[Mapping[Ssp, int]]) -> Mapping[Ssp, int]:
    """The furthest offset of each partition that several stages, or tasks, read and stopped at different offsets. The others must read up
    to it before they flush, because the next run has one start for all of them."""
    lowest: dict[Ssp, int] = {}
    highest: dict[Ssp, int] = {}
    for position in positions:
        for ssp, offset in position.items():
            lowest[ssp] = min(offset, lowest.get(ssp, offset))
            highest[ssp] = max(offset, highest.get(ssp, offset))
    return {ssp: offset for ssp, offset in highest.items() if lowest[ssp] < offset}


def drained_offsets(starts: Mapping[Ssp, int], positions: Iterable[Mapping[Ssp, int]], ends: Mapping[Ssp, int]) -> Mapping[Ssp, int]:
    """Where the next run starts: after what was read of the inputs (the lowest offset if several stages read a partition), and at the
    `ends` of intermediate streams. A partition that no stage reported starts where the run started."""
    found: dict[Ssp, int] = {}
    for position in positions:
        for ssp, offset in position.items():
            found[ssp] = min(offset, found.get(ssp, offset))
    return {**starts, **found, **ends}
