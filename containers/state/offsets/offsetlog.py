"""Spark's offset log: the texts of `offsets/N`, parsed and made. A drain makes entries for the batches that it runs.

    v1                                                         the version of the format
    {"batchWatermarkMs": …, "batchTimestampMs": …, "conf": {…}}    the metadata of the batch
    {"stream": {"partition": next offset}}                     where the batch ends, a line for each source in the order of the query
    -                                                          a source without an offset yet

Other versions are rejected: an entry that was misread would lose rows without an error.
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
"""The watermark of a flush: later than any event time that a window or a timer waits for, and early enough that arithmetic on it does not
overflow."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLI = timedelta(milliseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLI
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLI
_WATERMARK, _TIMESTAMP = "batchWatermarkMs", "batchTimestampMs"


@dataclass(frozen=True, slots=True)
class OffsetSeq:
    """An offset-log entry, parsed; Spark's class has the same name. `metadata` is Spark's, complete; `sources` are the lines after it,
    unchanged."""

    metadata: Mapping[str, Any]
    sources: tuple[str, ...]

    @property
    def watermark(self) -> datetime:
        """1970 if there is none yet."""
        return _EPOCH + int(self.metadata[_WATERMARK]) * _MILLI

    @property
    def timestamp(self) -> datetime:
        """The time of the batch, for `current_timestamp`, processing-time timers and the time to live of state."""
        return _EPOCH + int(self.metadata[_TIMESTAMP]) * _MILLI

    @property
    def text(self) -> str:
        return "\n".join([VERSION, json.dumps(self.metadata, separators=(",", ":")), *self.sources])

    def positions(self, reads: Sequence[StreamId]) -> dict[Ssp, int]:
        """The end offsets of the batch, for the streams that the stage reads."""
        return positions_of(self.sources, reads)

    def at(self, now: datetime, watermark: datetime | None = None) -> OffsetSeq:
        """A copy with another timestamp, not before the present one, and optionally another watermark."""
        changed = {_TIMESTAMP: millis(max(now, self.timestamp))}
        if watermark is not None:
            changed[_WATERMARK] = millis(watermark)
        return replace(self, metadata={**self.metadata, **changed})


def millis(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLI


def from_millis(since_epoch: int) -> datetime:
    """The time of a number of milliseconds, from the first moment of the year 1 to the last one of the year 9999; Spark's timestamps go
    further."""
    return _EPOCH + min(max(since_epoch, _FIRST), _LAST) * _MILLI


def from_micros(since_epoch: int) -> datetime:
    """Like `from_millis`."""
    return from_millis(since_epoch // 1000) + timedelta(microseconds=since_epoch % 1000)


def parse(text: str, where: str) -> OffsetSeq:
    """Raises CheckpointUnreadable, which names `where`, for anything but an entry of a known version."""
    version, *lines = text.splitlines() or [""]
    if version != VERSION:
        raise CheckpointUnreadable(
            f"{where} is an offset-log entry of version {version[:20]!r}, and Sluice reads {VERSION!r} only: it was written by "
            "another version of Spark; run the version of Sluice for that"
        )
    try:
        metadata = json.loads(lines[0])
        entry = OffsetSeq(metadata, tuple(lines[1:]))
        entry.text, entry.watermark, entry.timestamp  # noqa: B018 (to raise)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise CheckpointUnreadable(f"{where} is not an offset-log entry: {type(error).__name__}: {error}") from error
    if not entry.sources:
        raise CheckpointUnreadable(f"{where} is an offset-log entry without sources")
    return entry


def first_entry(metadata: str, sources: Sequence[StreamId | None], starts: Mapping[Ssp, int]) -> OffsetSeq:
    """The entry before batch 0 of a checkpoint without batches: nothing is read yet. `metadata` is the line that Spark would write;
    `sources` are the streams of the query's sources in its order, None for sources that are not Sluice's."""
    lines = [NOTHING_YET if stream is None else _offset_json(stream, starts) for stream in sources]
    return parse("\n".join([VERSION, metadata, *lines]), "the first entry")


def _offset_json(stream: StreamId, offsets: Mapping[Ssp, int]) -> str:
    of_stream = sorted((ssp.partition, offset) for ssp, offset in offsets.items() if ssp.stream_id == stream)
    return json.dumps({stream.stream: {str(partition): offset for partition, offset in of_stream}})


def entries_up_to(last: OffsetSeq, ends: Mapping[Ssp, int], reads: Sequence[StreamId], max_rows: int, now: datetime) -> Iterator[OffsetSeq]:
    """The entries of the batches that read from `last` up to `ends`, about `max_rows` rows each; none if there is nothing to read. They
    keep the watermark of `last`, so that rows of a slow feeder are not late. Sources that are not in `ends` are not read, and no offset
    decreases. Raises CheckpointUnreadable for a stream that is not in `last`.
    """
    at = last.positions(reads)
    if missing := {ssp.stream_id for ssp, end in ends.items() if end > 0} - {ssp.stream_id for ssp in at}:
        raise CheckpointUnreadable(f"the last offset-log entry has no offsets of {', '.join(sorted(map(str, missing)))}")
    goal = {ssp: max(end, at.get(ssp, 0)) for ssp, end in ends.items()}
    while any(at.get(ssp, 0) < end for ssp, end in goal.items()):
        at |= advance({ssp: at.get(ssp, 0) for ssp in goal}, goal, max_rows)
        yield replace(last, sources=tuple(_moved(line, at, reads) for line in last.sources)).at(now)


def with_new_partitions(last: OffsetSeq, starts: Mapping[Ssp, int], reads: Sequence[StreamId], now: datetime) -> OffsetSeq | None:
    """The entry of a batch that reads nothing and adds the partitions of `starts` that `last` does not have, at these offsets. None without
    such partitions, or if all of them start at 0."""
    at = last.positions(reads)
    streams = {ssp.stream_id for ssp in at}
    new = {ssp: offset for ssp, offset in starts.items() if ssp not in at and ssp.stream_id in streams}
    if not any(new.values()):
        return None
    return replace(last, sources=tuple(_moved(line, at | new, reads) for line in last.sources)).at(now)


def adds_partitions(before: OffsetSeq, entry: OffsetSeq, starts: Mapping[Ssp, int], reads: Sequence[StreamId]) -> bool:
    """Whether the entry has partitions that the one before it does not have, and that start after 0."""
    new = entry.positions(reads).keys() - before.positions(reads).keys()
    return any(starts.get(ssp, 0) for ssp in new)


def _moved(line: str, at: Mapping[Ssp, int], reads: Sequence[StreamId]) -> str:
    """The source's line with these offsets. If they are the same, the line is not changed, because Spark compares the texts."""
    present = positions_of([line], reads)
    streams = {ssp.stream_id for ssp in present}
    moved = {ssp: offset for ssp, offset in at.items() if ssp.stream_id in streams}
    return line if moved == present else "".join(_offset_json(stream, moved) for stream in streams)


def flush_entry(last: OffsetSeq, now: datetime) -> OffsetSeq:
    """The entry of a batch that reads nothing, and closes all windows and event-time timers."""
    return last.at(now, END_OF_TIME)


_SOURCES = 2
"""The number of lines before the offsets of the sources: the version of the format and the batch's metadata."""

P = TypeVar("P")
"""A partition: a number, or an Ssp."""


def positions_in(entry: str, reads: Sequence[StreamId]) -> dict[Ssp, int]:
    """The end offsets of the batch with this offset-log entry, for the streams that the stage reads."""
    return positions_of(entry.splitlines()[_SOURCES:], reads)


def positions_of(texts: Sequence[str], reads: Sequence[StreamId]) -> dict[Ssp, int]:
    """The offsets of a batch from the texts of its sources, for the streams that the stage reads. Other sources are left out."""
    systems = {stream.stream: stream.system for stream in reads}
    found: dict[Ssp, int] = {}
    for text in texts:
        try:
            document: Any = json.loads(text)
        except ValueError:
            continue
        for stream, partitions in document.items() if isinstance(document, dict) else ():
            if stream in systems and isinstance(partitions, dict):
                found |= {Ssp(systems[stream], stream, int(p)): int(offset) for p, offset in partitions.items()}
    return found


def advance(start: Mapping[P, int], latest: Mapping[P, int], max_rows: int | None) -> dict[P, int]:
    """The end offsets of the next batch: everything, or at most `max_rows` records, divided evenly among the partitions that have any."""
    waiting = {p: latest[p] - low for p, low in start.items() if latest.get(p, low) > low}
    left = sum(waiting.values()) if max_rows is None else max_rows
    end = dict(start)
    for position, (p, count) in enumerate(sorted(waiting.items(), key=lambda each: each[1])):
        taken = min(count, left // (len(waiting) - position))
        end[p] += taken
        left -= taken
    return end
