"""Watermark alignment: which tasks of a stage must wait, because they are too far ahead of the others in event time.

To a stage behind an intermediate stream, the difference in event time between its feeders looks like lateness, and Spark drops late rows
silently. The tasks of a feeding stage are therefore aligned: a task that leads the slowest by more than `max_skew` pauses between two
batches until its lead is half of that. A batch that has begun is not interrupted, so the lead may exceed `max_skew` by the event time that
one batch spans.

Only tasks that have something to read count: a task that has read everything is ignored, as an idle partition in Apache Flink's alignment.
A task that has something to read and has not reported, because its container has not started or is gone, makes all others wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.core.ids import TaskName


@dataclass(frozen=True, slots=True)
class TaskEventTime:
    """What a stage of a task has reported. `event_time`: the newest committed; `heard`: it runs, or waits for a decision; `idle`: it has
    read everything."""

    event_time: datetime | None
    heard: bool
    idle: bool


@dataclass(frozen=True, slots=True)
class AlignmentDecision:
    """Whether a task must wait, how far it leads the slowest (None if unknown), and for which tasks it waits."""

    hold: bool
    lead: timedelta | None
    waits_for: tuple[TaskName, ...] = ()


def decide_alignment(task: TaskName, paces: Mapping[TaskName, TaskEventTime], max_skew: timedelta, *, held: bool) -> AlignmentDecision:
    """`paces`: every task of the stage. `held`: the task is waiting, and continues once its lead is at most half of `max_skew`.

    The slowest task never waits, so some task always advances, unless one that has not reported has something to read.
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
