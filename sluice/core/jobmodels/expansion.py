"""The effect of grown streams, or of another number of slots, on a running run; computed before anything is changed.

A restarted query may read more partitions than its checkpoint has, never fewer. While a run continues, a new version of its job model may
therefore add partitions and tasks, but takes no partition from a task; such a change must wait for the next deployment. All streams are
first evaluated together, because the two sides of a join can only grow together, and then one by one, so that a stream that cannot grow
does not block the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluice.core.errors import ClientError, IncompatibleExpansion
from sluice.core.ids import ProcessorId, Ssp, StreamId, TaskName
from sluice.core.jobmodels.model import JobModel, PlannedModel


class Verdict(StrEnum):
    UNCHANGED = "UNCHANGED"
    SAFE = "SAFE"
    REFUSED = "REFUSED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class StreamCount:
    """A stream of a run. `known`: partitions in its job model; `now`: partitions in its system, None with the reason in `problem` if it is
    unknown. `another`: the stream was created again under the same name."""

    name: str
    stream: StreamId
    known: int
    now: int | None
    problem: str = ""
    another: bool = False


@dataclass(frozen=True, slots=True)
class StreamVerdict:
    """A stream and its verdict. `reason` is for display; after a refusal it includes the remedy."""

    count: StreamCount
    verdict: Verdict
    reason: str = ""


PlanFor = Callable[[Mapping[str, int]], PlannedModel]
"""Plans a model for partition counts, by the job's names of the streams. Raises ClientError."""


def evaluate(streams: Sequence[StreamCount], plan_for: PlanFor, former: JobModel) -> tuple[PlannedModel, Sequence[StreamVerdict]]:
    """The model in which every stream that can grow has grown, and the verdict on each stream. If none can grow, the model for the known
    counts. Raises the errors of `plan_for` for the known counts."""
    known = {each.name: each.known for each in streams}
    growing = [each for each in streams if grows(each)]
    grown, refused = growing, dict[str, str]()
    try:
        plan = _plan(plan_for, former, {**known, **counts_now(growing)})
    except ClientError:
        plan, grown, refused = _one_by_one(plan_for, former, known, growing)

    def verdict_of(each: StreamCount) -> StreamVerdict:
        if each in grown:
            return StreamVerdict(each, Verdict.SAFE, f"{each.stream} grew from {each.known} to {each.now} partitions")
        return StreamVerdict(each, Verdict.REFUSED, refused[each.name]) if each.name in refused else plainly(each)

    return plan, [verdict_of(each) for each in streams]


def grows(each: StreamCount) -> bool:
    """Whether the stream has more partitions than the job model."""
    return each.now is not None and each.now > each.known and not each.another


def plainly(each: StreamCount) -> StreamVerdict:
    """The verdict on a stream that does not grow."""
    if each.another:
        return StreamVerdict(each, Verdict.REFUSED, each.problem)
    if each.now is None:
        return StreamVerdict(each, Verdict.UNKNOWN, each.problem)
    if each.now < each.known:
        reason = f"{each.stream} had {each.known} partitions and now has {each.now}: a running job cannot give partitions up"
        return StreamVerdict(each, Verdict.REFUSED, f"{reason}; stop it, and deploy it with an explicit start")
    return StreamVerdict(each, Verdict.UNCHANGED)


def counts_now(streams: Iterable[StreamCount]) -> Mapping[str, int]:
    """The counts that are known."""
    return {each.name: each.now for each in streams if each.now is not None}


def _one_by_one(
    plan_for: PlanFor, former: JobModel, known: Mapping[str, int], growing: Sequence[StreamCount]
) -> tuple[PlannedModel, list[StreamCount], dict[str, str]]:
    """Grow as many of the streams as possible: add one at a time to those found so far, until no further one can be added."""
    plan, grown = _plan(plan_for, former, known), list[StreamCount]()
    while True:
        refused: dict[str, str] = {}
        before = len(grown)
        for each in growing:
            if each in grown:
                continue
            try:
                plan = _plan(plan_for, former, {**known, **counts_now([*grown, each])})
                grown.append(each)
            except ClientError as error:
                refused[each.name] = str(error)
        if len(grown) == before or not refused:
            return plan, grown, refused


def _plan(plan_for: PlanFor, former: JobModel, counts: Mapping[str, int]) -> PlannedModel:
    """Raises IncompatibleExpansion when a task would lose a partition."""
    plan = plan_for(counts)
    check_nothing_is_taken(former, plan.model)
    return plan


def check_nothing_is_taken(former: JobModel, new: JobModel) -> None:
    """Raises IncompatibleExpansion when a task of `former` reads a partition that it does not read in `new`."""
    tasks = new.tasks
    for name, task in former.tasks.items():
        lost = sorted(task.ssps - (tasks[name].ssps if name in tasks else frozenset()))
        if lost:
            names = ", ".join(map(str, lost[:3])) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
            raise IncompatibleExpansion(
                f"task {name} would lose {names}, and a running query cannot give partitions up: deploy it again with an explicit start"
            )


def overall(streams: Sequence[StreamVerdict], *, changed: bool) -> Verdict:
    """One verdict for all streams: the worst one, or whether anything changes."""
    verdicts = {each.verdict for each in streams}
    for worst in (Verdict.REFUSED, Verdict.UNKNOWN):
        if worst in verdicts:
            return worst
    return Verdict.SAFE if changed else Verdict.UNCHANGED


# --- what a new model would change -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    task: TaskName
    former: ProcessorId
    to: ProcessorId


@dataclass(frozen=True, slots=True)
class Skew:
    """The skew of a model, as maximum and mean."""

    partitions_per_task: tuple[int, float]
    tasks_per_container: tuple[int, float]


@dataclass(frozen=True, slots=True)
class Effect:
    """The changes of a new model. `partitions`: the new ones with the task that reads each; None: all tasks. `affected`: tasks that read
    more than before, so that their queries restart. `made`: new tasks. `gone`: removed tasks, only after another deployment. `moves`: tasks
    that move to another slot."""

    partitions: Mapping[Ssp, TaskName | None]
    affected: Sequence[TaskName]
    made: Sequence[TaskName]
    gone: Sequence[TaskName]
    moves: Sequence[Move]
    before: Skew
    after: Skew

    @property
    def nothing(self) -> bool:
        return not (self.partitions or self.affected or self.made or self.gone or self.moves)


def effect(former: JobModel, new: JobModel) -> Effect:
    """The changes of the new model compared with the former."""
    old, now = former.tasks, new.tasks
    slot_before, slot_after = former.placement, new.placement
    read_before = {ssp for task in old.values() for ssp in task.ssps}
    partitions: dict[Ssp, TaskName | None] = {}
    for name, task in now.items():
        for ssp in task.ssps - read_before:
            partitions[ssp] = None if ssp in partitions else name
    return Effect(
        partitions=dict(sorted(partitions.items())),
        affected=[name for name, task in sorted(now.items()) if name in old and old[name].ssps != task.ssps],
        made=sorted(now.keys() - old.keys()),
        gone=sorted(old.keys() - now.keys()),
        moves=[
            Move(name, slot_before[name], to) for name, to in sorted(slot_after.items()) if name in slot_before and slot_before[name] != to
        ],
        before=skew(former),
        after=skew(new),
    )


def skew(model: JobModel) -> Skew:
    """The skew of a model: partitions per task and tasks per container."""
    partitions = [len(task.ssps) for task in model.tasks.values()]
    tasks = list(Counter(model.placement.values()).values())
    return Skew((max(partitions, default=0), _mean(partitions)), (max(tasks, default=0), _mean(tasks)))


def _mean(numbers: Sequence[int]) -> float:
    return round(sum(numbers) / len(numbers), 3) if numbers else 0.0
