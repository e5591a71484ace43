"""Lag in records, from offsets."""

from __future__ import annotations


def records_in(offsets: int, records_per_offset: float | None) -> int:
    """An estimate of the number of records in this number of offsets. `records_per_offset`: the share of offsets with a record, among those
    that the reader has passed; None if unknown. In Kafka the end of a transaction takes an offset, and the offsets of aborted and compacted
    records remain. The result is at least 1 if there are offsets to read, so that a reader that is behind is not shown as one that has read
    everything."""
    if records_per_offset is None or offsets <= 0:
        return offsets
    return max(1, round(offsets * records_per_offset))
