"""A producer that replays rows into streams at a given pace, each row exactly once, also when it is killed and restarted.

One day of one stream is one batch of one transaction, numbered by the day, so that a batch that is in the stream already is skipped by the
log itself. Several streams advance together: one day of each before the next day of any. The replay leads the slowest reader of any of them
by at most `max_lead` of event time: a stage behind an intermediate stream waits for its slowest feeder, and this bounds its state.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from examples.playing.streams import Streams
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer

DAY = 86_400
_DAYS_PER_MONTH = 365 / 12
_POLL_SECONDS = 0.2

T = TypeVar("T")

Consumed = Callable[[], Mapping[str, Mapping[int, int]] | None]
"""Stream -> partition -> the next offset to read; None if it can't be told now. A partition that is not named has not been read."""


class StreamNotOurs(Exception):
    """The stream holds records that this replay did not write."""


@dataclass(frozen=True, slots=True)
class Feed(Generic[T]):
    """Rows for one stream, in order of event time. `time_of` is in seconds since 1970; `partition_of` says where the replay puts a row."""

    stream: str
    partitions: int
    rows: Sequence[T]
    time_of: Callable[[T], int]
    partition_of: Callable[[T], int]
    encode: Callable[[T], bytes]


@dataclass(frozen=True, slots=True)
class Replayed:
    """How far a replay has come, in all streams together. `reached` is the event time of the newest row in seconds since 1970; `appended`
    leaves out the rows that an earlier replay had appended; `held_seconds` is how long it waited for the slowest reader."""

    reached: int
    rows: int = 0
    appended: int = 0
    held_seconds: float = 0.0
    complete: bool = False


def days_of(rows: Sequence[T], time_of: Callable[[T], int], begins: int) -> dict[int, list[T]]:
    """The rows by day, counted from the one that begins at `begins`, in order."""
    days: dict[int, list[T]] = {}
    for row in rows:
        days.setdefault((time_of(row) - begins) // DAY, []).append(row)
    return days


@dataclass
class _Fed:
    """One feed on its way. `days` are those that are not in the stream yet."""

    feed: Feed[Any]
    days: dict[int, list[Any]]
    times: list[list[int]] = field(default_factory=list)
    """Partition -> event times by offset; the stream begins with us, so a list's index is the offset."""

    @property
    def writer(self) -> Writer:
        name = f"{self.feed.stream}-replay"
        return Writer(lineage=Lineage(name), owner=name, generation=Generation(1))

    def put(self, rows: Sequence[Any]) -> None:
        for row in rows:
            self.times[self.feed.partition_of(row)].append(self.feed.time_of(row))

    def oldest_unread(self, read: Mapping[int, int], otherwise: int) -> int:
        """The event time of the oldest row in the stream that, as far as is known, the reader has not committed."""
        return min((times[at] for p, times in enumerate(self.times) if (at := read.get(p, 0)) < len(times)), default=otherwise)


class Replay:
    """`run` blocks; `stop` ends it between two steps and may be called from anywhere, as may `progress`.

    Days are counted from `begins`, in seconds since 1970. A pace of 0 seconds per month is as fast as the readers allow. Without `consumed`
    the lead is not bounded.
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
            raise ValueError(f"the lead cannot be bounded by {max_lead}: a step is a day")
        self._log = log
        self._feds = [_Fed(feed, days_of(feed.rows, feed.time_of, begins)) for feed in feeds]
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
        """Replay to the end or until `stop`. Raises StreamConflict or StreamNotOurs if a stream is not one for this replay."""
        for fed in self._feds:
            self._log.create(fed.feed.stream, fed.feed.partitions)
            self._pass_over(fed, self._log.last_batch(fed.feed.stream, fed.writer.lineage))
        due = time.monotonic()
        for day in sorted({day for fed in self._feds for day in fed.days}):
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return self.progress
            feds = [fed for fed in self._feds if day in fed.days]
            held = self._hold(max(fed.feed.time_of(fed.days[day][-1]) for fed in feds))
            if self._stopping.is_set():
                return self.progress
            for fed in feds:
                self._append(fed, day)
            due += held + self._seconds_per_day
        self.progress = replace(self.progress, complete=True)
        return self.progress

    def _pass_over(self, fed: _Fed, last: int | None) -> None:
        """Drop the days that are in the stream already, those up to `last`."""
        fed.times = [[] for _ in range(fed.feed.partitions)]
        for day in [day for day in fed.days if last is not None and day <= last]:
            self._note(fed, fed.days.pop(day), appended=False)
        found = dict(self._log.latest(fed.feed.stream))
        if found != {partition: len(times) for partition, times in enumerate(fed.times)}:
            raise StreamNotOurs(f"the stream {fed.feed.stream} ends at {found}, and a replay of these rows up to day {last} ends elsewhere")

    def _append(self, fed: _Fed, day: int) -> None:
        rows, feed = fed.days[day], fed.feed
        records = [Record(feed.encode(row), partition=feed.partition_of(row)) for row in rows]
        appended = self._log.append(feed.stream, records, writer=fed.writer, batch=day, now_micros=time.time_ns() // 1000)
        self._note(fed, rows, appended=appended)

    def _note(self, fed: _Fed, rows: Sequence[Any], *, appended: bool) -> None:
        fed.put(rows)
        before, count = self.progress, len(rows)
        reached = max(before.reached, fed.feed.time_of(rows[-1]))
        self.progress = replace(before, rows=before.rows + count, appended=before.appended + count * appended, reached=reached)

    def _hold(self, ahead: int) -> float:
        """Wait until the slowest reader is near enough for a row of event time `ahead`, or until `stop`; the seconds that it took."""
        started, before = time.monotonic(), self.progress.held_seconds
        held = 0.0
        while self._consumed is not None and self._leads_too_far(ahead) and not self._stopping.is_set():
            self._read = self._consumed() or self._read
            if self._leads_too_far(ahead):
                self._stopping.wait(self._poll_seconds)
            held = time.monotonic() - started
            self.progress = replace(self.progress, held_seconds=before + held)
        return held

    def _leads_too_far(self, ahead: int) -> bool:
        oldest = min(fed.oldest_unread(self._read.get(fed.feed.stream, {}), ahead) for fed in self._feds)
        return ahead - oldest > self._max_lead


def run_until_told(replay: Replay) -> Replayed:
    """Run the replay as a process's own work: SIGTERM and Ctrl-C end it between two steps. Raises what `run` raises."""
    for each in (signal.SIGTERM, signal.SIGINT):
        # on another thread: a handler that set the event could find its lock taken by the very wait that it interrupted
        signal.signal(each, lambda *_: threading.Thread(target=replay.stop).start())
    return replay.run()
