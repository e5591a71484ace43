"""Which snapshots of a store are retained: its head, the last few, the last of each hour and day, and those that are pinned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from coordinator.core.ids import Lineage
from coordinator.core.snapshot import CheckpointId


@dataclass(frozen=True, slots=True)
class Retention:
    """`last` snapshots, and besides the last of each of so many hours and days that have any (in UTC)."""

    last: int
    hourly: int = 0
    daily: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot and when it was reported, by the coordinator's clock."""

    checkpoint: CheckpointId
    at: datetime


def retained(
    newest_first: Sequence[Taken],
    retention: Retention,
    head: CheckpointId | None,
    pins: Mapping[CheckpointId, Sequence[str]],
) -> Mapping[CheckpointId, Sequence[str]]:
    """The snapshots that stay, each with why: "head", "last", "hourly", "daily", "pin ID". `head` is the one that the store goes on from.
    The order is that of the reports: a clock that was put back moves none."""
    why: defaultdict[CheckpointId, list[str]] = defaultdict(list)
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


def _last_of_each(newest_first: Sequence[Taken], pattern: str, count: int) -> Sequence[CheckpointId]:
    found: dict[str, CheckpointId] = {}
    for each in newest_first:
        found.setdefault(each.at.strftime(pattern), each.checkpoint)
    return [found[span] for span in sorted(found, reverse=True)[:count]]


BEFORE_ALL = -1
"""The batch of a snapshot that has none."""


def floors(snapshots: Sequence[tuple[Lineage, int | None]]) -> Mapping[Lineage, int]:
    """Of each lineage that has a retained snapshot, the batch of the oldest: plans of batches up to it are not needed any more."""
    found: dict[Lineage, int] = {}
    for lineage, batch in snapshots:
        at = BEFORE_ALL if batch is None else batch
        found[lineage] = min(at, found.get(lineage, at))
    return found


def plan_needed(lineage: Lineage, batch: int, floor_of: Mapping[Lineage, int], current: Lineage | None) -> bool:
    """Whether the plan of a batch may still have to be run again. `current` is the lineage that the store goes on under."""
    floor = floor_of.get(lineage)
    return lineage == current if floor is None else batch > floor
