"""Records of deleted blobs, by which a store distinguishes a deleted blob from one that never existed.

A record is a file or an object `<millis>-<random>` with the ids of deleted blobs, one per line. It is kept until <millis>. Each deletion
first writes a record. A job of two stages that commits every ten seconds writes 36,000 records a month, and a lookup of a missing blob
reads all of them. Therefore sweeps merge small records: the merged record is written, then its parts are deleted. It is kept as long as its
newest part, which is at most a day too long for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from sluice.randomness import token_hex

_SMALL = 512 << 10
"""In bytes. A record of at least this size is not merged."""

_FEWEST = 16
"""Minimum number of records in a merge. It limits how often a byte is copied."""

_MOST = 1000
"""Maximum number of records in a merge. It limits the duration of a sweep."""

_DAY = timedelta(days=1) // timedelta(milliseconds=1)
"""In milliseconds. Only records that end on the same day are merged."""


@dataclass(frozen=True, order=True, slots=True)
class DeletionRecord:
    """`size`: in bytes."""

    name: str
    size: int

    @property
    def until_millis(self) -> int:
        return int(self.name.partition("-")[0])


def record_name(until_millis: int) -> str:
    """The name of a new record. Names sort by time."""
    return f"{until_millis:013}-{token_hex(8)}"


def millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def ended(records: Iterable[DeletionRecord], now: datetime) -> Sequence[str]:
    """The names of the records that are no longer kept."""
    return [each.name for each in records if each.until_millis < millis(now)]


def plan_merge(records: Iterable[DeletionRecord]) -> Sequence[DeletionRecord]:
    """The small records to merge next, oldest first; empty if there are too few."""
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
    """Whether a record contains the id of a blob."""
    return f"\n{blob}\n" in f"\n{record}"
