"""What may be deleted of the history of a job: ended runs, versions of the job model, drains, and containers that have ended.

The history is for operators and for restarts, and the job does not need it for long. `plan_pruning` determines what may be deleted. It
keeps what is younger than the policy's limit, and what a later request reads:

* the current run, the one before it, the first run of its history, and of that history the newest run in which a stage reads a stream:
  a deployment that reads the stream again continues there;
* runs whose containers may still act, or which snapshots and the owners of tasks refer to;
* the last complete drain of the job with its run (the start "drained"), the newest drain of each run that is kept, and each drain that
  failed after its flush had begun: readers of intermediate streams skip the records that it left there;
* the versions of kept runs and drains, those that owners of tasks run, all to which a roll-back is possible, and the newest ones, which
  a fail-over searches and from which the next version continues the count.

What may be deleted may also be deleted later, so the next plan continues an interrupted one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sluice.core.drain import DrainId, Phase
from sluice.core.ids import ExecutionContainerId, RunId, StageName, StreamId
from sluice.core.waits import age

NEWEST_VERSIONS = 50
"""Number of versions of a job's model that are kept regardless of their age."""


@dataclass(frozen=True, slots=True)
class HistoryPolicy:
    """`incarnations`: the number of containers of a slot that are kept. `keep`: how long everything else is kept after its end."""

    incarnations: int = 100
    keep: timedelta = timedelta(days=30)

    def is_old(self, ended_at: datetime | None, now: datetime) -> bool:
        return ended_at is not None and age(ended_at, now) >= self.keep


@dataclass(frozen=True, slots=True)
class PastRun:
    """`active`: one of its containers has not ended."""

    run_id: RunId
    created_at: datetime
    ended_at: datetime | None
    first_run: RunId
    model_version: int
    active: bool = False


@dataclass(frozen=True, slots=True)
class PastVersion:
    version: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PastDrain:
    """`emptied`: it had begun to empty state."""

    drain_id: DrainId
    run_id: RunId
    seq: int
    phase: Phase
    ended_at: datetime | None
    model_version: int
    emptied: bool = False


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The recorded history of a job, newest first. `readers`: for the runs of the current history, which stages read which streams.
    `used_runs`: those that snapshots and owners of tasks refer to; `used_versions`: those that owners of tasks run. `adopted`: the newest
    version that a container of the current run has adopted or acquired a task under; 0 if there was none."""

    current: RunId
    runs: Sequence[PastRun]
    versions: Sequence[PastVersion] = ()
    drains: Sequence[PastDrain] = ()
    readers: Mapping[RunId, Collection[tuple[StreamId, StageName]]] = field(default_factory=dict)
    used_runs: Collection[RunId] = ()
    used_versions: Collection[int] = ()
    adopted: int = 0


@dataclass(frozen=True, slots=True)
class PruningPlan:
    """What may be deleted, oldest first. Drains are deleted before their runs."""

    drains: Sequence[DrainId] = ()
    versions: Sequence[int] = ()
    runs: Sequence[RunId] = ()

    def __str__(self) -> str:
        parts = [f"runs {', '.join(self.runs)}"] if self.runs else []
        parts += [f"drains {', '.join(self.drains)}"] if self.drains else []
        parts += [f"versions {', '.join(map(str, self.versions))} of the job model"] if self.versions else []
        return "; ".join(parts) or "nothing"


def plan_pruning(history: JobHistory, policy: HistoryPolicy, now: datetime) -> PruningPlan:
    drains = _kept_drains(history, policy, now)
    runs = _kept_runs(history, policy, now) | {each.run_id for each in drains}
    newest_of_run: dict[RunId, PastDrain] = {}
    for drain in sorted(history.drains, key=lambda each: each.seq):
        newest_of_run[drain.run_id] = drain
    drains |= {drain for run_id, drain in newest_of_run.items() if run_id in runs}
    versions = _kept_versions(history, policy, now)
    versions |= {run.model_version for run in history.runs if run.run_id in runs} | {drain.model_version for drain in drains}
    return PruningPlan(
        drains=[each.drain_id for each in reversed(history.drains) if each not in drains],
        versions=[each.version for each in reversed(history.versions) if each.version not in versions],
        runs=[each.run_id for each in reversed(history.runs) if each.run_id not in runs],
    )


def _kept_runs(history: JobHistory, policy: HistoryPolicy, now: datetime) -> set[RunId]:
    kept = {history.current, *history.used_runs, *(each.run_id for each in history.runs[:2])}
    kept |= {each.first_run for each in history.runs if each.run_id == history.current}
    kept |= {each.run_id for each in history.runs if each.active or each.ended_at is None or not policy.is_old(each.ended_at, now)}
    read: set[tuple[StreamId, StageName]] = set()
    for run in history.runs:
        reads = set(history.readers.get(run.run_id, ()))
        if reads - read:
            kept.add(run.run_id)
        read |= reads
    return kept


def _kept_drains(history: JobHistory, policy: HistoryPolicy, now: datetime) -> set[PastDrain]:
    newest = sorted(history.drains, key=lambda each: -each.seq)
    complete = [each for each in newest if each.phase is Phase.DRAINED]
    failed = [each for each in newest if each.phase is Phase.FAILED and each.emptied]
    young = [each for each in newest if each.ended_at is None or not policy.is_old(each.ended_at, now)]
    return {*newest[:1], *complete[:1], *failed, *young}


def _kept_versions(history: JobHistory, policy: HistoryPolicy, now: datetime) -> set[int]:
    numbers = sorted((each.version for each in history.versions), reverse=True)
    young = {each.version for each in history.versions if not policy.is_old(each.created_at, now)}
    return {*numbers[:NEWEST_VERSIONS], *history.used_versions} | young | {each for each in numbers if each >= history.adopted}


@dataclass(frozen=True, slots=True)
class PastContainer:
    """`newest`: the epoch of the newest container of its slot. `owner`: it is the last owner of a task."""

    execution_id: ExecutionContainerId
    epoch: int
    newest: int
    ended: bool
    owner: bool


def surplus_containers(found: Sequence[PastContainer], policy: HistoryPolicy) -> Sequence[ExecutionContainerId]:
    """The containers that may be deleted. The newest container of a slot is kept, so that its epoch and its version of the job model
    are never reused. The last owner of a task is kept, because the task's state may still be on its host's disk."""
    return [each.execution_id for each in found if each.ended and not each.owner and each.newest - each.epoch >= policy.incarnations]


def prunes_notices(ended: bool, stopping: bool, draining: bool) -> bool:
    """Whether all old notices of a run except the newest may be deleted. A starting container reads all notices of its run, and must find
    those of a stop and of an active drain."""
    return ended or not (stopping or draining)
