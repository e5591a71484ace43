"""Which snapshots of a stage are retained (its newest, the last few, the last of each hour and day, pinned ones), and which blobs are
garbage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sluice.core.ids import Lineage
from sluice.core.snapshots.snapshot import BlobId, CommitId, Kind, batch_of
from sluice.core.waits import is_ahead


@dataclass(frozen=True, slots=True)
class Retention:
    """Retain the `last` snapshots, and the last one of each of the `hourly` and `daily` newest hours and days (UTC) that have any."""

    last: int
    hourly: int = 0
    daily: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotTime:
    """A snapshot, and when it was reported by the coordinator's clock."""

    checkpoint: CommitId
    at: datetime


def retained(
    newest_first: Sequence[SnapshotTime],
    retention: Retention,
    head: CommitId | None,
    pins: Mapping[CommitId, Sequence[str]],
) -> Mapping[CommitId, Sequence[str]]:
    """The retained snapshots, each with the reasons: "head", "last", "hourly", "daily", "pin ID". `head` is the one that the stage
    continues from. The order is that of the reports, so that a clock that was set back has no effect."""
    why: defaultdict[CommitId, list[str]] = defaultdict(list)
    if head is not None:
        why[head].append("head")
    for each in newest_first[: retention.last]:
        why[each.checkpoint].append("last")
    for name, pattern, count in (("hourly", "%Y-%m-%d %H", retention.hourly), ("daily", "%Y-%m-%d", retention.daily)):
        for checkpoint in _last_of_each(newest_first, pattern, count):
            why[checkpoint].append(name)
    for checkpoint, names in pins.items():
        why[checkpoint].extend(f"pin {name}" for name in names)
    return {each.checkpoint: why[each.checkpoint] for each in newest_first if each.checkpoint in why}


def _last_of_each(newest_first: Sequence[SnapshotTime], pattern: str, count: int) -> Sequence[CommitId]:
    found: dict[str, CommitId] = {}
    for each in newest_first:
        found.setdefault(each.at.strftime(pattern), each.checkpoint)
    return [found[span] for span in sorted(found, reverse=True)[:count]]


BEFORE_ALL = -1
"""The batch of a snapshot that has none."""


def floors(snapshots: Sequence[tuple[Lineage, int | None]]) -> Mapping[Lineage, int]:
    """For each lineage with a retained snapshot, the batch of the oldest one: offset-log entries up to it are no longer needed."""
    found: dict[Lineage, int] = {}
    for lineage, batch in snapshots:
        at = BEFORE_ALL if batch is None else batch
        found[lineage] = min(at, found.get(lineage, at))
    return found


def plan_needed(lineage: Lineage, batch: int, floor_of: Mapping[Lineage, int], current: Lineage | None) -> bool:
    """Whether a batch may have to be replayed, so that its offset-log entry is needed. `current`: the lineage that the stage continues."""
    floor = floor_of.get(lineage)
    return lineage == current if floor is None else batch > floor


PARTS = 4
"""Segments of a stage's prefix: jobs, job, task, stage."""


@dataclass(frozen=True, slots=True)
class BlobSize:
    """A blob in a listing; `size` in bytes."""

    blob: BlobId
    size: int


class References:
    """What the retained snapshots of a stage refer to. Only 64-bit hashes are kept: a collision keeps a blob too long and never deletes
    one. `floor_of` and `current` are as in `plan_needed`."""

    def __init__(self, floor_of: Mapping[Lineage, int], current: Lineage | None) -> None:
        self._hashes: set[int] = set()
        self._floor_of = floor_of
        self._current = current

    def add(self, blobs: Iterable[BlobId]) -> None:
        self._hashes.update(map(hash, blobs))

    def refer_to(self, blob: BlobId) -> bool:
        """Whether the blob is referred to. Also true for an offset-log entry that may be needed, and for blobs of unknown kinds."""
        _, _, rest = split(blob)
        kind, _, name = rest.partition("/")
        if kind == Kind.OFFSETS:
            lineage, _, batch = name.partition("/")
            return not batch.isdigit() or plan_needed(Lineage(lineage), batch_of(blob), self._floor_of, self._current)
        return kind not in (Kind.DATA, Kind.SNAPSHOTS) or hash(blob) in self._hashes


def split(blob: BlobId) -> tuple[str, str, str]:
    """The job of a blob, the prefix of its stage with the last '/', and the rest; "" for a blob that belongs to no stage."""
    parts = blob.split("/", PARTS)
    if len(parts) <= PARTS or parts[0] != "jobs":
        return "", "", blob
    return parts[1], "/".join(parts[:PARTS]) + "/", parts[PARTS]


@dataclass(frozen=True, slots=True)
class CollectionDecision:
    """What a collection does with some blobs: those to condemn now, those that were condemned and are not garbage or no longer exist, those
    to delete, and those whose grace period has not ended."""

    condemn: Sequence[BlobSize] = ()
    pardon: Sequence[BlobId] = ()
    delete: Sequence[BlobSize] = ()
    wait: Sequence[BlobSize] = ()
    referenced: int = 0


@dataclass(slots=True)
class _Decision:
    condemn: list[BlobSize] = field(default_factory=list)
    pardon: list[BlobId] = field(default_factory=list)
    delete: list[BlobSize] = field(default_factory=list)
    wait: list[BlobSize] = field(default_factory=list)
    referenced: int = 0


def decide(
    found: Iterable[BlobSize], condemned: Mapping[BlobId, datetime], refer_to: Callable[[BlobId], bool], now: datetime, grace: timedelta
) -> CollectionDecision:
    """Decide about a range of blobs. `condemned`: the condemned blobs of the same range, with the time at which they were condemned, by the
    coordinator's clock. A blob that was condemned while the clock was ahead is condemned again."""
    decision, seen = _Decision(), set()
    for each in found:
        seen.add(each.blob)
        since = condemned.get(each.blob)
        if refer_to(each.blob):
            decision.referenced += 1
            if since is not None:
                decision.pardon.append(each.blob)
        elif since is None or is_ahead(since, now):
            decision.condemn.append(each)
        else:
            (decision.delete if since + grace <= now else decision.wait).append(each)
    decision.pardon += [blob for blob in condemned if blob not in seen]
    return CollectionDecision(decision.condemn, decision.pardon, decision.delete, decision.wait, decision.referenced)
