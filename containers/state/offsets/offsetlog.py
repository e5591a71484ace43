"""Spark's offset log: the texts of `offsets/N`, parsed and made. A drain makes entries for the batches that it runs.

    v1                                                         the version of the format
    {"batchWatermarkMs": …, "batchTimestampMs": …, "conf": {…}}    the metadata of the batch
    {"stream": {"partition": next offset}, …}                  where the batch ends, a line for each source in the order of the query
    -                                                          a source without an offset yet

Other versions are rejected, and text of a source that is not JSON: an entry that was misread would lose rows without an error. Two sources
of a query may read one stream, and be at different offsets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from containers.errors import CheckpointUnreadable
from sluice.core.drain import to_catch_up
from sluice.core.ids import Ssp, StreamId

VERSION = "v1"
NOTHING_YET = "-"
END_OF_TIME = datetime(2200, 1, 1, tzinfo=UTC)
"""The watermark of a flush: later than the event times that windows and timers wait for. Code of timers sees it, so it fits a timestamp in
nanoseconds (`datetime64[ns]` of pandas ends in the year 2262), also with some decades added."""

_AFTER_WRONG_TIMES = datetime(9000, 1, 1, tzinfo=UTC)
"""The watermark of a flush if the present one is later than END_OF_TIME. Arithmetic on the year 9999 overflows in Spark."""

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

    def to_catch_up(self, reads: Sequence[StreamId]) -> Mapping[Ssp, int]:
        """The highest offset of each partition that several sources read and at which they are at different offsets. The next checkpoint
        has one start offset for all of them."""
        return to_catch_up([positions_of([line], reads) for line in self.sources])

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
    lines = [NOTHING_YET if stream is None else _offset_json([stream], starts) for stream in sources]
    return parse("\n".join([VERSION, metadata, *lines]), "the first entry")


def _offset_json(streams: Iterable[StreamId], offsets: Mapping[Ssp, int]) -> str:
    document: dict[str, dict[str, int]] = {stream.stream: {} for stream in streams}
    for ssp, offset in sorted(offsets.items(), key=lambda each: each[0].partition):
        if ssp.stream in document:
            document[ssp.stream][str(ssp.partition)] = offset
    return json.dumps(document)


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
        yield _moved(last, at, reads).at(now)


def with_new_partitions(last: OffsetSeq, starts: Mapping[Ssp, int], reads: Sequence[StreamId], now: datetime) -> OffsetSeq | None:
    """The entry of a batch that reads nothing and adds the partitions of `starts` that `last` does not have, at these offsets. None without
    such partitions, or if all of them start at 0."""
    at = last.positions(reads)
    streams = {ssp.stream_id for ssp in at}
    new = {ssp: offset for ssp, offset in starts.items() if ssp not in at and ssp.stream_id in streams}
    if not any(new.values()):
        return None
    return _moved(last, at | new, reads).at(now)


def adds_partitions(before: OffsetSeq, entry: OffsetSeq, starts: Mapping[Ssp, int], reads: Sequence[StreamId]) -> bool:
    """Whether the entry has partitions that the one before it does not have, and that start after 0."""
    new = entry.positions(reads).keys() - before.positions(reads).keys()
    return any(starts.get(ssp, 0) for ssp in new)


def _moved(last: OffsetSeq, at: Mapping[Ssp, int], reads: Sequence[StreamId]) -> OffsetSeq:
    """The entry with these offsets in each source that reads the partition, unless it has read further. Partitions that no source has are
    added to those that read the stream. If the offsets of a line are the same, it is not changed, because Spark compares the texts."""
    known = last.positions(reads)

    def moved(line: str) -> str:
        present = positions_of([line], reads)
        streams = {ssp.stream_id for ssp in present}
        here = {ssp: offset for ssp, offset in at.items() if ssp in present or (ssp.stream_id in streams and ssp not in known)}
        ends = present | {ssp: max(offset, present.get(ssp, offset)) for ssp, offset in here.items()}
        return line if ends == present else _offset_json(sorted(streams, key=str), ends)

    return replace(last, sources=tuple(map(moved, last.sources)))


def flush_entry(last: OffsetSeq, now: datetime) -> OffsetSeq:
    """The entry of a batch that reads nothing, and closes all windows and event-time timers."""
    return last.at(now, END_OF_TIME if last.watermark < END_OF_TIME else _AFTER_WRONG_TIMES)


_SOURCES = 2
"""The number of lines before the offsets of the sources: the version of the format and the batch's metadata."""

P = TypeVar("P")
"""A partition: a number, or an Ssp."""


def positions_in(entry: str, reads: Sequence[StreamId]) -> dict[Ssp, int]:
    """The end offsets of the batch with this offset-log entry, for the streams that the stage reads."""
    return positions_of(entry.splitlines()[_SOURCES:], reads)


def positions_of(texts: Sequence[str], reads: Sequence[StreamId]) -> dict[Ssp, int]:
    """The offsets of a batch from the texts of its sources, for the streams that the stage reads: the lowest one of several sources. Other
    sources are left out. Raises CheckpointUnreadable."""
    systems = {stream.stream: stream.system for stream in reads}
    return lowest(_positions_in(text, systems) for text in texts) if systems else {}


def lowest(positions: Iterable[Mapping[Ssp, int]]) -> dict[Ssp, int]:
    """The lowest offset of each partition: what all of its readers have read."""
    return _combined(min, positions)


def highest(positions: Iterable[Mapping[Ssp, int]]) -> dict[Ssp, int]:
    """The highest offset of each partition."""
    return _combined(max, positions)


def _combined(choose: Callable[[int, int], int], positions: Iterable[Mapping[Ssp, int]]) -> dict[Ssp, int]:
    found: dict[Ssp, int] = {}
    for each in positions:
        found |= {ssp: choose(offset, found.get(ssp, offset)) for ssp, offset in each.items()}
    return found


def all_positions_in(text: str, system: str) -> dict[Ssp, int]:
    """The offsets in the text of a source that reads only streams of the system. Raises CheckpointUnreadable."""
    document = _document(text)
    if text != NOTHING_YET and not (isinstance(document, dict) and all(isinstance(each, dict) for each in document.values())):
        raise CheckpointUnreadable(f"these are not the offsets of streams: {text[:200]!r}")
    return _positions_in(text, dict.fromkeys(document or (), system))


def _positions_in(text: str, systems: Mapping[str, str]) -> dict[Ssp, int]:
    """`systems`: by the names of their streams."""
    document = _document(text)
    streams = document.items() if isinstance(document, dict) else ()
    try:
        return {
            Ssp(systems[stream], stream, int(partition)): int(offset)
            for stream, partitions in streams
            if stream in systems and isinstance(partitions, dict)
            for partition, offset in partitions.items()
        }
    except (ValueError, TypeError) as error:
        raise CheckpointUnreadable(f"these offsets cannot be read ({error}): {text[:200]!r}") from error


def _document(text: str) -> Any:
    """None if the source has no offset yet."""
    try:
        return None if text == NOTHING_YET else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointUnreadable(f"these offsets cannot be read ({error}): {text[:200]!r}") from error


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
