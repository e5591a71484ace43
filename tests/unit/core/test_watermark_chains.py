"""Caps of watermarks over three chained stages, in random interleavings of feeders, a middle stage that passes rows on or counts them in
windows, readers, and the coordinator.

Queries behave like Spark's: a batch drops rows that are older than its watermark, and then closes windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.ids import Ssp, StageName, TaskName
from sluice.core.watermarks import (
    Feeder,
    FeederProgress,
    FeederState,
    ProgressSource,
    WatermarkStep,
    cap_at,
    capped,
    decide_step,
    later,
    own,
    thinned,
    with_step,
)
from tests.unit.core.test_watermark_caps import MINUTE, actions, at, minutes

PARTITIONS = 2
WINDOW = 5
"""Minutes."""

EVERYTHING = 10**6


@dataclass(frozen=True, slots=True)
class Row:
    """A record, or the window of `count` records that ends at that minute.

    `arrived`: when it was appended to the input of the first stage; of a window, the last of its records. `excused`: it was older than
    that task's progress when it was read; of a window, one of its records was.
    """

    minute: int
    arrived: int
    excused: bool = False
    count: int = 1


@dataclass
class Stream:
    """An intermediate stream, and what the coordinator has recorded of it. `made`: for each step, the time at which its states were
    read, or those of the stages before if that was earlier.
    """

    name: str
    rows: list[list[Row]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    steps: Sequence[WatermarkStep] = ()
    made: dict[tuple[datetime | None, timedelta], int] = field(default_factory=dict)
    snapshot: tuple[int, Mapping[Feeder, FeederState]] | None = None

    def ssp(self, partition: int) -> Ssp:
        return Ssp("log", self.name, partition)

    @property
    def ends(self) -> dict[Ssp, int]:
        return {self.ssp(partition): len(rows) for partition, rows in enumerate(self.rows)}

    def publish(self, readers: Sequence[Task]) -> None:
        """May happen any time after the states were read: the ends may be much newer."""
        if self.snapshot is None:
            return
        looked_at, states = self.snapshot
        steps = with_step(self.steps, decide_step(states), self.ends)
        if steps and steps[-1] not in self.steps:
            self.made[steps[-1].event_time, steps[-1].delay] = looked_at
        self.steps = thinned(steps, [reader.positions for reader in readers], 4)


@dataclass
class Task:
    """A task of a stage. `delay`: delay of its watermark; None for a stage that has no watermark and drops nothing. `windows`: the stage
    counts in windows.
    """

    feeder: Feeder
    reads: list[Row]
    partition: int
    upstream: Stream | None
    out: Stream | None
    delay: int | None
    delays: int
    windows: bool = False
    position: int = 0
    newest: int | None = None
    since_start: int | None = None
    natural: datetime | None = None
    planned: datetime | None = None
    known: Sequence[WatermarkStep] = ()
    rose: list[tuple[datetime, int]] = field(default_factory=list)
    """Each watermark, and the time at which the states were read that allowed it."""
    open: dict[int, Row] = field(default_factory=dict)
    kept: int = 0
    dropped: list[tuple[Row, int]] = field(default_factory=list)
    generation: int = 1
    report: tuple[int, FeederProgress | None] | None = None
    last: FeederProgress | None = None

    @property
    def positions(self) -> dict[Ssp, int]:
        return {} if self.upstream is None else {self.upstream.ssp(self.partition): self.position}

    def hear(self) -> None:
        assert self.upstream is not None
        self.known = [own(each, self.positions) for each in self.upstream.steps]

    def run(self, count: int) -> None:
        watermark = self._next_watermark()
        batch = self.reads[self.position : self.position + count]
        for row in batch:
            if watermark is not None and at(row.minute) < watermark:
                self.dropped.append((row, next(made for mark, made in self.rose if mark > at(row.minute))))
            else:
                self._take(row)
        self.planned = watermark
        for end in sorted(end for end in self.open if watermark is not None and at(end) <= watermark):
            self._write(self.open.pop(end), end // WINDOW)
        self.position += len(batch)
        if batch:
            self.newest = max([row.minute for row in batch] + ([] if self.newest is None else [self.newest]))
            self.since_start = self.newest
            if self.delay is not None:
                self.natural = at(self.newest - self.delay)

    def _next_watermark(self) -> datetime | None:
        if self.delay is None:
            return None
        assert self.upstream is not None
        watermark = capped(self.natural, [cap_at(self.known, self.positions, self.delay * MINUTE)], self.planned)
        if watermark is not None and watermark != self.planned:
            by = next(each for each in reversed(self.known) if each.passed(self.positions))
            self.rose.append((watermark, self.upstream.made[by.event_time, by.delay]))
        return watermark

    def _take(self, row: Row) -> None:
        if self.windows:
            end = (row.minute // WINDOW + 1) * WINDOW
            former = self.open.get(end, Row(end, arrived=0, count=0))
            self.open[end] = Row(
                end, max(former.arrived, row.arrived), excused=former.excused or row.excused, count=former.count + row.count
            )
            return
        late = self.upstream is None and self.newest is not None and row.minute < self.newest - self.delays
        self._write(Row(row.minute, row.arrived, row.excused or late, row.count), row.minute)

    def _write(self, row: Row, place: int) -> None:
        if self.out is None:
            self.kept += row.count
        else:
            self.out.rows[place % PARTITIONS].append(row)

    def progress(self) -> FeederProgress | None:
        """Like `StageCaps.progress`."""
        if self.windows:
            delay = (self.delay or 0) * MINUTE
            reached = None if self.planned is None else later(self.planned, delay)
            return FeederProgress(reached, delay, ProgressSource.WATERMARK, pending=bool(self.open))
        if self.since_start is None:
            return None
        return FeederProgress(at(self.since_start), timedelta(0), ProgressSource.COLUMN)

    def say(self) -> None:
        found = self.progress()
        self.last = found or self.last
        self.report = (self.generation, found)

    def restart(self) -> None:
        self.generation += 1
        self.since_start = None

    def passed(self) -> Sequence[WatermarkStep | None]:
        """The newest step of its input stream that it has passed."""
        if self.upstream is None:
            return ()
        steps = [own(each, self.positions) for each in self.upstream.steps]
        return (next((each for each in reversed(steps) if each.passed(self.positions)), None),)

    def state(self) -> FeederState:
        reported = self.report is not None and self.report[0] == self.generation
        progress = self.report[1] if self.report is not None else None
        unread = self.position < len(self.reads)
        if reported and progress is None and not unread:
            progress = self.last
        return FeederState(reported, progress, unread, started=self.newest is not None, upstream=tuple(self.passed()))


def _feeder(stage: str, number: int) -> Feeder:
    return Feeder(TaskName(f"t{number}"), StageName(stage))


class Chain:
    """Two tasks of each of three stages: in -> first -> mid -> second -> far -> third. Time counts the actions."""

    def __init__(self, backlog: Sequence[Sequence[int]], second: int | None, third: int) -> None:
        """`second`: the delay of a second stage that counts in windows; None for one that passes its rows on. `third`: the delay of the
        third stage.
        """
        self.time = 0
        self.mid, self.far = Stream("mid"), Stream("far")
        delays = third if second is None else second  # of the stage that drops the rows of the first
        self.first = [
            Task(_feeder("first", n), [Row(minute, 0) for minute in rows], n, None, self.mid, None, delays)
            for n, rows in enumerate(backlog)
        ]
        self.second = [
            Task(_feeder("second", n), self.mid.rows[n], n, self.mid, self.far, second, delays, windows=second is not None)
            for n in range(PARTITIONS)
        ]
        self.third = [Task(_feeder("third", n), self.far.rows[n], n, self.far, None, third, delays) for n in range(PARTITIONS)]

    @property
    def read(self) -> int:
        return sum(len(task.reads) for task in self.first)

    def act(self, action: str, who: int, number: int) -> None:
        self.time += 1
        first, second, third = (stage[who % PARTITIONS] for stage in (self.first, self.second, self.third))
        match action:
            case "feed":
                first.run(number)
            case "read":
                (second if number % 2 else third).run(number)
            case "restart":
                (first if number % 2 else second).restart()
            case "arrive":
                first.reads.append(Row(number * 5, self.time))
            case "say":
                (first if number % 2 else second).say()
            case "hear":
                (second if number % 2 else third).hear()
            case "look":
                self.look()
            case "publish":
                self.publish()
            case "cycle":
                self.cycle(who, number)
            case _:
                raise AssertionError(action)

    def look(self) -> None:
        """The coordinator reads the states of all feeders."""
        self.mid.snapshot = (self.time, {task.feeder: task.state() for task in self.first})
        allowed = [each for task in self.second for each in task.passed() if each is not None]
        since = min([self.time, *(self.mid.made[each.event_time, each.delay] for each in allowed)])
        self.far.snapshot = (since, {task.feeder: task.state() for task in self.second})

    def publish(self) -> None:
        self.mid.publish(self.second)
        self.far.publish(self.third)

    def cycle(self, who: int, number: int) -> None:
        """One batch of each stage in the usual order of steps."""
        self.first[who % PARTITIONS].run(number)
        for stage in (self.second, self.third):
            for task in (*self.first, *self.second):
                task.say()
            self.look()
            self.publish()
            for task in stage:
                task.hear()
                task.run(number)
                task.run(number)

    def finish(self) -> None:
        """All records are read and all progress is reported."""
        for task in self.first:
            task.run(EVERYTHING)
        for _ in range(3):
            self.cycle(0, EVERYTHING)


delays = st.integers(0, 5)
stories = st.lists(actions, min_size=5, max_size=40)


@settings(max_examples=settings().max_examples * 3 // 2)
@given(st.tuples(minutes, minutes), st.none() | delays, delays, stories)
def test_no_row_is_late_over_three_stages_that_was_in_the_input_and_not_older_than_the_progress_of_its_task(
    backlog: tuple[list[int], list[int]], second: int | None, third: int, story: list[tuple[str, int, int]]
) -> None:
    chain = Chain(backlog, second, third)
    for action in story:
        chain.act(*action)
    chain.finish()
    dropped = [each for task in (*chain.second, *chain.third) for each in task.dropped]
    assert [(row, passed) for row, passed in dropped if not row.excused and row.arrived <= passed] == []
    still_open = sum(window.count for task in chain.second for window in task.open.values())
    kept = sum(task.kept for task in chain.third)
    assert kept + still_open + sum(row.count for row, _ in dropped) == chain.read, "the same as in one batch over all records"


@given(st.tuples(minutes, minutes), delays, stories)
def test_when_everything_was_read_nothing_holds_the_last_of_three_stages(
    backlog: tuple[list[int], list[int]], third: int, story: list[tuple[str, int, int]]
) -> None:
    chain = Chain(backlog, None, third)
    for action in story:
        chain.act(*action)
    chain.finish()
    for task in chain.third:
        task.run(0)
        assert task.planned == task.natural


@given(st.tuples(minutes, minutes), delays, delays)
def test_windows_of_the_second_stage_are_never_late_to_the_third(backlog: tuple[list[int], list[int]], second: int, third: int) -> None:
    chain = Chain([sorted(rows) for rows in backlog], second, third)
    for number in range(30):
        chain.cycle(number, 1 + number % 3)
    chain.finish()
    assert [each for task in chain.third for each in task.dropped] == []
    assert [row for task in chain.second for row, _ in task.dropped] == []
