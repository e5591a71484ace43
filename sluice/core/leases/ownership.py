"""The owners of tasks, the checks of their reports, and the offsets derived from reports.

The same rule applies to restarts, redeployments, moves and fail-over. The n-th owner of a task has generation n. Every report and append
contains the generation, and an older one is rejected. So a replaced owner can add garbage but cannot change valid data.

Reports determine which records of intermediate streams are deleted: those that all readers have passed. Therefore a report that cannot be
true is rejected (`check_report`), and a report that cannot be true yet deletes nothing (`unread_from`). When a stateless job is regrouped,
reports also determine the start offsets of its tasks (`regrouped`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from sluice.core.errors import FalseReport
from sluice.core.ids import ExecutionContainerId, Generation, Instant, Lineage, Ssp, TaskName


@dataclass(frozen=True, slots=True)
class TaskOwner:
    """The last grant of a task. `released`: the owner released it, its exit was reported, or its lease and grace have passed."""

    generation: Generation
    holder: ExecutionContainerId
    released: bool


@dataclass(frozen=True, slots=True)
class Granted:
    generation: Generation


@dataclass(frozen=True, slots=True)
class Wait:
    """Repeat the request after `delay`: the former owner may still act until then."""

    former: ExecutionContainerId
    delay: timedelta


def acquire(hold: TaskOwner | None, requester: ExecutionContainerId, former_free_at: Instant | None, now: Instant) -> Granted | Wait:
    """Decide on a container's request for a task.

    `former_free_at`: when the present owner's lease and grace period expire; None if it has no lease. A request that is repeated because
    its response was lost gets the same generation."""
    if hold is None:
        return Granted(Generation(1))
    if hold.holder == requester and not hold.released:
        return Granted(hold.generation)
    if hold.released or former_free_at is None or now >= former_free_at:
        return Granted(Generation(hold.generation + 1))
    return Wait(hold.holder, timedelta(seconds=former_free_at - now))


def holds(hold: TaskOwner | None, generation: Generation) -> bool:
    """Whether a report under `generation` is the present owner's."""
    return hold is not None and hold.generation == generation and not hold.released


# --- reports ---------------------------------------------------------------------------------------------------------

FALSE = ("batch-too-large", "foreign-partition", "offset-backwards")
"""Why a report cannot be true; see `sluice.core.errors.FalseReport`."""

LAST_BATCH = 2**53
"""Batches are numbered from 0, and numbers in JSON are exact up to this one."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The last committed batch of a stage of a task, None before the first, and the next offset of each partition that it reads."""

    generation: Generation
    lineage: Lineage
    batch: int | None
    offsets: Mapping[Ssp, int]


def check_report(report: Committed, reads: Collection[Ssp], known: Committed | None, ends: Mapping[Ssp, int]) -> None:
    """Reject a report that cannot be true. `reads`: the partitions that the stage of the task reads. `known`: the last report. Within one
    generation and lineage offsets never decrease. They may decrease in a new lineage, and under a new generation, whose owner may have
    begun from an older snapshot. `ends`: ends of partitions that were looked up after `known` was reported. Offsets of `known` beyond these
    were wrong, so a later report may have lower ones.

    Raises FalseReport.
    """
    if report.batch is not None and report.batch > LAST_BATCH:
        raise FalseReport("batch-too-large", f"batch {report.batch} is reported; there are none beyond {LAST_BATCH}")
    foreign = sorted(report.offsets.keys() - set(reads))
    if foreign:
        names = ", ".join(map(str, foreign[:3])) + (" and others" if len(foreign) > 3 else "")
        raise FalseReport("foreign-partition", f"offsets of {names} are reported, which this stage of the task does not read")
    if known is None or known.batch is None or (known.generation, known.lineage) != (report.generation, report.lineage):
        return
    earlier = report.batch is None or report.batch < known.batch
    for ssp in sorted(report.offsets.keys() & known.offsets.keys()):
        offset, before = report.offsets[ssp], known.offsets[ssp]
        falls = offset > before if earlier else offset < before
        if falls and before <= ends.get(ssp, before):
            raise FalseReport(
                "offset-backwards",
                f"offset {offset} of {ssp} is reported with batch {report.batch}, and offset {before} with batch {known.batch} of the same "
                "lineage: offsets never decrease from batch to batch",
            )


def updated_offsets(known: Committed | None, report: Committed) -> Mapping[Ssp, int]:
    """The offsets to store with an accepted report. Offsets of partitions that are not in the report do not change within a lineage."""
    return {**(known.offsets if known is not None and known.lineage == report.lineage else {}), **report.offsets}


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """A stage of a task that reads a partition. `start`: the offset at which it begins without a checkpoint. `reported`: the next offset in
    its last report; None if there is no report. `snapshots`: the offsets in its retained snapshots, from which it may read again; None for
    a snapshot without the partition."""

    start: int
    reported: int | None
    snapshots: Sequence[int | None] = ()


def unread_from(readers: Iterable[PartitionReader], end: int) -> int:
    """The first offset of a partition that one of its readers may still read; there is at least one reader. `end`: the partition's end,
    looked up after the reports. A report beyond it is unconfirmed, and is ignored."""
    return min(_unread_from(reader, end) for reader in readers)


def kept_for_snapshots(readers: Collection[PartitionReader], begin: int, end: int, limit: int) -> int:
    """How many records of a partition are kept only because a reader may return to one of its snapshots. `begin`: the offset of the first
    record that exists. `end`: see `unread_from`. `limit`: the offset below which records are old enough to be deleted."""
    passed = min(unread_from([replace(reader, snapshots=()) for reader in readers], end), limit)
    return max(0, passed - max(begin, unread_from(readers, end)))


def _unread_from(reader: PartitionReader, end: int) -> int:
    if reader.reported is None or reader.reported > end:
        return reader.start
    return min(reader.start if offset is None else offset for offset in (reader.reported, *reader.snapshots))


# --- regrouping a job without state -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagePosition:
    """The position of a stage of a task: the next offset of each of its partitions, and the time of its last report, if any."""

    offsets: Mapping[Ssp, int]
    reported_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RegroupedStage:
    """The changes of a stage whose partitions are assigned to other tasks. `begin`: tasks that begin a new lineage at these offsets,
    because a query cannot give partitions up, or continue at other offsets than its last ones. `extend`: tasks that continue, and begin
    additional partitions at these offsets. `gone`: tasks that read nothing any more."""

    begin: Mapping[TaskName, Mapping[Ssp, int]] = field(default_factory=dict)
    extend: Mapping[TaskName, Mapping[Ssp, int]] = field(default_factory=dict)
    gone: frozenset[TaskName] = frozenset()

    @property
    def nothing(self) -> bool:
        return not (self.begin or self.extend or self.gone)


def regrouped(
    positions: Mapping[TaskName, StagePosition], reads: Mapping[TaskName, frozenset[Ssp]], broadcast: Collection[Ssp]
) -> RegroupedStage:
    """The start offsets of the tasks of a stateless stage, so that each partition continues at the offset that the stage committed last, in
    any task. `positions`: the positions of the former tasks. `reads`: the partitions of the new tasks, including the `broadcast`
    partitions, for which each task has its own offset."""
    last: dict[Ssp, TaskName] = {}
    for task in sorted(positions, key=lambda each: (positions[each].reported_at or _NEVER, each)):
        last |= dict.fromkeys(positions[task].offsets.keys() - set(broadcast), task)
    streams = {ssp.stream_id for ssps in reads.values() for ssp in ssps}
    begin: dict[TaskName, Mapping[Ssp, int]] = {}
    extend: dict[TaskName, Mapping[Ssp, int]] = {}
    for task, ssps in reads.items():
        own = positions[task].offsets if task in positions else {}
        others = {ssp: positions[last[ssp]].offsets[ssp] for ssp in ssps - set(broadcast) if last.get(ssp, task) != task}
        lost = {ssp for ssp in own.keys() - ssps if ssp.stream_id in streams}
        if task in positions and (lost or own.keys() & others.keys()):
            begin[task] = {ssp: offset for ssp, offset in {**own, **others}.items() if ssp not in lost}
        elif others:
            (extend if task in positions else begin)[task] = others
    return RegroupedStage(begin, extend, frozenset(positions.keys() - reads.keys()))


_NEVER = datetime.min.replace(tzinfo=UTC)
