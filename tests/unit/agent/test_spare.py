from __future__ import annotations

from datetime import timedelta

from containers.agent.spare import Vacancies, pause_after
from sluice.core.ids import Instant

SLOTS = ("0", "1")


def test_a_spare_takes_the_slot_of_a_container_that_has_ended_at_once() -> None:
    vacancies = Vacancies()
    assert vacancies.to_take(SLOTS, (), Instant(0)) == []
    assert vacancies.to_take(SLOTS, ("1",), Instant(1)) == ["1"]


def test_a_spare_leaves_a_slot_to_its_first_container_for_ten_seconds() -> None:
    vacancies = Vacancies()
    assert vacancies.to_take(SLOTS, SLOTS, Instant(0)) == []
    assert vacancies.to_take(SLOTS, ("1",), Instant(9)) == []
    assert vacancies.to_take(SLOTS, ("0", "1"), Instant(10)) == ["0", "1"]


def test_the_ten_seconds_begin_again_for_a_new_slot() -> None:
    vacancies = Vacancies()
    assert vacancies.to_take(("0",), (), Instant(0)) == []
    assert vacancies.to_take(SLOTS, ("1",), Instant(100)) == []
    assert vacancies.to_take(SLOTS, ("1",), Instant(110)) == ["1"]


def test_a_spare_of_a_large_run_looks_more_rarely() -> None:
    assert pause_after(timedelta(milliseconds=5)) == timedelta(seconds=0.5)
    assert pause_after(timedelta(milliseconds=100)) == timedelta(seconds=2)
