"""When the tasks of a slot are reassigned, and when a slot that fails repeatedly is held back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice.core.errors import BadConfig
from sluice.core.ids import ProcessorId
from sluice.core.leases.failover import BackoffUntil, CrashLoopPolicy, FailOver, Incarnation, Slot, backoff_until, slots_to_reassign

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULE = FailOver(after=timedelta(minutes=5), give_back=True)
NO_SLOT: frozenset[ProcessorId] = frozenset()
ONE = frozenset({ProcessorId("1")})


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def slots(**since: float) -> dict[ProcessorId, Slot]:
    """s0=9: with a live container since nine seconds before noon; s1=-9: without a container since then."""
    return {ProcessorId(name[1:]): Slot(live=each >= 0, since=NOON - seconds(abs(each))) for name, each in since.items()}


def test_tasks_are_reassigned_when_their_slot_was_without_a_container_for_the_time_limit_and_not_earlier() -> None:
    assert slots_to_reassign(slots(s0=900, s1=-299), NO_SLOT, RULE, NOON) == NO_SLOT
    assert slots_to_reassign(slots(s0=900, s1=-300), NO_SLOT, RULE, NOON) == ONE
    assert slots_to_reassign(slots(s0=900, s1=-301), ONE, RULE, NOON) == ONE


def test_no_task_moves_if_no_slot_can_take_it() -> None:
    assert slots_to_reassign(slots(s0=-400, s1=-400), NO_SLOT, RULE, NOON) == NO_SLOT
    assert slots_to_reassign(slots(s0=-10, s1=-400), NO_SLOT, RULE, NOON) == NO_SLOT
    assert slots_to_reassign(slots(s0=-400, s1=-400), ONE, RULE, NOON) == ONE


def test_a_slot_that_returned_gets_tasks_again_after_a_while_unless_the_rule_forbids_it() -> None:
    assert slots_to_reassign(slots(s0=900, s1=29), ONE, RULE, NOON) == ONE
    assert slots_to_reassign(slots(s0=900, s1=30), ONE, RULE, NOON) == NO_SLOT
    assert slots_to_reassign(slots(s0=900, s1=30), ONE, FailOver(RULE.after, give_back=False), NOON) == ONE


def test_a_returned_slot_can_take_over_from_one_that_was_lost_meanwhile() -> None:
    assert slots_to_reassign(slots(s0=-400, s1=60), ONE, RULE, NOON) == frozenset({ProcessorId("0")})


def test_a_slot_that_the_run_no_longer_has_is_ignored() -> None:
    assert slots_to_reassign(slots(s0=900), ONE, RULE, NOON) == NO_SLOT


def test_without_a_time_limit_no_task_is_reassigned() -> None:
    assert slots_to_reassign(slots(s0=900, s1=-(10**6)), NO_SLOT, FailOver(None, give_back=True), NOON) == NO_SLOT


def test_a_jobs_configuration_takes_precedence() -> None:
    assert RULE.of_config({}) == RULE
    assert RULE.of_config({"failover.after.seconds": "1.5", "failover.give.back": "false"}) == FailOver(seconds(1.5), give_back=False)
    assert RULE.of_config({"failover.after.seconds": "0"}) == FailOver(None, give_back=True)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "soon", "1e10"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match=r"failover\.after\.seconds"):
        RULE.of_config({"failover.after.seconds": text})


def test_a_value_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(BadConfig, match="use true or false"):
        RULE.of_config({"failover.give.back": "yes"})


# --- crash-loop back-off ----------------------------------------------------------------------------------------------------


def lives(*each: tuple[float, bool]) -> list[Incarnation]:
    """Consecutive incarnations that lasted that many seconds; True for those that failed."""
    found, at = [], NOON
    for lasted, failed in each:
        found.append(Incarnation(at, at + seconds(lasted), failed))
        at += seconds(lasted)
    return found


def test_the_first_failures_have_no_delay_and_each_further_one_doubles_it() -> None:
    rule = CrashLoopPolicy()
    for failures, delay in ((0, None), (3, None), (4, 5), (5, 10), (6, 20), (9, 160), (10, 300), (60, 300), (1000, 300)):
        found = backoff_until(lives(*[(1, True)] * failures), rule, NOON + seconds(failures))
        assert found == (None if delay is None else BackoffUntil(failures, NOON + seconds(failures + delay)))


def test_a_failure_after_a_long_run_or_an_orderly_end_is_counted_from_one() -> None:
    rule = CrashLoopPolicy(allowed_failures=1)
    assert backoff_until(lives((1, True), (1, True)), rule, NOON) == BackoffUntil(2, NOON + seconds(7))
    assert backoff_until(lives((1, True), (1, True), (61, True)), rule, NOON) is None
    assert backoff_until(lives((1, True), (1, True), (1, False), (1, True)), rule, NOON) is None
    assert backoff_until(lives((1, True), (1, True), (60, True)), rule, NOON) == BackoffUntil(3, NOON + seconds(72))


def test_the_delay_ends_by_itself_and_one_from_a_clock_that_was_ahead_is_ignored() -> None:
    rule, failed = CrashLoopPolicy(allowed_failures=0), lives((1, True))
    for later, held in ((1, True), (5.9, True), (6, False), (-200, True), (-299, True), (-300, False), (-3 * 86400, False)):
        assert (backoff_until(failed, rule, NOON + seconds(later)) is not None) == held, later


def test_a_policy_without_delay_holds_no_slot_back() -> None:
    assert backoff_until(lives(*[(1, True)] * 9), CrashLoopPolicy(first=timedelta(0)), NOON) is None
