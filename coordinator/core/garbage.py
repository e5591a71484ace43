"""What in a blob store is garbage: what no retained snapshot refers to. Found once it is condemned; it is deleted when it was found again,
a grace later.

Commits go on meanwhile. A commit refers to what it uploaded itself, which is younger than the grace, and to what the snapshot before it
refers to, which is the head of its store and retained. So nothing that was garbage for the length of the grace comes into use again, as
long as the grace exceeds what a commit can take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from coordinator.core.blobids import Kind, batch_of
from coordinator.core.ids import Lineage
from coordinator.core.retention import plan_needed
from coordinator.core.snapshot import BlobId

PARTS = 4
"""Segments of a store's prefix: jobs, job, task, stage."""


@dataclass(frozen=True, slots=True)
class Found:
    """A blob in a listing; `size` in bytes."""

    blob: BlobId
    size: int


class References:
    """What the retained snapshots of a store refer to. Only hashes are kept, 64 bits each: two ids that meet in one make a leak, never a
    loss. `floor_of` and `current` are as in `coordinator.core.retention.plan_needed`."""

    def __init__(self, floor_of: Mapping[Lineage, int], current: Lineage | None) -> None:
        self._hashes: set[int] = set()
        self._floor_of = floor_of
        self._current = current

    def add(self, blobs: Iterable[BlobId]) -> None:
        self._hashes.update(map(hash, blobs))

    def refer_to(self, blob: BlobId) -> bool:
        """Also of a plan that may be needed, and of whatever this version does not know."""
        _, _, rest = split(blob)
        kind, _, name = rest.partition("/")
        if kind == Kind.OFFSETS:
            lineage, _, batch = name.partition("/")
            return not batch.isdigit() or plan_needed(Lineage(lineage), batch_of(blob), self._floor_of, self._current)
        return kind not in (Kind.DATA, Kind.SNAPSHOTS) or hash(blob) in self._hashes


def split(blob: BlobId) -> tuple[str, str, str]:
    """The job of a blob, the prefix of its store with the last '/', and the rest; "" for all that is not in a store."""
    parts = blob.split("/", PARTS)
    if len(parts) <= PARTS or parts[0] != "jobs":
        return "", "", blob
    return parts[1], "/".join(parts[:PARTS]) + "/", parts[PARTS]


@dataclass(frozen=True, slots=True)
class Judged:
    """Of some blobs: those that are condemned now, those condemned before that are not garbage or are gone, those to be deleted, and those
    whose grace is not over."""

    condemn: Sequence[Found] = ()
    pardon: Sequence[BlobId] = ()
    delete: Sequence[Found] = ()
    wait: Sequence[Found] = ()
    referenced: int = 0


@dataclass(slots=True)
class _Judging:
    condemn: list[Found] = field(default_factory=list)
    pardon: list[BlobId] = field(default_factory=list)
    delete: list[Found] = field(default_factory=list)
    wait: list[Found] = field(default_factory=list)
    referenced: int = 0


def judge(
    found: Iterable[Found], condemned: Mapping[BlobId, datetime], refer_to: Callable[[BlobId], bool], now: datetime, grace: timedelta
) -> Judged:
    """`condemned` are those of the same range of ids, and when they were condemned; all times are of the coordinator's clock."""
    judging, seen = _Judging(), set()
    for each in found:
        seen.add(each.blob)
        since = condemned.get(each.blob)
        if refer_to(each.blob):
            judging.referenced += 1
            if since is not None:
                judging.pardon.append(each.blob)
        elif since is None:
            judging.condemn.append(each)
        else:
            (judging.delete if since + grace <= now else judging.wait).append(each)
    judging.pardon += [blob for blob in condemned if blob not in seen]
    return Judged(judging.condemn, judging.pardon, judging.delete, judging.wait, judging.referenced)
