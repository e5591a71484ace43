"""Limits the watermark of one query, and reports the query's progress as a feeder of others (`sluice.core.watermarks`)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from containers.engine import StateSize
from containers.spark.listener import BatchDone
from containers.spark.operators import Watermarks
from containers.spark.task import NEWEST, WRITTEN, partition_times
from containers.state.checkpoint import inspect, next_watermark, read_offset_log
from containers.state.offsets.offsetlog import OffsetSeq, from_micros, from_millis, millis, parse, positions_of
from sluice.clock import Clock
from sluice.core.ids import Ssp, StreamId
from sluice.core.watermarks import Cap, FeederProgress, NoCap, ProgressSource, WatermarkStep, cap_at, cap_of_partitions, capped, later

UNREAD = timedelta(seconds=10)
"""Without an event-time column, records of a partition that are unread for longer than this hold the watermark."""

MICROSECOND = timedelta(microseconds=1)

Steps = Mapping[StreamId, Sequence[WatermarkStep]]


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """What a committed batch shows about its query's progress. `written`: the newest event time that it wrote, if the write names an
    event-time column. `partitions`: the newest event time that it read from each partition of the inputs that name an event-time column."""

    watermark: datetime | None
    state: StateSize | None
    latest: Mapping[Ssp, int]
    written: datetime | None
    partitions: Mapping[Ssp, datetime]

    @classmethod
    def of(cls, done: BatchDone, reads: Sequence[StreamId]) -> CommittedBatch:
        """`reads`: the streams that the query reads."""
        newest = done.observed.get(WRITTEN, {}).get(NEWEST)
        written = None if newest is None else from_micros(newest)
        return cls(done.watermark, done.state, positions_of(done.latest, reads), written, partition_times(done.observed, reads))


class StageCaps:
    """The caps of one start of a query. `caps` is called on the query's thread, `committed` on the listener's."""

    def __init__(
        self,
        directory: Path,
        watermarks: Watermarks,
        reads: Collection[StreamId],
        intermediate: Collection[StreamId],
        starts: Mapping[Ssp, int],
        timed: Collection[StreamId],
        steps: Callable[[], Steps | None],
        writes_event_time: bool,
        clock: Clock,
    ) -> None:
        """`directory`: the checkpoint. `intermediate`: the intermediate streams among those that the query `reads`. `starts`: its
        partitions and where they start. `timed`: inputs that name an event-time column and of which the query reads several partitions.
        `steps` returns those of the coordinator, by intermediate stream; None if the coordinator does not support caps.
        `writes_event_time`: whether the write names an event-time column."""
        self._directory = directory
        self._watermarks = watermarks
        self._reads = sorted(reads, key=str)
        self._delays = {stream: watermarks.above[stream.stream] for stream in self._reads if stream.stream in watermarks.above}
        self._intermediate = sorted(intermediate, key=str)
        self._several = _several(starts, set(reads) - set(intermediate))
        self._starts = starts
        self._timed = frozenset(timed)
        self._steps = steps
        self._writes_event_time = writes_event_time
        self._unread = {stream: UnreadSince(clock, UNREAD) for stream in self._several}
        self._newest: datetime | None = None
        self._partitions: dict[Ssp, datetime] = {}
        self._lock = threading.Lock()
        self._progress = self._at_start()

    @property
    def limited(self) -> bool:
        """Whether the watermark of the query has caps."""
        return self._watermarks.delay is not None and any(stream in self._delays for stream in [*self._intermediate, *self._several])

    @property
    def stateful(self) -> bool:
        return self._watermarks.stateful

    @property
    def _emits_state(self) -> bool:
        return self._watermarks.delay is not None and self._watermarks.emits_state

    @property
    def delays(self) -> Mapping[StreamId, timedelta]:
        """The largest delay of a `withWatermark` above each stream."""
        return self._delays

    # --- the next batch's watermark ----------------------------------------------------------------------------------

    def caps(self, latest: Callable[[], Mapping[Ssp, int]]) -> list[Cap]:
        """The caps of the next batch. `latest`: the ends that the sources report now."""
        steps, positions = self._steps(), self._positions()
        found = []
        if steps is not None:
            found = [cap_at(steps.get(s, ()), positions, self._delays[s]) for s in self._intermediate if s in self._delays]
        several = [stream for stream in self._several if stream in self._delays]
        if several:
            ends = latest()
            found += [self._cap_of(stream, positions, ends, self._delays[stream]) for stream in several]
        return found

    def caps_at(self, texts: Callable[[], Sequence[str]]) -> list[Cap]:
        """Like `caps`, with the offset texts of the ends."""
        return self.caps(lambda: positions_of(texts(), self._reads))

    def _cap_of(self, stream: StreamId, positions: Mapping[Ssp, int], ends: Mapping[Ssp, int], delay: timedelta) -> Cap:
        """The cap of an input of which the query reads several partitions."""
        if any(ssp not in ends for ssp in self._several[stream]):
            return NoCap.HOLD  # Spark does not ask for the ends before a batch that it had planned before a restart
        newest = {ssp: ends[ssp] for ssp in self._several[stream]}
        if stream not in self._timed:
            return NoCap.HOLD if self._unread[stream].is_old(positions, newest) else NoCap.FREE
        with self._lock:
            return cap_of_partitions({ssp: self._partitions.get(ssp) for ssp in unread(positions, newest)}, delay)

    def _positions(self) -> Mapping[Ssp, int]:
        """The offsets up to which the committed batches have read."""
        entry = self._entry(committed=True)
        return dict(self._starts) | ({} if entry is None else entry.positions(self._reads))

    def _entry(self, *, committed: bool) -> OffsetSeq | None:
        """The offset-log entry of the last committed, or planned, batch."""
        found = inspect(self._directory)
        batch = -1 if found is None else found.committed if committed else found.planned
        return None if batch < 0 else parse(read_offset_log(self._directory, batch), f"{self._directory}/offsets/{batch}")

    def planned(self) -> int:
        """The watermark of the last planned batch, in milliseconds since 1970."""
        entry = self._entry(committed=False)
        return 0 if entry is None else millis(entry.watermark)

    # --- the query as a feeder ---------------------------------------------------------------------------------------

    @property
    def progress(self) -> FeederProgress:
        """The progress after the last batch; before the first batch of this start, the progress in the checkpoint."""
        return self._progress

    def committed(self, batch: CommittedBatch) -> FeederProgress:
        """Record a committed batch. Returns the progress after it."""
        with self._lock:
            for ssp, at in batch.partitions.items():
                self._partitions[ssp] = max(at, self._partitions.get(ssp, at))
        if batch.written is not None:
            self._newest = max(batch.written, self._newest or batch.written)
        pending = self._emits_state and batch.state is not None and batch.state.rows > 0
        if self._writes_event_time:
            self._progress = self._column(self._least(batch.latest), pending)
        else:
            caps = self.caps(lambda: batch.latest) if self.limited else []
            self._progress = self._without_column(batch.watermark, caps, pending)
        return self._progress

    def _at_start(self) -> FeederProgress:
        entry = self._entry(committed=True)
        pending = entry is not None and self._emits_state
        if self._writes_event_time:
            return self._column(None, pending)
        watermark = None if entry is None else _moment(millis(entry.watermark))
        return self._without_column(watermark, [NoCap.HOLD] if self.limited else [], pending)

    def _column(self, at: datetime | None, pending: bool) -> FeederProgress:
        return FeederProgress(at, self._watermarks.delay or timedelta(0), ProgressSource.COLUMN, pending)

    def _least(self, ends: Mapping[Ssp, int]) -> datetime | None:
        """The newest event time that was written, limited by the newest one that was read from each partition with unread records. Returns
        the last result if that is not known."""
        positions = self._positions()
        caps = [self._cap_of(stream, positions, ends, timedelta(0)) for stream in self._several]
        return self._progress.event_time if NoCap.HOLD in caps else capped(self._newest, caps, None)

    def _without_column(self, watermark: datetime | None, caps: Sequence[Cap], pending: bool) -> FeederProgress:
        """`watermark`: that of the last committed batch."""
        delay = self._watermarks.delay
        if delay is None:
            return FeederProgress(None, timedelta(0), ProgressSource.NONE, pending)
        at = watermark if self._watermarks.stateful else capped(_moment(natural_watermark(self._directory)), caps, watermark)
        return FeederProgress(None if at is None else later(at, delay), delay, ProgressSource.WATERMARK, pending)


def next_watermark_of(natural: int, caps: Iterable[Cap]) -> int:
    """The watermark of the next batch, in milliseconds since 1970; 0 for none. `natural`: what the query computed from what it has read,
    likewise."""
    found = list(caps)
    if all(cap is NoCap.FREE for cap in found):
        return natural
    below = [cap if isinstance(cap, NoCap) else cap - MICROSECOND for cap in found]  # Spark drops what is not newer than the watermark
    watermark = capped(from_millis(natural) if natural else None, below, None)
    return 0 if watermark is None else millis(watermark)


class UnreadSince:
    """Records the ends of partitions over time, to determine how old unread records are."""

    def __init__(self, clock: Clock, limit: timedelta) -> None:
        self._clock = clock
        self._limit = limit.total_seconds()
        self._seen: deque[tuple[float, Mapping[Ssp, int]]] = deque()

    def is_old(self, positions: Mapping[Ssp, int], ends: Mapping[Ssp, int]) -> bool:
        """Whether an unread record is older than the limit. While the ends at that time are not known, every unread record counts as
        older."""
        now = self._clock.elapsed()
        self._seen.append((now, ends))
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._limit:
            self._seen.popleft()
        at, then = self._seen[0]
        return bool(unread(positions, then if at <= now - self._limit else ends))


def unread(positions: Mapping[Ssp, int], ends: Mapping[Ssp, int]) -> Collection[Ssp]:
    """The partitions that have records beyond the positions."""
    return [ssp for ssp, end in ends.items() if positions.get(ssp, 0) < end]


def natural_watermark(directory: Path) -> int:
    """The watermark after the last committed batch of a checkpoint, without caps, in milliseconds since 1970; 0 for none."""
    found = inspect(directory)
    return 0 if found is None or found.committed < 0 else next_watermark(directory, found.committed)


def _several(ssps: Collection[Ssp], streams: Collection[StreamId]) -> Mapping[StreamId, Sequence[Ssp]]:
    """The partitions of each of these streams that has more than one."""
    found = {stream: sorted(ssp for ssp in ssps if ssp.stream_id == stream) for stream in sorted(streams, key=str)}
    return {stream: partitions for stream, partitions in found.items() if len(partitions) > 1}


def _moment(since_epoch: int) -> datetime | None:
    """None for 0: Spark's watermark before there is one."""
    return from_millis(since_epoch) if since_epoch else None
