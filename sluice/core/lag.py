"""Lag in records, from offsets."""

from __future__ import annotations


def records_in(offsets: int, records_per_offset: float | None) -> int:
    """About how many records are in so many offsets. `records_per_offset`: the share of offsets that had a record where the reader has
    been, None if that is not known. In Kafka the end of a transaction takes an offset, and aborted and compacted records leave theirs.
    At least 1 where there are offsets to read: a reader that is behind is not shown as one that has read everything."""
    if records_per_offset is None or offsets <= 0:
        return offsets
    return max(1, round(offsets * records_per_offset))
