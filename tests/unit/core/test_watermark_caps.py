"""Caps of watermarks: the rule, and a simulation of feeders, coordinator and readers in random interleavings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.core.ids import Ssp, StageName, TaskName
from sluice.core.watermarks import (
    TICK,
    Bound,
    Feeder,
    FeederProgress,
    FeederState,
    NoCap,
    ProgressSource,
    StepDecision,
    WatermarkStep,
    cap_at,
    cap_of_partitions,
    capped,
    decide_step,
    own,
    thinned,
    with_step,
)

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
A, B = (Feeder(TaskName(name), StageName("first")) for name in ("a", "b"))
MINUTE = timedelta(minutes=1)
P0, P1 = Ssp("log", "mid", 0), Ssp("log", "mid", 1)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def progress_of(
    minutes: float | None, delay: float = 0, source: ProgressSource = ProgressSource.COLUMN, *, pending: bool = False
) -> FeederProgress:
    return FeederProgress(None if minutes is None else at(minutes), timedelta(minutes=delay), source, pending)


def busy(minutes: float | None, delay: float = 0) -> FeederState:
    return FeederState(reported=True, progress=progress_of(minutes, delay), unread=True)


def idle(minutes: float | None) -> FeederState:
    return FeederState(reported=True, progress=progress_of(minutes), unread=False)


def bound(minutes: float, delay: float = 0) -> Bound:
    return Bound(at(minutes), timedelta(minutes=delay))


def step(minutes: float | None, ends: Mapping[Ssp, int], *, exact: bool = False) -> WatermarkStep:
    return WatermarkStep(None if minutes is None else at(minutes), timedelta(0), ends, exact)


SILENT = FeederState(reported=False, progress=None, unread=True)
NEITHER = progress_of(None, source=ProgressSource.NONE)

# --- what the feeders allow ------------------------------------------------------------------------------------------


def test_the_feeder_with_the_least_progress_decides() -> None:
    assert decide_step({A: busy(5), B: busy(2)}) == StepDecision(bound(2), held_by=(B,), newest=at(5))


def test_the_largest_delay_of_the_feeders_counts() -> None:
    assert decide_step({A: busy(5, delay=1), B: busy(8, delay=3)}).step == bound(5, delay=3)


def test_there_is_no_step_while_a_feeder_has_not_reported() -> None:
    assert decide_step({A: busy(5), B: SILENT}) == StepDecision(NoCap.HOLD, held_by=(B,), newest=at(5))
    dead = FeederState(reported=False, progress=progress_of(9), unread=False)
    assert decide_step({A: busy(5), B: dead}).step is NoCap.HOLD, "it may not have written everything that it had read"


def test_there_is_no_step_while_a_feeder_has_records_to_read_and_no_progress_yet() -> None:
    assert decide_step({A: busy(5), B: busy(None)}).held_by == (B,)
    starting = FeederState(reported=True, progress=None, unread=True)
    assert decide_step({A: busy(5), B: starting}).step is NoCap.HOLD


def test_a_feeder_that_has_read_everything_does_not_hold_the_watermark() -> None:
    assert decide_step({A: busy(5), B: idle(2)}).step == bound(5)
    assert decide_step({A: busy(5), B: idle(None)}).step == bound(5)


def test_a_feeder_with_open_windows_holds_the_watermark_after_it_has_read_everything() -> None:
    windows = FeederState(reported=True, progress=progress_of(2, delay=1, source=ProgressSource.WATERMARK, pending=True), unread=False)
    assert decide_step({A: busy(5), B: windows}).step == bound(2, delay=1)


def test_when_all_have_read_everything_the_newest_of_them_counts() -> None:
    assert decide_step({A: idle(5), B: idle(2)}).step == Bound(at(5) + TICK, timedelta(0))


def test_when_the_progress_of_idle_feeders_is_unknown_readers_are_free_up_to_the_ends_only() -> None:
    assert decide_step({A: idle(5), B: idle(None)}) == StepDecision(NoCap.FREE, exact=True, newest=at(5))


def test_there_is_no_step_before_the_first_record() -> None:
    new = FeederState(reported=True, progress=None, unread=False, started=False)
    assert decide_step({A: new, B: new}) == StepDecision(NoCap.HOLD)


def test_a_feeder_without_event_time_holds_while_it_has_old_records_to_read() -> None:
    old = FeederState(reported=True, progress=NEITHER, unread=True, old_unread=True)
    young = FeederState(reported=True, progress=NEITHER, unread=True)
    assert decide_step({A: young, B: old}).held_by == (B,)
    assert decide_step({A: young, B: young}).step is NoCap.FREE


def test_a_feeder_that_reads_an_intermediate_stream_is_bound_by_the_stages_before_it() -> None:
    behind = FeederState(reported=True, progress=progress_of(9), unread=True, upstream=(step(4, {P0: 1}),))
    assert decide_step({A: behind}).step == bound(4)
    resting = FeederState(reported=True, progress=progress_of(9), unread=False, upstream=(step(6, {P0: 1}),))
    assert decide_step({A: resting}).step == bound(6), "the stage before may still send it what is as old as that"
    unknown = FeederState(reported=True, progress=progress_of(9), unread=False, upstream=(None,))
    assert decide_step({A: unknown}).step is NoCap.HOLD


def test_a_feeder_that_was_given_up_is_not_waited_for_if_it_has_reported() -> None:
    stuck = FeederState(reported=True, progress=progress_of(1), unread=True, given_up=True)
    assert decide_step({A: busy(5), B: stuck}).step == bound(5)
    gone = FeederState(reported=False, progress=progress_of(1), unread=True, given_up=True)
    assert decide_step({A: busy(5), B: gone}).step is NoCap.HOLD


# --- which step counts -----------------------------------------------------------------------------------------------


def test_a_reader_keeps_to_the_newest_step_that_it_has_passed() -> None:
    steps = [step(1, {P0: 10, P1: 10}), step(2, {P0: 20, P1: 10}), step(3, {P0: 30, P1: 30})]
    assert cap_at(steps, {P0: 9, P1: 99}, timedelta(0)) is NoCap.HOLD
    assert cap_at(steps, {P0: 10, P1: 10}, timedelta(0)) == at(1)
    assert cap_at(steps, {P0: 29, P1: 30}, timedelta(0)) == at(2)
    assert cap_at([], {P0: 1}, timedelta(0)) is NoCap.HOLD


def test_of_partitions_with_unread_records_the_slowest_decides() -> None:
    one, other = Ssp("log", "in", 0), Ssp("log", "in", 1)
    assert cap_of_partitions({}, MINUTE) is NoCap.FREE
    assert cap_of_partitions({one: at(5), other: at(2)}, MINUTE) == at(1)
    assert cap_of_partitions({one: at(5), other: None}, MINUTE) is NoCap.HOLD


def test_the_larger_delay_is_taken_off() -> None:
    steps = [WatermarkStep(at(10), 2 * MINUTE, {})]
    assert cap_at(steps, {}, MINUTE) == at(8)
    assert cap_at(steps, {}, 3 * MINUTE) == at(7)


def test_an_exact_step_counts_only_at_its_ends() -> None:
    steps = [step(1, {P0: 5}), step(None, {P0: 10}, exact=True)]
    assert cap_at(steps, {P0: 10}, timedelta(0)) is NoCap.FREE
    assert cap_at(steps, {P0: 11}, timedelta(0)) == at(1)


def test_a_watermark_is_the_least_of_its_own_and_the_caps_and_never_falls() -> None:
    assert capped(at(5), [at(3), at(4)], at(1)) == at(3)
    assert capped(at(2), [at(3), NoCap.FREE], at(1)) == at(2)
    assert capped(at(5), [at(3), NoCap.HOLD], at(1)) == at(1)
    assert capped(at(5), [at(3)], at(4)) == at(4)
    assert capped(None, [NoCap.FREE], None) is None
    assert capped(at(5), [at(3)], None) == at(3)


def test_a_step_that_allows_less_replaces_those_that_allow_more() -> None:
    steps = with_step([step(1, {P0: 1}), step(5, {P0: 2})], StepDecision(bound(3)), {P0: 3})
    assert steps == [step(1, {P0: 1}), step(3, {P0: 3})]


def test_a_step_that_allows_the_same_is_left_out() -> None:
    steps = [step(1, {P0: 1}), step(3, {P0: 2})]
    assert with_step(steps, StepDecision(bound(3)), {P0: 9}) == steps


def test_readers_are_no_longer_free_once_a_feeder_holds_the_watermark() -> None:
    free = [step(1, {P0: 1}), step(None, {P0: 2})]
    assert with_step(free, StepDecision(NoCap.HOLD), {P0: 3}) == [step(1, {P0: 1})]
    assert with_step(free, StepDecision(bound(4)), {P0: 3}) == [step(1, {P0: 1}), step(4, {P0: 3})]
    assert with_step(free, StepDecision(NoCap.FREE), {P0: 3}) == free


def test_steps_that_all_readers_have_passed_are_forgotten_but_for_the_last() -> None:
    steps = [step(1, {P0: 1, P1: 1}), step(2, {P0: 2, P1: 2}), step(3, {P0: 3, P1: 3})]
    assert thinned(steps, [{P0: 2}, {P1: 9}], 64) == steps[1:]
    assert thinned(steps, [{P0: 0}, {P1: 9}], 64) == steps


@given(st.lists(st.integers(0, 50), max_size=40).map(sorted), st.integers(0, 50), st.integers(3, 10))
def test_thinning_never_allows_a_reader_more(ends: list[int], position: int, limit: int) -> None:
    steps = [step(minute, {P0: end}) for minute, end in enumerate(ends)]
    kept = thinned(steps, [{P0: min(position, 10)}], limit)
    assert len(kept) <= limit
    found, before = cap_at(kept, {P0: position}, timedelta(0)), cap_at(steps, {P0: position}, timedelta(0))
    assert found is NoCap.HOLD or (isinstance(before, datetime) and isinstance(found, datetime) and found <= before)
    if steps:
        assert kept[-1] == steps[-1]


class CountedEnds(dict[Ssp, int]):
    """Ends that cannot be iterated over, and that count how often they were looked up."""

    lookups = 0

    def __iter__(self) -> Iterator[Ssp]:
        raise AssertionError("all partitions of the stream are iterated over")

    def items(self) -> NoReturn:
        raise AssertionError("all partitions of the stream are iterated over")

    def __contains__(self, ssp: object) -> bool:
        CountedEnds.lookups += 1
        return super().__contains__(ssp)


def test_the_work_for_a_reader_does_not_grow_with_the_partitions_of_the_stream() -> None:
    of_all = CountedEnds({Ssp("log", "mid", each): each for each in range(1000)})
    assert own(step(1, of_all), {P1: 5}).ends == {P1: 1}


def test_forgetting_steps_takes_work_in_proportion_to_the_readers_plus_the_steps() -> None:
    partitions = [Ssp("log", "mid", each) for each in range(100)]
    steps = [step(minute, CountedEnds(dict.fromkeys(partitions, minute))) for minute in range(60)]
    readers = [{each: 59} for each in partitions[1:]]
    CountedEnds.lookups = 0
    assert len(thinned(steps, [*readers, {partitions[0]: 30}], 64)) == 30
    assert CountedEnds.lookups < 2 * (len(readers) + len(steps))


# --- a simulation ----------------------------------------------------------------------------------------------------

PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Row:
    """`arrived`: when it was appended to the input of its feeder. `excused`: it was older than that feeder's progress when it was read."""

    minute: int
    arrived: int
    excused: bool = False


@dataclass
class Mid:
    """An intermediate stream, and what the coordinator has recorded of it. `made`: for each step, the time at which its states were
    read.
    """

    rows: list[list[Row]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    steps: Sequence[WatermarkStep] = ()
    made: dict[tuple[datetime | None, timedelta], int] = field(default_factory=dict)
    snapshot: tuple[int, Mapping[Feeder, FeederState]] | None = None

    @property
    def ends(self) -> dict[Ssp, int]:
        return {Ssp("log", "mid", p): len(rows) for p, rows in enumerate(self.rows)}


@dataclass
class Task:
    """A feeder: passes on what it reads, and reports its progress under its current generation."""

    feeder: Feeder
    delay: int
    reads: list[Row]
    mid: Mid
    position: int = 0
    newest: int | None = None
    generation: int = 1
    since_start: int | None = None
    report: tuple[int, FeederProgress | None] | None = None

    def run(self, count: int) -> None:
        batch = self.reads[self.position : self.position + count]
        for row in batch:
            late = self.newest is not None and row.minute < self.newest - max(self.delay, READER_DELAY)
            self.mid.rows[row.minute % PARTITIONS].append(Row(row.minute, row.arrived, row.excused or late))
        self.position += len(batch)
        if batch:
            self.newest = max([row.minute for row in batch] + ([] if self.newest is None else [self.newest]))
            self.since_start = self.newest

    def say(self) -> None:
        known = self.since_start
        progress = None if known is None else FeederProgress(at(known), self.delay * MINUTE, ProgressSource.WATERMARK)
        self.report = (self.generation, progress)

    def restart(self) -> None:
        self.generation += 1
        self.since_start = None

    def state(self) -> FeederState:
        reported = self.report is not None and self.report[0] == self.generation
        progress = self.report[1] if self.report is not None else None
        unread = self.position < len(self.reads)
        if reported and progress is None and not unread and self.newest is not None:
            progress = FeederProgress(at(self.newest), timedelta(0), ProgressSource.WATERMARK)
        return FeederState(reported, progress, unread, started=self.newest is not None)


READER_DELAY = 2


@dataclass
class Reader:
    """A stage that reads the stream, one task for each partition. Counts the rows that a query drops as late."""

    mid: Mid
    partition: int
    position: int = 0
    natural: datetime | None = None
    planned: datetime | None = None
    known: Sequence[WatermarkStep] = ()
    rose: list[tuple[datetime, int]] = field(default_factory=list)
    """Each watermark, and the newest step that it could follow."""
    kept: int = 0
    dropped: list[tuple[Row, int]] = field(default_factory=list)

    @property
    def ssp(self) -> Ssp:
        return Ssp("log", "mid", self.partition)

    def hear(self) -> None:
        self.known = [own(each, [self.ssp]) for each in self.mid.steps]

    def run(self, count: int) -> None:
        positions = {self.ssp: self.position}
        cap = cap_at(self.known, positions, READER_DELAY * MINUTE)
        watermark = capped(self.natural, [cap], self.planned)
        if watermark is not None and watermark != self.planned:
            by = next(each for each in reversed(self.known) if each.passed(positions))
            self.rose.append((watermark, self.mid.made[by.event_time, by.delay]))
        self.planned = watermark
        batch = self.mid.rows[self.partition][self.position : self.position + count]
        for row in batch:
            if watermark is not None and at(row.minute) < watermark:
                self.dropped.append((row, next(made for mark, made in self.rose if mark > at(row.minute))))
            else:
                self.kept += 1
        self.position += len(batch)
        if batch:
            natural = at(max(row.minute for row in batch)) - READER_DELAY * MINUTE
            self.natural = natural if self.natural is None else max(natural, self.natural)


class Job:
    """Two feeders of a stream with a reader for each partition. Time counts the actions."""

    def __init__(self, backlog: Sequence[Sequence[int]], delays: Sequence[int]) -> None:
        self.time = 0
        self.mid = Mid()
        self.feeders = [
            Task(Feeder(TaskName(f"t{i}"), StageName("first")), delay, [Row(minute, 0) for minute in rows], self.mid)
            for i, (rows, delay) in enumerate(zip(backlog, delays, strict=True))
        ]
        self.readers = [Reader(self.mid, partition) for partition in range(PARTITIONS)]

    def act(self, action: str, who: int, number: int) -> None:
        self.time += 1
        feeder, reader = self.feeders[who % len(self.feeders)], self.readers[who % PARTITIONS]
        match action:
            case "feed":
                feeder.run(number)
            case "restart":
                feeder.restart()
            case "arrive":
                feeder.reads.append(Row(number * 5, self.time))
            case "publish":
                self.publish()
            case "read":
                reader.run(number)
            case "cycle":
                self.cycle(feeder, number)
            case _:
                self.tell(action, feeder, reader)

    def tell(self, action: str, feeder: Task, reader: Reader) -> None:
        match action:
            case "say":
                feeder.say()
            case "look":
                self.mid.snapshot = (self.time, {each.feeder: each.state() for each in self.feeders})
            case "hear":
                reader.hear()
            case _:
                raise AssertionError(action)

    def cycle(self, feeder: Task, number: int) -> None:
        """One batch in the usual order of steps."""
        feeder.run(number)
        for each in self.feeders:
            each.say()
        self.act("look", 0, 0)
        self.publish()
        for reader in self.readers:
            reader.hear()
            reader.run(number)
            reader.run(number)

    def publish(self) -> None:
        """May happen any time after the states were read: the ends may be much newer."""
        if self.mid.snapshot is not None:
            looked_at, states = self.mid.snapshot
            steps = with_step(self.mid.steps, decide_step(states), self.mid.ends)
            if steps:
                self.mid.made.setdefault((steps[-1].event_time, steps[-1].delay), looked_at)
                if steps[-1] not in self.mid.steps:
                    self.mid.made[steps[-1].event_time, steps[-1].delay] = looked_at
            self.mid.steps = thinned(steps, [{each.ssp: each.position} for each in self.readers], 4)

    def finish(self) -> None:
        """All records are read and all progress is reported."""
        for action in ("feed", "say"):
            for who in range(len(self.feeders)):
                self.act(action, who, 10**6)
        self.act("look", 0, 0)
        self.act("publish", 0, 0)
        for action in ("read", "hear", "read"):
            for who in range(PARTITIONS):
                self.act(action, who, 10**6)


minutes = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3)), min_size=2, max_size=12).map(
    lambda found: [max(0, minute - behind) for minute, behind in sorted(found)]
)
"""The input of a producer whose records are out of order by at most three minutes."""

actions = st.tuples(
    st.sampled_from(["cycle"] * 8 + ["feed", "say", "look", "publish", "hear", "read", "restart", "arrive"]),
    st.integers(0, 1),
    st.integers(1, 4),
)


@settings(max_examples=settings().max_examples * 3 // 2)
@given(st.tuples(minutes, minutes), st.tuples(st.integers(0, 5), st.integers(0, 5)), st.lists(actions, min_size=5, max_size=40))
@example(([50], [1]), (0, 0), [("feed", 0, 1), ("say", 0, 1), ("look", 0, 1), ("publish", 0, 1), ("hear", 0, 1), ("read", 0, 9)])
def test_no_row_is_late_that_was_in_a_feeders_input_and_not_older_than_its_progress(
    backlog: tuple[list[int], list[int]], delays: tuple[int, int], story: list[tuple[str, int, int]]
) -> None:
    job = Job(backlog, delays)
    for action, who, number in story:
        job.act(action, who, number)
    job.finish()
    dropped = [each for reader in job.readers for each in reader.dropped]
    unexcused = [(row, passed) for row, passed in dropped if not row.excused and row.arrived <= passed]
    assert unexcused == []
    read = sum(len(feeder.reads) for feeder in job.feeders)
    assert sum(reader.kept for reader in job.readers) + len(dropped) == read, "the same as in one batch over all records"


@given(st.tuples(minutes, minutes), st.tuples(st.integers(0, 5), st.integers(0, 5)), st.lists(actions, max_size=60))
def test_when_everything_was_read_nothing_holds_the_watermark(
    backlog: tuple[list[int], list[int]], delays: tuple[int, int], story: list[tuple[str, int, int]]
) -> None:
    job = Job(backlog, delays)
    for action, who, number in story:
        job.act(action, who, number)
    job.finish()
    for reader in job.readers:
        reader.run(0)
        assert reader.planned == reader.natural


@given(st.tuples(minutes, minutes))
def test_in_order_backlogs_lose_nothing_in_any_order_of_tasks(backlog: tuple[list[int], list[int]]) -> None:
    job = Job([sorted(rows) for rows in backlog], [0, 0])
    for who in (0, 1):
        for action in ("feed", "say", "look", "publish", "hear", "read", "hear", "read"):
            for partition in range(PARTITIONS):
                job.act(action, who if action in ("feed", "say") else partition, 3)
    job.finish()
    counted: defaultdict[int, int] = defaultdict(int)
    for reader in job.readers:
        counted[reader.partition] += reader.kept
    assert sum(counted.values()) == sum(len(rows) for rows in backlog)


@pytest.mark.parametrize("event_time", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_an_event_time_at_an_end_of_the_calendar_bounds_readers_as_any_other(event_time: datetime) -> None:
    state = FeederState(reported=True, progress=FeederProgress(event_time, MINUTE, ProgressSource.COLUMN), unread=True)
    (step,) = with_step([], decide_step({Feeder(TaskName("Partition 0"), StageName("route")): state}), {})
    cap = cap_at([step], {}, 3 * MINUTE)
    assert isinstance(cap, datetime)
    assert cap <= event_time + timedelta(days=1 if event_time.year == 1 else 0)
    assert cap_of_partitions({P0: event_time}, MINUTE) is not NoCap.HOLD
