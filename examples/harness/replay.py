"""A producer that replays rows into streams at a given pace. Each row is appended exactly once, also if the producer is killed and
restarted.

One day of one stream is one batch, numbered by the day. The log ignores a batch that it has already. Several streams advance together: one
day of each stream before the next day of any. The replay leads the slowest reader by at most `max_lead` of event time. A stage behind an
intermediate stream waits for its slowest feeder, and this limit bounds its state.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from examples.harness.streams import Streams
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer

DAY = 86_400
_DAYS_PER_MONTH = 365 / 12
_POLL_SECONDS = 0.2

T = TypeVar("T")

Consumed = Callable[[], Mapping[str, Mapping[int, int]] | None]
"""Stream -> partition -> the next offset to read; None if it is unknown at present. A missing partition has not been read."""


class StreamNotOurs(Exception):
    """The stream contains records that this replay did not write."""


@dataclass(frozen=True, slots=True)
class Feed(Generic[T]):
    """Rows for one stream, in order of event time. `time_of` returns seconds since 1970; `partition_of` returns the partition to which
    the replay appends a row.
    """

    stream: str
    partitions: int
    rows: Sequence[T]
    time_of: Callable[[T], int]
    partition_of: Callable[[T], int]
    encode: Callable[[T], bytes]


@dataclass(frozen=True, slots=True)
class Replayed:
    """Progress of a replay over all streams.

    `reached` is the event time of the newest row in seconds since 1970. `appended` does not count rows that an earlier replay appended.
    `waited_seconds` is the time spent waiting for the slowest reader.
    """

    reached: int
    rows: int = 0
    appended: int = 0
    waited_seconds: float = 0.0
    complete: bool = False


def days_of(rows: Sequence[T], time_of: Callable[[T], int], begins: int) -> dict[int, list[T]]:
    """The rows grouped by day, in order; days are counted from the day that begins at `begins`."""
    days: dict[int, list[T]] = {}
    for row in rows:
        days.setdefault((time_of(row) - begins) // DAY, []).append(row)
    return days


@dataclass
class _FeedState:
    """The state of one feed. `days` are the days that are not in the stream yet."""

    feed: Feed[Any]
    days: dict[int, list[Any]]
    times: list[list[int]] = field(default_factory=list)
    """Partition -> event times by offset. The replay writes all records of the stream, so the index in the list is the offset."""

    @property
    def writer(self) -> Writer:
        name = f"{self.feed.stream}-replay"
        return Writer(lineage=Lineage(name), owner=name, generation=Generation(1))

    def put(self, rows: Sequence[Any]) -> None:
        for row in rows:
            self.times[self.feed.partition_of(row)].append(self.feed.time_of(row))

    def oldest_unread(self, read: Mapping[int, int], otherwise: int) -> int:
        """The event time of the oldest row in the stream that the reader has not committed, as far as is known."""
        return min((times[at] for p, times in enumerate(self.times) if (at := read.get(p, 0)) < len(times)), default=otherwise)


class Replay:
    """`run` blocks; `stop` ends it between two steps. `stop` and `progress` may be called from any thread.

    Days are counted from `begins`, in seconds since 1970. A pace of 0 seconds per month replays as fast as the readers allow. Without
    `consumed` the lead is unlimited.
    """

    def __init__(
        self,
        log: Streams,
        feeds: Sequence[Feed[Any]],
        *,
        begins: int,
        seconds_per_month: float = 5.0,
        max_lead: timedelta = timedelta(days=10),
        consumed: Consumed | None = None,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        if max_lead < timedelta(days=1):
            raise ValueError(f"the maximum lead is {max_lead}, but a step is a day: raise it to a day or more")
        self._log = log
        self._feeds = [_FeedState(feed, days_of(feed.rows, feed.time_of, begins)) for feed in feeds]
        self._seconds_per_day = seconds_per_month / _DAYS_PER_MONTH
        self._max_lead = int(max_lead.total_seconds())
        self._consumed = consumed
        self._read: Mapping[str, Mapping[int, int]] = {}
        self._poll_seconds = poll_seconds
        self._stopping = threading.Event()
        self.progress = Replayed(reached=begins)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> Replayed:
        """Replay to the end or until `stop`. Raises StreamConflict or StreamNotOurs if this replay cannot write to a stream."""
        for state in self._feeds:
            self._log.create(state.feed.stream, state.feed.partitions)
            self._skip(state, self._log.last_batch(state.feed.stream, state.writer.lineage))
        due = time.monotonic()
        for day in sorted({day for state in self._feeds for day in state.days}):
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return self.progress
            feeds = [state for state in self._feeds if day in state.days]
            waited = self._wait_for_readers(max(state.feed.time_of(state.days[day][-1]) for state in feeds))
            if self._stopping.is_set():
                return self.progress
            for state in feeds:
                self._append(state, day)
            due += waited + self._seconds_per_day
        self.progress = replace(self.progress, complete=True)
        return self.progress

    def _skip(self, state: _FeedState, last: int | None) -> None:
        """Drop the days up to `last`, which are in the stream already."""
        state.times = [[] for _ in range(state.feed.partitions)]
        for day in [day for day in state.days if last is not None and day <= last]:
            self._note(state, state.days.pop(day), appended=False)
        found = dict(self._log.latest(state.feed.stream))
        if found != {partition: len(times) for partition, times in enumerate(state.times)}:
            raise StreamNotOurs(
                f"the stream {state.feed.stream} ends at {found}, and a replay of these rows up to day {last} ends elsewhere"
            )

    def _append(self, state: _FeedState, day: int) -> None:
        rows, feed = state.days[day], state.feed
        records = [Record(feed.encode(row), partition=feed.partition_of(row)) for row in rows]
        appended = self._log.append(feed.stream, records, writer=state.writer, batch=day, now_micros=time.time_ns() // 1000)
        self._note(state, rows, appended=appended)

    def _note(self, state: _FeedState, rows: Sequence[Any], *, appended: bool) -> None:
        state.put(rows)
        before, count = self.progress, len(rows)
        reached = max(before.reached, state.feed.time_of(rows[-1]))
        self.progress = replace(before, rows=before.rows + count, appended=before.appended + count * appended, reached=reached)

    def _wait_for_readers(self, ahead: int) -> float:
        """Wait until the slowest reader is close enough for a row of event time `ahead`, or until `stop`. Returns the seconds waited."""
        started, before = time.monotonic(), self.progress.waited_seconds
        waited = 0.0
        while self._consumed is not None and self._leads_too_far(ahead) and not self._stopping.is_set():
            self._read = self._consumed() or self._read
            if self._leads_too_far(ahead):
                self._stopping.wait(self._poll_seconds)
            waited = time.monotonic() - started
            self.progress = replace(self.progress, waited_seconds=before + waited)
        return waited

    def _leads_too_far(self, ahead: int) -> bool:
        oldest = min(state.oldest_unread(self._read.get(state.feed.stream, {}), ahead) for state in self._feeds)
        return ahead - oldest > self._max_lead


def run_until_signal(replay: Replay) -> Replayed:
    """Run the replay in the main thread of a process: SIGTERM and Ctrl-C end it between two steps. Raises what `run` raises."""
    for each in (signal.SIGTERM, signal.SIGINT):
        # In another thread: a signal handler that sets the event could deadlock on the lock of the wait that it interrupted.
        signal.signal(each, lambda *_: threading.Thread(target=replay.stop).start())
    return replay.run()
