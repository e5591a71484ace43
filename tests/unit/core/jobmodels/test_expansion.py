from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import BadGrouping, IncompatibleExpansion, NotCoPartitioned
from sluice.core.ids import Ssp, StreamId, TaskName
from sluice.core.jobmodels.grouping import Assignment, PreviousAssignment, assign, check_co_partitioned, grouper_named

VIEWS = StreamId("kafka", "page-views")
CLICKS = StreamId("kafka", "ads.clicks")


def stored(assignment: Assignment, grouping: str) -> PreviousAssignment:
    return PreviousAssignment(tasks=assignment.owners, baselines=assignment.baselines, grouping=grouping)


def grown(
    chain: list[int], grouper: str = "GroupByPartition", max_tasks: int | None = None, *, stateful: bool = True, stream: StreamId = VIEWS
) -> list[Assignment]:
    """The assignments of a job whose stream has these partition counts one after the other."""
    previous, found = PreviousAssignment(), []
    for count in chain:
        found.append(assign(grouper_named(grouper, max_tasks), previous, {stream: count}, frozenset(), grouping=grouper, stateful=stateful))
        previous = stored(found[-1], grouper)
    return found


def owners(assignment: Assignment) -> list[str]:
    return [task for _, task in sorted(assignment.owners.items())]


def test_new_partitions_of_a_grown_stream_go_to_the_owners_of_the_old() -> None:
    assert owners(grown([2, 4])[-1]) == ["Partition 0", "Partition 1"] * 2


def test_a_chain_of_expansions_still_folds_by_the_first_count() -> None:
    last = grown([2, 4, 8])[-1]
    assert owners(last) == ["Partition 0", "Partition 1"] * 4
    assert last.baselines == {VIEWS: 2}


def test_growth_by_three_times_after_growth_by_two_is_a_multiple_too() -> None:
    assert owners(grown([2, 4, 6])[-1]) == ["Partition 0", "Partition 1"] * 3


def test_growth_of_ssp_grouped_tasks_makes_no_new_task() -> None:
    assert set(owners(grown([1, 3], "GroupBySystemStreamPartition")[-1])) == {"SystemStreamPartition [kafka, page-views, 0]"}


@pytest.mark.parametrize(
    ("chain", "expected"),
    [([2, 3], "began with 2.*had 2.*now has 3.*grow it to 4"), ([2, 4, 7], "began with 2.*had 4.*now has 7.*grow it to 8")],
)
def test_the_refusal_of_a_count_that_is_not_a_multiple_names_the_stream_and_both_counts(chain: list[int], expected: str) -> None:
    with pytest.raises(IncompatibleExpansion, match=rf"kafka\.page-views {expected}"):
        grown(chain)


def test_a_contraction_is_refused_even_down_to_the_first_count() -> None:
    with pytest.raises(IncompatibleExpansion, match=r"kafka\.page-views had 4 partitions and now has 2"):
        grown([2, 4, 2])


@pytest.mark.parametrize("chain", [[2, 3], [4, 2], [2, 4, 3]])
def test_a_stateless_job_is_simply_regrouped(chain: list[int]) -> None:
    last = grown(chain, stateful=False)[-1]
    assert owners(last) == [f"Partition {p}" for p in range(chain[-1])]
    assert last.baselines == {VIEWS: chain[-1]}


def test_a_stream_that_a_model_leaves_out_keeps_its_baseline() -> None:
    grouper = grouper_named("GroupByPartition", None)
    first = assign(grouper, PreviousAssignment(), {VIEWS: 2, CLICKS: 2}, frozenset(), grouping="g", stateful=True)
    before = PreviousAssignment().updated(first, "g")
    second = assign(grouper, before, {VIEWS: 2}, frozenset(), grouping="g", stateful=True)
    assert {ssp.stream_id for ssp in second.owners} == {VIEWS}
    assert second.baselines.keys() == {VIEWS}
    after = before.updated(second, "h")
    assert (after.tasks, after.baselines, after.grouping) == (first.owners, first.baselines, "h")
    assert after.owners(CLICKS) == {"Partition 0", "Partition 1"}
    assert after.without([CLICKS]) == PreviousAssignment(second.owners, second.baselines, "h")


def test_a_stream_that_is_added_to_a_job_gets_its_own_baseline() -> None:
    first = grown([2, 4])[-1]
    counts = {VIEWS: 4, CLICKS: 4}
    joined = assign(grouper_named("GroupByPartition", None), stored(first, "g"), counts, frozenset(), grouping="g", stateful=True)
    assert joined.baselines == {VIEWS: 2, CLICKS: 4}
    assert joined.owners[Ssp("kafka", "ads.clicks", 3)] == "Partition 3"
    assert joined.owners[Ssp("kafka", "page-views", 3)] == "Partition 1"


def test_a_stateful_job_may_not_change_its_grouper() -> None:
    before = stored(grown([2])[-1], "GroupByPartition")
    with pytest.raises(BadGrouping, match="grouped by GroupByPartition; AllSspToSingleTask would separate keys"):
        assign(grouper_named("AllSspToSingleTask", None), before, {VIEWS: 2}, frozenset(), grouping="AllSspToSingleTask", stateful=True)


def test_a_stateless_job_may_change_its_grouper() -> None:
    before = stored(grown([2])[-1], "GroupByPartition")
    changed = assign(grouper_named("AllSspToSingleTask", None), before, {VIEWS: 2}, frozenset(), grouping="all", stateful=False)
    assert list(changed.tasks) == ["Task-0"]


@given(
    first=st.integers(1, 6),
    factors=st.lists(st.integers(1, 4), max_size=3),
    keys=st.lists(st.binary(max_size=12), min_size=1, max_size=20),
    max_tasks=st.none() | st.integers(1, 7),
)
def test_the_task_that_has_a_keys_state_gets_its_records_after_any_expansion(
    first: int, factors: list[int], keys: list[bytes], max_tasks: int | None
) -> None:
    counts = [first]
    for factor in factors:
        counts.append(counts[-1] * factor)
    homes: dict[bytes, TaskName] = {}
    for count, assignment in zip(counts, grown(counts, max_tasks=max_tasks), strict=True):
        for key in keys:
            task = assignment.owners[Ssp("kafka", "page-views", zlib.crc32(key) % count)]
            assert homes.setdefault(key, task) == task


@given(
    first=st.fixed_dictionaries({VIEWS: st.integers(1, 4), CLICKS: st.integers(1, 4)}),
    steps=st.lists(st.tuples(st.sampled_from([[VIEWS], [CLICKS], [VIEWS, CLICKS]]), st.sampled_from([1, 2, 3])), max_size=6),
    keys=st.lists(st.binary(max_size=8), min_size=1, max_size=8),
)
def test_a_key_keeps_its_task_while_streams_grow_are_removed_and_return(
    first: dict[StreamId, int], steps: list[tuple[list[StreamId], int]], keys: list[bytes]
) -> None:
    counts, previous = dict(first), PreviousAssignment()
    homes: dict[tuple[StreamId, bytes], TaskName] = {}
    for read, factor in [([VIEWS, CLICKS], 1), *steps]:
        for stream in (VIEWS, CLICKS):  # streams that are not read at present may grow too
            counts[stream] *= factor
        made = assign(
            grouper_named("GroupByPartition", None), previous, {s: counts[s] for s in read}, frozenset(), grouping="g", stateful=True
        )
        previous = previous.updated(made, "g")
        for stream in read:
            for key in keys:
                task = made.owners[Ssp(stream.system, stream.stream, zlib.crc32(key) % counts[stream])]
                assert homes.setdefault((stream, key), task) == task


def co_partitioned(counts: dict[StreamId, int], grouper: str = "GroupByPartition", reads: list[StreamId] | None = None) -> None:
    made = assign(grouper_named(grouper, None), PreviousAssignment(), counts, frozenset(), grouping=grouper, stateful=True)
    check_co_partitioned("join", reads or list(counts), made.baselines, made.owners)


def test_a_join_of_equally_partitioned_streams_is_accepted() -> None:
    co_partitioned({VIEWS: 4, CLICKS: 4})
    co_partitioned({VIEWS: 4, CLICKS: 4}, "AllSspToSingleTask")


def test_a_join_of_unequal_streams_is_refused_with_both_counts() -> None:
    with pytest.raises(NotCoPartitioned, match=r"kafka\.page-views has 4, kafka\.ads\.clicks has 2.*route by the join key first"):
        co_partitioned({VIEWS: 4, CLICKS: 2})


def test_a_join_whose_partitions_meet_in_no_task_is_refused() -> None:
    with pytest.raises(NotCoPartitioned, match="partition 0 goes to different tasks"):
        co_partitioned({VIEWS: 2, CLICKS: 2}, "GroupBySystemStreamPartition")


def test_streams_that_no_stage_reads_together_may_differ() -> None:
    co_partitioned({VIEWS: 4, CLICKS: 2}, reads=[VIEWS])


def test_a_stream_that_grew_may_be_joined_with_one_that_has_its_first_count() -> None:
    first = assign(
        grouper_named("GroupByPartition", None), PreviousAssignment(), {VIEWS: 2, CLICKS: 2}, frozenset(), grouping="g", stateful=True
    )
    counts = {VIEWS: 8, CLICKS: 2}
    second = assign(grouper_named("GroupByPartition", None), stored(first, "g"), counts, frozenset(), grouping="g", stateful=True)
    check_co_partitioned("join", [VIEWS, CLICKS], second.baselines, second.owners)


# --- streams that only stages without state read ---------------------------------------------------------------------


def test_a_stream_that_keeps_no_state_may_grow_to_any_number_and_its_tasks_stay() -> None:
    grouper, both = grouper_named("GroupByPartition", None), frozenset({VIEWS})
    first = assign(grouper, PreviousAssignment(), {VIEWS: 6, CLICKS: 6}, frozenset(), grouping="g", stateful=True, stateless=both)
    second = assign(grouper, stored(first, "g"), {VIEWS: 8, CLICKS: 6}, frozenset(), grouping="g", stateful=True, stateless=both)
    assert second.tasks.keys() == first.tasks.keys()
    assert all(second.tasks[task] >= ssps for task, ssps in first.tasks.items())
    assert second.owners[Ssp("kafka", "page-views", 6)] == "Partition 0"
    with pytest.raises(IncompatibleExpansion, match="declare them with stateful=False"):
        assign(grouper, stored(first, "g"), {VIEWS: 8, CLICKS: 8}, frozenset(), grouping="g", stateful=True, stateless=both)


def test_a_stream_that_keeps_no_state_may_not_shrink_either() -> None:
    grouper, only = grouper_named("GroupByPartition", None), frozenset({VIEWS})
    first = assign(grouper, PreviousAssignment(), {VIEWS: 6}, frozenset(), grouping="g", stateful=True, stateless=only)
    with pytest.raises(IncompatibleExpansion, match="cannot give partitions up"):
        assign(grouper, stored(first, "g"), {VIEWS: 4}, frozenset(), grouping="g", stateful=True, stateless=only)
