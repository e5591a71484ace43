"""Spark's plans of batches, the texts of `offsets/N`, read and written: what a drain has a store run. No pyspark here.

    v1                                                         the version of the format
    {"batchWatermarkMs": …, "batchTimestampMs": …, "conf": {…}}    what the batch is computed with
    {"stream": {"partition": next offset}}                     where the batch ends, a line for each source in the order of the query
    -                                                          a source that has not told anything yet

Another version is refused: a plan that was guessed at would lose rows in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from containers.errors import CheckpointUnreadable
from sluice.core.ids import Ssp, StreamId

VERSION = "v1"
NOTHING_YET = "-"
END_OF_TIME = datetime(9000, 1, 1, tzinfo=UTC)
"""The watermark of a flush: later than all that a window or a timer waits for, and not so late that arithmetic on it overflows."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLI = timedelta(milliseconds=1)
_WATERMARK, _TIMESTAMP = "batchWatermarkMs", "batchTimestampMs"


@dataclass(frozen=True, slots=True)
class OffsetSeq:
    """`metadata` is Spark's, whole; `sources` are the lines after it, as Spark spelled them."""

    metadata: Mapping[str, Any]
    sources: tuple[str, ...]

    @property
    def watermark(self) -> datetime:
        """1970 for none yet."""
        return _EPOCH + int(self.metadata[_WATERMARK]) * _MILLI

    @property
    def timestamp(self) -> datetime:
        """What is "now" for the batch: for `current_timestamp`, timers of processing time and the time to live of state."""
        return _EPOCH + int(self.metadata[_TIMESTAMP]) * _MILLI

    @property
    def text(self) -> str:
        return "\n".join([VERSION, json.dumps(self.metadata, separators=(",", ":")), *self.sources])

    def positions(self, reads: Sequence[StreamId]) -> dict[Ssp, int]:
        """Where the batch ends, for the streams that the stage reads."""
        return positions_of(self.sources, reads)

    def at(self, now: datetime, watermark: datetime | None = None) -> OffsetSeq:
        """The plan with a timestamp, never one before its own, and perhaps another watermark."""
        changed = {_TIMESTAMP: millis(max(now, self.timestamp))}
        if watermark is not None:
            changed[_WATERMARK] = millis(watermark)
        return replace(self, metadata={**self.metadata, **changed})


def millis(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLI


def parse(text: str, where: str) -> OffsetSeq:
    """Raises CheckpointUnreadable, which names `where`, for what is no plan of a known version."""
    version, *lines = text.splitlines() or [""]
    if version != VERSION:
        raise CheckpointUnreadable(
            f"{where} is a plan of version {version[:20]!r}, and Sluice knows {VERSION!r} only: another version of Spark wrote it, run the "
            "version of Sluice that fits that"
        )
    try:
        metadata = json.loads(lines[0])
        plan = OffsetSeq(metadata, tuple(lines[1:]))
        plan.text, plan.watermark, plan.timestamp  # noqa: B018 (to raise)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise CheckpointUnreadable(f"{where} is not the plan of a batch: {type(error).__name__}: {error}") from error
    if not plan.sources:
        raise CheckpointUnreadable(f"{where} is the plan of a batch without sources")
    return plan


def first_entry(metadata: str, sources: Sequence[StreamId | None], starts: Mapping[Ssp, int]) -> OffsetSeq:
    """What stands before batch 0 of a store without batches: nothing read yet. `metadata` is the line that Spark would write; `sources` are
    the streams of the query's sources in its order, None for those of other kinds."""
    lines = [NOTHING_YET if stream is None else _spelled(stream, starts) for stream in sources]
    return parse("\n".join([VERSION, metadata, *lines]), "the first plan")


def _spelled(stream: StreamId, offsets: Mapping[Ssp, int]) -> str:
    ours = sorted((ssp.partition, offset) for ssp, offset in offsets.items() if ssp.stream_id == stream)
    return json.dumps({stream.stream: {str(partition): offset for partition, offset in ours}})


def entries_up_to(last: OffsetSeq, ends: Mapping[Ssp, int], reads: Sequence[StreamId], max_rows: int, now: datetime) -> Iterator[OffsetSeq]:
    """The plans that read on from the batch `last` up to `ends`, about `max_rows` rows each; none where there is nothing.

    They keep the watermark of `last`: rows of a feeder that was slower than the others are not late. Sources of which `ends` does not speak
    stand still, and none goes back. Raises CheckpointUnreadable for a stream that `last` does not know.
    """
    at = last.positions(reads)
    if missing := {ssp.stream_id for ssp, end in ends.items() if end > 0} - {ssp.stream_id for ssp in at}:
        raise CheckpointUnreadable(f"the last plan does not say how far {', '.join(sorted(map(str, missing)))} was read")
    goal = {ssp: max(end, at.get(ssp, 0)) for ssp, end in ends.items()}
    while any(at.get(ssp, 0) < end for ssp, end in goal.items()):
        at |= advance({ssp: at.get(ssp, 0) for ssp in goal}, goal, max_rows)
        yield replace(last, sources=tuple(_moved(line, at, reads) for line in last.sources)).at(now)


def with_new_partitions(last: OffsetSeq, starts: Mapping[Ssp, int], reads: Sequence[StreamId], now: datetime) -> OffsetSeq | None:
    """The plan that reads nothing, and knows the partitions of `starts` that `last` does not know: they begin there. None when there are no
    such, or all of them begin at 0."""
    at = last.positions(reads)
    streams = {ssp.stream_id for ssp in at}
    new = {ssp: offset for ssp, offset in starts.items() if ssp not in at and ssp.stream_id in streams}
    if not any(new.values()):
        return None
    return replace(last, sources=tuple(_moved(line, at | new, reads) for line in last.sources)).at(now)


def adds_partitions(before: OffsetSeq, plan: OffsetSeq, starts: Mapping[Ssp, int], reads: Sequence[StreamId]) -> bool:
    """Whether the plan knows partitions that the one before it does not know, and that begin after 0."""
    new = plan.positions(reads).keys() - before.positions(reads).keys()
    return any(starts.get(ssp, 0) for ssp in new)


def _moved(line: str, at: Mapping[Ssp, int], reads: Sequence[StreamId]) -> str:
    """The source's line with these offsets. One that says the same is left as it is: Spark compares the texts."""
    ours = positions_of([line], reads)
    streams = {ssp.stream_id for ssp in ours}
    moved = {ssp: offset for ssp, offset in at.items() if ssp.stream_id in streams}
    return line if moved == ours else "".join(_spelled(stream, moved) for stream in streams)


def flush_entry(last: OffsetSeq, now: datetime) -> OffsetSeq:
    """The plan that reads nothing and closes all that waits for event time."""
    return last.at(now, END_OF_TIME)


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
