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
    """A stage of a task. `event_time`: the newest that it has committed, None before the first batch; `reported`: its current owner has
    reported; `idle`: it has read everything."""

    event_time: datetime | None
    reported: bool
    idle: bool


@dataclass(frozen=True, slots=True)
class AlignmentDecision:
    """Whether a task must wait, its lead over the slowest task (None if unknown), and the tasks for which it waits."""

    wait: bool
    lead: timedelta | None
    waits_for: tuple[TaskName, ...] = ()


def decide_alignment(task: TaskName, times: Mapping[TaskName, TaskEventTime], max_skew: timedelta, *, waiting: bool) -> AlignmentDecision:
    """`times` has every task of the stage. `waiting`: the task already waits, and resumes once its lead is at most half of `max_skew`.

    The slowest task never waits, so that one always makes progress, unless a task that has not reported has something to read.
    """
    others = {name: each for name, each in times.items() if name != task and not each.idle}
    silent = tuple(sorted(name for name, each in others.items() if not each.reported))
    if silent:
        return AlignmentDecision(True, None, silent)
    ours = times[task].event_time
    if ours is None or not others:
        return AlignmentDecision(False, None)
    without_batch = tuple(sorted(name for name, each in others.items() if each.event_time is None))
    if without_batch:
        return AlignmentDecision(True, None, without_batch)
    allowed = max_skew / 2 if waiting else max_skew
    event_times = {name: each.event_time for name, each in others.items() if each.event_time is not None}
    lead = ours - min(event_times.values())
    return AlignmentDecision(lead > allowed, lead, tuple(sorted(name for name, at in event_times.items() if ours - at > allowed)))
