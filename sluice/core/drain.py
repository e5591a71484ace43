"""Drains: which requests are accepted, which phase follows, which stages are unfinished, and what blocks them.

    REQUESTED --> STOPPING --> FLUSHING --> COMMITTING --> DRAINED
        |            |            |             |
        +------------+--> CANCELLED <- - - - - -+  - - with KEEP_STATE only
        +------------+------------+-------------+--> FAILED

REQUESTED waits for the run's first container. In STOPPING every stage of every task stops between batches and pins a snapshot. In FLUSHING
it reads the rest of its input and empties its state. In COMMITTING it makes a last backup. A phase ends when every stage of the pinned job
model has reached the step that the phase waits for. Only the coordinator changes the phase. A drain that is cancelled, or fails before
FLUSHING, does not change the run. A drain that fails later stops the run, and its tasks return to the pinned snapshots.

A drain of the mode KEEP_STATE has the same phases, but in FLUSHING a stage only reads the rest of its input and keeps its state. Therefore
it can be cancelled in every phase until it is DRAINED, and a failure does not change the run.

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
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import NewType

from sluice.core.errors import DrainTooEarly, IllegalTransition, IncompatibleState, NotCancellable, OtherDrainMode, StaleRun
from sluice.core.ids import ProcessorId, RunId, Ssp, StageName, StreamId, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.jobmodels.spec import RunSpec
from sluice.core.lifecycle import RunState

DrainId = NewType("DrainId", str)
"""The uuid of a drain."""


class Mode(StrEnum):
    """What a drain does to state. DEFAULT empties it. KEEP_STATE keeps it for a next run with the same operators."""

    DEFAULT = "DEFAULT"
    KEEP_STATE = "KEEP_STATE"


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

    def can_go_back(self, mode: Mode) -> bool:
        """Whether the run can continue as if there had been no drain, because no state was emptied."""
        return not self.over and (mode is Mode.KEEP_STATE or self in (Phase.REQUESTED, Phase.STOPPING))


_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.REQUESTED: frozenset({Phase.STOPPING, Phase.CANCELLED, Phase.FAILED}),
    Phase.STOPPING: frozenset({Phase.FLUSHING, Phase.CANCELLED, Phase.FAILED}),
    Phase.FLUSHING: frozenset({Phase.COMMITTING, Phase.CANCELLED, Phase.FAILED}),
    Phase.COMMITTING: frozenset({Phase.DRAINED, Phase.CANCELLED, Phase.FAILED}),
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
    """Whether a request starts a new drain; false if the answer is the newest drain of the run. `newest`: the phase of that drain.
    `flushed`: it had begun to empty state. `stopping`: a stop of the run was requested. Raises StaleRun for a run that cannot be
    drained."""
    ended_by_drain = newest is Phase.DRAINED or (newest is Phase.FAILED and flushed)
    if newest is not None and (not newest.over or ended_by_drain):
        return False
    if state.ended:
        raise StaleRun(f"the run has ended as {state}: there is nothing to drain")
    if stopping:
        raise StaleRun("the run is stopping and keeps its state: deploy the job again, and drain that run")
    return True


def check_mode(present: Mode, phase: Phase, requested: Mode) -> None:
    """The existing drain must have the requested mode. Raises OtherDrainMode."""
    if present is requested:
        return
    does = {Mode.DEFAULT: "empties the state", Mode.KEEP_STATE: "keeps the state"}[present]
    if phase.over:
        raise OtherDrainMode(f"the drain of this run is {phase} and {does} (drainMode {present}): it cannot be changed afterwards")
    raise OtherDrainMode(f"the run is under a drain that {does} (drainMode {present}): cancel it, or request the same mode")


def cancelled(phase: Phase, mode: Mode = Mode.DEFAULT) -> Phase:
    """Returns CANCELLED. Raises NotCancellable if state may have been emptied, or the drain has ended."""
    if phase is Phase.CANCELLED:
        return phase
    if not phase.can_go_back(mode):
        when = f"has ended: {phase}" if phase.over else f"is {phase}: open windows may already have been written"
        raise NotCancellable(f"the drain {when}")
    return Phase.CANCELLED


# --- steps and phases ------------------------------------------------------------------------------------------------


def counts(phase: Phase, known: Step, step: Step) -> bool:
    """Whether the report of `step` changes a stage that is at `known`. A step of an earlier phase does not. A repeated step within its
    phase does, because it has newer numbers. Raises DrainTooEarly for a step of a later phase."""
    if phase.over:
        return False
    taken_in = _TAKEN_IN[step]
    if phase is Phase.REQUESTED or _ORDER.index(taken_in) > _ORDER.index(phase):
        raise DrainTooEarly(
            f"the drain is {phase}: {step.name.lower()} belongs to {taken_in}, which begins when all stages have finished this phase"
        )
    return taken_in is phase and step >= known


def advanced(phase: Phase, lowest: Step) -> Phase:
    """The phase after a report, if no stage is below the step `lowest`."""
    if phase is Phase.REQUESTED or phase.over or lowest < _WAITS_FOR[phase]:
        return phase
    return {Phase.STOPPING: Phase.FLUSHING, Phase.FLUSHING: Phase.COMMITTING, Phase.COMMITTING: Phase.DRAINED}[phase]


def moved(phase: Phase, to: Phase) -> Phase:
    """Returns the phase `to`. Raises IllegalTransition, which is a bug."""
    if to not in _MOVES[phase]:
        raise IllegalTransition(f"a drain cannot go from {phase} to {to}")
    return to


# --- progress and blockers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageAt:
    task: TaskName
    stage: StageName
    step: Step


@dataclass(frozen=True, slots=True)
class RunTopology:
    """The parts of a run that determine the blockers. `feeders`: stage -> the stages that write its streams. `live`: slots with a live
    container. `held`: tasks with an owner. `exits`: why the last container of a slot has ended, where it said so."""

    slots: Mapping[TaskName, ProcessorId]
    feeders: Mapping[StageName, frozenset[StageName]]
    live: Collection[ProcessorId]
    held: Collection[TaskName]
    exits: Mapping[ProcessorId, str] = field(default_factory=dict)


class BlockReason(StrEnum):
    NO_CONTAINER = "no container"
    NOT_HELD = "not held"
    AT_WORK = "at work"


@dataclass(frozen=True, slots=True)
class Blocker:
    """What prevents the next phase of a drain: a slot without a container, a task that its container has not acquired, or an unfinished
    stage. `last_exit`: why the slot's last container has ended; "" if that is not known."""

    processor_id: ProcessorId
    why: BlockReason
    task: TaskName | None = None
    stage: StageName | None = None
    last_exit: str = ""

    def __str__(self) -> str:
        if self.task is None:
            return f"slot {self.processor_id}: {self.why}{f'; the last one ended: {self.last_exit}' if self.last_exit else ''}"
        return f"{self.task}{f', stage {self.stage}' if self.stage else ''} (slot {self.processor_id}): {self.why}"


def done(phase: Phase, stages: Iterable[StageAt]) -> bool:
    """Whether every stage has reached the step that the phase waits for."""
    return not remains(phase, stages)


def remains(phase: Phase, stages: Iterable[StageAt]) -> Sequence[StageAt]:
    """The stages that the phase still waits for."""
    wanted = _WAITS_FOR.get(phase)
    return [] if wanted is None else [each for each in stages if each.step < wanted]


def waits_for(phase: Phase, stage: StageName, shape: RunTopology, stages: Iterable[StageAt]) -> Sequence[StageName]:
    """The feeders of a stage that some task has not flushed yet. The stage waits for them."""
    if phase is not Phase.FLUSHING:
        return []
    behind = {each.stage for each in stages if each.step < Step.FLUSHED}
    return sorted(shape.feeders.get(stage, frozenset()) & behind)


def blockers(phase: Phase, stages: Sequence[StageAt], shape: RunTopology) -> Sequence[Blocker]:
    """The blockers, ordered by slot, task and stage, without stages that wait for their feeders."""
    left = remains(phase, stages)
    waiting = {stage: bool(waits_for(phase, stage, shape, stages)) for stage in {each.stage for each in left}}
    found: dict[Blocker, None] = {}
    for each in left:
        slot = shape.slots[each.task]
        if slot not in shape.live:
            found[Blocker(slot, BlockReason.NO_CONTAINER, last_exit=shape.exits.get(slot, ""))] = None
        elif each.task not in shape.held:
            found[Blocker(slot, BlockReason.NOT_HELD, each.task)] = None
        elif not waiting[each.stage]:
            found[Blocker(slot, BlockReason.AT_WORK, each.task, each.stage)] = None
    return sorted(found, key=lambda each: (each.processor_id, each.task or "", each.stage or ""))


# --- what a drain does to state --------------------------------------------------------------------------------------


class Effect(StrEnum):
    """What a drain of the mode DEFAULT does to the state of a stateful operator."""

    EMITS = "emits"
    FORGETS = "forgets"
    DROPS = "drops"
    UNMATCHED = "unmatched"
    FIRES = "fires"
    LEAVES = "leaves"


EFFECTS: Mapping[Effect, str] = {
    Effect.EMITS: "writes its open windows with their rows so far; later records of a window create another row",
    Effect.FORGETS: "forgets the keys that it has seen: a record that is sent again after the drain passes once more",
    Effect.DROPS: "drops its rows without output: records that come after the drain find no match",
    Effect.UNMATCHED: "writes the rows that wait for a match as unmatched: a match that comes later is lost",
    Effect.FIRES: "fires all its timers now",
    Effect.LEAVES: "is not emptied, and the next run does not get its rows",
}

LOSES = frozenset({Effect.FORGETS, Effect.DROPS, Effect.UNMATCHED})
"""The effects after which later input gives a different result than without the drain, although no row is left in state."""


# --- the next run, after a drain that kept the state ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptStage:
    """A stage of the drained run. `stateful`: whether it has state. `operators`: the descriptions of its stateful operators. `tasks`: the
    partitions that it reads in each task."""

    stage: StageName
    reads: frozenset[StreamId]
    stateful: bool
    operators: Sequence[str]
    tasks: Mapping[TaskName, frozenset[Ssp]]


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """An earlier history of a job. The next history continued with its state after a drain that kept it, except for the stages `without`,
    which began with empty state. `first_run`: the first run of the earlier history."""

    first_run: RunId
    without: frozenset[StageName] = frozenset()


def histories_of_state(first_run: RunId, kept: Sequence[KeptHistory], stage: StageName) -> Sequence[RunId]:
    """The histories whose state a stage of the history `first_run` may still have, newest first: a task that has run no batch since a
    drain has the state of the history before it. `kept`: newest first."""
    found = [first_run]
    for each in kept:
        if stage in each.without:
            break
        found.append(each.first_run)
    return found


def check_continued(kept: Sequence[KeptStage], spec: RunSpec, model: JobModel) -> Collection[StageName]:
    """The stateless stages that start at the drained offsets, because they read other streams now. Raises IncompatibleState if the run with
    this `spec` and `model` cannot use the state of a stage: the stage was removed or renamed, reads other streams, or its partitions are
    read by other tasks."""
    restarted = set()
    for each in kept:
        if each.stage in spec.stage_names and spec.reads(each.stage) == each.reads:
            if each.stateful:
                _check_tasks(each, spec, model)
            continue
        if each.stateful:
            raise IncompatibleState(f"stage {each.stage} has state ({', '.join(each.operators) or 'unknown'}), and {_why_not(each, spec)}")
        restarted.add(each.stage)
    return restarted


def _why_not(kept: KeptStage, spec: RunSpec) -> str:
    instead = "or drain without keeping the state"
    if kept.stage not in spec.stage_names:
        return f"the new version has no stage of that name ({', '.join(spec.stage_names)}): keep the name, {instead}"
    return f"reads {_listed(spec.reads(kept.stage))} in the new version instead of {_listed(kept.reads)}: read the same streams, {instead}"


def _listed(streams: Iterable[StreamId]) -> str:
    return ", ".join(sorted(map(str, streams)))


def _check_tasks(kept: KeptStage, spec: RunSpec, model: JobModel) -> None:
    for task, ssps in kept.tasks.items():
        found = model.task(task)
        reads = spec.by_stage(found[1].ssps).get(kept.stage, frozenset()) if found is not None else frozenset()
        if not ssps <= reads:
            raise IncompatibleState(
                f"stage {kept.stage} of task {task} has state of {', '.join(map(str, sorted(ssps - reads)))}, which that task does not "
                "read in the new version: keep the grouper and max_tasks, or drain without keeping the state"
            )


def operators_differ(kept: Sequence[str], now: Sequence[str]) -> str:
    """The difference between a stage's stateful operators and those whose state was kept; "" if they are equal."""
    if list(kept) == list(now):
        return ""
    return f"the kept state belongs to {_in_words(kept)}, and this version has {_in_words(now)}"


def _in_words(operators: Sequence[str]) -> str:
    return "; ".join(operators) or "no stateful operator"


# --- time ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrainTimeLimits:
    """Time limits of a drain, from the stop of its first container. After `soft` the late stages are reported, after `hard` the drain
    fails. `budgets`: limits of single phases. A phase that exceeds its budget is reported as late. It does not shorten other phases."""

    soft: timedelta
    hard: timedelta
    budgets: Mapping[Phase, timedelta]


def is_late(times: DrainTimeLimits, phase: Phase, began: datetime | None, entered: datetime, now: datetime) -> bool:
    """Whether the soft deadline or the phase's budget has passed. `began`: when STOPPING began; `entered`: when the phase began."""
    if phase.over or began is None:
        return False
    budget = times.budgets.get(phase)
    return now >= began + times.soft or (budget is not None and now > entered + budget)


# --- offsets ---------------------------------------------------------------------------------------------------------


def to_catch_up(positions: Iterable[Mapping[Ssp, int]]) -> Mapping[Ssp, int]:
    """The highest offset of each partition that several stages or tasks read and at which they stopped at different offsets. The others
    must read up to it before they flush, because the next run has one start offset for all of them."""
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
