"""Watermark alignment: which tasks of a stage must wait, because they are too far ahead of the others in event time.

A stage behind an intermediate stream sees what its feeders differ by in event time as lateness, and Spark drops late rows without a word.
So the tasks of a feeding stage are kept together: one that leads the slowest by more than `max_skew` pauses between two batches until the
slowest has caught up by half of it. A batch that has begun is not cut short, so the lead may exceed `max_skew` by what one batch spans.

The slowest is the slowest of those that have something to read: a task that has read all there is says nothing about event time, as an
idle partition does in Apache Flink's alignment. A task with something to read that nobody has heard of, because its container has not
started or is gone, holds all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.core.ids import TaskName


@dataclass(frozen=True, slots=True)
class TaskEventTime:
    """What is known of a stage of a task. `event_time`: the newest that it has committed; `heard`: it runs, or waits for our word."""

    event_time: datetime | None
    heard: bool
    idle: bool


@dataclass(frozen=True, slots=True)
class AlignmentDecision:
    """Whether a task must wait, how far it leads the slowest (None if that can't be told), and for whom it waits."""

    hold: bool
    lead: timedelta | None
    waits_for: tuple[TaskName, ...] = ()


def decide_alignment(task: TaskName, paces: Mapping[TaskName, TaskEventTime], max_skew: timedelta, *, held: bool) -> AlignmentDecision:
    """`paces` is of every task of the stage. `held`: the task waits already, and goes on once its lead is half of what is allowed.

    The slowest task is never told to wait, so somebody always moves, unless one that nobody has heard of has something to read.
    """
    others = {name: pace for name, pace in paces.items() if name != task and not pace.idle}
    unheard = tuple(sorted(name for name, pace in others.items() if not pace.heard))
    if unheard:
        return AlignmentDecision(True, None, unheard)
    ours = paces[task].event_time
    if ours is None or not others:
        return AlignmentDecision(False, None)
    not_begun = tuple(sorted(name for name, pace in others.items() if pace.event_time is None))
    if not_begun:
        return AlignmentDecision(True, None, not_begun)
    allowed = max_skew / 2 if held else max_skew
    times = {name: pace.event_time for name, pace in others.items() if pace.event_time is not None}
    lead = ours - min(times.values())
    return AlignmentDecision(lead > allowed, lead, tuple(sorted(name for name, at in times.items() if ours - at > allowed)))
