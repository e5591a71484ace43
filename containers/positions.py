"""The offsets of a batch as Spark spells them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from coordinator.core.ids import Ssp, StreamId

_SOURCES = 2
"""The line of a plan at which the sources' offsets begin; before it are Spark's version of the format and the batch's metadata."""


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
