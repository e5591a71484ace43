from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ids import TaskName
from sluice.core.watermarks import AlignmentDecision, TaskEventTime, decide_alignment

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
A, B, C = TaskName("Partition 0"), TaskName("Partition 1"), TaskName("Partition 2")


def at(hours: float, *, idle: bool = False) -> TaskEventTime:
    return TaskEventTime(NOON + hours * HOUR, reported=True, idle=idle)


BEGINNING = TaskEventTime(None, reported=True, idle=False)
SILENT = TaskEventTime(None, reported=False, idle=False)


def test_a_task_that_leads_by_more_than_is_allowed_waits_for_those_behind() -> None:
    assert decide_alignment(A, {A: at(5), B: at(1), C: at(4)}, 3 * HOUR, waiting=False) == AlignmentDecision(True, 4 * HOUR, (B,))


def test_a_lead_that_is_just_allowed_is_allowed() -> None:
    assert not decide_alignment(A, {A: at(4), B: at(1)}, 3 * HOUR, waiting=False).wait


def test_a_task_that_waits_continues_only_when_its_lead_has_halved() -> None:
    assert decide_alignment(A, {A: at(3), B: at(1)}, 3 * HOUR, waiting=True).wait
    assert not decide_alignment(A, {A: at(2.5), B: at(1)}, 3 * HOUR, waiting=True).wait


def test_no_task_waits_for_one_that_has_read_everything() -> None:
    assert not decide_alignment(A, {A: at(50), B: at(1, idle=True)}, 3 * HOUR, waiting=False).wait
    assert not decide_alignment(A, {A: at(50), B: TaskEventTime(None, reported=False, idle=True)}, 3 * HOUR, waiting=False).wait


def test_all_wait_for_a_task_with_something_to_read_that_has_never_reported() -> None:
    assert decide_alignment(A, {A: BEGINNING, B: SILENT, C: at(1)}, 3 * HOUR, waiting=False) == AlignmentDecision(True, None, (B,))


def test_all_wait_for_a_task_that_no_longer_reports() -> None:
    gone = TaskEventTime(NOON, reported=False, idle=False)
    assert decide_alignment(A, {A: at(1), B: gone}, 3 * HOUR, waiting=False) == AlignmentDecision(True, None, (B,))


def test_tasks_that_all_just_started_do_not_wait() -> None:
    assert not decide_alignment(A, {A: BEGINNING, B: BEGINNING}, 3 * HOUR, waiting=True).wait


def test_a_task_with_a_batch_waits_for_one_without() -> None:
    assert decide_alignment(A, {A: at(0), B: BEGINNING}, 3 * HOUR, waiting=False) == AlignmentDecision(True, None, (B,))
    assert not decide_alignment(B, {A: at(0), B: BEGINNING}, 3 * HOUR, waiting=False).wait


def test_a_task_alone_never_waits() -> None:
    assert not decide_alignment(A, {A: at(5)}, HOUR, waiting=True).wait


event_times = st.builds(TaskEventTime, st.none() | st.datetimes(timezones=st.just(UTC)), reported=st.just(True), idle=st.booleans())


@given(st.dictionaries(st.sampled_from([TaskName(f"Partition {n}") for n in range(6)]), event_times, min_size=1), st.booleans())
def test_of_tasks_that_have_all_reported_one_with_something_to_read_may_always_continue(
    found: dict[TaskName, TaskEventTime], waiting: bool
) -> None:
    reading = [name for name, pace in found.items() if not pace.idle]
    assert not reading or any(not decide_alignment(name, found, HOUR, waiting=waiting).wait for name in reading)
