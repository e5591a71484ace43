"""The line of a container's log that says how long its start took."""

from __future__ import annotations

import logging

import pytest

from containers.start_times import Part, StartTimes, process_began
from sluice.clock import SystemClock
from tests.support.fakes import FakeClock


def test_the_first_batch_logs_each_part_from_the_end_of_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    times = StartTimes(clock, clock.elapsed())
    for part, seconds in ((Part.PROCESS, 0.5), (Part.JVM, 1.25), (Part.QUERY, 2.0), (Part.BATCH, 3.0)):
        clock.advance(seconds)
        times.ended(part)
    expected = "first batch 6.75 s after the start of the process: process 0.50, jvm 1.25, query 2.00, batch 3.00"
    assert [record.getMessage() for record in caplog.records] == [expected]


def test_only_the_first_of_several_queries_and_batches_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    times = StartTimes(clock, clock.elapsed())
    for part in (Part.QUERY, Part.QUERY, Part.BATCH, Part.QUERY, Part.BATCH):
        clock.advance(1.0)
        times.ended(part)
    assert [record.getMessage() for record in caplog.records] == [
        "first batch 3.00 s after the start of the process: query 1.00, batch 2.00"
    ]


def test_a_process_began_before_now() -> None:
    clock = SystemClock()
    assert 0 <= clock.elapsed() - process_began(clock) < 24 * 3600


def test_a_clock_that_counts_from_another_time_than_the_boot_measures_from_now() -> None:
    clock = FakeClock(elapsed=-1.0)
    assert process_began(clock) == clock.elapsed()
