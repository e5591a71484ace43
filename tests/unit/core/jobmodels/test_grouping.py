from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sluice.core.errors import BadGrouping, IncompatibleExpansion
from sluice.core.ids import Ssp, StreamId, TaskName
from sluice.core.jobmodels.grouping import Assignment, PreviousAssignment, assign, check_co_partitioned, grouper_named

VIEWS = StreamId("kafka", "page-views")
CLICKS = StreamId("kafka", "ads.clicks")
RULES = StreamId("kafka", "rules")


def made(
    counts: Mapping[StreamId, int],
    grouper: str = "GroupByPartition",
    max_tasks: int | None = None,
    broadcast: frozenset[StreamId] = frozenset(),
) -> Assignment:
    return assign(grouper_named(grouper, max_tasks), PreviousAssignment(), counts, broadcast, grouping=grouper, stateful=True)


def spelled(assignment: Assignment) -> dict[str, list[str]]:
    return {name: sorted(map(str, ssps)) for name, ssps in assignment.tasks.items()}


def test_group_by_partition_gives_equal_numbers_to_one_task() -> None:
    assert spelled(made({VIEWS: 2, CLICKS: 1})) == {
        "Partition 0": ["kafka.ads.clicks.0", "kafka.page-views.0"],
        "Partition 1": ["kafka.page-views.1"],
    }


def test_group_by_partition_folds_into_at_most_max_tasks() -> None:
    assert spelled(made({VIEWS: 5}, max_tasks=2)) == {
        "Partition 0": ["kafka.page-views.0", "kafka.page-views.2", "kafka.page-views.4"],
        "Partition 1": ["kafka.page-views.1", "kafka.page-views.3"],
    }


def test_more_max_tasks_than_partitions_makes_no_empty_task() -> None:
    assert list(spelled(made({VIEWS: 2}, max_tasks=50))) == ["Partition 0", "Partition 1"]


def test_group_by_ssp_gives_every_partition_a_task_named_as_samza_names_it() -> None:
    assert spelled(made({VIEWS: 1, CLICKS: 2}, "GroupBySystemStreamPartition")) == {
        "SystemStreamPartition [kafka, ads.clicks, 0]": ["kafka.ads.clicks.0"],
        "SystemStreamPartition [kafka, ads.clicks, 1]": ["kafka.ads.clicks.1"],
        "SystemStreamPartition [kafka, page-views, 0]": ["kafka.page-views.0"],
    }


def test_all_ssp_to_single_task_makes_one_task_of_everything() -> None:
    assert spelled(made({VIEWS: 2, CLICKS: 1}, "AllSspToSingleTask")) == {
        "Task-0": ["kafka.ads.clicks.0", "kafka.page-views.0", "kafka.page-views.1"]
    }


@pytest.mark.parametrize("grouper", ["GroupByPartition", "GroupBySystemStreamPartition", "AllSspToSingleTask"])
def test_every_task_reads_all_of_a_broadcast_stream_and_none_is_created_for_it(grouper: str) -> None:
    alone = made({VIEWS: 2}, grouper)
    both = made({VIEWS: 2, RULES: 3}, grouper, broadcast=frozenset({RULES}))
    assert both.tasks.keys() == alone.tasks.keys()
    rules = {Ssp("kafka", "rules", p) for p in range(3)}
    assert all(rules < group for group in both.tasks.values())
    assert both.owners == alone.owners
    assert RULES not in both.baselines


def with_singles(
    counts: Mapping[StreamId, int],
    singles: Mapping[StreamId, Sequence[int]],
    previous: PreviousAssignment | None = None,
    *,
    stateful: bool = True,
) -> Assignment:
    grouper = grouper_named("GroupByPartition", None)
    kept = previous or PreviousAssignment()
    return assign(grouper, kept, counts, frozenset(), grouping="g", stateful=stateful, broadcast_partitions=singles)


def test_every_task_reads_the_broadcast_partitions_and_one_task_each_other() -> None:
    assert spelled(with_singles({VIEWS: 2, RULES: 3}, {RULES: (0, 2)})) == {
        "Partition 0": ["kafka.page-views.0", "kafka.rules.0", "kafka.rules.2"],
        "Partition 1": ["kafka.page-views.1", "kafka.rules.0", "kafka.rules.1", "kafka.rules.2"],
    }


def test_a_stream_of_which_every_partition_is_broadcast_makes_no_task() -> None:
    made_ = with_singles({VIEWS: 1, RULES: 3}, {RULES: (0, 1, 2)})
    assert (list(made_.tasks), RULES in made_.baselines) == (["Partition 0"], False)


def test_a_partition_to_broadcast_must_exist() -> None:
    with pytest.raises(BadGrouping, match="rules has 3 partitions, so its partition 3 cannot be broadcast"):
        with_singles({VIEWS: 2, RULES: 3}, {RULES: (0, 3)})


def test_a_stream_with_broadcast_partitions_grows_in_a_stateless_job_only() -> None:
    first = with_singles({VIEWS: 2, RULES: 2}, {RULES: (0,)})
    kept = PreviousAssignment(first.owners, first.baselines, "g")
    assert with_singles({VIEWS: 2, RULES: 2}, {RULES: (0,)}, kept) == first
    assert len(with_singles({VIEWS: 4, RULES: 2}, {RULES: (0,)}, kept).tasks) == 2
    with pytest.raises(IncompatibleExpansion, match="single partitions of it are broadcast"):
        with_singles({VIEWS: 2, RULES: 4}, {RULES: (0,)}, kept)
    assert len(with_singles({VIEWS: 2, RULES: 4}, {RULES: (0,)}, kept, stateful=False).tasks) == 4


def test_a_stage_may_join_a_stream_with_broadcast_partitions() -> None:
    both = with_singles({VIEWS: 2, RULES: 2}, {RULES: (0,)})
    check_co_partitioned("join", [VIEWS, RULES], both.baselines, both.owners)


def test_a_job_with_only_broadcast_inputs_is_refused() -> None:
    with pytest.raises(BadGrouping, match="all inputs of the run are broadcast"):
        made({RULES: 2}, broadcast=frozenset({RULES}))


@pytest.mark.parametrize(
    ("name", "max_tasks", "expected"),
    [
        ("ByMoon", None, "unknown grouper 'ByMoon': choose one of GroupByPartition"),
        ("GroupByPartition", 0, "at least 1"),
        ("GroupByPartition", -3, "at least 1"),
        ("AllSspToSingleTask", 2, "no partitions to fold"),
        ("GroupBySystemStreamPartition", 2, "no partitions to fold"),
    ],
)
def test_a_grouper_that_does_not_exist_or_cannot_fold_is_refused(name: str, max_tasks: int | None, expected: str) -> None:
    with pytest.raises(BadGrouping, match=expected):
        grouper_named(name, max_tasks)


def test_equal_inputs_give_equal_tasks_in_any_order() -> None:
    assert made({VIEWS: 3, CLICKS: 2}) == made({CLICKS: 2, VIEWS: 3})


def test_tasks_are_sorted_by_name_so_that_models_serialise_alike() -> None:
    names = list(made({VIEWS: 12}).tasks)
    assert names == sorted(names)
    assert names[:3] == [TaskName("Partition 0"), TaskName("Partition 1"), TaskName("Partition 10")]
