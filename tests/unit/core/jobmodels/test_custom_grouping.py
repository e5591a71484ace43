from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import BadGrouping, IncompatibleExpansion
from sluice.core.ids import Ssp, StreamId, TaskName
from sluice.core.jobmodels.grouping import Assignment, CheckedGrouper, Grouper, GrouperName, PreviousAssignment, assign, is_allowance
from tests.support import custom_groupers

FLIGHTS = StreamId("log", "flights")


def made(grouper: Any, partitions: int = 4, previous: PreviousAssignment | None = None, *, stateful: bool = True) -> Assignment:
    checked = CheckedGrouper("mine:Grouper", grouper)
    return assign(checked, previous or PreviousAssignment(), {FLIGHTS: partitions}, frozenset(), grouping="mine:Grouper", stateful=stateful)


def stored(assignment: Assignment) -> PreviousAssignment:
    return PreviousAssignment(assignment.owners, assignment.baselines, "mine:Grouper")


def owners(assignment: Assignment) -> list[str]:
    return [task for _, task in sorted(assignment.owners.items())]


def test_a_custom_grouper_names_the_tasks_and_what_they_read() -> None:
    assert owners(made(custom_groupers.ByParity)) == ["even", "odd", "even", "odd"]


def test_plain_strings_are_accepted_as_names_and_lists_as_groups() -> None:
    assignment = made(custom_groupers.InBlocks, 5)
    assert owners(assignment) == ["block 0", "block 1", "block 2", "block 3", "block 0"]
    assert assignment.tasks[TaskName("block 0")] == {Ssp("log", "flights", 0), Ssp("log", "flights", 4)}


@pytest.mark.parametrize(
    ("grouper", "expected"),
    [
        (custom_groupers.Drops, r"gives 1 of 4 partitions to no task: log\.flights\.0$"),
        (custom_groupers.Doubles, r"gives log\.flights\.0 twice, to task 'a' and to task 'b'"),
        (custom_groupers.DoublesInOneTask, r"gives log\.flights\.0 twice, to task 'a' and to task 'a'"),
        (custom_groupers.Invents, r"gives task 'a' log\.flights\.999, which it was not given"),
        (custom_groupers.NoMapping, "must return a mapping of task names to partitions, not a list"),
        (custom_groupers.NoPartitions, "gives task 'b' no partition"),
        (custom_groupers.Spelled, r"must give task 'a' a collection of Ssp, not \"\['log\.flights\.0'"),
        (custom_groupers.OnlyOne, "must give task 'a' a collection of Ssp, not '7'"),
        (custom_groupers.Unnamed, "names a task 'None': use a string of 1 to 200"),
        (custom_groupers.Raises, "failed: ZeroDivisionError: of no use"),
        (custom_groupers.Exits, "failed: SystemExit: 3"),
        (custom_groupers.CannotBeMade, "failed: OSError: no file"),
        (custom_groupers.ModifiesAssignment, "failed: TypeError: 'mappingproxy' object does not support item assignment"),
        (custom_groupers.ByChance, "returned two different results"),
        (custom_groupers.ByOrder, "returned two different results"),
        (custom_groupers.Remembers, "returned two different results"),
    ],
)
def test_an_unusable_answer_of_a_grouper_is_refused_with_the_reason(grouper: type, expected: str) -> None:
    with pytest.raises(BadGrouping, match=f"^mine:Grouper {expected}"):
        made(grouper)


def named(name: str) -> Assignment:
    class Names(custom_groupers.Answers):
        def answer(self, ssps: list[Ssp]) -> Any:
            return {name: ssps}

    return made(Names)


@pytest.mark.parametrize("name", ["Partition 0", "SystemStreamPartition [kafka, a.b, 0]", "a?b#c%d&e=f", "x" * 200, "~"])
def test_a_task_may_have_any_name_that_fits_in_a_url(name: str) -> None:
    assert set(named(name).tasks) == {name}


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", ".hidden", " a", "a ", "ä", "a\nb", "a\x00", "x" * 201, "\ud800"])
def test_a_name_that_cannot_be_a_part_of_a_url_is_refused(name: str) -> None:
    with pytest.raises(BadGrouping, match="names a task"):
        named(name)


def test_the_stored_assignment_takes_precedence_over_a_grouper_that_has_changed() -> None:
    before = stored(made(custom_groupers.ByParity))
    assert owners(made(custom_groupers.InBlocks, 4, before)) == ["even", "odd", "even", "odd"]


def test_a_grown_stream_folds_by_its_first_count_with_any_grouper() -> None:
    before = stored(made(custom_groupers.InBlocks, 3))
    assert owners(made(custom_groupers.InBlocks, 6, before)) == ["block 0", "block 1", "block 2"] * 2


def test_growth_to_a_count_that_is_not_a_multiple_is_refused_for_custom_groupers_too() -> None:
    before = stored(made(custom_groupers.ByParity, 4))
    with pytest.raises(IncompatibleExpansion, match="grow it to 8"):
        made(custom_groupers.ByParity, 6, before)


def test_a_grouper_sees_what_was_stored_for_a_stateful_job_only() -> None:
    before = stored(made(custom_groupers.Sticky, 2))
    assert owners(made(custom_groupers.Sticky, 4, before, stateful=False)) == ["early"] * 4
    sticky = cast("Callable[[], Grouper]", custom_groupers.Sticky)
    seen = CheckedGrouper("mine:Grouper", sticky).group(before, frozenset(Ssp("log", "flights", p) for p in range(4)))
    assert {name: len(group) for name, group in seen.items()} == {"early": 2, "late": 2}


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_partition_is_in_exactly_one_task_of_an_accepted_answer(partitions: int, tasks: int) -> None:
    assignment = made(lambda: custom_groupers.InBlocks(tasks), partitions)
    assert sorted(ssp for group in assignment.tasks.values() for ssp in group) == [Ssp("log", "flights", p) for p in range(partitions)]


@pytest.mark.parametrize("name", ["m:C", "a.b_c.d:Class_1", "_m:_C"])
def test_a_class_is_named_with_its_module(name: str) -> None:
    assert str(GrouperName.parse(name)) == name
    assert is_allowance(name)


@pytest.mark.parametrize(
    "name", ["m:", ":C", "m:a.C", "m:C:D", "m/n:C", "m..n:C", "1m:C", "m:C()", "m: C", "m:*", "../m:C", "m:Ç", "m:C\n"]
)
def test_text_that_is_not_module_and_class_names_no_grouper(name: str) -> None:
    with pytest.raises(BadGrouping, match="as module:Class"):
        GrouperName.parse(name)


@pytest.mark.parametrize(("text", "good"), [("m:*", True), ("a.b:*", True), ("*", False), ("*:*", False), ("m", False), ("m.*:C", False)])
def test_an_allowance_names_a_class_or_all_of_a_module(text: str, good: bool) -> None:
    assert is_allowance(text) is good
