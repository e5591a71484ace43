"""Decides where a stage continues when a container acquires its task (from the local checkpoint, a snapshot, or an empty checkpoint), and
which batches must run again first.

Spark's offset-log entry of every batch is durable in the blob store before the batch writes output. So a checkpoint that ends at batch N is
brought to batch M by running batches N+1..M again with their entries: the same batches with the same output, which sinks that record
(lineage, batch) skip. If this is not possible exactly, the stage gets a new lineage: rows may be duplicated, but none is lost.

A local checkpoint that is older than the newest snapshot, such as one that a task has left on a disk, is not used: intermediate streams are
trimmed up to the oldest retained snapshot, so the records of its next batches may be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sluice.core.ids import Generation, Lineage
from sluice.core.snapshots.snapshot import Snapshot

OVERLAP = 3
"""The number of entries of committed batches that are read, to compare them with those of the local checkpoint."""


@dataclass(frozen=True, slots=True)
class OffsetLogEntry:
    """What a batch reads: the text of Spark's `offsets/<batch>`. `strict`: the entry was durable before the batch wrote anything, and its
    sink skips a batch that it already has. `code` identifies the version of the job file that planned the batch."""

    batch: int
    text: str
    generation: Generation
    strict: bool
    code: str


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """A checkpoint directory on this disk; -1 for no batch. `entries`: the offset-log entries of its newest batches."""

    lineage: Lineage
    committed: int
    planned: int
    entries: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resume:
    """Use the local checkpoint, and run these batches again."""

    replay: Sequence[OffsetLogEntry] = ()


@dataclass(frozen=True, slots=True)
class StartFresh:
    """Start with an empty checkpoint, and run these batches again."""

    replay: Sequence[OffsetLogEntry] = ()


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore the snapshot, and run these batches again."""

    snapshot: Snapshot
    replay: Sequence[OffsetLogEntry] = ()


@dataclass(frozen=True, slots=True)
class RestoreUnderNewLineage:
    """Restore the snapshot under a new lineage: the batches after it cannot be repeated exactly."""

    snapshot: Snapshot
    why: str


@dataclass(frozen=True, slots=True)
class StartUnderNewLineage:
    """Start with an empty checkpoint under a new lineage: batches of the present one may have been written, and cannot be repeated."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not start, because state would be lost without an error."""

    why: str


Recovery: TypeAlias = Resume | StartFresh | Restore | RestoreUnderNewLineage | StartUnderNewLineage | Refuse

Entries: TypeAlias = Mapping[int, OffsetLogEntry]

Rule: TypeAlias = Callable[[Lineage, int | None, LocalCheckpoint | None, Entries, Snapshot | None, str], Recovery]
"""See `recovery`."""


def recovery(
    lineage: Lineage,
    reported: int | None,
    local: LocalCheckpoint | None,
    entries: Mapping[int, OffsetLogEntry],
    snapshot: Snapshot | None,
    code: str,
) -> Recovery:
    """Decide. `reported` is the last batch of this lineage that was reported to the coordinator, `entries` its durable offset-log entries,
    `snapshot` the one to restore, `code` the version of the present job file."""
    if snapshot is not None and snapshot.restored_explicitly:
        return RestoreUnderNewLineage(snapshot, f"snapshot {snapshot.checkpoint} was selected to be restored")
    last = max([-1 if reported is None else reported, *entries])
    behind = local is not None and snapshot is not None and local.committed < snapshot.batch
    if local is not None and not behind and local.lineage == lineage and _agrees(local, entries):
        ahead = _replay(local.committed, last, entries, code, local.entries)
        if not isinstance(ahead, str):
            return Resume(ahead)
    if snapshot is not None:
        ahead = _replay(snapshot.batch, last, entries, code, {})
        return RestoreUnderNewLineage(snapshot, ahead) if isinstance(ahead, str) else Restore(snapshot, ahead)
    ahead = _replay(-1, last, entries, code, {})
    return Refuse(ahead) if isinstance(ahead, str) else StartFresh(ahead)


def entries_after(snapshot: Snapshot | None) -> int | None:
    """To decide, the entries of the batches after this one are needed; -1 for those of all batches. None if no entry is needed. The local
    checkpoint does not matter: one that is older than the snapshot is not used."""
    if snapshot is None:
        return -1
    return None if snapshot.restored_explicitly else max(-1, snapshot.batch - OVERLAP)


def depends_on(decided: Recovery, batch: int, local: LocalCheckpoint | None) -> bool:
    """Whether the decision may be another one once the entry of this batch, which could not be read, is known."""
    match decided:
        case Resume():
            return local is None or batch > local.committed or batch in local.entries
        case Restore(snapshot=snapshot):
            return batch > snapshot.batch
        case RestoreUnderNewLineage(snapshot=snapshot):
            return batch >= snapshot.batch
        case StartFresh() | StartUnderNewLineage() | Refuse():
            return True


def _agrees(local: LocalCheckpoint, entries: Mapping[int, OffsetLogEntry]) -> bool:
    """Whether the committed batches of the local checkpoint have the same entries as the durable ones. Another owner of the task may have
    planned some of them differently."""
    return all(entries[batch].text == text for batch, text in local.entries.items() if batch <= local.committed and batch in entries)


def _replay(
    after: int, last: int, entries: Mapping[int, OffsetLogEntry], code: str, local_entries: Mapping[int, str]
) -> Sequence[OffsetLogEntry] | str:
    """The entries of batches after+1 to last, or why they cannot all run again exactly. A batch whose entry is in the local checkpoint was
    interrupted there, and can always run again."""
    found = []
    for batch in range(after + 1, last + 1):
        if batch not in entries:
            return f"batch {batch} was run, but its offset-log entry is not in the blob store"
        entry = entries[batch]
        if local_entries.get(batch) != entry.text:
            if not entry.strict:
                return f"batch {batch} was written to a sink that does not record which batches it has"
            if entry.code != code:
                return f"batch {batch} was planned by another version of the job file"
        found.append(entry)
    return tuple(found)
