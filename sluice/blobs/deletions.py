"""Records of deleted blobs, by which a store distinguishes a deleted blob from one that never existed.

A record is a file or an object `<millis>-<random>`: ids of deleted blobs, one a line, kept until <millis>. Each deletion writes one first.
A job of two stages that commits every ten seconds makes 36,000 of them in a month, and a missing blob is looked for in all. So sweeps merge
small records: the merged one is written, then its parts are deleted. A merged record is kept as long as the youngest of its parts, which is
at most a day too long for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from sluice.randomness import token_hex

_SMALL = 512 << 10
"""Bytes. A record of this size is not merged with others."""

_FEWEST = 16
"""So many small records are worth a merge. A byte is thus merged a few times, not each time."""

_MOST = 1000
"""Records that are merged into one. It bounds how long a sweep takes."""

_DAY = timedelta(days=1) // timedelta(milliseconds=1)
"""In milliseconds. Only records that end on the same day are merged, however often."""


@dataclass(frozen=True, order=True, slots=True)
class DeletionRecord:
    """`size`: in bytes."""

    name: str
    size: int

    @property
    def until_millis(self) -> int:
        return int(self.name.partition("-")[0])


def record_name(until_millis: int) -> str:
    """Names sort by time."""
    return f"{until_millis:013}-{token_hex(8)}"


def millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def ended(records: Iterable[DeletionRecord], now: datetime) -> Sequence[str]:
    """The names of the records that are not kept any more."""
    return [each.name for each in records if each.until_millis < millis(now)]


def plan_merge(records: Iterable[DeletionRecord]) -> Sequence[DeletionRecord]:
    """The small records to merge next, oldest first; none if no merge is worth it."""
    small = sorted(each for each in records if each.size < _SMALL)
    for _, of_day in groupby(small, key=lambda each: each.until_millis // _DAY):
        group: list[DeletionRecord] = []
        size = 0
        for each in of_day:
            if len(group) == _MOST or size >= _SMALL:
                break
            group.append(each)
            size += each.size
        if len(group) >= _FEWEST:
            return group
    return []


def merged_name(group: Sequence[DeletionRecord]) -> str:
    return record_name(max(each.until_millis for each in group))


def names(record: str, blob: str) -> bool:
    """Whether a record has the id of a blob."""
    return f"\n{blob}\n" in f"\n{record}"
