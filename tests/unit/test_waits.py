"""Waits by the steady clock, and the hold on deletions after a clock jump."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.waits import DeletionHold, Waits
from tests.support.fakes import FakeClock

DAY = timedelta(days=1)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(-(10**6), 10**6)), max_size=8))
def test_jumps_change_no_wait(steps: list[tuple[int, int]]) -> None:
    clock = FakeClock()
    waits: Waits[str] = Waits(clock)
    clock.advance(7)
    waits.end_round(())
    began, passed = clock.now(), 0
    for passing, jump in steps:
        clock.advance(passing)
        clock.jump(seconds(jump))
        passed += passing
        assert seconds(0) <= waits.waited("drain", began) <= seconds(passed)
    first = steps[0][0] if steps else 0
    assert waits.waited("drain", began) >= seconds(passed - first)


def test_waits_that_began_before_the_start_use_the_wall_clock_up_to_a_limit() -> None:
    clock = FakeClock()
    waits: Waits[str] = Waits(clock)
    assert waits.waited("long", clock.now() - DAY) == DAY
    assert waits.waited("limited", clock.now() - DAY, seconds(60)) == seconds(60)
    assert waits.waited("ahead", clock.now() + 3 * DAY) == seconds(0)
    clock.advance(5)
    assert waits.waited("limited", clock.now() - DAY, seconds(60)) == seconds(65)


def test_a_wait_that_has_ended_is_removed() -> None:
    clock = FakeClock()
    waits: Waits[str] = Waits(clock)
    began = clock.now()
    assert waits.waited("slot", began) == seconds(0)
    clock.advance(5)
    waits.end_round({"slot"})
    assert waits.waited("slot", began) == seconds(5)
    waits.end_round(())
    clock.advance(2)
    assert waits.waited("slot", began) == seconds(2)


@pytest.mark.parametrize(("jump", "held"), [(seconds(301), True), (seconds(299), False), (-3 * DAY, False)])
def test_only_a_jump_ahead_holds_deletions_and_for_the_configured_time(jump: timedelta, held: bool) -> None:
    clock = FakeClock()
    hold = DeletionHold(clock, DAY)
    clock.advance(10 * DAY.total_seconds())
    assert not hold.active()
    clock.jump(jump)
    assert (hold.active(), hold.jump) == (held, jump if held else seconds(0))
    clock.advance(DAY.total_seconds() - 1)
    assert hold.active() == held
    clock.advance(1)
    assert (hold.active(), hold.jump) == (False, seconds(0))


@pytest.mark.parametrize(("newest", "held"), [(None, False), (seconds(60), False), (2 * DAY, True), (-DAY, False)])
def test_a_start_long_after_the_newest_snapshot_may_be_a_jump(newest: timedelta | None, held: bool) -> None:
    clock = FakeClock()
    hold = DeletionHold(clock, DAY)
    hold.check_start(None if newest is None else clock.now() - newest)
    assert hold.active() == held
