"""The offsets of a batch as Spark spells them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sluice.core.ids import Ssp, StreamId

_SOURCES = 2
"""The line of a plan at which the sources' offsets begin; before it are Spark's version of the format and the batch's metadata."""

P = TypeVar("P")
"""What tells partitions apart: a number, or an Ssp."""


def positions_in(plan: str, reads: Sequence[StreamId]) -> dict[Ssp, int]:
    """Where a batch with this plan (the text of `offsets/N`) ends, for the streams that the stage reads."""
    return positions_of(plan.splitlines()[_SOURCES:], reads)


def positions_of(spelled: Sequence[str], reads: Sequence[StreamId]) -> dict[Ssp, int]:
    """The offsets of a batch as sources spell them, for the streams that the stage reads; sources of other kinds are left out."""
    systems = {stream.stream: stream.system for stream in reads}
    found: dict[Ssp, int] = {}
    for text in spelled:
        try:
            document: Any = json.loads(text)
        except ValueError:
            continue
        for stream, partitions in document.items() if isinstance(document, dict) else ():
            if stream in systems and isinstance(partitions, dict):
                found |= {Ssp(systems[stream], stream, int(p)): int(offset) for p, offset in partitions.items()}
    return found


def advance(start: Mapping[P, int], latest: Mapping[P, int], max_rows: int | None) -> dict[P, int]:
    """The end offsets of the next batch: everything, or at most `max_rows` records shared evenly between the partitions that have any."""
    waiting = {p: latest[p] - low for p, low in start.items() if latest.get(p, low) > low}
    left = sum(waiting.values()) if max_rows is None else max_rows
    end = dict(start)
    for position, (p, count) in enumerate(sorted(waiting.items(), key=lambda each: each[1])):
        taken = min(count, left // (len(waiting) - position))
        end[p] += taken
        left -= taken
    return end
