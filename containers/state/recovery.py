"""Where a stage goes on when a container acquires its task: from the local directory, from a snapshot, or from nothing; and what it must
run again first.

Every batch of a stage has a plan (Spark's offset-log entry), and the plan is durable in the blob store before the batch's output is seen.
So a directory that ends at batch N becomes the one that was lost by running the plans N+1..M again: the same batches, the same output,
which sinks that know (lineage, batch) skip. Where that cannot be done exactly the stage gets a new lineage: rows may come twice, and none
is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sluice.core.ids import Generation, Lineage
from sluice.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class OffsetLogEntry:
    """What a batch reads, as Spark spells it in `offsets/<batch>`. `strict`: it was durable before the batch wrote anything, into a sink
    that skips what it has seen. `code` tells the job file that planned it from other versions."""

    batch: int
    text: str
    generation: Generation
    strict: bool
    code: str


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """A checkpoint directory of this disk; -1 for no batch. `plans` are those that its newest batches were planned by."""

    lineage: Lineage
    committed: int
    planned: int
    plans: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resume:
    """With the local directory, after these plans."""

    replay: Sequence[OffsetLogEntry] = ()


@dataclass(frozen=True, slots=True)
class StartFresh:
    """With an empty directory, after these plans."""

    replay: Sequence[OffsetLogEntry] = ()


@dataclass(frozen=True, slots=True)
class Restore:
    """The snapshot, then run the plans."""

    snapshot: Snapshot
    replay: Sequence[OffsetLogEntry] = ()


@dataclass(frozen=True, slots=True)
class RestoreUnderNewLineage:
    """The snapshot under a new lineage: what came after it cannot be repeated exactly."""

    snapshot: Snapshot
    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Nothing may be started: state would be lost silently."""

    why: str


Recovery: TypeAlias = Resume | StartFresh | Restore | RestoreUnderNewLineage | Refuse


def recovery(
    lineage: Lineage,
    reported: int | None,
    local: LocalCheckpoint | None,
    plans: Mapping[int, OffsetLogEntry],
    snapshot: Snapshot | None,
    code: str,
) -> Recovery:
    """Decide. `reported` is the last batch that the coordinator heard of in this lineage, `plans` the durable ones of it, `code` that of
    the job file at hand."""
    if snapshot is not None and snapshot.restored_explicitly:
        return RestoreUnderNewLineage(snapshot, f"checkpoint {snapshot.checkpoint} was chosen")
    last = max([-1 if reported is None else reported, *plans])
    if local is not None and local.lineage == lineage and _agrees(local, plans):
        ahead = _replay(local.committed, last, plans, code, local.plans)
        if not isinstance(ahead, str):
            return Resume(ahead)
    if snapshot is not None:
        ahead = _replay(snapshot.batch, last, plans, code, {})
        return RestoreUnderNewLineage(snapshot, ahead) if isinstance(ahead, str) else Restore(snapshot, ahead)
    ahead = _replay(-1, last, plans, code, {})
    return Refuse(ahead) if isinstance(ahead, str) else StartFresh(ahead)


def _agrees(local: LocalCheckpoint, plans: Mapping[int, OffsetLogEntry]) -> bool:
    """Whether the batches that the directory has committed are those of the history: another holder may have planned some of them
    otherwise."""
    return all(plans[batch].text == text for batch, text in local.plans.items() if batch <= local.committed and batch in plans)


def _replay(
    after: int, last: int, plans: Mapping[int, OffsetLogEntry], code: str, local_plans: Mapping[int, str]
) -> Sequence[OffsetLogEntry] | str:
    """The plans of batches after+1 to last, or why they cannot all be run again exactly. One that the directory itself holds, and which it
    was interrupted in, runs again in any case."""
    found = []
    for batch in range(after + 1, last + 1):
        if batch not in plans:
            return f"batch {batch} was run and its plan is not in the blob store"
        plan = plans[batch]
        if local_plans.get(batch) != plan.text:
            if not plan.strict:
                return f"batch {batch} was written by a sink that does not say which batches it has seen"
            if plan.code != code:
                return f"batch {batch} was planned by another version of the job file"
        found.append(plan)
    return tuple(found)
