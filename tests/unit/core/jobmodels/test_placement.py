from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.errors import BadPlacement
from sluice.core.ids import ProcessorId, TaskName
from sluice.core.jobmodels.placement import Placement, place, scaled, slots


def names(count: int) -> list[TaskName]:
    return [TaskName(f"Partition {p}") for p in range(count)]


def moves(before: Placement, after: Placement) -> int:
    return sum(1 for task, pid in after.items() if before.get(task) != pid)


def fewest_moves(tasks: list[TaskName], processors: list[ProcessorId], before: Placement) -> int:
    """The minimum over every balanced placement."""
    least, larger = divmod(len(tasks), len(processors))
    shape = sorted([least + 1] * larger + [least] * (len(processors) - larger))
    every = (dict(zip(tasks, chosen, strict=True)) for chosen in itertools.product(processors, repeat=len(tasks)))
    balanced = (each for each in every if sorted(Counter(dict.fromkeys(processors, 0) | Counter(each.values())).values()) == shape)
    return min(moves(before, each) for each in balanced)


def test_slots_are_numbered_from_zero() -> None:
    assert slots(3) == ["0", "1", "2"]


@pytest.mark.parametrize("count", [0, -1])
def test_a_run_without_containers_is_refused(count: int) -> None:
    with pytest.raises(BadPlacement, match=f"at least one container, not {count}"):
        slots(count)


@pytest.mark.parametrize(
    ("present", "count", "away", "expected"),
    [
        ("0 1 2", 2, "", "0 1"),
        ("0 1 2", 2, "1", "0 1"),
        ("0 1", 1, "0", "1"),
        ("0 1 2", 2, "0 1", "0 2"),
        ("1", 1, "", "1"),
        ("1", 2, "", "0 1"),
        ("1", 3, "", "0 1 2"),
        ("2 10", 1, "2", "10"),
        ("2 10", 4, "", "0 1 2 10"),
    ],
)
def test_a_run_that_is_scaled_keeps_its_lowest_slots_and_one_that_runs_tasks(present: str, count: int, away: str, expected: str) -> None:
    before = [ProcessorId(each) for each in present.split()]
    assert scaled(before, count, [ProcessorId(each) for each in away.split()]) == expected.split()


@given(st.sets(st.integers(0, 20), min_size=1), st.integers(1, 30), st.data())
def test_a_scaled_run_has_the_requested_slots_and_one_of_them_runs_tasks(numbers: set[int], count: int, data: st.DataObject) -> None:
    present = [ProcessorId(str(number)) for number in sorted(numbers)]
    away = data.draw(st.sets(st.sampled_from(present), max_size=len(present) - 1))
    found = scaled(present, count, away)
    assert len(set(found)) == count
    assert set(found) - away
    assert set(found) <= set(present) if count <= len(present) else set(found) >= set(present)


def test_tasks_go_round_robin_in_the_order_of_their_names_at_first() -> None:
    placed = place([TaskName(t) for t in ("b", "d", "a", "c", "e")], slots(2), {})
    assert placed == {"a": "0", "b": "1", "c": "0", "d": "1", "e": "0"}


def test_more_containers_than_tasks_are_refused_with_both_numbers() -> None:
    with pytest.raises(BadPlacement, match="3 containers for 2 tasks: request at most 2"):
        place(names(2), slots(3), {})


def test_an_unchanged_run_moves_nothing() -> None:
    before = place(names(7), slots(3), {})
    assert place(names(7), slots(3), before) == before


def test_one_more_container_takes_only_its_share() -> None:
    before = place(names(6), slots(2), {})
    assert moves(before, place(names(6), slots(3), before)) == 2


def test_tasks_of_a_removed_container_are_distributed_over_the_others() -> None:
    before = place(names(6), slots(3), {})
    after = place(names(6), slots(2), before)
    assert moves(before, after) == 2
    assert sorted(Counter(after.values()).values()) == [3, 3]


def test_a_former_placement_of_removed_tasks_only_has_no_effect() -> None:
    assert place(names(4), slots(2), {TaskName("old"): ProcessorId("1")}) == place(names(4), slots(2), {})


def test_a_container_with_all_tasks_gives_up_as_many_as_balance_requires() -> None:
    before = {task: ProcessorId("1") for task in names(5)}
    after = place(names(5), slots(2), before)
    assert Counter(after.values()) == {"1": 3, "0": 2}


def test_moved_tasks_prefer_their_former_slots_and_tasks_there_move_last() -> None:
    before = {task: ProcessorId("0") for task in names(4)}
    homes = {TaskName("Partition 0"): {ProcessorId("1")}, TaskName("Partition 2"): {ProcessorId("0")}}
    after = place(names(4), slots(2), before, homes)
    assert after == {"Partition 0": "1", "Partition 1": "0", "Partition 2": "0", "Partition 3": "1"}


def test_a_lost_containers_tasks_prefer_the_hosts_where_they_ran() -> None:
    before = place(names(6), slots(3), {})
    homes = {TaskName("Partition 1"): {ProcessorId("2")}, TaskName("Partition 4"): {ProcessorId("0"), ProcessorId("9")}}
    after = place(names(6), [ProcessorId("0"), ProcessorId("2")], before, homes)
    assert (after[TaskName("Partition 1")], after[TaskName("Partition 4")]) == ("2", "0")


@settings(max_examples=settings().max_examples * 3 // 5)
@given(st.data())
def test_no_balanced_placement_moves_fewer_tasks(data: st.DataObject) -> None:
    processors = slots(data.draw(st.integers(1, 3)))
    tasks = names(data.draw(st.integers(len(processors), 5)))
    known = data.draw(st.dictionaries(st.sampled_from(tasks), st.sampled_from([*processors, ProcessorId("9")])))
    homes = data.draw(st.dictionaries(st.sampled_from(tasks), st.sets(st.sampled_from([*processors, ProcessorId("9")]))))
    after = place(tasks, processors, known, homes)
    sizes = Counter(after.values())
    assert after.keys() == set(tasks)
    assert max(sizes[p] for p in processors) - min(sizes[p] for p in processors) <= 1
    if any(pid in processors for pid in known.values()):
        assert moves(known, after) == fewest_moves(tasks, processors, known)


@given(count=st.integers(1, 40), containers=st.integers(1, 12), later=st.integers(1, 12))
def test_placements_are_balanced_through_scaling(count: int, containers: int, later: int) -> None:
    before = place(names(count), slots(min(containers, count)), {})
    after = place(names(count), slots(min(later, count)), before)
    sizes = Counter(after.values())
    assert len(sizes) == min(later, count)
    assert max(sizes.values()) - min(sizes.values()) <= 1
