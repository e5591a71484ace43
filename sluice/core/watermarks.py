"""Watermarks across tasks: how far a stage's watermark may rise.

Spark computes a query's watermark from what the query has read. A stage that reads an intermediate stream has feeders: the tasks
of the stages that write the stream. While one feeder is behind the others, Spark's watermark is too high for its rows, and Spark drops them
as late without an error. The watermark of such a stage is therefore capped: at most the least progress of its feeders, less the delay.
Progress is tied to offsets: it counts for a reader once that reader has read up to the ends that the stream had when the progress was
reported (`WatermarkStep`). Apache Flink sends its watermarks through the streams for the same purpose. Here they go through the
coordinator, and offsets put them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeAlias

from sluice.core.ids import Ssp, StageName, TaskName

TICK = timedelta(milliseconds=1)
"""The unit of watermarks. A watermark stays below its cap, since Spark drops rows that are as old as the watermark."""

_FIRST = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
_LAST = datetime.max.replace(tzinfo=UTC) - TICK


def earlier(at: datetime, by: timedelta) -> datetime:
    """`at` less `by`, but not before the first days of the calendar: one record with a wrong time must not fail a query."""
    return at - by if at - _FIRST >= by else _FIRST


def later(at: datetime, by: timedelta) -> datetime:
    """`at` plus `by`, but not after the year 9999."""
    return at + by if _LAST - at >= by else _LAST


class ProgressSource(Enum):
    """Where a feeder's progress comes from: its query's watermark, the event-time column that its write names, or neither."""

    WATERMARK = "watermark"
    COLUMN = "column"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FeederProgress:
    """All records that the feeder appends from now on are at least as new as `event_time` - `delay`, apart from those that are late to the
    feeder itself. `event_time` is None before the first batch, and always if the source is NONE.

    `pending`: the query's state may append rows without reading anything newer: open windows, timers. It then holds its readers back even
    when it has read everything.
    """

    event_time: datetime | None
    delay: timedelta
    source: ProgressSource
    pending: bool = False


class NoCap(Enum):
    """HOLD: the watermark stays where it is. FREE: nothing holds it."""

    HOLD = "hold"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Bound:
    """A reader's watermark may rise to `event_time` less the larger of `delay` and of the reader's own delay."""

    event_time: datetime
    delay: timedelta

    @property
    def oldest(self) -> datetime:
        return earlier(self.event_time, self.delay)

    def within(self, other: Bound) -> bool:
        """Whether it allows no reader more than the other, whatever the reader's own delay is."""
        return self.event_time <= other.event_time and self.oldest <= other.oldest


@dataclass(frozen=True, slots=True)
class WatermarkStep:
    """Once a reader has committed a batch that ends at or beyond `ends`, its watermark may rise to `event_time` less the larger of `delay`
    and of the reader's own delay. `event_time` None: no feeder holds the watermark. `exact`: the step counts only for a reader that has
    read up to the ends and nothing beyond, because the event times of later records are unknown."""

    event_time: datetime | None
    delay: timedelta
    ends: Mapping[Ssp, int]
    exact: bool = False

    @property
    def bound(self) -> Bound | None:
        return None if self.event_time is None else Bound(self.event_time, self.delay)

    def passed(self, positions: Mapping[Ssp, int]) -> bool:
        """Whether it counts for a reader at these positions. A partition without a position has not been read."""
        if self.exact:
            return all(positions.get(ssp, 0) == end for ssp, end in self.ends.items())
        return all(positions.get(ssp, 0) >= end for ssp, end in self.ends.items())


Cap: TypeAlias = datetime | NoCap
"""How far the watermark of a reader may rise."""


def cap_at(steps: Sequence[WatermarkStep], positions: Mapping[Ssp, int], delay: timedelta) -> Cap:
    """The cap of a reader with that delay at these positions: that of the newest step that it has passed, HOLD if it has passed none.
    `steps`: oldest first."""
    for step in reversed(steps):
        if step.passed(positions):
            return NoCap.FREE if step.event_time is None else earlier(step.event_time, max(step.delay, delay))
    return NoCap.HOLD


def cap_of_partitions(unread: Mapping[Ssp, datetime | None], delay: timedelta) -> Cap:
    """The cap of a query with that delay which reads several partitions of one input. `unread`: the newest event time that it has read from
    each partition that has unread records; None if there is none yet."""
    times = [at for at in unread.values() if at is not None]
    if len(times) < len(unread):
        return NoCap.HOLD
    return earlier(min(times), delay) if times else NoCap.FREE


def capped(natural: datetime | None, caps: Iterable[Cap], planned: datetime | None) -> datetime | None:
    """The watermark of the next batch. `natural`: what the query computed from what it has read; `planned`: that of the last planned batch,
    below which it never falls. None stands for no watermark yet."""
    found = list(caps)
    if NoCap.HOLD in found or natural is None:
        return planned
    allowed = min([natural, *(cap for cap in found if isinstance(cap, datetime))])
    return allowed if planned is None else max(allowed, planned)


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True, slots=True)
class Feeder:
    """A stage of a task that writes an intermediate stream."""

    task: TaskName
    stage: StageName

    def __str__(self) -> str:
        return f"{self.task}/{self.stage}"


@dataclass(frozen=True, slots=True)
class FeederState:
    """A feeder at one moment.

    `reported`: it has reported under the current generation of its task. `progress`: what it reported; None until its query has determined
    it. `unread`, `old_unread`: whether there are records that it has not read, and whether some of them have been there for longer than
    `watermark_unread_seconds`. `started`: it has ever committed a batch. `upstream`: for each intermediate stream that it reads itself, the
    newest step that it has passed, None for none. `given_up`: its readers wait for it no longer (`idle_feeder_seconds`).
    """

    reported: bool
    progress: FeederProgress | None
    unread: bool
    old_unread: bool = False
    started: bool = True
    upstream: tuple[WatermarkStep | None, ...] = ()
    given_up: bool = False

    @property
    def idle(self) -> bool:
        """Whether everything that it appends from now on comes from records that are not in its inputs yet."""
        return not self.unread and not (self.progress is not None and self.progress.pending)

    @property
    def event_time(self) -> datetime | None:
        return None if self.progress is None else self.progress.event_time


@dataclass(frozen=True, slots=True)
class StepDecision:
    """`step`: what the next step allows; HOLD if there can be none now, and the caps stay where they are. `exact`: see `WatermarkStep`.
    `held_by`: the feeders with the least progress, or those that prevent a step. `newest`: the newest event time that a feeder has
    reached."""

    step: Bound | NoCap
    exact: bool = False
    held_by: tuple[Feeder, ...] = ()
    newest: datetime | None = None


def decide_step(feeders: Mapping[Feeder, FeederState]) -> StepDecision:
    """How far the readers of a stream may go, from the states of its feeders.

    * A feeder that has not reported holds the watermark: there is no step.
    * A feeder that has nothing to read is idle and does not hold the watermark. Only the bounds of its `upstream` apply, because the stages
      before it may still send records. Apache Flink detects idleness by a time-out; here it follows from offsets. A feeder whose state may
      still append rows is not idle.
    * A feeder of source NONE holds the watermark while it has old unread records.
    * The progress of any other feeder bounds its readers. While it is unknown, the feeder holds the watermark.

    When all feeders are idle, the readers may go as far as the newest progress, because the records that they have not read yet are no
    newer. The watermark may then equal the newest progress, so the bound is one tick beyond it.
    """
    newest = max((state.event_time for state in feeders.values() if state.event_time is not None), default=None)
    waited_for = {feeder: state for feeder, state in feeders.items() if not (state.reported and state.given_up)}
    found = {feeder: _allowed_by(state) for feeder, state in waited_for.items()}
    holding = sorted(feeder for feeder, allowed in found.items() if allowed is NoCap.HOLD)
    if holding:
        return StepDecision(NoCap.HOLD, held_by=tuple(holding), newest=newest)
    bounds = {feeder: allowed for feeder, allowed in found.items() if isinstance(allowed, Bound)}
    if bounds:
        oldest = min(each.oldest for each in bounds.values())
        held_by = sorted(feeder for feeder, each in bounds.items() if each.oldest == oldest)
        least = Bound(min(each.event_time for each in bounds.values()), max(each.delay for each in bounds.values()))
        return StepDecision(least, held_by=tuple(held_by), newest=newest)
    if any(not state.idle for state in waited_for.values()):  # of source NONE
        return StepDecision(NoCap.FREE, newest=newest)
    if any(state.started and state.event_time is None for state in feeders.values()):
        return StepDecision(NoCap.FREE, exact=True, newest=newest)
    return StepDecision(NoCap.HOLD if newest is None else Bound(min(newest, _LAST) + TICK, timedelta(0)), newest=newest)


def _allowed_by(state: FeederState) -> Bound | NoCap:
    if not state.reported or None in state.upstream:
        return NoCap.HOLD
    bounds = [step.bound for step in state.upstream if step is not None and step.bound is not None]
    if not state.idle:
        progress = state.progress
        if progress is None:
            return NoCap.HOLD
        if progress.source is ProgressSource.NONE:
            if state.old_unread:
                return NoCap.HOLD
        elif progress.event_time is None:
            return NoCap.HOLD
        else:
            bounds.append(Bound(progress.event_time, progress.delay))
    return min(bounds, key=lambda each: each.oldest) if bounds else NoCap.FREE


def with_step(steps: Sequence[WatermarkStep], decision: StepDecision, ends: Mapping[Ssp, int]) -> Sequence[WatermarkStep]:
    """The steps of a stream, oldest first, after a decision; `ends` are those that the stream had after the feeders' states were read.

    From one step to the next, the allowed watermark never decreases: a new step replaces the steps that allow more, so that a reader that
    has not passed it waits. A step that allows the same as the last one is left out, because readers pass the last one sooner. While the
    decision is HOLD, no step is without a bound.
    """
    if isinstance(decision.step, Bound):
        new = decision.step
        kept = [step for step in steps if step.bound is not None and step.bound.within(new)]
        if kept and kept[-1].bound == new:
            return kept
        return [*kept, WatermarkStep(new.event_time, new.delay, dict(ends))]
    if decision.step is NoCap.HOLD:
        return [step for step in steps if step.bound is not None]
    kept = [step for step in steps if not step.exact]
    if kept and kept[-1].event_time is None and not decision.exact:
        return kept
    return [*kept, WatermarkStep(None, timedelta(0), dict(ends), exact=decision.exact)]


def thinned(steps: Sequence[WatermarkStep], readers: Iterable[Mapping[Ssp, int]], limit: int) -> Sequence[WatermarkStep]:
    """At most `limit` > 2 of the steps. Steps before the newest one that every reader has passed are removed first, then every other step.
    Removing a step is safe, because a reader then uses the step before it, which allows no more. `readers`: the positions of each reader,
    in all partitions that it reads and in no others. Takes time in proportion to the readers plus the steps, because a reader that has
    passed a step has passed all before it."""
    first = len(steps) - 1
    for at in readers:
        while first > 0 and not own(steps[first], at).passed(at):
            first -= 1
    kept = list(steps[max(first, 0) :])
    while len(kept) > limit:
        kept = [*kept[:-1:2], kept[-1]]
    return kept


def own(step: WatermarkStep, ssps: Iterable[Ssp]) -> WatermarkStep:
    """The step for a reader of these partitions. Takes time in proportion to these, not to all partitions of the stream."""
    return replace(step, ends={ssp: step.ends[ssp] for ssp in ssps if ssp in step.ends})


def event_time_missing(stage: str, streams: Sequence[str]) -> str:
    """The warning for the author of a stage whose feeders are of source NONE."""
    return (
        f"stage {stage} writes {', '.join(streams)} without a watermark or an event-time column: watermarks behind it wait while one of "
        'its tasks has records to read that are older than watermark_unread_seconds; name the column: task.write(…, event_time="…")'
    )
